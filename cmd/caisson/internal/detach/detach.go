// Package detach starts a program as a process that outlives the terminal and its
// parent, and lets the process report when it is ready.
//
//	parent: Start ─▶ child, in its own session ─▶ its work begins
//	        copies the child's standard error   ◀─  notices, errors
//	        returns the text                    ◀─  Parent.Ready(text)
//
// It imports only the standard library and golang.org/x/sys.
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

// readyFD is the child's descriptor for reporting readiness.
const readyFD = 3

// outputTime bounds the wait for the rest of a ready child's standard error.
const outputTime = time.Second

// EndedError reports a child that ended before it was ready.
type EndedError struct {
	// Status is its exit status, or 128 plus the number of the signal that ended it.
	Status int
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("the process ended with status %d before it was ready", e.Status)
}

// Start starts a program and waits until it is ready. It returns the text of
// [Parent.Ready]. Until then it copies the child's standard error to stderr. If ctx
// ends, the child gets SIGTERM, and SIGKILL once kill is closed, and Start waits for
// its end. If the child ends before it is ready, the error is an [EndedError].
func Start(ctx context.Context, program string, args []string, stderr io.Writer, kill <-chan struct{}) (text string, err error) {
	ready, readyChild, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start process: %w", err)
	}
	defer func() { _ = ready.Close() }()
	output, outputChild, err := os.Pipe()
	if err != nil {
		return "", errors.Join(fmt.Errorf("start process: %w", err), readyChild.Close())
	}
	defer func() { _ = output.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // the child outlives ctx
	cmd.Stderr, cmd.ExtraFiles = outputChild, []*os.File{readyChild}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if err = errors.Join(err, readyChild.Close(), outputChild.Close()); err != nil {
		return "", fmt.Errorf("start process: %w", err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(stderr, output) // the status tells the outcome
	}()
	done := make(chan struct{})
	defer close(done)
	go passSignals(ctx, cmd.Process, kill, done)
	b, err := io.ReadAll(ready)
	_ = output.SetReadDeadline(time.Now().Add(outputTime)) // pipes have deadlines
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

// passSignals ends the child as Start says, until done is closed.
func passSignals(ctx context.Context, child *os.Process, kill, done <-chan struct{}) {
	select {
	case <-ctx.Done():
		_ = child.Signal(syscall.SIGTERM) // it may have ended
	case <-done:
		return
	}
	select {
	case <-kill:
		_ = child.Kill() // it may have ended
	case <-done:
	}
}

// Parent is the process that started this one by [Start] and waits for it.
type Parent struct{ ready *os.File }

// FindParent returns the parent. It fails in a process that [Start] did not start. Call
// it before starting other programs: they could inherit the connection.
func FindParent() (*Parent, error) {
	var st unix.Stat_t
	if err := unix.Fstat(readyFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errors.New("the process was not started by the command that waits for it")
	}
	unix.CloseOnExec(readyFD)
	return &Parent{os.NewFile(readyFD, "ready")}, nil
}

// Ready reports that this process is ready, with a non-empty text, and replaces the
// standard streams by /dev/null.
func (p *Parent) Ready(text string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}
	defer func() { _ = null.Close() }() // nothing was written to it
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
