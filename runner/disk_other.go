//go:build !linux && !darwin

package runner

import "os"

// freeOn can't tell here.
func freeOn(*os.File) func() (int64, bool) {
	return func() (int64, bool) { return 0, false }
}

// freeAt can't tell here.
func freeAt(string) func() (int64, bool) { return freeOn(nil) }
