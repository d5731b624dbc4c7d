//go:build !linux

package admission

// ReadMemory returns zero, so that memory does not bound the starts: the
// containers run on another system than this one.
func ReadMemory() (Memory, error) { return Memory{}, nil }
