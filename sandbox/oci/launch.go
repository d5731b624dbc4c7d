package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// launch is one call of a runtime's `run --detach`. Its log is a named pipe. A
// runtime opens its log before it looks at its bundle, and stops there until
// the pipe has a reader: so it can be started before the bundle is complete,
// and its own start, 3 ms of runc's and 5 of runsc's, overlaps with the rest of
// our preparations. Whoever began it calls wait or
// abandon.
type launch struct {
	cmd  *exec.Cmd
	name string // of the runtime, for messages
}

// waitsForLog says that the runtime is known to open its log first. Another
// one, such as crun, is started when its bundle is complete.
func (r *runtimeClient) waitsForLog(t traits) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known.name == t.binary
}

// begin starts the runtime. streams become the container's standard
// streams; the runtime keeps none of them. entrance, if not nil, is where the
// runtime has to be started to see the workspace.
func (r *runtimeClient) begin(ctx context.Context, b *bundle, id string, cgroups bool, streams streams, entrance *workmount.Entrance) (*launch, error) {
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		return nil, fmt.Errorf("make runtime folder: %w", err)
	}
	args := append(r.flags(runtimeFlags{root: r.root, log: b.logPath(), cgroups: cgroups}),
		"run", "--detach", "--bundle", b.dir, "--pid-file", b.pidFile(), id)
	cmd := r.command(ctx, args)
	// A runtime that is killed half-way leaves what it can't be asked about
	// any more. So a cancellation lets it finish, which takes the guest, whose
	// stdin is closed then, with it; only one that hangs is killed.
	cmd.Cancel = func() error { return nil }
	cmd.WaitDelay = callTime
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.stdin, streams.stdout, streams.stderr
	if entrance != nil {
		entrance.Wrap(cmd)
	}
	l := &launch{cmd: cmd, name: filepath.Base(r.path)}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s run: %w: %w", l.name, sandbox.ErrUnavailable, err)
	}
	return l, nil
}

// wait returns once the container runs. log is the bundle's, with which the
// runtime goes on.
func (l *launch) wait(ctx context.Context, log *runtimeLog) error {
	err := l.cmd.Wait()
	log.release()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s run: %w: %w: %s", l.name, sandbox.ErrUnavailable, err, log.messages())
	}
	return nil
}

// finish ends a runtime that is of no use. It is given its log, so that it does
// not wait for that, and finishes; see begin.
func (l *launch) finish(log *runtimeLog) error {
	err := l.cmd.Wait()
	log.release()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil // the caller has a better reason
	}
	return err
}

// abandon kills a runtime whose log was never opened, and which therefore has
// done nothing yet.
func (l *launch) abandon() error {
	err := l.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil // it refused its arguments: the caller has a better reason
	}
	l.cmd.Wait() //nolint:errcheck // killed
	return err
}

// runtimeLog is the reading end of a runtime's log. gVisor keeps the writing
// end as long as the sandbox lives; it is drained until then.
type runtimeLog struct {
	*head
	hold *os.File // keeps the pipe from ending before the runtime opens it
}

// openLog gives the bundle's log a reader.
func (b *bundle) openLog() (*runtimeLog, error) {
	read, err := os.OpenFile(b.logPath(), os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, fmt.Errorf("open runtime's log: %w", err)
	}
	hold, err := os.OpenFile(b.logPath(), os.O_WRONLY|nonBlocking, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open runtime's log: %w", err), read.Close())
	}
	return &runtimeLog{head: readHead(read), hold: hold}, nil
}

// release lets the log end with the last process that writes it.
func (l *runtimeLog) release() { l.hold.Close() } //nolint:errcheck // nothing was written; a second time is fine

// logTime is how long the end of a log is waited for when a runtime failed.
const logTime = time.Second

// messages are the runtime's own errors, for an error of ours.
func (l *runtimeLog) messages() string {
	select {
	case <-l.done:
	case <-time.After(logTime): // something of a failed start still holds it
	}
	if text := logMessages(l.bytes()); text != "" {
		return oneLine(text)
	}
	return "it left no message"
}

// close stops the reading.
func (l *runtimeLog) close() {
	l.release()
	l.head.close() //nolint:errcheck // only read
}
