//go:build !unix

package config

import "os"

// checkOwner refuses: ownership can't be told here, and requirements that
// anybody could have written must not count.
func checkOwner(path string, _ int) error {
	return &Error{Where: path, Message: "requirements files are supported on Unix only", Mend: "remove it"}
}

// readPrivate reads a file: who could have written it can't be told here.
func readPrivate(path string) ([]byte, error) { return os.ReadFile(path) }
