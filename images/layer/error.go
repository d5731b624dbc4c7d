package layer

import "fmt"

// Error says why a layer was refused. It wraps [images.ErrRefused], or what was
// met while the layer was read.
type Error struct {
	Layer  string // digest of the layer as it is stored
	Entry  string // name in the archive, quoted where it is shown; may be empty
	Reason string // such as "a hard link to what is no regular file"
	Err    error  // never nil
}

// Error shows the entry quoted and shortened.
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

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }
