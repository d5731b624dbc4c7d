package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// launch is a call of a runtime's `run --detach`. A runtime opens its log
// before it reads its bundle, and waits there while we hold the log
// ([runtimeLog]). So we can start it before the bundle is complete and overlap
// its own start, 3 ms for runc and 5 for runsc, with our preparations. The
// caller must call waitRunning or waitUnused.
type launch struct {
	cmd  *exec.Cmd
	name string // for messages
	done bool   // waited for
}

// waitsForLog reports whether the runtime is known to open its log first.
// Others, such as crun, are started when the bundle is complete.
func (r *runtimeClient) waitsForLog(t traits) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known.name == t.binary
}

// startRun starts the runtime by start, with streams as the container's
// standard streams. It is started in entrance, unless that is nil, to see the
// workspace.
func (r *runtimeClient) startRun(ctx context.Context, b bundle, id string, f runtimeFlags, streams streams, entrance *workmount.MountNamespace, start func(*exec.Cmd) error) (*launch, error) {
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return nil, fmt.Errorf("make runtime directory: %w", err)
	}
	f.root, f.log = r.root, b.logPath()
	args := append(r.flags(f),
		"run", "--detach", "--bundle", b.dir, "--pid-file", b.pidFile(), id)
	cmd := r.newCommand(ctx, args)
	// A runtime killed half-way leaves things that it can't be asked about any
	// more. So a cancellation lets it finish. The guest then ends because its
	// stdin is closed. Only a runtime that hangs is killed.
	cmd.Cancel = func() error { return nil }
	cmd.WaitDelay = callTime
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.stdin, streams.stdout, streams.stderr
	if entrance != nil {
		entrance.WrapCommand(cmd)
	}
	l := &launch{cmd: cmd, name: filepath.Base(r.path)}
	if err := start(cmd); err != nil {
		return nil, fmt.Errorf("%s run: %w: %w", l.name, sandbox.ErrUnavailable, err)
	}
	return l, nil
}

func (l *launch) waitRunning(ctx context.Context, log *runtimeLog) error {
	l.done = true
	err := l.cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s run: %w: %w: %s", l.name, sandbox.ErrUnavailable, err, log.readErrors())
	}
	return nil
}

// waitUnused waits for a runtime whose container is not wanted, unless
// waitRunning did. If its log is held, the runtime has done nothing yet and is
// killed. Otherwise it must end by itself; see startRun.
func (l *launch) waitUnused(held bool) {
	if l.done {
		return
	}
	l.done = true
	if held {
		_ = l.cmd.Process.Kill() // it may have ended, because it refused its arguments
	}
	_ = l.cmd.Wait() // the caller has a better reason
}

// runtimeLog is the file of a runtime's own messages. A lease (fcntl(2),
// F_SETLEASE) holds it until the bundle is complete: opening the file waits
// until the lease is released. The kernel releases it when its holder ends, so
// no runtime waits for a Caisson that was killed, and after
// /proc/sys/fs/lease-break-time (45 s). The runtime then fails because its
// bundle is incomplete.
type runtimeLog struct {
	file *os.File
	held bool
}

// makeLog creates the bundle's log and holds it if the file system can.
func (b bundle) makeLog() (*runtimeLog, error) {
	f, err := os.OpenFile(b.logPath(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make runtime's log: %w", err)
	}
	return &runtimeLog{file: f, held: takeLease(f) == nil}, nil
}

func (l *runtimeLog) releaseLease() error {
	if !l.held {
		return nil
	}
	l.held = false
	if err := dropLease(l.file); err != nil {
		return fmt.Errorf("let the runtime go on: %w", err)
	}
	return nil
}

func (l *runtimeLog) readErrors() string {
	said := make([]byte, maxHead)
	n, err := l.file.ReadAt(said, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "its messages can't be read: " + err.Error()
	}
	if text := logMessages(said[:n]); text != "" {
		return lifecycle.OneLine(text)
	}
	return "it left no message"
}

func (l *runtimeLog) close() { _ = l.file.Close() } // it was only read

// migrationInterval is shorter than the kernel's grace period (see
// expectMigration).
const migrationInterval = 2 * time.Millisecond

// expectMigration shortens the time in which the runtime moves processes into
// the container's cgroups. The first move after a pause waits for an RCU grace
// period, 5 to 12 ms (percpu_down_write of cgroup_threadgroup_rwsem); a move
// within a grace period of the previous one does not. So this process moves to
// its own cgroup again and again until the container has a process or ctx ends.
func expectMigration(ctx context.Context, p cgroupPlan) {
	if p.own == "" {
		return
	}
	procs, err := os.OpenFile(filepath.Join(p.own, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer func() { _ = procs.Close() }()
	for readText(p.joined, "cgroup.procs") == "" {
		if _, err := procs.WriteString("0"); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(migrationInterval):
		}
	}
}
