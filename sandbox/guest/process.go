package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// settleTime is how long a command's writers have for output that came in,
// after the command was ended by force or the guest was lost.
const settleTime = 2 * time.Second

// process is a command in the guest. It implements sandbox.Process.
type process struct {
	c       *Conn
	request wire.Exec
	number  int      // 0 without egress
	out     [2]*sink // stdout, stderr
	stdin   *wire.Credit

	answer chan struct{} // closed when the guest has started or refused it, or is lost
	done   chan struct{} // closed when exit and err are final
	watch  *time.Timer   // fires if the guest has not answered in time

	mu        sync.Mutex
	id        uint32
	started   bool
	answered  bool
	cancelled bool
	ended     bool
	unwatch   func() bool
	refused   *wire.Refused
	exit      sandbox.Exit
	err       error
}

// Start starts a command; see sandbox.Sandbox. It returns when the guest has
// started or refused it. Nothing waits for a Read of Command.Stdin that still
// blocks when the process has ended.
func (c *Conn) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	p := &process{c: c, stdin: wire.NewCredit(), answer: make(chan struct{}), done: make(chan struct{})}
	if c.o.Config.Egress != nil {
		p.number = c.egress.addCommand(p)
	}
	started, err := c.startProcess(ctx, cmd, p)
	if err != nil {
		c.egress.removeCommand(p.number)
		return nil, err
	}
	return started, nil
}

func (c *Conn) startProcess(ctx context.Context, cmd sandbox.Command, p *process) (sandbox.Process, error) {
	request, err := c.o.newRequest(cmd, p.number)
	if err != nil {
		return nil, err
	}
	p.request = request
	if request.Identity > 0 && request.Identity >= c.hello.Identities {
		return nil, fmt.Errorf("start command: %w: identity %d: all commands of this sandbox share one user: "+
			"use the gvisor or the docker backend, or run as root", sandbox.ErrUnsupported, request.Identity)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start command: %w", context.Cause(ctx))
	}
	if cmd.NotifyNumber != nil && p.number > 0 {
		cmd.NotifyNumber(p.number)
	}
	p.out[0] = newSink(cmd.Stdout, func(n uint32) { c.grantCredit(p.id, wire.Stdout, n) })
	p.out[1] = newSink(cmd.Stderr, func(n uint32) { c.grantCredit(p.id, wire.Stderr, n) })
	err = c.openStream(wire.Open{Exec: &request}, func(id uint32) call {
		p.id = id
		p.watch = time.AfterFunc(c.o.AnswerTime, func() {
			c.lose(errors.New("no answer about a command in its time"))
		})
		p.out[0].start()
		p.out[1].start()
		return p
	})
	if err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	if cmd.Stdin != nil {
		go p.copyInput(cmd.Stdin)
	}
	p.watchContext(context.AfterFunc(ctx, func() { p.cancel(wire.Cancel{Kill: harmsHost(context.Cause(ctx))}) }))
	<-p.answer
	if cmd.Terminal != nil && cmd.Terminal.Resizes != nil {
		go p.sendResizes(cmd.Terminal.Resizes)
	}
	return p.startResult()
}

// watchContext keeps stop, which ends watching the caller's context.
func (p *process) watchContext(stop func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwatch = stop
	if p.ended {
		stop()
	}
}

func (p *process) stopWatching() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unwatch != nil {
		p.unwatch()
	}
}

func (p *process) startResult() (sandbox.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.refused != nil && p.refused.Code == wire.RefusedInvalid:
		return nil, fmt.Errorf("start command: %w: %s", sandbox.ErrInvalid, cleanText(p.refused.Text))
	case p.refused != nil:
		return nil, fmt.Errorf("start command: %w: guest: %s", sandbox.ErrUnavailable, cleanText(p.refused.Text))
	case !p.started:
		return nil, fmt.Errorf("start command: %w", p.c.lostError())
	}
	return p, nil
}

// Wait waits for the end and returns what happened.
func (p *process) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, p.err
}

// harmsHost reports whether a command is cancelled for harming the host, so it
// gets no grace period.
func harmsHost(cause error) bool {
	e, ok := errors.AsType[*limits.ExceededError](cause)
	return ok && e.Kind == limits.KindDisk
}

// cancel asks the guest to end the command. It must be called at most once.
func (p *process) cancel(request wire.Cancel) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.cancelled = true
		p.watch.Reset(p.request.Grace + p.c.o.AnswerTime)
	}
	p.mu.Unlock()
	if ended {
		return
	}
	if err := p.c.writer.SendJSON(p.id, wire.TypeCancel, request); err != nil {
		p.c.lose(err)
	}
}

func (p *process) copyInput(r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			taken := p.stdin.Take(len(b), nil)
			if taken == 0 {
				return
			}
			p.c.send(wire.Frame{Stream: p.id, Type: wire.TypeData, Channel: wire.Stdin, Payload: b[:taken]})
			b = b[taken:]
		}
		if err != nil {
			// There is no other way to tell a program about an error.
			p.c.send(wire.Frame{Stream: p.id, Type: wire.TypeEOF, Channel: wire.Stdin})
			return
		}
	}
}

// sendResizes passes sizes on until the process has ended.
func (p *process) sendResizes(sizes <-chan sandbox.TerminalSize) {
	for {
		select {
		case size := <-sizes:
			p.c.send(wire.Frame{Stream: p.id, Type: wire.TypeResize, Payload: wire.TerminalSize(size).Encode()})
		case <-p.done:
			return
		}
	}
}

func (p *process) takeFrame(f wire.Frame) (last bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended { // the connection was lost meanwhile
		return false, nil
	}
	switch f.Type {
	case wire.TypeStarted, wire.TypeRefused:
		return p.takeAnswer(f)
	case wire.TypeCredit, wire.TypeStop:
		return false, p.takeInputFrame(f)
	}
	if !p.started {
		return false, fmt.Errorf("%w: before the command was started", wire.ErrProtocol)
	}
	switch f.Type {
	case wire.TypeData, wire.TypeEOF:
		if f.Channel == wire.Stdin {
			return false, fmt.Errorf("%w: output on the channel of input", wire.ErrProtocol)
		}
		return false, p.takeOutput(p.out[f.Channel-1], f)
	case wire.TypeEnd:
		return true, p.takeEnd(f)
	}
	return false, fmt.Errorf("%w: a guest doesn't send this", wire.ErrProtocol)
}

func (p *process) takeAnswer(f wire.Frame) (last bool, err error) {
	if p.answered {
		return false, fmt.Errorf("%w: a second answer", wire.ErrProtocol)
	}
	if f.Type == wire.TypeRefused {
		var r wire.Refused
		if err := wire.Decode(f.Payload, &r); err != nil {
			return false, err
		}
		p.refused = &r
		p.conclude(errors.New("refused"))
	} else {
		var s wire.Started
		if err := wire.Decode(f.Payload, &s); err != nil {
			return false, err
		}
		p.started = true
		if !p.cancelled {
			p.watch.Reset(p.request.Timeout + p.request.Grace + p.c.o.AnswerTime)
		}
	}
	p.answered = true
	close(p.answer)
	return p.refused != nil, nil
}

func (p *process) takeInputFrame(f wire.Frame) error {
	if !p.request.Stdin || f.Channel != wire.Stdin {
		return fmt.Errorf("%w: channel %d of a command", wire.ErrProtocol, f.Channel)
	}
	if f.Type == wire.TypeStop {
		p.stdin.Close()
		return nil
	}
	return p.stdin.Grant(wire.CreditOf(f))
}

func (p *process) takeOutput(s *sink, f wire.Frame) error {
	if f.Type == wire.TypeEOF {
		return s.queue.End()
	}
	if total, _ := s.queue.Total(); total+int64(len(f.Payload)) > p.request.Live {
		return fmt.Errorf("%w: more live output than was asked for", wire.ErrProtocol)
	}
	return s.queue.Push(f.Payload)
}

func (p *process) takeEnd(f wire.Frame) error {
	var x wire.Exit
	if err := wire.Decode(f.Payload, &x); err != nil {
		return err
	}
	exit, err := p.checkExit(x)
	if err != nil {
		return err
	}
	p.exit = exit
	p.conclude(nil)
	return nil
}

func (p *process) connectionLost(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered {
		close(p.answer)
	}
	if !p.ended {
		p.exit.Status.Code = -1
		for i, s := range []*sandbox.Stream{&p.exit.Stdout, &p.exit.Stderr} {
			s.Total, _ = p.out[i].queue.Total()
		}
		p.conclude(fmt.Errorf("wait for command: %w", err))
	}
}

// conclude ends the process: no more frames follow. Another goroutine waits for
// the writers, which may block.
func (p *process) conclude(err error) {
	p.ended = true
	p.watch.Stop()
	p.stdin.Close()
	p.err = err
	status := p.exit.Status
	forced := err != nil || status.Cancelled || status.TimedOut
	go func() {
		p.c.egress.removeCommand(p.number)
		p.stopWatching()
		for i, s := range []*sandbox.Stream{&p.exit.Stdout, &p.exit.Stderr} {
			if err != nil {
				p.out[i].queue.Break()
			}
			s.Live = p.out[i].wait(forced)
		}
		close(p.done)
	}()
}
