//go:build !linux

package oci

// TryUserNamespace returns the reason for which this process can't make a user
// namespace, or nil. It starts a missing program in a namespace of its own: the
// namespace is made before the program is searched.
func TryUserNamespace() error { return nil }

// TryMount returns nil: mounts are changed on Linux alone.
func TryMount() error { return nil }
