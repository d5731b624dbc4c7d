package images

import (
	"errors"
	"strings"
)

// Classes of errors of this package and its subpackages, for errors.Is.
var (
	// ErrInvalid is a malformed reference, or content that is not an image that
	// commands can run on.
	ErrInvalid = errors.New("invalid image")
	// ErrUnsupported is a source that this version or system can't use, such as
	// another architecture, or a build without a builder.
	ErrUnsupported = errors.New("unsupported image source")
	// ErrNotFound is a missing image, directory or file.
	ErrNotFound = errors.New("image not found")
	// ErrUnauthorized is a registry that requires credentials or rejects them.
	ErrUnauthorized = errors.New("registry refused access")
	// ErrUnreachable is a registry that can't be reached or doesn't answer.
	ErrUnreachable = errors.New("registry unreachable")
	ErrDigest      = errors.New("digest mismatch")
	// ErrRefused is a layer that could do harm; see layer.Error.
	ErrRefused = errors.New("layer refused")
	// ErrInUse is an image used by a live session.
	ErrInUse = errors.New("image in use")
)

// BuildError is the error of a failed build. It wraps the reason; [ErrInvalid]
// means that a step failed.
type BuildError struct {
	Err error
	// Output has the last lines of the builder's output.
	Output []string
	// Network reports whether the build's commands had a network.
	Network bool
	// Refused are the hosts that the network refused, each with the reason.
	Refused []string
}

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

func (e *BuildError) Unwrap() error { return e.Err }
