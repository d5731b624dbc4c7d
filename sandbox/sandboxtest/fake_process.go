//go:build linux

package sandboxtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// Signals that a fake process knows.
const (
	sigKill = 9
	sigTerm = 15
)

// fakeProcess is one process: the command itself, or what it started.
type fakeProcess struct {
	argv       []string
	pid        int // its place in the sandbox's table, from 1
	identity   int
	ignoreTerm atomic.Bool
	ended      bool     // guarded by the sandbox's mu
	signals    chan int // buffered; the last one counts
}

func (p *fakeProcess) sendSignal(sig int) {
	if sig == sigTerm && p.ignoreTerm.Load() {
		return
	}
	select {
	case p.signals <- sig:
	default:
	}
}

// fakeCommand is a command that runs: a sandbox.Process.
type fakeCommand struct {
	sb             *fakeSandbox
	spec           sandbox.Command
	main           *fakeProcess
	children       []*fakeProcess // guarded by sb.mu
	number         int            // 0 without a plan of listeners
	stdout, stderr *fakeStream
	done           chan struct{}
	exit           sandbox.Exit
	err            error
}

// Wait waits for the end.
func (c *fakeCommand) Wait() (sandbox.Exit, error) {
	<-c.done
	return c.exit, c.err
}

// Start checks the command as a guest does and runs its verb.
func (s *fakeSandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := s.life.Require("start", sandbox.StateRunning); err != nil && s.backend.Fault != FaultNoEnd {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil && s.backend.Fault == FaultCommonCause {
		return nil, errors.New("start command: cancelled")
	} else if err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	own := cmd.Env == nil
	if cmd.Env == nil && s.backend.Fault == FaultNoVariables {
		cmd.Env = sandbox.DefaultEnv()
	} else if cmd.Env == nil {
		env := sandbox.SetVariables(nil, append(s.accountVariables(), "PWD="+cmp.Or(cmd.Dir, s.mountPoint())))
		if !cmd.Separate {
			env = sandbox.SetVariables(env, s.spec.Env)
		}
		cmd.Env = sandbox.SetVariables(env, sandbox.IdentityVariables(cmd.Identity))
	}
	if len(cmd.Variables) > 0 {
		cmd.Env = sandbox.SetVariables(cmd.Env, cmd.Variables)
	}
	if s.backend.Fault == FaultHostEnvironment {
		cmd.Env = append(slices.Clone(cmd.Env), os.Environ()...)
	}
	c := &fakeCommand{sb: s, done: make(chan struct{})}
	addNumber(c, &cmd, own)
	dir, err := s.resolveDir(cmd)
	if err != nil {
		return nil, fmt.Errorf("start command: %w: %w", sandbox.ErrInvalid, err)
	}
	cmd.Dir = dir
	c.spec = cmd
	c.stdout = newFakeStream(s, cmd.Stdout, cmd.Output)
	c.stderr = newFakeStream(s, cmd.Stderr, cmd.Output)
	if s.backend.Fault == FaultMergedStreams {
		c.stderr = c.stdout
	}
	c.main = s.addProcess(cmd, false)
	go c.run(ctx)
	return c, nil
}

// addProcess adds a process to the sandbox's table.
func (s *fakeSandbox) addProcess(cmd sandbox.Command, ignoreTerm bool) *fakeProcess {
	p := &fakeProcess{argv: cmd.Argv, signals: make(chan int, 4)}
	if s.backend.Fault != FaultOneUser {
		p.identity = cmd.Identity
	}
	p.ignoreTerm.Store(ignoreTerm)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	p.pid = len(s.processes)
	return p
}

// run does the verb, then ends what is left of the command.
func (c *fakeCommand) run(ctx context.Context) {
	defer close(c.done)
	began := time.Now()
	timeout := c.spec.Timeout
	if timeout == 0 {
		timeout = c.sb.spec.Resources.CommandTime
	}
	if c.sb.backend.Fault == FaultNoTimeout {
		timeout = time.Hour
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	ended := make(chan sandbox.ExitStatus, 1)
	go func() { ended <- c.runCommand() }()
	var status sandbox.ExitStatus
	select {
	case status = <-ended:
		c.reapProcess(c.main)
		c.endChildren(sigKill)
		c.exit.Kill.AfterExit = c.exit.Kill.Killed > 0
	case <-ctx.Done():
		if c.sb.paused.Load() && c.sb.backend.Fault != FaultPausedResult {
			c.sb.stop(fmt.Errorf("%w: the guest does not answer", sandbox.ErrLost))
		}
		status = c.cancelVerb(ended)
		status.Cancelled = true
	case <-timer.C:
		status = c.cancelVerb(ended)
		status.TimedOut = true
	case <-c.sb.done:
		status = <-ended
	}
	endConns(c)
	c.exit.Status, c.exit.Wall = status, time.Since(began)
	c.exit.CPU = c.exit.Wall // nothing else of it can be told from the suite's own
	c.exit.Stdout, c.exit.Stderr = c.stdout.sum(), c.stderr.sum()
	if c.sb.State() == sandbox.StateStopped {
		c.loseSandbox()
	}
}

// loseSandbox makes the command's end the loss of its sandbox.
func (c *fakeCommand) loseSandbox() {
	c.err = fmt.Errorf("wait for command: %w", sandbox.ErrLost)
	if c.sb.backend.Fault == FaultLossIsExit {
		c.err, c.exit.Status = nil, sandbox.ExitStatus{Code: 137}
	}
}

// cancelVerb does what a guest does: SIGTERM, the grace period, SIGKILL.
func (c *fakeCommand) cancelVerb(ended chan sandbox.ExitStatus) sandbox.ExitStatus {
	if c.sb.backend.Fault != FaultKillAtOnce {
		c.main.sendSignal(sigTerm)
		c.exit.Kill.Terminated = 1 + len(c.startedProcesses())
		grace := c.spec.Grace
		if grace == 0 {
			grace = sandbox.DefaultGrace
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case status := <-ended:
			c.reapProcess(c.main)
			c.terminateOrphans()
			c.endChildren(sigKill)
			return status
		case <-timer.C:
		}
	}
	c.main.sendSignal(sigKill)
	c.exit.Kill.Killed++
	status := <-ended
	c.reapProcess(c.main)
	c.endChildren(sigKill)
	return status
}

// startedProcesses returns the processes that the command started so far.
func (c *fakeCommand) startedProcesses() []*fakeProcess {
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	return slices.Clone(c.children)
}

// terminateOrphans ends those that act on SIGTERM.
func (c *fakeCommand) terminateOrphans() {
	if c.sb.backend.Fault == FaultOrphansWait {
		return
	}
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	c.children = slices.DeleteFunc(c.children, func(p *fakeProcess) bool {
		if p.ignoreTerm.Load() {
			return false
		}
		c.exit.Kill.Terminated++
		p.ended = true
		return true
	})
}

// endChildren ends what the command started.
func (c *fakeCommand) endChildren(sig int) {
	if c.sb.backend.Fault == FaultStoppedLeft && c.sb.stopped.Load() {
		c.exit.Kill.Left = len(c.startedProcesses())
		return
	}
	for _, p := range c.startedProcesses() {
		if fault := c.sb.backend.Fault; fault == FaultNoDaemons || fault == FaultOthersLeft && c.spec.Identity != 0 {
			return
		}
		p.sendSignal(sig)
		c.exit.Kill.Killed++
		c.reapProcess(p)
	}
}

func (c *fakeCommand) reapProcess(p *fakeProcess) {
	c.sb.mu.Lock()
	defer c.sb.mu.Unlock()
	p.ended = true
}

// resolveDir checks the working directory and returns it as a host path.
func (s *fakeSandbox) resolveDir(cmd sandbox.Command) (string, error) {
	if s.backend.Fault == FaultAnyIdentity {
		cmd.Identity = 0
	}
	if err := checkStrings(cmd); err != nil {
		return "", err
	}
	if cmd.Dir == "" || s.backend.Fault == FaultAnyDir {
		return s.spec.Workspace.Path, nil
	}
	rel, ok := strings.CutPrefix(cmd.Dir+"/", s.mountPoint()+"/")
	if !ok {
		return "", fmt.Errorf("dir %q is outside the workspace", cmd.Dir)
	}
	root, err := os.OpenRoot(s.spec.Workspace.Path)
	if err != nil {
		return "", err
	}
	defer root.Close()
	rel = filepath.Clean("./" + rel)
	info, err := root.Stat(rel)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("dir %q is no directory", cmd.Dir)
	}
	if cmd.NoLinks && s.backend.Fault != FaultLinkedDir {
		if err := refuseLinks(root, rel); err != nil {
			return "", err
		}
	}
	return filepath.Join(s.spec.Workspace.Path, rel), nil
}

// refuseLinks returns an error if a symlink is part of a path.
func refuseLinks(root *os.Root, rel string) error {
	for ; rel != "."; rel = filepath.Dir(rel) {
		info, err := root.Lstat(rel)
		if err != nil {
			return err
		}
		if info.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("dir %q is a symlink", rel)
		}
	}
	return nil
}

func checkStrings(cmd sandbox.Command) error {
	if cmd.Identity < 0 || cmd.Identity > sandbox.MaxIdentity {
		return fmt.Errorf("identity %d", cmd.Identity)
	}
	if len(cmd.Argv) == 0 || cmd.Argv[0] == "" || cmd.Timeout < 0 {
		return fmt.Errorf("argv %q, timeout %s", cmd.Argv, cmd.Timeout)
	}
	total := 0
	for _, s := range slices.Concat(cmd.Argv, cmd.Env) {
		if total += len(s); total > 2500<<10 {
			return errors.New("too many arguments")
		}
		if strings.ContainsRune(s, 0) || len(s) > 128<<10 {
			return fmt.Errorf("string of %d bytes", len(s))
		}
	}
	for _, s := range cmd.Env {
		if strings.Index(s, "=") < 1 {
			return fmt.Errorf("env %q", s)
		}
	}
	return nil
}

// chownPath makes the workspace's owner own a path and the new directories
// above it.
func (s *fakeSandbox) chownPath(dir, rel string) error {
	if os.Geteuid() != 0 || s.backend.Fault == FaultRootOwner {
		return nil
	}
	uid, gid, _ := strings.Cut(s.owner, ":")
	u, err := strconv.Atoi(uid)
	if err != nil {
		return err
	}
	g, err := strconv.Atoi(gid)
	if err != nil {
		return err
	}
	for ; rel != "."; rel = filepath.Dir(rel) {
		if err := os.Lchown(filepath.Join(dir, rel), u, g); err != nil {
			return err
		}
	}
	return nil
}

// fakeStream counts, hashes, passes on and cuts one output stream.
type fakeStream struct {
	sb   *fakeSandbox
	to   io.Writer
	live int64
	tail int

	mu   sync.Mutex
	hash hash.Hash
	out  sandbox.Stream
}

func newFakeStream(sb *fakeSandbox, to io.Writer, o sandbox.OutputLimits) *fakeStream {
	s := &fakeStream{sb: sb, to: to, live: o.Live, tail: o.Tail, hash: sha256.New()}
	if to == nil {
		s.to = io.Discard
	}
	if s.live == 0 {
		s.live = sandbox.DefaultLiveBytes
	}
	if s.tail == 0 {
		s.tail = sandbox.DefaultTailBytes
	}
	return s
}

func (s *fakeStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sb.backend.Fault == FaultDeadlock {
		s.sb.stall.Lock()
		defer s.sb.stall.Unlock()
	}
	s.hash.Write(p)
	live := p[:min(int64(len(p)), s.live-s.out.Live)]
	if _, err := s.to.Write(live); err != nil {
		return 0, err
	}
	s.out.Live += int64(len(live))
	s.out.Total += int64(len(p))
	s.out.Tail = append(s.out.Tail, p[len(live):]...)
	if s.sb.backend.Fault == FaultOverlappingTail {
		s.out.Tail = append(s.out.Tail, live...)
	}
	s.out.Tail = slices.Clone(s.out.Tail[max(0, len(s.out.Tail)-s.tail):])
	return len(p), nil
}

func (s *fakeStream) sum() sandbox.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.SHA256 = hex.EncodeToString(s.hash.Sum(nil))
	if s.sb.backend.Fault == FaultLostBytes {
		s.out.Total = min(s.out.Total, s.live)
	}
	return s.out
}
