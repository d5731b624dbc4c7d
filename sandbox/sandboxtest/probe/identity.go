package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// secretVariable has the word that another identity must not find.
const secretVariable = "IDENTITY_SECRET"

// guardSecret writes its secret to a file in its home and keeps it open, prints
// its process and the file, and waits.
func guardSecret([]string) error {
	file := filepath.Join(os.Getenv("HOME"), "secret")
	if err := os.WriteFile(file, []byte(os.Getenv(secretVariable)), 0o600); err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Printf("%d %s %d\n", os.Getpid(), file, f.Fd())
	reportReady()
	return hangForever()
}

// serveLate guards the secret and, after a moment, answers at an address.
func serveLate(args []string) error {
	failed := make(chan error, 2)
	go func() { failed <- guardSecret(nil) }()
	go func() {
		time.Sleep(300 * time.Millisecond)
		l, err := net.Listen("unix", args[0])
		for err == nil {
			var c net.Conn
			if c, err = l.Accept(); err == nil {
				fmt.Fprintln(c, "hello")
				c.Close()
			}
		}
		failed <- err
	}()
	return <-failed
}

func requestAnswer(args []string) error {
	c, err := net.Dial("unix", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.Copy(os.Stdout, c)
	return err
}

// reachOther prints what succeeds against a process that guards a word in a
// file: PID FILE FD WORD.
func reachOther(args []string) error {
	pid := number(args[0])
	file, dir, word := args[1], "/proc/"+args[0], args[3]
	holds := func(name string, flags int, mode uint32) error {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		text := make([]byte, 64<<10)
		n, err := f.Read(text)
		if err == nil && !strings.Contains(string(text[:n]), word) {
			err = errors.New("something else")
		}
		return err
	}
	for _, a := range []struct {
		name string
		err  func() error
	}{
		{"environ", func() error { return holds(dir+"/environ", unix.O_RDONLY, 0) }},
		{"memory", func() error {
			f, err := os.Open(dir + "/mem")
			if err == nil {
				f.Close()
			}
			return err
		}},
		{"descriptor", func() error { return holds(dir+"/fd/"+args[2], unix.O_RDONLY, 0) }},
		{"root", func() error { return holds(dir+"/root"+file, unix.O_RDONLY, 0) }},
		{"file", func() error { return holds(file, unix.O_RDONLY, 0) }},
		// With this bit the guest opens files for its caller.
		{"file by the guest", func() error { return holds(file, unix.O_RDWR|unix.O_CREAT, 0o2600) }},
		{"home", func() error { return os.WriteFile(filepath.Join(filepath.Dir(file), "planted"), nil, 0o600) }},
		{"home renamed", func() error { return os.Rename(filepath.Dir(file), filepath.Dir(file)+"-old") }},
		{"score", func() error { return os.WriteFile(dir+"/oom_score_adj", []byte("1000"), 0) }},
		{"priority", func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 10) }},
		{"trace", func() error { return unix.PtraceAttach(pid) }},
		{"stop", func() error { return syscall.Kill(pid, syscall.SIGSTOP) }},
		{"continue", func() error { return syscall.Kill(pid, syscall.SIGCONT) }},
		{"terminate", func() error { return syscall.Kill(pid, syscall.SIGTERM) }},
	} {
		if a.err() == nil {
			fmt.Println(a.name)
		}
	}
	return nil
}
