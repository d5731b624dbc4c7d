// Package service starts a sandbox's long-lived program and waits until it is
// healthy. It needs only a function that starts commands, so that all backends
// and fakes share it.
package service
