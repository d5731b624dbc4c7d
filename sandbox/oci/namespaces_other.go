//go:build !linux

package oci

// TryUserNamespace returns nil: there are none here.
func TryUserNamespace() error { return nil }
