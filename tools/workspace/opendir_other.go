//go:build !linux

package workspace

import "os"

// OpenDir opens the folder that is to be a workspace, once, for a Reader and
// for mounts; whoever opened it closes it. It refuses what is no folder, and a
// link in the folder's place, which an earlier session could have made. Errors
// are an [*Error].
func OpenDir(path string) (*os.File, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, fault(path, err)
	}
	switch {
	case before.Mode()&os.ModeSymlink != 0:
		return nil, &Error{Kind: KindEscape, Path: path, Detail: "is a symbolic link; name the folder that it leads to"}
	case !before.IsDir():
		return nil, &Error{Kind: KindNotDir, Path: path, Detail: "is not a folder"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault(path, err)
	}
	after, err := f.Stat()
	if err == nil && os.SameFile(before, after) {
		return f, nil
	}
	_ = f.Close()
	if err != nil {
		return nil, fault(path, err)
	}
	return nil, &Error{Kind: KindEscape, Path: path, Detail: "was replaced while it was being opened"}
}
