package livesandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// Bounds of background commands.
const (
	// maxBackground is how many may run at once: a server or two, a watcher, and room.
	maxBackground = 8
	// maxBackgrounds is how many a session may start. Each keeps a file, and the end of its
	// output in memory.
	maxBackgrounds = 200
	// BackgroundPrefix begins the handles of background commands; a number follows.
	BackgroundPrefix = "background-"
	// backgroundTime stands for no timeout: it is longer than any session.
	backgroundTime = 365 * 24 * time.Hour
	// backgroundLive bounds what is read of a stream while its command runs. Past it, a
	// flood costs nothing outside the sandbox, which only counts on.
	backgroundLive = 1 << 30
	// backgroundBytes bounds the kept output of one command. It counts towards spillBytes.
	backgroundBytes = 16 << 20
)

// Causes for which a background command is ended.
var (
	errKilled     = errors.New("shell_kill")
	errSessionEnd = errors.New("the session ends")
	errFork       = errors.New("the session is forked")
	errRepeating  = errors.New("a repository was made again after it had been renamed")
	errCollect    = errors.New("running commands are ended before the changes in the sandbox are collected")
)

// backgrounds are the background commands of a session. They end on their own, by
// shell_kill or with the session, but not with a turn, even a cancelled one. It is safe for
// concurrent use.
type backgrounds struct {
	x *Executor
	// ended records a command's end.
	ended func(record.BackgroundEnded) error
	log   *zap.Logger

	mu     sync.Mutex
	all    map[string]*background
	count  int
	live   int
	closed bool
	wait   sync.WaitGroup
}

type background struct {
	handle, callID string
	begun          time.Time
	cancel         context.CancelCauseFunc
	log            *backgroundLog
	refused        func(ended bool) ([]shell.Refused, []string)
	// terminal and recording are nil without a terminal.
	terminal  *terminal
	recording *Recording

	done chan struct{} // closed when end is final
	end  shell.Ended
}

// Begin starts a command and returns its handle.
func (b *backgrounds) Begin(ctx context.Context, cmd shell.Command) (string, error) {
	g, err := b.x.waitReady(ctx)
	if err != nil {
		return "", err
	}
	defer b.x.sandbox.copy.beginUse()()
	program, err := b.x.shellProgram(ctx, g)
	if err != nil {
		return "", b.x.sandbox.checkLoss(g, err)
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j, err := b.addCommand(cmd.CallID, cancel)
	if err != nil {
		return "", err
	}
	watched, unwatch := b.x.disk.WatchContext(own, g.bounds...)
	starting := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	start := cmd.Command
	start.Argv, start.Timeout, start.Output = scriptArgv(program, cmd), cmp.Or(cmd.Timeout, backgroundTime), sandbox.OutputLimits{Live: backgroundLive}
	start.Stdout, start.Stderr = j.log.streamWriter(0), j.log.streamWriter(1)
	if cmd.Terminal != nil {
		b.addTerminal(j, &start)
	}
	j.refused = b.x.trackCommand(&start, cmd)
	p, err := g.sandbox.Start(watched, start)
	if err != nil {
		j.refused(true)
		full := diskFull(watched)
		unwatch()
		cancel(nil)
		b.dropCommand(j)
		if full != nil {
			return "", full
		}
		return "", fmt.Errorf("start background command: %w", b.x.badDir(cmd, b.x.sandbox.checkLoss(g, err)))
	}
	finish := func() {
		defer b.wait.Done()
		b.finishCommand(watched, g, j, p)
		unwatch()
		cancel(nil)
	}
	if !starting() { // the call was cancelled before it had the handle
		finish()
		return "", fmt.Errorf("start background command: %w", context.Cause(ctx))
	}
	go finish()
	return j.handle, nil
}

func (b *backgrounds) addCommand(call string, cancel context.CancelCauseFunc) (*background, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, errSessionEnd
	case b.live == maxBackground:
		return nil, fmt.Errorf("%w: %d run, as many as a session may have", shell.ErrTooMany, b.live)
	case b.count == maxBackgrounds:
		return nil, fmt.Errorf("%w: this session has started %d, as many as it may", shell.ErrTooMany, b.count)
	}
	log, err := newBackgroundLog(b.x.spill)
	if err != nil {
		return nil, err
	}
	b.count++
	b.live++
	b.wait.Add(1)
	j := &background{
		handle: fmt.Sprintf("%s%d", BackgroundPrefix, b.x.opts.Handles+b.count), callID: call, begun: time.Now(), cancel: cancel, log: log, done: make(chan struct{}), refused: noneRefused,
	}
	b.all[j.handle] = j
	return j, nil
}

// addTerminal connects the model's side of a command's terminal, and records it.
func (b *backgrounds) addTerminal(j *background, start *sandbox.Command) {
	j.terminal = newTerminal(start.Terminal.TerminalSize, b.x.spill.redact, j.done)
	start.Stdin = j.terminal
	outputs := []io.Writer{start.Stdout, j.terminal}
	recording, err := b.x.StartRecording(start.Terminal.TerminalSize, shell.TerminalKind)
	if err != nil {
		b.log.Error("a terminal is not recorded", zap.Error(err))
	} else {
		j.recording = recording
		outputs = append(outputs, recording)
	}
	start.Stdout = io.MultiWriter(outputs...)
}

// dropCommand forgets a command that did not start.
func (b *backgrounds) dropCommand(j *background) {
	j.log.closeFile()
	if j.recording != nil {
		j.recording.Close()
	}
	close(j.done)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, j.handle)
	b.live--
	b.wait.Done()
}

// finishCommand waits for a command's end and records it. It doesn't handle the loss of the
// sandbox: the next call does, which tells the model.
func (b *backgrounds) finishCommand(watched context.Context, g *generation, j *background, p sandbox.Process) {
	exit, err := b.x.waitWatched(p)
	cause := context.Cause(watched)
	j.log.addEnd(exit)
	end := shell.Ended{Result: shell.Result{Exit: exit}, Lost: err != nil, Bytes: j.log.closeFile()}
	if end.Wall == 0 {
		end.Wall = time.Since(j.begun)
	}
	blameDisk(watched, &end.Exit)
	end.Refused, end.Allowed = j.refused(true)
	b.x.addKilled(end.Result)
	ended := backgroundEnded(j, end, cause)
	if err != nil {
		ended.Error = err.Error()
	}
	if j.terminal != nil {
		j.terminal.trim()
	}
	if j.recording != nil {
		ended.Recording = new(j.recording.Close())
	}
	if err := b.ended(ended); err != nil {
		b.log.Error("record the end of a background command", zap.Error(err))
	}
	if err == nil {
		if end.Kill.Left > 0 {
			_ = b.x.sandbox.retireSandbox(g, end.Kill.Left) // the next call meets the result
		}
		if !errors.Is(cause, errSessionEnd) {
			b.x.afterCommand(watched)
		}
	}
	b.mu.Lock()
	b.live--
	b.mu.Unlock()
	j.end = end
	close(j.done)
}

func (b *backgrounds) find(handle string) *background {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[handle]
}

// state describes a command's state, and reports whether it runs.
func (j *background) state() (text string, running bool) {
	if isClosed(j.done) {
		return fmt.Sprintf("%s after %s", j.end.State(), j.end.Wall.Round(10*time.Millisecond)), false
	}
	return fmt.Sprintf("running for %s", time.Since(j.begun).Round(time.Second)), true
}

// End ends a command and returns how it ended. was reports that it had ended before.
func (b *backgrounds) End(ctx context.Context, handle string) (end shell.Ended, was bool, err error) {
	j := b.find(handle)
	if j == nil {
		return shell.Ended{}, false, shell.ErrNoOutput
	}
	if isClosed(j.done) {
		return j.end, true, nil
	}
	j.cancel(errKilled)
	select {
	case <-j.done:
		return j.end, false, nil
	case <-ctx.Done():
		return shell.Ended{}, false, fmt.Errorf("wait for background command: %w", context.Cause(ctx))
	}
}

// endAll ends all commands and waits, at most for the grace period and the guest's own bound
// of a kill. None can start afterwards.
func (b *backgrounds) endAll() {
	b.mu.Lock()
	b.closed = true
	for _, j := range b.all {
		j.cancel(errSessionEnd)
	}
	b.mu.Unlock()
	b.wait.Wait()
}

func (b *backgrounds) isRunning() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live > 0
}

// endRunning ends the running commands with a cause, waits for them, and returns their
// number.
func (b *backgrounds) endRunning(why error) (ended int) {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.all))
	b.mu.Unlock()
	for _, j := range all {
		if !isClosed(j.done) {
			ended++
			j.cancel(why)
		}
	}
	for _, j := range all {
		<-j.done
	}
	return ended
}

// openOutput opens a command's output so far. ok is false if the handle is unknown.
func (b *backgrounds) openOutput(handle string) (k shell.Kept, ok bool, err error) {
	j := b.find(handle)
	if j == nil {
		return shell.Kept{}, false, nil
	}
	state, _ := j.state()
	k, err = j.log.openKept()
	if k.State != "" {
		state += "; " + k.State
	}
	k.State = state
	return k, true, err
}

// backgroundLog holds a command's output, with both streams in order of arrival: the beginning
// in a file, without secrets, and the end in memory. It is safe for concurrent use.
type backgroundLog struct {
	spill *spiller
	path  string

	mu      sync.Mutex
	file    *os.File
	streams [2]*redact.Writer
	total   int64
	live    [2]int64 // bytes received of each stream
	done    bool
	kept    int64 // bytes written to the file, before redaction
	full    bool
	// tail is the end of the output that is not in the file; see lastText.
	tail []byte
}

func newBackgroundLog(s *spiller) (*backgroundLog, error) {
	f, name, err := s.createFile(s.nextCommand(), "background")
	if err != nil {
		return nil, fmt.Errorf("keep output: %w", err)
	}
	g := &backgroundLog{spill: s, path: s.filePath(name), file: f}
	for i := range g.streams {
		g.streams[i] = s.redact.NewWriter(f)
	}
	return g, nil
}

func (g *backgroundLog) streamWriter(i int) *backgroundStream { return &backgroundStream{g, i} }

type backgroundStream struct {
	log *backgroundLog
	i   int
}

func (s *backgroundStream) Write(p []byte) (int, error) {
	g := s.log
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total += int64(len(p))
	g.live[s.i] += int64(len(p))
	g.keepPiece(s.i, p)
	return len(p), nil
}

// keepPiece keeps a piece in the file, or else in the tail. The caller holds mu.
func (g *backgroundLog) keepPiece(stream int, p []byte) {
	if !g.full && (g.kept+int64(len(p)) > backgroundBytes || !g.spill.reserveBytes(len(p))) {
		g.full = true
	}
	if g.full {
		g.keepTail(p)
		return
	}
	g.kept += int64(len(p))
	if _, err := g.streams[stream].Write(p); err != nil {
		g.full = true
	}
}

// addEnd adds what the sandbox counted, and the tails of streams that were not read in full.
func (g *backgroundLog) addEnd(exit sandbox.Exit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
	for i, s := range []sandbox.Stream{exit.Stdout, exit.Stderr} {
		if missing := s.Total - g.live[i]; missing > 0 { // after a loss of the sandbox, nothing is known
			g.total += missing
			g.full = true
			g.keepTail(s.Tail)
		}
	}
}

// tailHold is the part of the tail that is never shown: a secret may have begun before it.
const tailHold = redact.MaxKeyBytes

func (g *backgroundLog) keepTail(p []byte) {
	const most = captureBytes + tailHold
	g.tail = append(g.tail, p[max(0, len(p)-most):]...)
	if len(g.tail) > 2*most {
		g.tail = bytes.Clone(g.tail[len(g.tail)-most:])
	}
}

// openKept returns the output so far, except what may be the beginning of a secret.
func (g *backgroundLog) openKept() (shell.Kept, error) {
	f, err := os.Open(g.path)
	if err != nil {
		return shell.Kept{}, fmt.Errorf("open background output: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	state := ""
	if !g.done && (g.live[0] >= backgroundLive || g.live[1] >= backgroundLive) {
		state = "it has written more than is read while it runs; the end of it can be read when it has ended"
	}
	k := shell.Kept{State: state, ReaderAt: f, Closer: f, Total: g.total, Whole: !g.full, Last: g.lastText()}
	for _, s := range g.streams {
		if g.file != nil {
			if err := s.Flush(); err != nil {
				g.full, k.Whole = true, false
			}
		}
		k.Size += s.Written()
		k.Redacted = k.Redacted || s.Changed()
	}
	return k, nil
}

// lastText returns the tail from the first line on in which no secret from before can
// continue.
func (g *backgroundLog) lastText() []byte {
	hold := tailHold
	for _, s := range g.streams {
		hold = max(hold, s.HoldBytes())
	}
	text := g.tail[min(hold, len(g.tail)):]
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return g.spill.redact.Bytes(bytes.Clone(text))
}

// closeFile ends the log, which stays readable, and returns the total number of bytes.
func (g *backgroundLog) closeFile() (total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.file == nil {
		return g.total
	}
	for _, s := range g.streams {
		if err := s.Close(); err != nil {
			g.full = true
		}
	}
	if err := g.file.Close(); err != nil {
		g.full = true
	}
	g.file = nil
	return g.total
}

// backgroundEnded returns the record of a command's end. cause is why its context ended, or
// nil.
func backgroundEnded(j *background, end shell.Ended, cause error) record.BackgroundEnded {
	p := record.BackgroundEnded{
		CallID: j.callID, Handle: j.handle, EndedBy: "itself", ExitStatus: end.Status, Shortage: end.Shortage,
		Stdout: record.UserStream{Bytes: end.Exit.Stdout.Total, SHA256: end.Exit.Stdout.SHA256}, Stderr: record.UserStream{Bytes: end.Exit.Stderr.Total, SHA256: end.Exit.Stderr.SHA256},
		WallMS: end.Wall.Milliseconds(), CPUMS: end.CPU.Milliseconds(), Kill: end.Kill,
	}
	switch {
	case end.Lost:
		p.EndedBy = "sandbox_lost"
		p.Code = -1
	case end.Exceeded != nil:
		p.EndedBy = "disk_full"
	case end.Status.TimedOut:
		p.EndedBy = "timeout"
	case !end.Status.Cancelled:
	case errors.Is(cause, errKilled):
		p.EndedBy = "shell_kill"
	case errors.Is(cause, errFork):
		p.EndedBy = "fork"
	case errors.Is(cause, errCollect):
		p.EndedBy = "collect"
	case errors.Is(cause, errRepeating):
		p.EndedBy = "repository"
	case errors.Is(cause, errSessionEnd):
		p.EndedBy = "session_end"
	case cause != nil && !errors.Is(cause, context.Canceled):
		p.EndedBy = "cancelled"
	}
	return p
}
