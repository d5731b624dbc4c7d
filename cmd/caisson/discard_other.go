//go:build !linux

package main

// discardInput does nothing here: a line that was typed before a question was
// asked is dropped only where it was read already.
func discardInput(int) {}
