package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// onTerminal describes its terminal, then its new sizes and the lines that are
// typed, and ends with 7 at the end of input.
func onTerminal([]string) error {
	mode, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		return err
	}
	mode.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(0, unix.TCSETS, mode); err != nil {
		return err
	}
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	if err := printTerminal(nil); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(0, &st); err != nil {
		return err
	}
	fmt.Printf("owned by itself: %t, others: %o\n", int(st.Uid) == os.Geteuid(), st.Mode&0o7)
	if group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP); err == nil && group == unix.Getpgrp() {
		fmt.Println("in the foreground")
	}
	fmt.Println(terminalSize())
	name, _ := os.Readlink("/proc/self/fd/0")
	fmt.Println("name", name)
	reportReady()
	go func() {
		for range sizes {
			fmt.Println(terminalSize())
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Printf("line %q\n", lines.Text())
	}
	os.Exit(7)
	return nil
}

func terminalSize() string {
	size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("size %d %d", size.Row, size.Col)
}

// typeInside types a key into its own terminal and prints the error's name.
func typeInside([]string) error {
	key := byte('x')
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&key)))
	if errno == 0 {
		fmt.Println("ok")
		return nil
	}
	fmt.Println(unix.ErrnoName(errno))
	return nil
}

// floodTerminal is floodOutput without changes by the terminal.
func floodTerminal(args []string) error {
	if _, err := term.MakeRaw(0); err != nil {
		return err
	}
	return floodOutput([]string{"stdout", args[0]})
}
