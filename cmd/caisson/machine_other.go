//go:build !linux

package main

// machineMemory returns 0, which is unknown: sandboxes have the memory of the engine's
// machine.
func machineMemory() int64 { return 0 }
