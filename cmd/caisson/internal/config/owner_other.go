//go:build !unix

package config

import "os"

// checkOwner refuses every path: owners are unknown here, and requirements that any
// user could have written must not be in effect.
func checkOwner(path string, _ int) error {
	return &Error{Where: path, Message: "requirements files are supported on Unix only", Hint: "remove it"}
}

// CheckPrivate accepts every file: who could have written it can't be told here.
func CheckPrivate(string) error { return nil }

// readPrivate reads a file: who could have written it can't be told here.
func readPrivate(path string) ([]byte, error) { return os.ReadFile(path) }
