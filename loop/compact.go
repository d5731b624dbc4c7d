package loop

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// CompactionFailure says why a summary was not used.
type CompactionFailure string

// The reasons.
const (
	CompactionModelFailed CompactionFailure = "model_failed" // see the ModelCallFailed before it
	CompactionEmpty       CompactionFailure = "empty"        // the answer has no text
	CompactionCut         CompactionFailure = "cut"          // the provider cut the answer
	CompactionTooLong     CompactionFailure = "too_long"     // the answer is not shorter than what it replaces
)

// makeRoom summarizes the oldest half of the conversation if the last call came close
// to the context window and shortening results is not enough. Like the turn's other
// methods that return an ending, it returns nil if the turn can go on.
func (t *turn) makeRoom(ctx context.Context) *ending {
	window, left := t.profile.ContextWindow, t.view.estimateTokens()
	// After a failure, wait until the conversation has grown by a twentieth of the
	// window.
	if !t.nearWindow() || left < window-window*3/10 || t.view.failedAt > 0 && left < t.view.failedAt+window/20 {
		return nil
	}
	_, e := t.summarizeOldest(ctx)
	return e
}

// summarizeOldest replaces the oldest half of the conversation by the model's summary.
// It reports whether it did.
func (t *turn) summarizeOldest(ctx context.Context) (bool, *ending) {
	before := t.view.summary
	head := before.countHead(t.history)
	cut := findCut(t.history, t.view.summary, t.state.turnStart, head)
	if cut <= head || before.absoluteIndex(cut) <= before.absoluteIndex(head) {
		return false, nil
	}
	next := newSummary(t.history, t.view.summary, t.state.turnStart, head, cut)
	trimmed := next.trimHistory(t.history, before)
	replaced := sentBytes(t.history) - sentBytes(trimmed)
	if before != nil {
		replaced += int64(len(before.Text))
	}
	resp, used, e := t.requestSummary(ctx, summaryRequest(before, t.history[:head], t.history[head:cut]))
	if e != nil {
		return false, e
	}
	next.Text = resp.Message.joinedText()
	switch {
	case used == nil:
		return false, t.failCompaction(CompactionModelFailed)
	case resp.Truncated:
		return false, t.failCompaction(CompactionCut)
	case next.Text == "":
		return false, t.failCompaction(CompactionEmpty)
	case int64(len(next.Text)) >= replaced:
		return false, t.failCompaction(CompactionTooLong)
	}
	t.state.turnStart = next.TrimIndex(before, t.state.turnStart)
	dropped := len(t.history) - len(trimmed)
	if before == nil {
		dropped-- // the summary is a message
	}
	t.history = trimmed
	t.view.setSummary(next, trimmed)
	t.view.saved += replaced - int64(len(next.Text))
	t.counted.addSummary(dropped, t.view.summaryMessage)
	t.emit(ContextCompacted{
		Summary: *next, Profile: t.profile.Name, Model: t.profile.Model.Info(), Usage: *used,
		BytesBefore: replaced, BytesAfter: int64(len(next.Text)),
	})
	return true, t.checkSpent()
}

// requestSummary requests a summary with the current profile. The usage is nil if there
// is no answer.
func (t *turn) requestSummary(ctx context.Context, messages []Message) (Response, *limits.Usage, *ending) {
	call := &pendingCall{purpose: PurposeSummary, messages: messages}
	if e := t.reserveRequest(ctx, call); e != nil {
		return Response{}, nil, e
	}
	resp, used, err := t.requestCompletion(ctx, call)
	if e := t.settleRequest(call, resp, used); e != nil {
		return resp, used, e
	}
	switch {
	case t.emitErr != nil:
		return resp, used, &ending{reason: StopTraceUnwritable, err: t.emitErr}
	case err != nil && ctx.Err() != nil:
		return resp, used, new(endingForCause(context.Cause(ctx)))
	}
	return resp, used, nil
}

// newSummary returns a summary, still without text, of history[:cut]. It keeps the
// first head messages and those that began the turn.
func newSummary(history []Message, before *Summary, turnStart, head, cut int) *Summary {
	s := &Summary{Messages: before.absoluteIndex(cut), Kept: []int{}}
	begun := turnStart // end of the messages that began the turn
	for begun < cut && (history[begun].Role == RoleSystem || history[begun].Role == RoleUser) {
		begun++
	}
	for i := range cut {
		if i < head || i >= turnStart && i < begun {
			s.Kept = append(s.Kept, before.absoluteIndex(i))
		}
	}
	return s
}

// findCut returns the index at which to cut the history to summarize its oldest half,
// by size. It never separates a call from its results. The first head messages stay,
// and so does the last round, which the model has not used yet.
func findCut(history []Message, before *Summary, turnStart, head int) int {
	last := len(history) - 1
	for last > turnStart && history[last].Role != RoleAssistant {
		last--
	}
	first := head
	if before != nil {
		first = len(before.Kept) // messages that a summary follows stay before it
	}
	half := sentBytes(history[head:]) / 2
	cut, passed := head, int64(0)
	for i := head; i < last; i++ {
		passed += sentBytes(history[i : i+1])
		if i+1 <= first || history[i+1].Role == RoleTool {
			continue
		}
		cut = i + 1
		if passed >= half {
			break
		}
	}
	return cut
}

func (t *turn) failCompaction(reason CompactionFailure) *ending {
	t.view.failedAt = max(t.view.estimateTokens(), 1)
	t.emit(ContextCompactionFailed{Reason: reason, Profile: t.profile.Name})
	return t.checkSpent()
}

func (t *turn) checkSpent() *ending {
	t.emitWarnings()
	if t.emitErr != nil {
		return &ending{reason: StopTraceUnwritable, err: t.emitErr}
	}
	if e := t.meter.Exceeded(limits.StepClosing, time.Since(t.started)); e != nil {
		return new(endingForLimit(e))
	}
	return nil
}
