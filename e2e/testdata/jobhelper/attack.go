package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attempt is a way to what the job has. It reaches it if it returns nil.
type attempt struct {
	name string
	try  func() error
}

const patience = 3 * time.Second

var errNoSecret = errors.New("no secret")

func parseBait(text string) (b bait, err error) {
	err = json.Unmarshal([]byte(text), &b)
	return b, err
}

// attackJob makes all attempts against a bait in its workspace, and prints their
// names with "reached" or the error.
func attackJob(args []string) error {
	b, err := parseBait(args[0])
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGUSR1) // another process may have the bait's number here
	if err := os.Chdir(b.Workspace); err != nil {
		return err
	}
	b.leaveMarks()
	found := map[string]string{}
	for _, list := range [][]attempt{b.reads(), b.connections(), b.processAttempts(), b.writes()} {
		for _, a := range list {
			found[a.name] = outcomeOf(a.try)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func outcomeOf(try func() error) string {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a tracer is a thread
		result <- try()
	}()
	select {
	case err := <-result:
		if err == nil {
			return "reached"
		}
		return err.Error()
	case <-time.After(patience):
		return "no answer"
	}
}

// leaveMarks makes what must not exist outside: a file with the set-user-ID bit
// and a device. The test looks for them.
func (b bait) leaveMarks() {
	_ = os.WriteFile("setuid", []byte("#!/bin/sh\n"), 0o755)
	_ = unix.Chmod("setuid", 0o6755)
	_ = unix.Mknod("device", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))
	_ = unix.Mknod("block", unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0)))
}

// holds returns nil if the text has the secret.
func (b bait) holds(text []byte, err error) error {
	if err == nil && !strings.Contains(string(text), b.Secret) {
		return errNoSecret
	}
	return err
}

func (b bait) read(path string) error { return b.holds(os.ReadFile(path)) }

// reads are ways to the file that holds the secret.
func (b bait) reads() []attempt {
	secret := filepath.Join(b.Dir, "secret")
	var list []attempt
	for name, path := range map[string]string{
		"path": secret, "relative path": "../" + filepath.Base(b.Dir) + "/secret", "planted absolute": "planted-absolute", "planted relative": "planted-relative",
		"planted chain": "planted-chain", "planted directory": "planted-directory/secret", "planted root": "planted-root", "planted environ": "planted-environ",
		"root of 1": "/proc/1/root" + secret, "own root": "/proc/self/root" + secret, "root of the bait": fmt.Sprintf("/proc/%d/root%s", b.PID, secret),
		"directory of the bait": fmt.Sprintf("/proc/%d/cwd/secret", b.PID), "descriptor of the bait": fmt.Sprintf("/proc/%d/fd/%d", b.PID, b.FD),
	} {
		list = append(list, attempt{name, func() error { return b.read(path) }})
		if !strings.HasPrefix(path, "/proc") && !strings.HasPrefix(path, "planted") {
			list = append(list, attempt{"symlink to " + name, func() error {
				_ = os.Remove("link")
				return errors.Join(os.Symlink(path, "link"), b.read("link"))
			}})
		}
	}
	link := func(flags int, from string) func() error {
		return func() error {
			_ = os.Remove("hard")
			if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, "hard", flags); err != nil {
				return err
			}
			defer os.Remove("hard")
			return b.read("hard")
		}
	}
	return append(list,
		attempt{"hard link", link(0, secret)},
		attempt{"hard link through a symlink", link(unix.AT_SYMLINK_FOLLOW, "planted-absolute")},
		attempt{"attribute through a symlink", func() error {
			text := make([]byte, 256)
			n, err := unix.Getxattr("planted-absolute", "user.secret", text)
			return b.holds(text[:max(n, 0)], err)
		}},
		attempt{"all environments", func() error { return b.anyProcess("environ") }},
		attempt{"all roots", func() error { return b.anyProcess("root" + secret) }},
	)
}

// anyProcess looks for the secret in a file of each process.
func (b bait) anyProcess(name string) error {
	files, err := filepath.Glob("/proc/[0-9]*/" + name)
	if err != nil {
		return err
	}
	err = errNoSecret
	for _, file := range files {
		if b.read(file) == nil {
			err = nil
		}
	}
	return err
}

// connections are ways to the bait's sockets and FIFO.
func (b bait) connections() []attempt {
	dial := func(network, address string) func() error {
		return func() error {
			c, err := net.DialTimeout(network, address, patience)
			if err != nil {
				return err
			}
			defer c.Close()
			return b.holds(io.ReadAll(c))
		}
	}
	return []attempt{
		{"socket outside", dial("unix", filepath.Join(b.Dir, "socket"))},
		{"socket in the workspace", dial("unix", "socket")},
		{"abstract socket", dial("unix", "@"+b.Name)},
		{"loopback", dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.Port))},
		{"FIFO", func() error {
			f, err := os.OpenFile("fifo", os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			text := make([]byte, 4096)
			n, err := f.Read(text)
			return b.holds(text[:n], err)
		}},
	}
}

// processAttempts are ways to the bait's process. Another process may have its
// number, so the secret must be in the memory that is read.
func (b bait) processAttempts() []attempt {
	return []attempt{
		{"traced memory", func() error {
			if err := unix.PtraceSeize(b.PID); err != nil {
				return err
			}
			defer func() { _ = unix.PtraceDetach(b.PID) }()
			if err := unix.PtraceInterrupt(b.PID); err != nil {
				return err
			}
			if _, err := unix.Wait4(b.PID, nil, unix.WALL, nil); err != nil {
				return err
			}
			text := make([]byte, len(b.Secret))
			_, err := unix.PtracePeekData(b.PID, uintptr(b.Address), text)
			return b.holds(text, err)
		}},
		{"memory by process_vm_readv", func() error {
			text := make([]byte, len(b.Secret))
			_, err := unix.ProcessVMReadv(b.PID, []unix.Iovec{{Base: &text[0], Len: uint64(len(text))}}, []unix.RemoteIovec{{Base: uintptr(b.Address), Len: len(text)}}, 0)
			return b.holds(text, err)
		}},
		{"memory by /proc", func() error {
			f, err := os.Open(fmt.Sprintf("/proc/%d/mem", b.PID))
			if err != nil {
				return err
			}
			defer f.Close()
			text := make([]byte, len(b.Secret))
			_, err = f.ReadAt(text, int64(b.Address))
			return b.holds(text, err)
		}},
		// The bait tells the test of these.
		{"signal", func() error { return unix.Kill(b.PID, unix.SIGUSR1) }},
	}
}

// writes change the directory beside the workspace.
func (b bait) writes() []attempt {
	at := func(name string) string { return filepath.Join(b.Dir, name) }
	return []attempt{
		{"write by path", func() error { return os.WriteFile(at("written"), nil, 0o600) }},
		{"write through a symlink", func() error { return os.WriteFile("planted-directory/through", nil, 0o600) }},
		{"write through a symlink without a target", func() error {
			_ = os.Remove("link")
			return errors.Join(os.Symlink(at("dangling"), "link"), os.WriteFile("link", nil, 0o600))
		}},
		{"append", func() error {
			f, err := os.OpenFile("planted-relative", os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x")
			return errors.Join(err, f.Close())
		}},
		{"rename out", func() error {
			return errors.Join(os.WriteFile("mine", nil, 0o600), os.Rename("mine", "planted-directory/renamed"))
		}},
		{"link out", func() error {
			return errors.Join(os.WriteFile("mine", nil, 0o600), os.Link("mine", "planted-directory/linked"))
		}},
		{"make a directory", func() error { return os.Mkdir("planted-directory/made", 0o700) }},
		{"change a mode", func() error { return os.Chmod("planted-absolute", 0o640) }},
		{"change times", func() error { return os.Chtimes("planted-absolute", time.Unix(1, 0), time.Unix(1, 0)) }},
		{"remove", func() error { return os.Remove("planted-directory/victim") }},
	}
}

// raceLinks opens names below directories that change places with symlinks to the
// bait's directory: BAIT SECONDS. One pair is changed by this process, the other by
// the test outside. It prints how often it opened something and reached the bait.
func raceLinks(args []string) error {
	b, err := parseBait(args[0])
	if err != nil {
		return err
	}
	length, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	err = errors.Join(os.Chdir(b.Workspace), os.RemoveAll("turn"), os.RemoveAll("turn-dir"), os.RemoveAll("turn-link"), os.Mkdir("turn-dir", 0o755),
		os.WriteFile("turn-dir/secret", []byte("harmless"), 0o600), os.Symlink(b.Dir, "turn-link"))
	if err != nil {
		return err
	}
	deadline := time.Now().Add(length)
	var opened, reached atomic.Int64
	var wait sync.WaitGroup
	until := func(do func()) {
		wait.Go(func() {
			for time.Now().Before(deadline) {
				do()
			}
		})
	}
	until(func() {
		for _, name := range []string{"turn-dir", "turn-link"} {
			_ = os.Rename(name, "turn")
			_ = os.Rename("turn", name)
		}
	})
	for _, name := range []string{"turn", "swapped"} {
		until(func() {
			text, err := os.ReadFile(name + "/secret")
			if err == nil {
				opened.Add(1)
			}
			if b.holds(text, err) == nil {
				reached.Add(1)
			}
		})
		until(func() {
			_ = os.WriteFile(name+"/raced", nil, 0o600)
			_ = os.Remove(name + "/raced")
			_ = os.Remove(name + "/victim")
			_ = os.Chmod(name+"/secret", 0o640)
			stolen := name + "-stolen"
			_ = os.Remove(stolen)
			if err := os.Link(name+"/secret", stolen); err == nil && b.read(stolen) == nil {
				reached.Add(1)
			}
		})
	}
	wait.Wait()
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{"opened": opened.Load(), "reached": reached.Load()})
}
