//go:build !linux && !darwin

package diskwatch

import "os"

// RoomOn returns a function that knows no room on this system.
func RoomOn(*os.File) func() Room {
	return func() Room { return UnknownRoom }
}

// RoomAt returns a function that knows no room on this system.
func RoomAt(string) func() Room { return RoomOn(nil) }
