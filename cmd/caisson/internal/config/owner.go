package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// checkOwner refuses a path that a user other than uid may have written.
func checkOwner(path string, uid int) error {
	info, err := os.Stat(path)
	if err != nil {
		return &Error{Where: path, Message: err.Error(), Hint: "an administrator must fix it; without it nothing runs"}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != uid || info.Mode().Perm()&0o022 != 0 {
		return &Error{
			Where:   path,
			Message: "requirements count only where root alone can write them",
			Hint:    fmt.Sprintf("an administrator must run: chown 0:0 %s && chmod go-w %s", path, path),
		}
	}
	return nil
}

// readPrivate reads a file. It refuses one that users other than root and this one can
// write or replace.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := checkPrivateFile(path, f); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// CheckPrivate refuses a file that users other than root and this one can write or
// replace.
func CheckPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // don't block on a FIFO
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return checkPrivateFile(path, f)
}

// checkPrivateFile is [CheckPrivate] for an open file.
func checkPrivateFile(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := checkPrivate(path, info); err != nil {
		return err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	chains := []string{abs}
	if resolved, err := filepath.EvalSymlinks(abs); err == nil && resolved != abs {
		chains = append(chains, resolved)
	}
	for _, chain := range chains {
		for dir := filepath.Dir(chain); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return err
			}
			if err := checkPrivate(dir, info); err != nil {
				return err
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return nil
}

// checkPrivate refuses a file or directory that users other than root and this one may
// have written. In a sticky directory, others can't replace files.
func checkPrivate(path string, info os.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return &Error{Where: path, Message: "its owner can't be told", Hint: "keep the file elsewhere"}
	}
	if uid := int(stat.Uid); uid != 0 && uid != os.Geteuid() {
		return &Error{
			Where: path, Message: fmt.Sprintf("it belongs to uid %d, who could make Caisson run programs as uid %d", uid, os.Geteuid()),
			Hint: "keep the configuration where it is yours, and name it with CAISSON_CONFIG",
		}
	}
	others := os.FileMode(0o022)
	if ownGroup(int(stat.Gid), os.Geteuid()) {
		others = 0o002
	}
	if info.Mode().Perm()&others != 0 && (!info.IsDir() || info.Mode()&os.ModeSticky == 0) {
		return &Error{
			Where: path, Message: fmt.Sprintf("others can write it (mode %#o), and so make Caisson run programs as uid %d", info.Mode().Perm(), os.Geteuid()),
			Hint: "run chmod go-w " + path,
		}
	}
	return nil
}

// ownGroup reports whether a group is the user's private one. On systems with such
// groups, such as Debian and Fedora, its number is the user's, and files are
// group-writable by default (pam_umask's usergroups).
func ownGroup(gid, uid int) bool { return uid != 0 && gid == uid }
