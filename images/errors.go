package images

import (
	"errors"
	"fmt"
)

// The classes of an error of this package; test with errors.Is.
var (
	// ErrInvalid: a reference that is not written as one, or something that is
	// no image, or one that commands can't run on.
	ErrInvalid = errors.New("invalid image")
	// ErrUnsupported: a source that this version, or this system, can't use:
	// another architecture, a build without a builder.
	ErrUnsupported = errors.New("unsupported image source")
	// ErrNotFound: an image, folder or file that is not there.
	ErrNotFound = errors.New("image not found")
	// ErrUnauthorized: a registry that wants other credentials, or any.
	ErrUnauthorized = errors.New("registry refused access")
	// ErrUnreachable: a registry that can't be reached, or doesn't answer.
	ErrUnreachable = errors.New("registry unreachable")
	// ErrDigest: content that is not what its digest says.
	ErrDigest = errors.New("digest mismatch")
	// ErrRefused: a layer that could do harm; a [*LayerError] says where.
	ErrRefused = errors.New("layer refused")
	// ErrInUse: an image that a live session uses.
	ErrInUse = errors.New("image in use")
)

// LayerError says why a layer was refused. It wraps [ErrRefused], or what was
// met while the layer was read.
type LayerError struct {
	Layer  string // digest of the layer as it is stored
	Entry  string // name in the archive, quoted where it is shown; may be empty
	Reason string // such as "a hard link to what is no regular file"
	Err    error  // never nil
}

// Error shows the entry quoted and shortened.
func (e *LayerError) Error() string {
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
func (e *LayerError) Unwrap() error { return e.Err }
