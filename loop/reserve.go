package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Ledger bounds the use of many sessions' requests together, such as in a day. It is
// safe for concurrent use.
type Ledger interface {
	// Reserve reserves what a request to a profile's model may use. If not even the
	// shortest useful answer fits, the error is a *[limits.ExceededError]. Other errors
	// mean that the ledger can't be used.
	Reserve(ctx context.Context, profile string, d limits.Demand) (LedgerEntry, error)
}

// LedgerEntry is a [Ledger]'s reservation for one request.
type LedgerEntry struct {
	// Demand is the reservation, its output lowered to fit.
	Demand limits.Demand
	// Lowered is the limit that lowered the output, or nil.
	Lowered *limits.ExceededError
	// Warnings are the limits of which four fifths are used, each only once.
	Warnings []limits.ExceededError
	// Settle replaces the reservation by the actual use, nil for none. Call it exactly
	// once.
	Settle func(used *limits.Usage) error
}

// Bounds of requests under a limit of tokens or cost.
const (
	// defaultMaxOutput bounds the answer if the profile doesn't. No model in use
	// refuses it, unless its window is small.
	defaultMaxOutput = 16_384
	// minOutput is the shortest answer that is worth its request.
	minOutput = 1_024
)

// reservation bounds a request's use. The zero value means no limit of tokens or cost.
type reservation struct {
	demand limits.Demand
	// maxOutput is where the provider cuts the answer, 0 for its default.
	maxOutput int64
	lowered   *limits.ExceededError
	settle    func(used *limits.Usage) error
}

// reserveRequest reserves what a request with the current profile may use, in the
// turn's budget and then in the ledger.
func (t *turn) reserveRequest(ctx context.Context, c *pendingCall) *ending {
	info := t.profile.Model.Info()
	if c.purpose == "" {
		c.messages = t.view.renderHistory(t.history, info.String())
	}
	c.reservation = reservation{maxOutput: t.profile.MaxOutputTokens}
	t.state.lowered = nil
	if info.Recorded || t.Ledger == nil && t.Budget.Tokens == nil && t.Budget.CostMicroUSD == nil {
		return nil
	}
	demand := t.profile.makeDemand(t.counted.estimateInput(c.messages, c.offered, info.String()))
	fit, lowered, refused := t.meter.Reserve(demand)
	if refused != nil {
		return new(endingForCause(refused))
	}
	c.reservation = reservation{demand: fit, maxOutput: fit.Output, lowered: lowered}
	if t.Ledger == nil {
		return nil
	}
	entry, err := t.Ledger.Reserve(ctx, t.profile.Name, fit)
	if err != nil {
		return endingForLedger(ctx, t.log, err)
	}
	c.reservation = reservation{
		demand: entry.Demand, maxOutput: entry.Demand.Output, lowered: cmp.Or(entry.Lowered, lowered), settle: entry.Settle,
	}
	for _, w := range entry.Warnings {
		t.emit(newBudgetWarning(w))
	}
	return nil
}

// settleRequest replaces a request's reservation by its use. If the provider counted
// nothing, or the answer broke off (it may charge for that too), the reserved input and
// the received part of the answer count against limits.
func (t *turn) settleRequest(c *pendingCall, resp Response, used *limits.Usage) *ending {
	r := c.reservation
	if used != nil {
		t.state.lowered = r.lowered
	}
	if used != nil && c.purpose == "" {
		t.counted.recordCount(c, t.profile.Model.Info().String(), *used)
	}
	if r.demand.Output > 0 && (used == nil && c.shown || used != nil && used.Tokens() == 0) {
		estimate := limits.Usage{Rounds: 1, InputTokens: r.demand.Input, OutputTokens: min(max(c.shownBytes, messageBound(resp.Message)), r.demand.Output)}
		t.profile.setCost(&estimate)
		if used != nil && used.CostMicroUSD != nil {
			estimate.CostMicroUSD = used.CostMicroUSD
		}
		t.meter.AddEstimate(estimate)
		used = &estimate
	}
	if r.settle == nil {
		return nil
	}
	if err := r.settle(used); err != nil {
		return endingForLedger(context.Background(), t.log, err)
	}
	return nil
}

func endingForLedger(ctx context.Context, log *zap.Logger, err error) *ending {
	if _, ok := errors.AsType[*limits.ExceededError](err); ok {
		return new(endingForCause(err))
	}
	if ctx.Err() != nil {
		return new(endingForCause(context.Cause(ctx)))
	}
	log.Error("the ledger can't be used", zap.Error(err))
	return &ending{reason: StopTraceUnwritable, err: fmt.Errorf("count usage: %w", err)}
}

func (p Profile) makeDemand(input int64) limits.Demand {
	output := p.MaxOutputTokens
	if output == 0 {
		output = defaultMaxOutput
		if p.ContextWindow > 0 {
			output = min(output, max(p.ContextWindow/4, 1))
		}
	}
	return limits.Demand{Input: input, Output: output, MinOutput: min(minOutput, output), Price: p.Price}
}

func newBudgetWarning(e limits.ExceededError) BudgetWarning {
	return BudgetWarning{What: e.Kind, Limit: e.Limit, Used: e.Used, Period: e.Period, Profile: e.Profile}
}

// countedInput is the provider's count of a request's input tokens. The zero value has
// counted nothing.
type countedInput struct {
	// model is the one that counted; see [ModelInfo.String].
	model string
	// messages counts the request's messages, and last identifies the last one.
	messages int
	last     any
	// toolBytes is the size of the request's tool definitions.
	toolBytes, tokens int64
}

func (n *countedInput) recordCount(c *pendingCall, model string, used limits.Usage) {
	used.OutputTokens = 0
	*n = countedInput{
		model: model, messages: len(c.messages), last: messageIdentity(c.messages[len(c.messages)-1]),
		toolBytes: definitionBytes(c.offered), tokens: used.Tokens(),
	}
}

// addShortened counts results shortened since: in rare cases the shorter text has more
// tokens.
func (n *countedInput) addShortened(results int) {
	if n.tokens > 0 {
		n.tokens += int64(results) * minShortenBytes
	}
}

// addSummary counts a summary that replaced messages. There are now dropped fewer
// messages before the last counted one.
func (n *countedInput) addSummary(dropped int, summary Message) {
	if n.tokens > 0 {
		n.messages -= dropped
		n.tokens += messageBound(summary)
	}
}

// Tokens that providers add to a request's text. The largest documented preamble, for
// Anthropic's tools, is below 1,000.
const (
	requestTokens    = 1_024
	messageTokens    = 32
	definitionTokens = 64
	// imageTokens bounds one image. The dearest documented one is a large image for
	// gpt-4o-mini: 2,833 tokens plus 5,667 for each of at most 8 tiles.
	imageTokens = 50_000
)

// estimateInput returns an upper bound of a request's input tokens: the provider's last
// count, if the request begins like the counted one, plus one token per byte of the
// rest. In all tokenizers in use, a token stands for at least one byte of text.
func (n *countedInput) estimateInput(messages []Message, offered []tools.Definition, model string) int64 {
	total := int64(requestTokens)
	from := 0
	defined := definitionBytes(offered)
	if n.tokens > 0 && n.model == model && n.messages > 0 && n.messages <= len(messages) && messageIdentity(messages[n.messages-1]) == n.last {
		total, from = total+n.tokens, n.messages
		if defined == n.toolBytes {
			defined = 0
		}
	}
	total += defined
	for _, m := range messages[from:] {
		total += messageBound(m)
	}
	return total
}

// messageIdentity returns a value that identifies a history's message, however it was
// rendered.
func messageIdentity(m Message) any {
	for _, b := range m.Blocks {
		switch {
		case b.ToolResult != nil:
			return b.ToolResult.ToolUseID
		case b.ToolUse != nil:
			return b.ToolUse.ID
		case b.Text != nil:
			return b.Text
		}
	}
	return nil
}

func messageBound(m Message) int64 {
	n := int64(messageTokens)
	for _, b := range m.Blocks {
		n += messageTokens
		switch {
		case b.Text != nil:
			n += textBound(b.Text.Text)
		case b.Thinking != nil:
			n += textBound(b.Thinking.Text) + textBound(b.Thinking.Signature) + textBound(b.Thinking.Redacted)
		case b.ToolUse != nil:
			n += textBound(b.ToolUse.WireID()) + textBound(string(b.ToolUse.Name)) + textBound(string(b.ToolUse.Input)) + textBound(b.ToolUse.Raw)
		case b.ToolResult != nil:
			n += textBound(b.ToolResult.ToolUseID)
			for _, c := range b.ToolResult.Content {
				n += textBound(c.Text)
				if c.Image != nil {
					n += imageTokens
				}
			}
		}
	}
	return n
}

// textBound returns an upper bound of a text's tokens: its length in bytes, allowing
// for servers whose templates escape it as JSON.
func textBound(s string) int64 {
	n := int64(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\t' || c == '\r':
			n++
		case c < ' ' || c == 0x7f:
			n += 5 // \u0000
		}
	}
	return n
}

func definitionBytes(offered []tools.Definition) int64 {
	var n int64
	for _, d := range offered {
		n += definitionTokens + textBound(string(d.Name)) + textBound(d.Description) + textBound(string(d.InputSchema))
	}
	return n
}
