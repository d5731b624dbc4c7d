//go:build !amd64

package main

// setIDHere returns nothing: this processor has no calls that others lack.
func setIDHere() map[string]func(path string) error { return nil }
