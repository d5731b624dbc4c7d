package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// checkOwner refuses a path that another user than uid could have written.
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

// readPrivate reads a file that only root and the user who runs Caisson can write
// or replace, and refuses any other.
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

// CheckPrivate refuses a file that another user than root and the one who runs Caisson
// can write or replace.
func CheckPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not block
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return checkPrivateFile(path, f)
}

// checkPrivateFile is [CheckPrivate] of an open file.
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

// checkPrivate refuses what another user than root and this one could have
// written. In a directory with the sticky bit others can't replace a file.
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

// ownGroup reports whether a group is the one that a user has alone. Where users
// have such groups, as on Debian, Fedora and their like, its number is the user's
// and files are writable by it by default (pam_umask's usergroups).
func ownGroup(gid, uid int) bool { return uid != 0 && gid == uid }
