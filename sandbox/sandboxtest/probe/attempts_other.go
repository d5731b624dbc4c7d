//go:build !amd64

package main

// processorCalls are none: this processor has one way into the kernel.
func processorCalls() map[string]func() error { return nil }
