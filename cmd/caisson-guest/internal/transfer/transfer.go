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
	"syscall"

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
	status := 0
	o := archive.PackOptions{LeaveOut: func(_ string, err error) error {
		if !errors.Is(err, archive.ErrSpecial) {
			status = failed
		}
		report(status, fmt.Errorf("left out: %w", err))
		return nil
	}}
	if len(args) == 2 {
		o.Name = args[1]
	}
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	err := archive.Pack(out, args[0], o)
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
// argument names. It returns an exit status.
func Unpack(args []string) int {
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
	err := archive.Unpack(bufio.NewReaderSize(in, 64<<10), args[0], archive.Bounds{})
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
