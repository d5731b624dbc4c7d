//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// A mutant may kill, remove or allocate anything that the tests' user may. As
// root a run is therefore in namespaces of its own: no process outside of it can
// be signalled, files outside of its /tmp and the build cache are read-only, no
// engine can be reached through /run, and its end takes every process with it.
// An ordinary user's run has only a process group.

// An outcome is how a run of tests ended.
type outcome struct {
	status   int
	timedOut bool
	elapsed  time.Duration
	output   []byte
	trace    []byte
}

// A job is one run of a test binary.
type job struct {
	dir     string
	argv    []string
	env     []string
	domain  string // of the UTS namespace
	scratch string // a directory for the run's files
	timeout time.Duration
	trace   bool // record which mutants are reached
}

// traceName is the trace's name in the run's directory for temporary files. Any
// user may write it.
const traceName = "mutants-trace"

func (j *job) run(parent context.Context) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(parent, j.timeout, context.DeadlineExceeded)
	defer cancel()
	tmp := filepath.Join(j.scratch, "tmp")
	if err := errors.Join(os.MkdirAll(tmp, 0o755), os.Chmod(tmp, 0o1777|os.ModeSticky)); err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(tmp)
	if j.trace {
		path := filepath.Join(tmp, traceName)
		if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)); err != nil {
			return outcome{}, err
		}
	}
	isolated := os.Getuid() == 0
	argv, env := j.argv, append(os.Environ(), j.env...)
	attributes := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if isolated {
		self, err := os.Executable()
		if err != nil {
			return outcome{}, err
		}
		argv = append([]string{self, initArgument, tmp, j.domain}, argv...)
		attributes.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	}
	visible := tmp
	if isolated {
		visible = "/tmp"
	}
	env = append(env, "TMPDIR="+visible)
	if j.trace {
		env = append(env, traceVariable+"="+filepath.Join(visible, traceName))
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = j.dir, env, attributes
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	log, err := os.Create(filepath.Join(j.scratch, "output"))
	if err != nil {
		return outcome{}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	start := time.Now()
	err = cmd.Run()
	o := outcome{elapsed: time.Since(start), timedOut: ctx.Err() != nil}
	if parent.Err() != nil {
		return o, parent.Err()
	}
	o.output, _ = os.ReadFile(log.Name())
	if j.trace {
		o.trace, _ = os.ReadFile(filepath.Join(tmp, traceName))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) && !o.timedOut {
		return o, err
	}
	o.status = cmd.ProcessState.ExitCode()
	if isolated && o.status == initFailed {
		return o, fmt.Errorf("isolate the tests: %s", o.output)
	}
	return o, nil
}

const (
	initArgument = "isolated-init"
	initFailed   = 120
	// memory bounds what each process of a run can allocate.
	memory = 3 << 30
)

// isolatedInit is the first process of a run's namespaces: it arranges the
// mounts, starts the tests and reaps until they have ended.
func isolatedInit(args []string) int {
	tmp, domain, argv := args[0], args[1], args[2:]
	if err := arrange(tmp, domain); err != nil {
		fmt.Println(err)
		return initFailed
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return initFailed
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			fmt.Println(err)
			return initFailed
		}
		if pid != cmd.Process.Pid {
			continue
		}
		if status.Signaled() {
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}
}

func arrange(tmp, domain string) error {
	cache := goCache()
	steps := []struct {
		what string
		do   func() error
	}{
		{"private mounts", func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") }},
		{"bind the build cache", func() error { return syscall.Mount(cache, cache, "", syscall.MS_BIND, "") }},
		{"bind the scratch directory", func() error { return syscall.Mount(tmp, tmp, "", syscall.MS_BIND, "") }},
		{"make / read-only", func() error { return setReadOnly("/", true, true) }},
		{"make the build cache writable", func() error { return setReadOnly(cache, false, false) }},
		{"make the scratch directory writable", func() error { return setReadOnly(tmp, false, false) }},
		{"mount /tmp", func() error { return syscall.Mount(tmp, "/tmp", "", syscall.MS_BIND, "") }},
		{"mount /proc", func() error { return syscall.Mount("proc", "/proc", "proc", 0, "") }},
		{"mount /run", func() error { return syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755,size=16m") }},
		{"mount /dev/shm", func() error { return syscall.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777,size=64m") }},
		{"set the domain name", func() error { return syscall.Setdomainname([]byte(domain)) }},
		{"limit memory", func() error {
			return syscall.Setrlimit(rlimitData, &syscall.Rlimit{Cur: memory, Max: memory})
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

func goCache() string {
	if dir := os.Getenv("GOCACHE"); dir != "" {
		return dir
	}
	dir, _ := os.UserCacheDir()
	return filepath.Join(dir, "go-build")
}

const rlimitData = 2 // RLIMIT_DATA

// setReadOnly is mount_setattr(2), which package syscall does not have.
func setReadOnly(path string, readOnly, recursive bool) error {
	const mountSetattr, atFdcwd, atRecursive, rdonly = 442, -100, 0x8000, 1
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	attributes := struct{ set, clear, propagation, userns uint64 }{}
	if readOnly {
		attributes.set = rdonly
	} else {
		attributes.clear = rdonly
	}
	flags, at := 0, atFdcwd
	if recursive {
		flags = atRecursive
	}
	_, _, errno := syscall.Syscall6(mountSetattr, uintptr(at), uintptr(unsafe.Pointer(name)), uintptr(flags),
		uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
