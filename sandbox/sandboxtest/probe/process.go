package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reportReady tells the suite that the awaited state is reached.
func reportReady() { fmt.Println("ready") }

// hangForever blocks in a way that the runtime doesn't take for a deadlock.
func hangForever() error {
	never, end, err := os.Pipe()
	if err != nil {
		return err
	}
	_, err = never.Read(make([]byte, 1))
	runtime.KeepAlive(end) // an unused file is closed
	return err
}

// sleepMarked ends by SIGTERM's default action. Its arguments are markers.
func sleepMarked([]string) error {
	signal.Reset(syscall.SIGTERM)
	reportReady()
	return hangForever()
}

func termExit(args []string) error {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	reportReady()
	<-c
	return exitWith(args)
}

// termLeave exits at SIGTERM, but first leaves a process behind.
func termLeave(args []string) error {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	reportReady()
	<-c
	return selfCommand("sleep", args[0]).Start()
}

func ignoreTerm([]string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	reportReady()
	return hangForever()
}

func selfCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// startDaemons starts N daemons with a marker. Each is the child of a child
// that has ended, leads its own session and ignores SIGTERM. It then exits, or
// with "stay" waits.
func startDaemons(args []string) error {
	for range number(args[0]) {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		middle := selfCommand("daemon", args[1], "fork")
		middle.ExtraFiles = []*os.File{w}
		if err := middle.Run(); err != nil {
			return err
		}
		w.Close()
		// The daemon closes its end when it ignores SIGTERM.
		if _, err := io.ReadAll(r); err != nil {
			return err
		}
	}
	reportReady()
	if len(args) > 2 {
		return hangForever()
	}
	return nil
}

// runDaemon is the process in the middle ("fork") or the daemon.
func runDaemon(args []string) error {
	gate := os.NewFile(3, "gate")
	if len(args) > 1 {
		d := selfCommand("daemon", args[0])
		d.ExtraFiles = []*os.File{gate}
		return d.Start()
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	gate.Close()
	return hangForever()
}

// holdStdout leaves a child that holds its stdout and stderr, and exits.
func holdStdout(args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	d := selfCommand("daemon", args[0])
	d.Stdout, d.Stderr, d.ExtraFiles = os.Stdout, os.Stderr, []*os.File{w}
	if err := d.Start(); err != nil {
		return err
	}
	w.Close()
	if _, err := io.ReadAll(r); err != nil {
		return err
	}
	fmt.Println("held")
	return nil
}

// leaveOrphans leaves N ended children of ended parents, ten per parent so that
// they fit into any limit.
func leaveOrphans(args []string) error {
	n := number(args[0])
	if len(args) > 1 {
		for range n {
			if err := retryFork(forkOrphan); err != nil {
				return err
			}
		}
		return nil
	}
	for ; n > 0; n -= 10 {
		var middle *exec.Cmd
		start := func() error {
			middle = selfCommand("orphans", strconv.Itoa(min(n, 10)), "middle")
			return middle.Start()
		}
		if err := retryFork(start); err != nil {
			return err
		}
		if err := middle.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func forkOrphan() error {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

// retryFork retries for a while if the limit of processes refuses: ended ones
// are reaped when PID 1 gets to it.
func retryFork(f func() error) error {
	var err error
	for range 1000 {
		if err = f(); !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

func forkCount([]string) error {
	n := 0
	for ; n < 10_000; n++ {
		d := selfCommand("sleep")
		if err := d.Start(); err != nil {
			break
		}
		defer d.Wait() // killed
		defer d.Process.Kill()
	}
	fmt.Println(n)
	return nil
}

func forkStorm([]string) error {
	for {
		_ = selfCommand("storm").Start() // refused again and again
	}
}

func stopAll([]string) error {
	err := syscall.Kill(-1, syscall.SIGSTOP)
	fmt.Println("stopped")
	return err
}

// eachProcess calls f with every other process's directory in /proc.
func eachProcess(f func(dir string)) error {
	own := []string{strconv.Itoa(os.Getpid())}
	// If guest and commands share one ID, the guest keeps a process above each
	// command, with the command's arguments.
	if parent := os.Getppid(); parent > 1 {
		own = append(own, strconv.Itoa(parent))
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if !slices.Contains(own, filepath.Base(dir)) {
			f(dir)
		}
	}
	return err
}

func leaveZombies([]string) error {
	n := 0
	err := eachProcess(func(dir string) {
		status, _ := os.ReadFile(dir + "/status")
		if strings.Contains(string(status), "\nState:\tZ") {
			n++
		}
	})
	fmt.Println(n)
	return err
}

// countProcesses counts the other processes with a marker in their arguments.
func countProcesses(args []string) error {
	n := 0
	err := eachProcess(func(dir string) {
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if strings.Contains(string(cmdline), args[0]) {
			n++
		}
	})
	fmt.Println(n)
	return err
}

// forkBomb starts processes until the kernel refuses, and waits. The limit also
// counts their threads.
func forkBomb(args []string) error {
	for i := range 10_000 {
		d := selfCommand("ignore-term", args[0])
		d.Stdin = nil
		if err := d.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "stopped after", i, err)
			break
		}
	}
	reportReady()
	return hangForever()
}

func hogMemory(args []string) error {
	debug.SetGCPercent(-1)
	b := make([]byte, number(args[0]))
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	fmt.Println("touched", len(b), b[0])
	return nil
}

// grepEnviron names each readable /proc/*/environ and cmdline, and our own
// environment, that contains one of the words. Our own arguments do.
func grepEnviron(words []string) error {
	found := bufio.NewWriter(os.Stdout)
	defer found.Flush()
	report := func(name string, data []byte) {
		for _, w := range words {
			if strings.Contains(string(data), w) {
				fmt.Fprintln(found, name)
				return
			}
		}
	}
	report("own environment", []byte(strings.Join(os.Environ(), "\n")))
	return eachProcess(func(dir string) {
		for _, f := range []string{"/environ", "/cmdline"} {
			data, _ := os.ReadFile(dir + f)
			report(dir+f, data)
		}
	})
}
