package layer

import "fmt"

// Error is the reason why a layer was refused. It wraps [images.ErrRefused] or
// the error that interrupted the reading of the layer.
type Error struct {
	Layer  string // digest of the layer as stored
	Entry  string // name in the archive; may be empty
	Reason string // such as "a hard link to something other than a regular file"
	Err    error  // never nil
}

// Error returns the message, with the entry quoted and shortened.
func (e *Error) Error() string {
	text := "layer " + e.Layer + ": "
	if e.Entry != "" {
		name := e.Entry
		if len(name) > 200 {
			name = name[:200] + "…"
		}
		text += fmt.Sprintf("entry %q: ", name)
	}
	return text + e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
