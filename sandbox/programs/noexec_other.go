//go:build !linux

package programs

// CheckExec returns nil: containers run in a virtual machine here, which has
// mounts of its own.
func CheckExec(string) error { return nil }
