// Package plan is what a test tells the stage.
package plan

// Gate is the descriptor on which the stage waits for one byte.
const Gate = 3

// Plan says what container to make.
type Plan struct {
	Root      string // an empty folder
	Guest     string // the guest's binary
	Workspace string // bound at /workspace
	Binds     []Bind // more of them
}

// Bind is one bind mount.
type Bind struct {
	Source   string // absolute on the host
	Path     string // in the container, without the leading slash
	File     bool   // not a folder
	ReadOnly bool
}
