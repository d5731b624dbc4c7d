package images

import (
	"errors"
	"strings"
)

// The classes of errors of this package and its parts; test with errors.Is.
var (
	// ErrInvalid is a malformed reference, or content that is not an image or
	// that commands can't run on.
	ErrInvalid = errors.New("invalid image")
	// ErrUnsupported is a source that this version or system can't use, such as
	// another architecture or a build without a builder.
	ErrUnsupported = errors.New("unsupported image source")
	// ErrNotFound is a missing image, directory or file.
	ErrNotFound = errors.New("image not found")
	// ErrUnauthorized is a registry that requires credentials, or other ones.
	ErrUnauthorized = errors.New("registry refused access")
	// ErrUnreachable is a registry that can't be reached or doesn't answer.
	ErrUnreachable = errors.New("registry unreachable")
	// ErrDigest is content that doesn't match its digest.
	ErrDigest = errors.New("digest mismatch")
	// ErrRefused is a layer that could do harm; see package layer's Error.
	ErrRefused = errors.New("layer refused")
	// ErrInUse is an image that a live session uses.
	ErrInUse = errors.New("image in use")
)

// BuildError is the error of a build that failed. It wraps the reason, of which
// [ErrInvalid] is a failed step.
type BuildError struct {
	Err error
	// Output has the last lines of the builder's output.
	Output []string
	// Network reports whether commands of the build had a network.
	Network bool
	// Refused are the hosts that the build's commands were refused, each with the
	// reason.
	Refused []string
}

// Error has the reason, the refused hosts and the last lines of output.
func (e *BuildError) Error() string {
	text := e.Err.Error()
	if len(e.Refused) > 0 {
		text += "; the network refused " + strings.Join(e.Refused, ", ")
	}
	if len(e.Output) > 0 {
		text += "; the last lines of its output: " + strings.Join(e.Output, " | ")
	}
	return text
}

// Unwrap returns the reason.
func (e *BuildError) Unwrap() error { return e.Err }
