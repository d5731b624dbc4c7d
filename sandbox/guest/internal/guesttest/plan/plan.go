// Package plan has the message of a test to the stage.
package plan

// Gate is the descriptor on which the stage waits for one byte.
const Gate = 3

// Plan describes the container to make.
type Plan struct {
	Root      string // an empty directory
	Guest     string // the guest's binary
	Workspace string // bound at /workspace
	Binds     []Bind // more of them
}

// Bind is one bind mount.
type Bind struct {
	Source   string // absolute on the host
	Path     string // in the container, without the leading slash
	File     bool   // not a directory
	ReadOnly bool
}
