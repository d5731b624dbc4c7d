//go:build !amd64

package main

// processorCalls returns nothing: this processor has only one way into the kernel.
func processorCalls() map[string]func() error { return nil }
