package serve

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/output"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// pipeWait is how long a pipe may stay open once no process of the command
	// is left: something else holds it then.
	pipeWait = 200 * time.Millisecond
	// liveWait is how long the consumer of a cancelled or timed-out command has
	// for the rest of the pipe.
	liveWait = 2 * time.Second
)

// command is an exec stream: one command from its request to its exit.
type command struct {
	s       *Session
	id      uint32
	request wire.Exec

	out     [2]*output.Pump // stdout, stderr
	credits [2]*wire.Credit
	stdin   *wire.Queue // nil for /dev/null
	// terminal is the guest's end of the command's terminal, once it runs.
	terminal atomic.Pointer[os.File]

	cancelled chan struct{}
	once      sync.Once
	// killed is closed when the host wants no grace period.
	killed   chan struct{}
	killOnce sync.Once
	// stopTransfer ends a transfer early and closes ended. It is nil for a
	// process.
	stopTransfer func()
	ended        chan struct{}
}

func newCommand(s *Session, id uint32, r wire.Exec) (*command, error) {
	switch {
	case len(r.Argv) == 0:
		return nil, errors.New("no program is named")
	case r.Timeout <= 0 || r.Grace < 0:
		return nil, errors.New("a timeout must be positive and a grace period not negative")
	case r.Identity < 0 || r.Identity > 0 && r.Identity >= s.o.Identities:
		return nil, errors.New("there is no such identity")
	case r.Budget != nil && (r.Budget.Tasks < 0 || r.Budget.Memory < 0):
		return nil, errors.New("a negative budget")
	case r.Live < 0 || r.Tail < 0 || r.Tail > wire.MaxTail:
		return nil, errors.New("bad output limits")
	}
	c := &command{s: s, id: id, request: r, cancelled: make(chan struct{}), killed: make(chan struct{}), ended: make(chan struct{})}
	c.credits = [2]*wire.Credit{wire.NewCredit(), wire.NewCredit()}
	if r.Stdin {
		c.stdin = wire.NewQueue()
	}
	return c, nil
}

func (c *command) takeData(channel uint8, p []byte) error {
	if channel != wire.Stdin || c.stdin == nil {
		return badChannel(channel)
	}
	return c.stdin.Push(p)
}

func (c *command) takeEOF(channel uint8) error {
	if channel != wire.Stdin || c.stdin == nil {
		return badChannel(channel)
	}
	return c.stdin.End()
}

func (c *command) addCredit(channel uint8, n uint32) error {
	if channel == wire.Stdin {
		return badChannel(channel)
	}
	return c.credits[channel-1].Grant(n)
}

func (c *command) stopReading(channel uint8) {
	if channel != wire.Stdin {
		c.credits[channel-1].Close()
	}
}

func (c *command) cancel(request wire.Cancel) {
	if request.Kill {
		c.killOnce.Do(func() { close(c.killed) })
	}
	c.once.Do(func() { close(c.cancelled) })
}

func (c *command) run() {
	exit, refused := c.runToEnd()
	c.s.removeStream(c.id)
	if refused != nil {
		_ = c.s.refuseStream(c.id, refused.Code, refused.Text)
		return
	}
	c.s.endStream(c.id, exit, wire.Stdout, wire.Stderr)
}

func (c *command) runToEnd() (*wire.Exit, *wire.Refused) {
	gid, ok := c.s.gids.acquire()
	if !ok {
		return nil, &wire.Refused{Code: wire.RefusedBusy, Text: "no group is left to mark the command"}
	}
	before := c.s.readCounters()
	began := time.Now()
	clock := newClock(c.request.Timeout, func() { c.s.o.Killer.Continue(kill.Mark{Group: gid}) })
	defer clock.stop()
	p, err := c.launchProcess(gid)
	clock.startTimeout()
	if err != nil {
		c.s.gids.release(gid)
		return c.notStarted(err)
	}
	defer p.Release()
	if c.request.Terminal != nil {
		c.terminal.Store(p.Stdout)
	}
	_ = c.s.o.Writer.SendJSON(c.id, wire.TypeStarted, wire.Started{PID: p.PID})

	ended := c.startStreams(p)
	over, unwatch := c.s.budgets.watch(p.Mark, c.request.Budget)
	e := c.awaitEnd(p, clock.expired, over)
	unwatch()
	wall := time.Since(began)
	after := c.s.readCounters() // before another command counts
	if e.report.Left() == 0 {
		c.s.o.Killer.Over()
		c.s.gids.release(gid)
	}
	c.waitStreams(ended, p.Stdin, e.isForced(), c.request.Timeout-wall)
	x := e.toWire(wall, c.s.o.Killer.Method())
	x.Stdout, x.Stderr = c.out[0].Result(), c.out[1].Result()
	before.addTo(after, x)
	if x.Code != 0 {
		x.Full = c.s.o.Volumes.Full()
	}
	return x, nil
}

func (c *command) launchProcess(gid uint32) (p launch.Process, err error) {
	err = c.s.o.Killer.Launch(func() (err error) {
		if c.isTransfer() {
			p, err = c.startTransfer()
			return err
		}
		p, err = c.s.o.Launcher.Launch(spawn.Request{
			Argv: toStrings(c.request.Argv), Env: toStrings(c.request.Env),
			Dir: string(c.request.Dir), NoLinks: c.request.NoLinks, Stdin: c.stdin != nil, Group: gid,
			Identity: c.request.Identity, Terminal: c.request.Terminal,
		})
		return err
	})
	return p, err
}

// startStreams starts the goroutines that move the command's bytes. It returns
// a channel that is closed when all have ended.
func (c *command) startStreams(p launch.Process) <-chan struct{} {
	c.out = [2]*output.Pump{c.startPump(p.Stdout, wire.Stdout), c.startPump(p.Stderr, wire.Stderr)}
	moves := []func(){c.out[0].Run, c.out[1].Run}
	if c.stdin != nil {
		moves = append(moves, func() { c.copyInput(p.Stdin) })
	}
	ended := make(chan struct{})
	var left atomic.Int32
	left.Store(int32(len(moves)))
	for _, move := range moves {
		go func() {
			move()
			if left.Add(-1) == 0 {
				close(ended)
			}
		}()
	}
	return ended
}

func (c *command) startPump(src *os.File, channel uint8) *output.Pump {
	return output.NewPump(src, output.Options{
		Live: c.request.Live, Tail: c.request.Tail, Credit: c.credits[channel-1], Slots: c.s.slots,
		Send: func(b *wire.Block, at, n int) error { return c.s.o.Writer.SendBlock(c.id, channel, b, at, n) },
	})
}

func toStrings(bytes [][]byte) []string {
	out := make([]string, len(bytes))
	for i, b := range bytes {
		out[i] = string(b)
	}
	return out
}

// notStarted returns the answer for a failed start. A program that can't be run
// yields an exit status and a line on stderr, as in a shell.
func (c *command) notStarted(err error) (*wire.Exit, *wire.Refused) {
	if failure, ok := errors.AsType[*spawn.Failure](err); ok {
		_ = c.s.o.Writer.SendJSON(c.id, wire.TypeStarted, wire.Started{})
		stdout, stderr := c.startPump(nil, wire.Stdout), c.startPump(nil, wire.Stderr)
		if text := "caisson: " + failure.Text; c.request.Terminal != nil {
			stdout.Add(text + "\r\n")
		} else {
			stderr.Add(text + "\n")
		}
		return &wire.Exit{Code: failure.Code, PIDsLimitHit: failure.Limit, Stdout: stdout.Result(), Stderr: stderr.Result()}, nil
	}
	code := wire.RefusedInternal
	if errors.Is(err, spawn.ErrDir) {
		code = wire.RefusedInvalid
	}
	return nil, &wire.Refused{Code: code, Text: err.Error()}
}

func (c *command) copyInput(stdin *os.File) {
	defer func() { _ = stdin.Close() }()
	last := byte('\n')
	for b := c.stdin.Next(); b != nil; b = c.stdin.Next() {
		last = b[len(b)-1]
		if err := c.writeAll(stdin, b); err != nil {
			c.stdin.Break()
			_ = c.s.o.Writer.Send(wire.Frame{Stream: c.id, Type: wire.TypeStop, Channel: wire.Stdin})
			return
		}
		if n := c.stdin.Done(len(b)); n > 0 {
			_ = c.s.o.Writer.SendCredit(c.id, wire.Stdin, n)
		}
	}
	if _, ended := c.stdin.Total(); ended && c.request.Terminal != nil {
		c.typeEnd(stdin, last != '\n' && last != '\r')
	}
}

func (c *command) writeAll(stdin *os.File, b []byte) error {
	raw, err := stdin.SyscallConn()
	if err != nil {
		return err
	}
	return c.s.slots.WriteAll(raw, b)
}

// gids assigns supplementary groups that mark commands. It reuses a group as
// late as possible.
type gids struct {
	mu          sync.Mutex
	base, count uint32
	next        uint32
	used        map[uint32]struct{}
}

func newGIDs(base, count uint32) *gids {
	return &gids{base: base, count: count, used: map[uint32]struct{}{}}
}

// acquire returns a group that no command has, or false if all are in use.
func (g *gids) acquire() (gid uint32, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range g.count {
		gid = g.base + g.next
		g.next = (g.next + 1) % g.count
		if _, used := g.used[gid]; !used {
			g.used[gid] = struct{}{}
			return gid, true
		}
	}
	return 0, false
}

// release makes a group available again. It must not be called for a group with
// processes that could not be killed.
func (g *gids) release(gid uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.used, gid)
}

// stuckTime is when a start is taken for stuck: another command of the same
// identity can stop a child between its change of identity and its exec, and
// the guest would wait for it. Waking it is harmless.
const stuckTime = time.Second

// clock bounds a command's time, and first watches its start. It is one timer
// for both, because each new one may wake the runtime's poller.
type clock struct {
	expired chan struct{}

	mu       sync.Mutex
	timer    *time.Timer
	timeout  time.Duration
	began    time.Time
	starting bool
	over     bool
}

// newClock starts a clock. It calls wake while the start is stuck.
func newClock(timeout time.Duration, wake func()) *clock {
	c := &clock{expired: make(chan struct{}), timeout: timeout, began: time.Now(), starting: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(stuckTime, func() { c.fireAfter(wake) })
	return c
}

func (c *clock) fireAfter(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.starting:
		c.timer.Reset(stuckTime)
		go wake()
	case !c.over && time.Since(c.began) >= c.timeout: // not a late call from before the launch
		c.over = true
		close(c.expired)
	}
}

// startTimeout records that the start is over: from now on, the timer bounds the
// command's time, of which the start has used some.
func (c *clock) startTimeout() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting {
		c.starting = false
		c.timer.Reset(max(0, c.timeout-time.Since(c.began)))
	}
}

func (c *clock) stop() { c.timer.Stop() }
