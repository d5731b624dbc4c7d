//go:build !unix

package runner

import "io/fs"

// unsafeFolder says why a folder can't be trusted with state, or "".
func unsafeFolder(info fs.FileInfo) string {
	if !info.IsDir() {
		return "is no folder (a link does not count)"
	}
	return ""
}

// owners can't tell here.
func owners(fs.FileInfo) (owner, self int, known bool) { return 0, 0, false }
