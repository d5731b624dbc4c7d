// Package enter runs outside containers: for an ordinary user, the guest's
// binary mounts overlays of the workspace and other directories in its own user
// and mount namespace, and becomes the runtime there, which then sees them.
//
//	caisson (sandbox/internal/workmount)            caisson-guest overlay
//	------------------------------------            ---------------------
//	start it in new namespaces, with the     ─▶
//	directories and a socket
//	                                         ◀─     the overlays' roots, or what is wrong
//	                                                executes the runtime
//
// Nothing stays behind: the namespaces live as long as the runtime's processes.
package enter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
)

// Word selects this package. After it come, for each overlay, its mount point,
// its directory, its directory of layers and its frozen layers, the top one first
// and each prefixed with [Frozen]; then [End], and the program with its arguments.
const (
	Word   = "overlay"
	Frozen = "+"
	End    = "--"
)

// The inherited descriptors: a socket for the answer, then each overlay's
// directory, directory of layers and frozen layers.
const (
	socketFD = 3
	firstFD  = 4
)

// Run mounts the overlays and becomes the program. It returns only after an
// error.
func Run(args []string) int {
	end := slices.Index(args, End)
	overlays, ok := parseOverlays(args[:max(end, 0)])
	if !ok || end == len(args)-1 {
		return reportError(errors.New("arguments are missing"))
	}
	unix.CloseOnExec(socketFD)
	for _, o := range overlays {
		for fd := o.fd; fd < o.fd+2+len(o.frozen); fd++ {
			unix.CloseOnExec(fd)
		}
	}
	roots, err := mountOverlays(overlays)
	if err != nil {
		return reportError(err)
	}
	if err := unix.Sendmsg(socketFD, []byte{0}, unix.UnixRights(roots...), nil, 0); err != nil {
		return reportError(fmt.Errorf("hand over the overlays: %w", err))
	}
	program := args[end+1:]
	identity.ClearAmbient()
	if err := identity.LimitCapabilities(0); err != nil {
		return reportError(err)
	}
	return reportError(syscall.Exec(program[0], program, os.Environ()))
}

// overlay is a requested overlay. Its directory is descriptor fd; its layers
// and the frozen layers follow.
type overlay struct {
	at, dir, layers string
	frozen          []string
	fd              int
}

// parseOverlays parses the arguments before [End]. ok is false unless they
// describe at least one overlay.
func parseOverlays(args []string) (list []overlay, ok bool) {
	for fd := firstFD; len(args) > 0; {
		if len(args) < 3 {
			return nil, false
		}
		o := overlay{at: args[0], dir: args[1], layers: args[2], fd: fd}
		for args = args[3:]; len(args) > 0 && strings.HasPrefix(args[0], Frozen); args = args[1:] {
			o.frozen = append(o.frozen, strings.TrimPrefix(args[0], Frozen))
		}
		fd += 2 + len(o.frozen)
		list = append(list, o)
	}
	return list, len(list) > 0
}

// reportError reports err on the socket, which is read before the answer, and
// on standard error, which is read after it.
func reportError(err error) int {
	text := []byte(err.Error())
	_ = unix.Sendmsg(socketFD, text[:min(len(text), 4<<10)], nil, nil, unix.MSG_NOSIGNAL)
	fmt.Fprintln(os.Stderr, "caisson-guest:", err)
	return 1
}

// mountOverlays mounts overlays and returns the descriptors of their roots,
// which the next program does not inherit.
func mountOverlays(list []overlay) ([]int, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts in a namespace: %w", err)
	}
	var roots []int
	for _, o := range list {
		root, err := o.mount()
		if err != nil {
			return nil, err
		}
		defer func() { _ = root.Close() }()
		own, err := unix.FcntlInt(root.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("keep overlay: %w", err)
		}
		roots = append(roots, own)
	}
	return roots, nil
}

// mount mounts the overlay at a directory of this namespace and returns its
// root.
func (o overlay) mount() (*os.File, error) {
	lower, err := reopen(o.dir, o.fd)
	if err != nil {
		return nil, err
	}
	own, err := reopen(o.layers, o.fd+1)
	if err != nil {
		return nil, err
	}
	var l overlayfs.Layers
	for i, path := range o.frozen {
		dir, err := reopen(path, o.fd+2+i)
		if err != nil {
			return nil, err
		}
		l.Lowers = append(l.Lowers, dir)
	}
	l.Lowers = append(l.Lowers, lower)
	for name, file := range map[string]**os.File{"upper": &l.Upper, "work": &l.Work} {
		if *file, err = openBelow(own, name); err != nil {
			return nil, err
		}
	}
	merged, err := overlayfs.Mount(l, overlayfs.ByPath)
	if err != nil {
		return nil, err
	}
	if err := overlayfs.Attach(merged, unix.AT_FDCWD, filepath.Clean(o.at)); err != nil {
		return nil, err
	}
	return overlayfs.OpenDir(merged)
}

// reopen opens the directory of a descriptor again in this namespace: another
// namespace's mount can't become a layer. It compares the two, because the path
// may lead elsewhere by now.
func reopen(path string, fd int) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	var have, want unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &have), unix.Fstat(fd, &want)); err != nil {
		return nil, fmt.Errorf("examine %s: %w", path, err)
	}
	if have.Dev != want.Dev || have.Ino != want.Ino {
		return nil, fmt.Errorf("%s is not the directory that was opened", path)
	}
	return f, nil
}

func openBelow(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open layer %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
