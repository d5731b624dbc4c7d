package guest

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// maxSignal is the highest signal number of Linux.
const maxSignal = 64

// maxProcesses bounds the counts of a kill report: Linux has no more pids.
const maxProcesses = 1 << 22

// checkExit converts the guest's exit, and refuses one that can't be true of
// this command.
func (p *process) checkExit(x wire.Exit) (sandbox.Exit, error) {
	status := sandbox.ExitStatus{
		Code: x.Code, Signal: x.Signal, OOMKilled: x.OOMKilled,
		TimedOut: x.TimedOut, Cancelled: x.Cancelled,
	}
	byCode := x.Signal == 0 && x.Code >= 0 && x.Code <= 255
	bySignal := x.Signal > 0 && x.Signal <= maxSignal && x.Code == -1
	switch {
	case !byCode && !bySignal:
		return sandbox.Exit{}, fmt.Errorf("%w: exit code %d with signal %d", wire.ErrProtocol, x.Code, x.Signal)
	case x.Cancelled && !p.cancelled:
		return sandbox.Exit{}, fmt.Errorf("%w: cancelled without a request", wire.ErrProtocol)
	case x.Cancelled && x.TimedOut:
		return sandbox.Exit{}, fmt.Errorf("%w: cancelled and timed out", wire.ErrProtocol)
	case x.Wall < 0 || x.CPU < 0 || x.PeakMemory < 0:
		return sandbox.Exit{}, fmt.Errorf("%w: negative usage", wire.ErrProtocol)
	}
	if err := checkKill(x.Kill); err != nil {
		return sandbox.Exit{}, err
	}
	exceeded, err := p.checkExceeded(x.Exceeded)
	if err != nil {
		return sandbox.Exit{}, err
	}
	for i, path := range x.Full {
		if !p.c.isTmpfs(path) || slices.Contains(x.Full[:i], path) {
			return sandbox.Exit{}, fmt.Errorf("%w: a file system that there is not is full", wire.ErrProtocol)
		}
	}
	stdout, err := p.checkStream(p.out[0], x.Stdout)
	if err != nil {
		return sandbox.Exit{}, fmt.Errorf("stdout: %w", err)
	}
	stderr, err := p.checkStream(p.out[1], x.Stderr)
	if err != nil {
		return sandbox.Exit{}, fmt.Errorf("stderr: %w", err)
	}
	return sandbox.Exit{
		Status: status, Stdout: stdout, Stderr: stderr,
		Wall: x.Wall, CPU: x.CPU, PeakMemory: x.PeakMemory, Shortage: sandbox.Shortage{PIDsLimitHit: x.PIDsLimitHit, Full: x.Full}, Exceeded: exceeded,
		Kill: sandbox.KillReport(x.Kill),
	}, nil
}

// checkExceeded returns the budget error of a command that exceeded its budget,
// or nil.
func (p *process) checkExceeded(x *wire.Exceeded) (*limits.ExceededError, error) {
	b := p.request.Budget
	switch {
	case x == nil:
		return nil, nil
	case b != nil && b.Tasks > 0 && x.Tasks > int64(b.Tasks) && x.Memory == 0:
		return &limits.ExceededError{Kind: limits.KindPIDs, Limit: int64(b.Tasks), Used: x.Tasks}, nil
	case b != nil && b.Memory > 0 && x.Memory > b.Memory && x.Tasks == 0:
		return &limits.ExceededError{Kind: limits.KindMemory, Limit: b.Memory, Used: x.Memory}, nil
	}
	return nil, fmt.Errorf("%w: a budget exceeded that the command has not", wire.ErrProtocol)
}

// isTmpfs reports whether path was a tmpfs when the connection began.
func (c *Conn) isTmpfs(path string) bool {
	return slices.ContainsFunc(c.hello.Tmpfs, func(m wire.Mount) bool { return m.Path == path })
}

func checkKill(k wire.Kill) error {
	for _, n := range []int{k.Terminated, k.Killed, k.Left} {
		if n < 0 || n > maxProcesses {
			return fmt.Errorf("%w: %d processes", wire.ErrProtocol, n)
		}
	}
	if k.KillTime < 0 || !slices.Contains([]string{"", "gid", "subreaper"}, k.Method) {
		return fmt.Errorf("%w: strange kill report", wire.ErrProtocol)
	}
	return nil
}

// checkStream compares the guest's totals with the bytes that came.
func (p *process) checkStream(s *sink, o wire.Output) (sandbox.Stream, error) {
	came, ended := s.queue.Total()
	sum, err := hex.DecodeString(o.SHA256)
	switch {
	case !ended:
		return sandbox.Stream{}, fmt.Errorf("%w: the stream has not ended", wire.ErrProtocol)
	case o.Live != came:
		return sandbox.Stream{}, fmt.Errorf("%w: %d live bytes came, %d are claimed", wire.ErrProtocol, came, o.Live)
	case len(o.Tail) > p.request.Tail || o.Total < came+int64(len(o.Tail)):
		return sandbox.Stream{}, fmt.Errorf("%w: a total of %d with %d live and %d last bytes", wire.ErrProtocol, o.Total, came, len(o.Tail))
	case err != nil || len(sum) != 32:
		return sandbox.Stream{}, fmt.Errorf("%w: no SHA-256", wire.ErrProtocol)
	}
	return sandbox.Stream{Total: o.Total, SHA256: o.SHA256, Tail: o.Tail}, nil
}
