package sandbox

import "errors"

// The classes of a sandbox error; test with errors.Is.
var (
	// ErrInvalid: a Spec or Command that no backend could run.
	ErrInvalid = errors.New("invalid argument")
	// ErrState: the call does not fit the sandbox's state; see [StateError].
	ErrState = errors.New("wrong state")
	// ErrNotFound: an image, runtime or folder that was named is not there.
	ErrNotFound = errors.New("not found")
	// ErrUnsupported: this backend, kernel or user can't do what was asked.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: the engine, runtime or guest can't be reached or started.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrNoNamespaces: this process may not make the user namespaces or, as
	// root, the mounts of a sandbox: a container forbids both by default.
	ErrNoNamespaces = errors.New("this process may not make the namespaces and mounts of a sandbox")
	// ErrLost: the container went away, or its guest broke the protocol,
	// while it was in use. Never a command's result; the command is not run again.
	ErrLost = errors.New("sandbox lost")
)
