package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/bridge/transcript"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/egress"
)

// limitGrace is how long commands may go on after the bridge has refused a request because
// of a limit. Agents that don't end by themselves then are cancelled.
const limitGrace = 5 * time.Second

// modelBridge is the bridge of a session whose programs ask models. It records their
// requests and counts them.
type modelBridge struct {
	*bridge.Bridge
	events *eventRecorder
	log    *zap.Logger
	bodies *bodyLog

	// writing is held while the bodies and messages of a call are recorded, after it has
	// ended. unread is set once a body could not be read.
	writing sync.Mutex
	said    transcript.Transcript
	unread  bool
	// saidBytes is the size of the recorded messages.
	saidBytes int

	mu sync.Mutex
	// unwritten counts the calls whose bodies and messages are not recorded yet. written
	// signals when one is.
	unwritten int
	written   *sync.Cond // of mu
	totals    record.BridgeTotals
	used      limits.Usage
	state     BridgeState
	// unused counts the requests that used no tokens: refused, failed, or to count tokens.
	unused int
	// over ends limitGrace after state.Limit is set, with that limit as its cause.
	over context.Context //nolint:containedctx // commands end with it, whenever they began
	end  context.CancelCauseFunc
	// ending is the timer that calls end.
	ending *time.Timer
}

// newModelBridge returns the bridge of the session's options, or nil.
func (s *Session) newModelBridge() (*modelBridge, error) {
	if s.opts.Bridge == nil {
		return nil, nil
	}
	b := &modelBridge{events: s.events, log: s.log, bodies: newBodyLog(s.dir, s.opts.Secrets)}
	b.written = sync.NewCond(&b.mu)
	b.over, b.end = context.WithCancelCause(context.Background())
	var next loop.Ledger
	if s.opts.Ledger != nil {
		next = s.opts.Ledger.ForUser(s.opts.User.Name)
	}
	budget, err := loop.NewSharedBudget(s.turns.breaker.Turn(s.opts.Budget), next)
	if err != nil {
		return nil, err
	}
	o := *s.opts.Bridge
	o.Ledger, o.Call = budget, b.recordCall
	b.Bridge, err = bridge.New(o)
	return b, err
}

// local returns the hosts that the bridge serves. A nil bridge serves none.
func (b *modelBridge) local() map[string]egress.Local {
	if b == nil {
		return nil
	}
	return map[string]egress.Local{bridge.Host: b.ServeRequest}
}

// recordCall records a call's warnings, and its end or refusal. The program waits for it, so
// what takes long is recorded afterwards; the next call that ends waits for that.
func (b *modelBridge) recordCall(c bridge.Call) {
	for _, w := range c.Warnings {
		b.logFailure(b.events.writeRecord(record.BudgetWarning{What: w.Kind, Limit: w.Limit, Used: w.Used, Period: w.Period, Profile: w.Profile}))
	}
	if c.Stage == bridge.Started {
		return
	}
	number, recorded := b.count(c)
	if !recorded {
		return
	}
	b.mu.Lock()
	b.unwritten++
	b.mu.Unlock()
	p := record.BridgeModelCall{
		Call: number, Command: c.Command, Protocol: string(c.Protocol), Endpoint: c.Endpoint, Asked: clip(c.Asked),
		Estimated: c.Estimated, Withheld: firstListed(c.Withheld), Sent: int64(len(c.Request)), Received: int64(len(c.Answer)),
	}
	p.EndedModelCall = record.EndedModelCall{
		ModelCall: loop.ModelCall{Profile: c.Profile, Attempt: 1, Model: loop.ModelInfo{Provider: string(c.Protocol), Model: cmp.Or(c.AnsweredBy, c.Model)}},
		LatencyMS: c.Duration.Milliseconds(), Usage: c.Usage, Finish: c.Finish, Class: loop.ErrorClass(c.Class), Message: clip(c.Message),
	}
	if c.Class != "" {
		p.Status = c.Status
	}
	if c.Err != nil {
		b.log.Warn("a request of a program to a model failed", zap.Int64("call", p.Call), zap.Error(c.Err))
	}
	b.logFailure(b.events.recordBelow("", p, false))
	b.writing.Lock()
	go func() {
		defer b.endWriting()
		defer func() {
			if cause := recover(); cause != nil {
				b.log.Error("record a request to a model", zap.Any("panic", cause), zap.Stack("stack"))
			}
		}()
		b.logFailure(b.bodies.add(p.Call, c.Request, c.Answer))
		if c.Usage != (limits.Usage{}) { // a model has seen it
			b.recordMessages(c)
		}
	}()
}

// settle waits until all that has ended is recorded. A nil bridge has nothing.
func (b *modelBridge) settle() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.unwritten > 0 {
		b.written.Wait()
	}
}

func (b *modelBridge) endWriting() {
	b.writing.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwritten--
	b.written.Broadcast()
}

// maxSaidBytes bounds the recorded messages of a session.
const maxSaidBytes = 64 << 20

func messageBytes(m loop.Message) int {
	text, err := json.Marshal(m)
	if err != nil {
		return 0 // it isn't recorded either
	}
	return len(text)
}

// recordMessages records what a request and its answer add to their conversation. The caller
// holds writing.
func (b *modelBridge) recordMessages(c bridge.Call) {
	thread, added, err := b.said.Add(c.Protocol, c.Request, c.Answer)
	for _, m := range added {
		if b.saidBytes += messageBytes(m); b.saidBytes > maxSaidBytes {
			err = errors.New("the messages take too much room")
			break
		}
		actor := map[loop.Role]record.Actor{loop.RoleAssistant: record.ActorAgent, loop.RoleTool: record.ActorTool, loop.RoleUser: record.ActorUser}[m.Role]
		b.logFailure(b.events.recordSaid(cmp.Or(actor, record.ActorSystem), record.Message{Role: m.Role, Blocks: m.Blocks, Thread: thread}))
	}
	if err != nil && !b.unread {
		b.unread = true
		b.events.recordWarning("The recorded conversation is incomplete: a request to a model could not be read: " + err.Error())
	}
}

// clip bounds a text of a program for a record.
func clip(text string) string {
	if len(text) > maxClipped {
		text = strings.ToValidUTF8(text[:maxClipped], "") + "…"
	}
	return text
}

const maxClipped = 500

// logFailure logs a failed record. The next record that must be on disk fails too, and the
// session with it.
func (b *modelBridge) logFailure(err error) {
	if err != nil {
		b.log.Error("record a request to a model", zap.Error(err))
	}
}

// maxUnused bounds the records of requests that used no tokens: a program can send any
// number of them, and they cost it nothing.
const maxUnused = 1_000

// count counts a request. It returns its number, and false if it isn't recorded.
func (b *modelBridge) count(c bridge.Call) (number int64, recorded bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.totals.Calls++
	switch c.Class {
	case "":
		b.totals.Answered++
	case bridge.ClassProvider, bridge.ClassTooSlow:
		b.totals.Failed++
		b.state.LastStatus, b.state.LastFailure = c.Status, c.Message
	case bridge.ClassRefused:
		b.totals.Refused++
	case bridge.ClassBudget:
		if c.Usage == (limits.Usage{}) { // it was not sent
			b.totals.Refused++
		}
	}
	switch {
	case c.Usage == (limits.Usage{}): // nothing was asked, or nothing is charged
	case b.used == (limits.Usage{}):
		b.used = c.Usage
	default:
		b.used = b.used.Plus(c.Usage)
	}
	if c.Limit != nil && b.state.Limit == nil {
		b.state.Limit, b.state.Exhausted = c.Limit, c.Exhausted
		b.ending = time.AfterFunc(limitGrace, func() { b.end(fmt.Errorf("a limit of the session was reached: %w", c.Limit)) })
	}
	if c.Usage == (limits.Usage{}) {
		b.unused++
	}
	recorded = b.unused <= maxUnused || c.Usage != (limits.Usage{})
	if !recorded {
		b.totals.Unrecorded++
	}
	return b.totals.Calls, recorded
}

// boundCommand ends a command's context some seconds after a limit was reached. A nil
// bridge doesn't.
func (b *modelBridge) boundCommand(cancel context.CancelCauseFunc) (stop func() bool) {
	if b == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(b.over, func() { cancel(context.Cause(b.over)) })
}

// outcome returns the outcome of a session whose programs have reached a limit, or false.
func (b *modelBridge) outcome() (loop.Outcome, bool) {
	if b == nil {
		return loop.Outcome{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.state.Limit
	if limit == nil {
		return loop.Outcome{}, false
	}
	return loop.Outcome{Reason: loop.StopLimit, Limit: limit, Truncated: true, Err: limit}, true
}

// BridgeState tells how the requests of a session's programs to models have ended so far.
type BridgeState struct {
	record.BridgeTotals
	// Usage is what counts against limits.
	Usage limits.Usage
	// Limit is the limit that a request has reached, or nil. Exhausted is set if nothing
	// useful is left of it; otherwise a smaller request would have fitted.
	Limit     *limits.ExceededError
	Exhausted bool
	// LastStatus and LastFailure are the HTTP status, 0 for none, and the description of
	// the provider's last failure.
	LastStatus  int
	LastFailure string
}

// BridgeState returns the current state of the session's bridge. It is empty if there is
// none.
func (s *Session) BridgeState() BridgeState {
	if s.bridge == nil {
		return BridgeState{}
	}
	s.bridge.mu.Lock()
	defer s.bridge.mu.Unlock()
	out := s.bridge.state
	out.BridgeTotals, out.Usage = s.bridge.totals, s.bridge.used
	return out
}

// close returns the totals and the usage, once nothing uses the sandbox any more. They are
// nil for a nil bridge.
func (b *modelBridge) close() (*record.BridgeTotals, *limits.Usage) {
	if b == nil {
		return nil, nil
	}
	b.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != nil {
		b.ending.Stop()
	}
	b.end(errClosed)
	if b.used == (limits.Usage{}) {
		b.used.CostMicroUSD = new(int64(0)) // and not an unknown cost
	}
	var err error
	b.totals.BodiesSHA256, b.totals.BodiesOmitted, err = b.bodies.lines.Close()
	b.logFailure(err)
	return &b.totals, &b.used
}
