//go:build !amd64

package main

// setIDHere are attempts by calls that only this processor has: none.
func setIDHere() map[string]func(path string) error { return nil }
