package images

import "errors"

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
	// ErrRefused: a layer that could do harm; see package layer's Error.
	ErrRefused = errors.New("layer refused")
	// ErrInUse: an image that a live session uses.
	ErrInUse = errors.New("image in use")
)
