package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// callModel requests an answer and adds it to the history. withTools is false for the
// closing completion. If the provider refuses the conversation as too long, callModel
// shortens old results or summarizes the oldest half, and tries again.
//
// Around each request, outermost first:
//
//	telemetry  emit: each request, and each change, is an event
//	budget     reserve and settle: a request begins only if its use fits
//	fallback   fallBack: another profile, after the retries of requestCompletion
//	usage      attemptCompletion: the request's use, with its cost
func (t *turn) callModel(ctx context.Context, withTools bool) *ending {
	round := 0
	var offered []tools.Definition
	if withTools {
		round = int(t.meter.Used().Rounds) + 1
		offered = t.definitions()
	}
	call := &pendingCall{round: round, offered: offered, tried: map[int]bool{}}
	t.selectProfile(call, 0)
	if e := t.makeRoom(ctx); e != nil {
		return e
	}
	for {
		if e := t.reserveRequest(ctx, call); e != nil {
			return e
		}
		resp, used, err := t.requestCompletion(ctx, call)
		if e := t.settleRequest(call, resp, used); e != nil {
			if err == nil {
				t.acceptResponse(resp, offered)
			}
			return e
		}
		if t.emitErr != nil {
			return &ending{reason: StopTraceUnwritable, err: t.emitErr}
		}
		if err == nil {
			t.acceptResponse(resp, offered)
			return nil
		}
		if ctx.Err() != nil {
			return new(endingForCause(context.Cause(ctx)))
		}
		// Each refusal shortens more, and no profile is tried twice, so this loop ends.
		if errorClass(err) == ModelContextOverflow {
			shorter, e := t.shortenOrSummarize(ctx)
			if e != nil {
				return e
			}
			if shorter {
				continue
			}
		}
		if !t.fallBack(ctx, call, err) {
			return new(endingForModelError(err, t.view.tokens, t.profile.ContextWindow))
		}
	}
}

type pendingCall struct {
	round   int // from 1; 0 for the closing completion
	offered []tools.Definition
	// purpose is set if the answer is not for the conversation.
	purpose     Purpose
	messages    []Message
	reservation reservation
	// profile is the index of the current profile, and tried has all used so far.
	profile  int
	tried    map[int]bool
	attempts int
	// shown reports whether a piece of an answer arrived; the request is then not
	// repeated. shownBytes is the length of its text.
	shown      bool
	shownBytes int64
}

// requestCompletion requests an answer with the current profile. It retries failures
// with [ModelError].Retryable set, as often as the profile allows. The usage is nil if
// there is no answer.
func (t *turn) requestCompletion(ctx context.Context, c *pendingCall) (Response, *limits.Usage, error) {
	for retries := 0; ; retries++ {
		c.attempts++
		call := ModelCall{Round: c.round, Profile: t.profile.Name, Attempt: c.attempts, Purpose: c.purpose, Model: t.profile.Model.Info()}
		resp, used, err := t.attemptCompletion(ctx, call, c)
		if err == nil || t.emitErr != nil {
			return resp, used, err
		}
		failed := t.describeFailure(ctx, call, err)
		delay, again := t.profile.retryDelay(err, retries)
		if again = again && !c.shown && ctx.Err() == nil; again {
			failed.Retry = &Retry{Number: retries + 1, Most: *t.profile.MaxRetries, DelayMS: (delay + time.Millisecond - 1).Milliseconds()}
		}
		t.emit(failed)
		if !again || t.emitErr != nil {
			return Response{}, nil, err
		}
		select {
		case <-ctx.Done():
			return Response{}, nil, context.Cause(ctx)
		case <-time.After(delay):
		}
	}
}

func (t *turn) attemptCompletion(ctx context.Context, call ModelCall, c *pendingCall) (Response, *limits.Usage, error) {
	t.emit(ModelCallStarted{ModelCall: call, Tools: len(c.offered)})
	if t.emitErr != nil {
		return Response{}, nil, t.emitErr
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := time.Now()
	var firstDelta *int64
	stream := t.view.canaries.Stream()
	show := func(text string) {
		if text == "" || c.purpose != "" || t.emitErr != nil {
			return
		}
		t.emit(TextDelta{Text: text})
		if t.emitErr != nil {
			cancel(t.emitErr)
		}
	}
	resp, err := t.profile.Model.Complete(ctx, Request{
		Messages: c.messages, Tools: c.offered, MaxOutputTokens: c.reservation.maxOutput,
	}, func(d Delta) {
		c.shown = true
		c.shownBytes += int64(len(d.Text))
		if firstDelta == nil {
			firstDelta = new(time.Since(started).Milliseconds())
		}
		show(stream.Write(d.Text))
	})
	show(stream.Flush())
	if err != nil {
		return Response{}, nil, err
	}
	used := resp.Usage
	t.profile.setCost(&used)
	used.Rounds, used.ToolCalls = 0, 0
	if c.round > 0 {
		used.Rounds = 1
	}
	t.meter.Add(used)
	call.Model.Model = cmp.Or(boundName(resp.Model), call.Model.Model)
	t.emit(ModelCallCompleted{
		ModelCall: call, LatencyMS: time.Since(started).Milliseconds(), FirstDeltaMS: firstDelta, Usage: used,
		Finish: boundName(resp.Finish), ToolCalls: len(resp.Message.toolUses()),
	})
	return resp, &used, nil
}

// maxNameBytes bounds the model's name and the finish reason in events, because the
// server chooses them.
const maxNameBytes = 200

func boundName(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxNameBytes)], "")
}

func (t *turn) describeFailure(ctx context.Context, call ModelCall, err error) ModelCallFailed {
	if ctx.Err() != nil {
		return ModelCallFailed{ModelCall: call, Class: ModelCancelled, Message: describeErrorClass(ModelCancelled)}
	}
	failed := ModelCallFailed{ModelCall: call, Class: errorClass(err), ErrorID: t.NewID("err")}
	failed.Message = describeErrorClass(failed.Class)
	if m, ok := errors.AsType[*ModelError](err); ok {
		failed.Status = m.Status
		if m.Status != 0 {
			failed.Message += fmt.Sprintf(" (HTTP %d)", m.Status)
		}
		if m.ProviderMessage != "" {
			failed.Message = strings.TrimSuffix(describeErrorClass(failed.Class), ".") + fmt.Sprintf(" (HTTP %d): ", m.Status) + m.ProviderMessage
		}
		if m.Visible {
			failed.Message = m.Err.Error()
		}
	}
	t.log.Error("model call failed", zap.String("error_id", failed.ErrorID), zap.String("profile", call.Profile),
		zap.String("class", string(failed.Class)), zap.Int("status", failed.Status), zap.Error(err))
	return failed
}

// acceptResponse adds an answer to the history, and warns and shortens if limits are
// near.
func (t *turn) acceptResponse(resp Response, offered []tools.Definition) {
	m := t.identifier.identifyMessage(resp, offered, t.profile.Model.Info())
	if leaks := t.view.redactCanaries(&m); leaks > 0 {
		t.emit(CanaryLeaked{Count: leaks})
	}
	t.state.truncated = resp.Truncated
	t.state.unoffered = len(offered) == 0 && len(m.toolUses()) > 0
	// Providers refuse conversations with an empty message. nextStep handles its
	// absence.
	if m.joinedText() != "" || len(m.toolUses()) > 0 {
		t.addMessage(m)
		delete(t.state.nudged, topicEmpty)
	} else {
		t.state.emptyAnswer = true
	}
	t.view.tokens, t.view.saved = resp.Usage.Tokens(), 0
	t.emitWarnings()
	if t.nearWindow() {
		t.shortenResults(t.view.tokens - t.profile.ContextWindow*3/5)
	}
}

func (t *turn) emitWarnings() {
	for _, w := range t.meter.Warnings(time.Since(t.started)) {
		t.emit(newBudgetWarning(w))
	}
	if t.nearWindow() && !t.nearWarned {
		t.nearWarned = true
		t.emit(BudgetWarning{What: limits.KindContext, Limit: t.profile.ContextWindow, Used: t.view.tokens})
	}
}

// nearWindow reports whether four fifths of the context window are used.
func (t *turn) nearWindow() bool {
	return t.profile.ContextWindow > 0 && t.view.tokens >= t.profile.ContextWindow-t.profile.ContextWindow/5
}

// shortenResults shortens old results in future requests by about the given number of
// tokens. It reports whether any was left to shorten.
func (t *turn) shortenResults(tokens int64) bool {
	n, bytes := t.view.shortenOldest(t.history, tokens)
	if n > 0 {
		t.counted.addShortened(n)
		t.emit(ContextShortened{Results: n, Bytes: bytes})
	}
	return n > 0
}

// shortenOrSummarize makes the next request shorter after the provider refused one as
// too long. It reports whether it could.
func (t *turn) shortenOrSummarize(ctx context.Context) (bool, *ending) {
	if t.shortenResults(shortenAll) {
		return true, nil
	}
	if t.emitErr != nil {
		return false, &ending{reason: StopTraceUnwritable, err: t.emitErr}
	}
	return t.summarizeOldest(ctx)
}
