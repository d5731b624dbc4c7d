// Package e2e holds the tests that look at Caisson from outside: the layers of
// its packages, and the built binaries on each backend with a real agent loop,
// real containers and a model server that no one here wrote. It has no code of
// its own.
package e2e
