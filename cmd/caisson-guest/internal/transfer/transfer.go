//go:build linux

// Package transfer runs when the guest's binary is started as a command that
// gets files into a sandbox or out of it.
package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// Exit statuses.
const (
	failed     = 1
	wrongUsage = 2
)

// Pack writes the file or directory that the first argument names to standard
// output. It returns an exit status.
func Pack(args []string) int {
	if len(args) < 1 || len(args) > 2 {
		return report(wrongUsage, errors.New("usage: pack PATH [NAME]"))
	}
	return pack(func(w io.Writer, o archive.PackOptions) error {
		if len(args) == 2 {
			o.Name = args[1]
		}
		return archive.Pack(w, args[0], o)
	})
}

// PackChanges writes what has changed in the directories that the arguments name, since
// the time of the first, to standard output. It returns an exit status.
func PackChanges(args []string) int {
	if len(args) < 3 {
		return report(wrongUsage, errors.New("usage: pack-changes SINCE LAYER DIRECTORY"))
	}
	since, err := strconv.ParseInt(args[0], 10, 64)
	layer, layerErr := strconv.ParseInt(args[1], 10, 64)
	if err := errors.Join(err, layerErr); err != nil {
		return report(wrongUsage, err)
	}
	mounted, err := mountPoints()
	if err != nil {
		return report(failed, err)
	}
	return pack(func(w io.Writer, o archive.PackOptions) error {
		o.Skip, o.LayerSince = func(path string) bool { return mounted[path] }, time.Unix(0, layer)
		return archive.PackChanges(w, args[2:], time.Unix(0, since), o)
	})
}

// mountPoints returns the mount points of this sandbox, files among them.
func mountPoints() (map[string]bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points[unescapeOctal(fields[4])] = true
		}
	}
	return points, nil
}

// unescapeOctal replaces \NNN, by which the kernel writes spaces and backslashes (proc(5)).
func unescapeOctal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if i+3 < len(s) && s[i] == '\\' {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// pack writes an archive to standard output and returns an exit status.
func pack(write func(w io.Writer, o archive.PackOptions) error) int {
	status := 0
	o := archive.PackOptions{LeaveOut: func(_ string, err error) error {
		if !errors.Is(err, archive.ErrSpecial) {
			status = failed
		}
		report(status, fmt.Errorf("left out: %w", err))
		return nil
	}}
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	err := write(out, o)
	if err == nil {
		err = out.Flush()
	}
	switch {
	case errors.Is(err, archive.ErrSpecial):
		return report(archive.StatusRefused, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // PATH; entries are left out
		return report(archive.StatusNoFile, err)
	case err != nil:
		return report(failed, err)
	}
	return status
}

// Unpack writes the archive from standard input below the directory that the
// argument names, by [archive.Unpack] or [archive.UnpackChanges]. It returns an exit status.
func Unpack(args []string, unpack func(r io.Reader, dir string, bounds archive.Bounds) error) int {
	if len(args) != 1 {
		return report(wrongUsage, errors.New("usage: unpack DIRECTORY"))
	}
	// SIGTERM ends the input, so that no half of a file is left behind.
	in, w := io.Pipe()
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		w.CloseWithError(errors.New("terminated"))
	}()
	go func() {
		_, err := io.CopyBuffer(w, struct{ io.Reader }{os.Stdin}, make([]byte, 64<<10))
		w.CloseWithError(err)
	}()
	err := unpack(bufio.NewReaderSize(in, 64<<10), args[0], archive.Bounds{})
	switch {
	case errors.Is(err, archive.ErrNoDirectory):
		return report(archive.StatusNoDirectory, err)
	case errors.Is(err, archive.ErrEntry), errors.Is(err, archive.ErrMalformed):
		return report(archive.StatusRefused, err)
	case err != nil:
		return report(failed, err)
	}
	return 0
}

// report writes an error to standard error and returns the status.
func report(status int, err error) int {
	fmt.Fprintln(os.Stderr, err)
	return status
}
