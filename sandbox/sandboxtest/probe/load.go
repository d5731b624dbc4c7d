package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func dripBytes(args []string) error {
	for i := range number(args[0]) {
		b := []byte{'a' + byte(i%26)}
		for _, f := range []*os.File{os.Stdout, os.Stderr} {
			if _, err := f.Write(b); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeEndlessly([]string) error {
	piece := probing.PatternAt(0, 32<<10)
	for i := range piece {
		if piece[i] == '\n' {
			piece[i] = '.'
		}
	}
	for {
		for _, f := range []*os.File{os.Stdout, os.Stderr} {
			if _, err := f.Write(piece); err != nil {
				return err
			}
		}
	}
}

// closeStreams closes both streams, continues for a while, and exits.
func closeStreams(args []string) error {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if err := f.Close(); err != nil {
			return err
		}
	}
	time.Sleep(300 * time.Millisecond)
	return exitWith(args)
}

// keepBusy starts N processes that begin to compute together.
func keepBusy(args []string) error {
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	for range number(args[0]) {
		d := selfCommand("spin")
		d.Env, d.Stdin = append(os.Environ(), "GOMAXPROCS=1"), gate
		if err := d.Start(); err != nil {
			return err
		}
	}
	reportReady()
	open.Close()
	return hangForever()
}

func spinOnEOF([]string) error {
	_, _ = os.Stdin.Read(make([]byte, 1))
	for i := 0; ; i++ {
		_ = i * i
	}
}

func reexecSelf(args []string) error {
	return syscall.Exec("/proc/self/exe", append([]string{"probe"}, args...), os.Environ())
}

// openFiles prints how many files can be open at once, and the error of one
// more. That is the hard limit, to which the Go runtime raises the soft one.
func openFiles([]string) error {
	for n := range 1 << 20 {
		f, err := os.Open("/dev/null")
		if err != nil {
			fmt.Println(n, errnoName(err))
			return nil
		}
		defer f.Close()
	}
	return errors.New("no limit was met")
}

// fillFiles makes up to N empty files in a directory, prints how many and the
// error, and removes them.
func fillFiles(args []string) error {
	limit := number(args[1])
	dir, err := os.MkdirTemp(args[0], "many")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for n := range limit {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(n)))
		if err != nil {
			fmt.Println(n, errnoName(err))
			return nil
		}
		f.Close()
	}
	fmt.Println(limit, "none")
	return nil
}

// holdFile fills a directory with a file that stays, and prints the error. With
// a third argument it fails with it.
func holdFile(args []string) error {
	limit := number(args[1])
	f, err := os.Create(filepath.Join(args[0], "held"))
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for range limit / len(buf) {
		if _, err := f.Write(buf); err != nil {
			fmt.Println(errnoName(err))
			if len(args) > 2 {
				return err
			}
			return nil
		}
	}
	fmt.Println("none")
	return nil
}

// removeHeld removes holdFile's file, and fails if there is a second argument.
func removeHeld(args []string) error {
	if err := os.Remove(filepath.Join(args[0], "held")); err != nil || len(args) == 1 {
		return err
	}
	return errors.New("as asked for")
}

// printProcessors prints the number of processors that a program may use, and
// the numbers that two files of the kernel have.
func printProcessors([]string) error {
	var set unix.CPUSet
	err := unix.SchedGetaffinity(0, &set)
	info, infoErr := os.ReadFile("/proc/cpuinfo")
	online, onlineErr := os.ReadFile("/sys/devices/system/cpu/online")
	fmt.Println(set.Count(), strings.Count("\n"+string(info), "\nprocessor"), strings.TrimSpace(string(online)))
	return errors.Join(err, infoErr, onlineErr)
}

func errnoName(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}
