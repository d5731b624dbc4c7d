package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setID tries, below a directory, every way to make a set-user-ID or
// set-group-ID file, and prints for each the call's result and the mode of the
// file, as "ok 4755" or "EPERM 644".
func setID(args []string) error {
	dir := args[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	unix.Umask(0o022)
	found := map[string]string{}
	for name, try := range setIDAttempts() {
		path := filepath.Join(dir, "thing")
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		found[name] = formatResult(try(path), path)
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func formatResult(err error, path string) string {
	answer := "ok"
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		answer = unix.ErrnoName(errno)
	} else if err != nil {
		answer = err.Error()
	}
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return answer + " absent"
	}
	return answer + " " + strconv.FormatUint(uint64(st.Mode&0o7777), 8)
}

// onMade makes a file or directory before the call.
func onMade(make func(path string) error, call func(path string) error) func(path string) error {
	return func(path string) error {
		if err := make(path); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		return call(path)
	}
}

func newFile(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\n"), 0o644) }

func newDir(path string) error { return os.Mkdir(path, 0o755) }

func setIDAttempts() map[string]func(path string) error {
	all := map[string]func(path string) error{
		"through a symlink":      onMade(newFile, throughSymlink),
		"in turn":                inTurn,
		"openat2":                createByPointer,
		"mkdir":                  func(p string) error { unix.Umask(0); defer unix.Umask(0o022); return unix.Mkdir(p, 0o6755) },
		"inherited by directory": onMade(newFile, inheritBit(func(p string) error { return os.Mkdir(p, 0o755) })),
		"not inherited by file":  onMade(newFile, inheritBit(newFile)),
		"mknod":                  func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o6755, 0) },
		"mknod fifo":             func(p string) error { return unix.Mknod(p, unix.S_IFIFO|0o6755, 0) },
		"mknodat": func(p string) error {
			return atParent(p, func(d int, n string) error { return unix.Mknodat(d, n, unix.S_IFREG|0o6755, 0) })
		},
		"open": func(p string) error { return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o6755)) },
		"open, umask 0": func(p string) error {
			unix.Umask(0)
			defer unix.Umask(0o022)
			return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o6777))
		},
		"open, umask 027": func(p string) error {
			unix.Umask(0o027)
			defer unix.Umask(0o022)
			return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o6777))
		},
		"open exclusively":       func(p string) error { return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o6555)) },
		"open what is there":     onMade(newFile, func(p string) error { return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o6755)) }),
		"open, creating nothing": onMade(newFile, func(p string) error { return writeOpened(unix.Open(p, unix.O_RDWR, 0o6755)) }),
		"open a fifo":            onMade(func(p string) error { return unix.Mkfifo(p, 0o644) }, func(p string) error { return writeOpened(unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o6755)) }),
		"openat": func(p string) error {
			return atParent(p, func(d int, n string) error { return writeOpened(unix.Openat(d, n, unix.O_CREAT|unix.O_WRONLY, 0o6755)) })
		},
		"open without a name": linkUnnamed,
		"memory by /proc":     ownMemory,
		"link": onMade(newFile, func(p string) error {
			return errors.Join(unix.Link(p, p+"2"), unix.Chmod(p+"2", 0o4755), unix.Unlink(p+"2"))
		}),
		"security.capability":     onMade(newFile, func(p string) error { return unix.Setxattr(p, "security.capability", fileCaps(), 0) }),
		"directory, capabilities": onMade(newDir, func(p string) error { return unix.Setxattr(p, "security.capability", fileCaps(), 0) }),
	}
	for _, kind := range []struct {
		name string
		make func(path string) error
	}{{"file", newFile}, {"directory", newDir}} {
		for _, mode := range []uint32{0o4755, 0o2755, 0o6755, 0o755, 0o1755} {
			for name, call := range modeCalls() {
				all[fmt.Sprintf("%s %s %o", kind.name, name, mode)] = onMade(kind.make, func(p string) error { return call(p, mode) })
			}
		}
	}
	maps.Copy(all, setIDHere())
	return all
}

func modeCalls() map[string]func(path string, mode uint32) error {
	return map[string]func(path string, mode uint32) error{
		"chmod": unix.Chmod,
		"fchmod": func(p string, mode uint32) error {
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Fchmod(fd, mode)
		},
		"fchmodat": func(p string, mode uint32) error {
			return atParent(p, func(dir int, name string) error { return unix.Fchmodat(dir, name, mode, 0) })
		},
		"chmod by /proc": func(p string, mode uint32) error {
			fd, err := unix.Open(p, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode)
		},
		"fchmodat2": func(p string, mode uint32) error {
			return atParent(p, func(dir int, name string) error { return fchmodat2(dir, name, mode, unix.AT_SYMLINK_NOFOLLOW) })
		},
		"fchmodat2 by descriptor": func(p string, mode uint32) error {
			fd, err := unix.Open(p, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return fchmodat2(fd, "", mode, unix.AT_EMPTY_PATH)
		},
	}
}

func fchmodat2(dir int, name string, mode uint32, flags int) error {
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(dir), uintptr(unsafe.Pointer(text)), uintptr(mode), uintptr(flags), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// atParent calls call with path's parent, opened, and the name in it.
func atParent(path string, call func(dir int, name string) error) error {
	dir, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return call(dir, filepath.Base(path))
}

// writeOpened writes to an opened file, if it is writable.
func writeOpened(fd int, err error) error {
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK != 0 {
		err = errors.New("it does not block")
	}
	if err == nil {
		_, err = unix.Write(fd, []byte("x"))
	}
	return err
}

// linkUnnamed makes a file without a name, then names it.
func linkUnnamed(path string) error {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR, 0o6755)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}

// ownMemory opens, with a mode for creating, files in /proc that name the
// process resolving them. They must be this process's, or fail to open.
func ownMemory(path string) error {
	for _, name := range []string{"/proc/self/status", "/proc/thread-self/status"} {
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDONLY, 0o6755)
		if err != nil {
			continue
		}
		text := make([]byte, 4096)
		n, _ := unix.Read(fd, text)
		_ = unix.Close(fd)
		own, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(tgidLine(text[:n]), tgidLine(own)) {
			return errors.New("another process's " + name)
		}
	}
	fd, err := unix.Open("/proc/self/fd/0", unix.O_CREAT|unix.O_RDONLY, 0o6755)
	if err == nil {
		var given, own unix.Stat_t
		err = errors.Join(unix.Fstat(fd, &given), unix.Fstat(0, &own), unix.Close(fd))
		if err == nil && given.Ino != own.Ino {
			return errors.New("another process's descriptor")
		}
	}
	return nil
}

func tgidLine(status []byte) []byte {
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return line
}

// createByPointer creates a file by a mode in memory.
func createByPointer(path string) error {
	return writeOpened(unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_RDWR, Mode: 0o6755}))
}

func throughSymlink(path string) error {
	link := path + "-link"
	_ = os.Remove(link)
	if err := os.Symlink(filepath.Base(path), link); err != nil {
		return err
	}
	defer os.Remove(link)
	return unix.Chmod(link, 0o2755)
}

// inheritBit makes something in a directory with the set-group-ID bit, and
// moves it to path.
func inheritBit(make func(path string) error) func(path string) error {
	return func(path string) error {
		dir := path + "-parent"
		defer os.RemoveAll(dir)
		if err := errors.Join(os.Mkdir(dir, 0o755), unix.Chmod(dir, 0o2755)); err != nil {
			return err
		}
		child := filepath.Join(dir, "child")
		return errors.Join(make(child), os.Remove(path), os.Rename(child, path))
	}
}

// turns is the minimum number of tries in inTurn. turnTime bounds the wait on a
// busy machine until the name is the directory once.
const (
	turns    = 300
	turnTime = 20 * time.Second
)

// inTurn changes the mode of a name that is alternately a directory and a file.
// The file stays so that its mode can be seen.
func inTurn(path string) error {
	file, dir, name := path+"-file", path+"-dir", path+"-name"
	defer os.RemoveAll(dir)
	defer os.Remove(name)
	if err := errors.Join(newFile(file), newDir(dir), os.Symlink(dir, name)); err != nil {
		return err
	}
	stop, stopped := make(chan bool), make(chan error)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			target := []string{file, dir}[i%2]
			err = errors.Join(os.Symlink(target, name+"2"), os.Rename(name+"2", name))
		}
		<-stop
		stopped <- err
	}()
	set := false
	began := time.Now()
	for i := 0; i < turns || !set && time.Since(began) < turnTime; i++ {
		set = unix.Chmod(name, 0o2755) == nil || set
	}
	stop <- true
	err := <-stopped
	if err == nil && !set {
		err = errors.New("never set on the directory either")
	}
	return errors.Join(err, os.Rename(file, path))
}
