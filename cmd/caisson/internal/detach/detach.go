package detach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readyFD is the descriptor of the child on which it reports that it is ready.
const readyFD = 3

// outputTime bounds the wait for the rest of a child's standard error once it is ready.
const outputTime = time.Second

// Start starts a program and waits until it is ready. It returns the text of [Parent.Ready].
// Until then the child's standard error is copied to stderr. If ctx ends, the child gets
// SIGTERM, and SIGKILL once kill is closed, and Start waits for its end. A child that
// ends without being ready is an [EndedError].
func Start(ctx context.Context, program string, args []string, stderr io.Writer, kill <-chan struct{}) (text string, err error) {
	ready, readyChild, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start process: %w", err)
	}
	defer func() { _ = ready.Close() }() // only read
	output, outputChild, err := os.Pipe()
	if err != nil {
		return "", errors.Join(fmt.Errorf("start process: %w", err), readyChild.Close())
	}
	defer func() { _ = output.Close() }()                                    // only read
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // which outlives ctx
	cmd.Stderr, cmd.ExtraFiles = outputChild, []*os.File{readyChild}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if err = errors.Join(err, readyChild.Close(), outputChild.Close()); err != nil {
		return "", fmt.Errorf("start process: %w", err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(stderr, output) // what can't be shown is lost; the status tells the outcome
	}()
	done := make(chan struct{})
	defer close(done)
	go passSignals(ctx, cmd.Process, kill, done)
	b, err := io.ReadAll(ready)
	_ = output.SetReadDeadline(time.Now().Add(outputTime)) // a pipe has deadlines
	<-copied
	switch {
	case err != nil:
		return "", fmt.Errorf("start process: %w", err)
	case len(b) > 0:
		return string(b), cmd.Process.Release()
	}
	_ = cmd.Wait() // the state has the status
	status := cmd.ProcessState.ExitCode()
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		status = 128 + int(w.Signal())
	}
	return "", &EndedError{status}
}

// passSignals ends the child until done is closed.
func passSignals(ctx context.Context, child *os.Process, kill, done <-chan struct{}) {
	select {
	case <-ctx.Done():
		_ = child.Signal(syscall.SIGTERM) // one that has ended gets none
	case <-done:
		return
	}
	select {
	case <-kill:
		_ = child.Kill() // as above
	case <-done:
	}
}

// Parent is the process that started this one by [Start], and waits for it.
type Parent struct{ ready *os.File }

// FindParent returns the parent. It fails in a process that [Start] did not start. It must be
// called before other programs are started, which could inherit the connection.
func FindParent() (*Parent, error) {
	var st unix.Stat_t
	if err := unix.Fstat(readyFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errors.New("the process was not started by the command that waits for it")
	}
	unix.CloseOnExec(readyFD)
	return &Parent{os.NewFile(readyFD, "ready")}, nil
}

// Ready reports that this process is ready, with a text that is not empty, and lets go
// of the standard streams, which /dev/null replaces.
func (p *Parent) Ready(text string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}
	defer func() { _ = null.Close() }() // nothing was written through it
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("report readiness: %w", err)
		}
	}
	_, err = p.ready.WriteString(text)
	if err = errors.Join(err, p.ready.Close()); err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}
	return nil
}
