package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// useTerminal runs a program on a terminal of 100 by 30 cells, and exits as it
// does: TEXT KEYS [TEXT KEYS]... -- PROGRAM [ARGUMENT]... It types the keys when
// the program has shown the text since the last ones.
func useTerminal(args []string) error {
	end := slices.Index(args, "--")
	if end < 0 || end%2 != 0 {
		return errors.New("want pairs of texts and keys, -- and a program")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer terminal.Close()
	fd := int(terminal.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})); err != nil {
		return err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	cmd := exec.Command(args[end+1], args[end+2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := errors.Join(cmd.Start(), slave.Close()); err != nil {
		return err
	}
	pairs := args[:end]
	timeout := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	var shown strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := terminal.Read(buf)
		shown.Write(buf[:n])
		if len(pairs) > 0 && strings.Contains(shown.String(), pairs[0]) {
			shown.Reset()
			if _, err := io.WriteString(terminal, pairs[1]); err != nil {
				return err
			}
			pairs = pairs[2:]
		}
		if err != nil { // EIO: no process has the terminal any more
			break
		}
	}
	err = cmd.Wait()
	if len(pairs) > 0 {
		return fmt.Errorf("%q was not shown: %w: %q", pairs[0], err, shown.String())
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	return err
}
