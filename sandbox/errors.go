package sandbox

import (
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/images"
)

// Classes of sandbox errors, for errors.Is.
var (
	// ErrInvalid is for a Spec or Command that no backend could run.
	ErrInvalid = errors.New("invalid argument")
	// ErrState is for a call that the sandbox's state does not allow; see
	// [StateError].
	ErrState = errors.New("wrong state")
	// ErrNotFound is for an image, runtime or directory that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrUnsupported is for a request that this backend, kernel or user does
	// not support.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable is for an engine, runtime or guest that can't be reached
	// or started.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrNoNamespaces means that this process may not create a sandbox's user
	// namespaces or, as root, its mounts. By default, a container forbids both.
	ErrNoNamespaces = errors.New("this process may not make the namespaces and mounts of a sandbox")
	// ErrLost means that the container disappeared or its guest broke the
	// protocol while it was in use. It is never a command's result, and the
	// command is not run again.
	ErrLost = errors.New("sandbox lost")
)

// MountError is the error for a mount or mount point that the image or the
// host's files do not allow. It wraps ErrInvalid.
type MountError struct{ Err error }

func (e *MountError) Error() string { return e.Err.Error() }

func (e *MountError) Unwrap() []error { return []error{e.Err, ErrInvalid} }

// IncapableError is the error for a Spec that this backend can't run but
// another may. It wraps ErrUnsupported.
type IncapableError struct {
	Request string // the part of the Spec, such as "user root"
	Reason  string
	Hint    string
}

func (e *IncapableError) Error() string {
	return fmt.Sprintf("%s: %v: %s: %s", e.Request, ErrUnsupported, e.Reason, e.Hint)
}

func (e *IncapableError) Unwrap() error { return ErrUnsupported }

// ImageError wraps an error of package images in its class of this package, for
// Create's errors. It returns other errors, such as a cancellation, unchanged.
func ImageError(err error) error {
	for _, class := range []struct{ from, to error }{
		{images.ErrRefused, ErrInvalid},
		{images.ErrDigest, ErrInvalid},
		{images.ErrInvalid, ErrInvalid},
		{images.ErrUnsupported, ErrUnsupported},
		{images.ErrNotFound, ErrNotFound},
		{images.ErrUnauthorized, ErrUnavailable},
		{images.ErrUnreachable, ErrUnavailable},
	} {
		if errors.Is(err, class.from) && !errors.Is(err, class.to) {
			return fmt.Errorf("%w: %w", class.to, err)
		}
	}
	return err
}
