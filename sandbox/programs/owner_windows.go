package programs

import "io/fs"

// onlyCallerWrites returns true: the cache is below the user's own profile.
func onlyCallerWrites(fs.FileInfo) bool { return true }
