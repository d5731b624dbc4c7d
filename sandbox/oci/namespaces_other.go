//go:build !linux

package oci

// TryUserNamespace returns nil: there are none here.
func TryUserNamespace() error { return nil }

// TryMount returns nil: the question arises on Linux alone.
func TryMount() error { return nil }
