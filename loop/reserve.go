package loop

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Ledger bounds what the requests of many sessions use together, such as in a day. It
// is safe for concurrent use.
type Ledger interface {
	// Reserve reserves what a request to a profile's model may use. If even the
	// shortest useful answer is too much, the error is a *[limits.ExceededError]; any
	// other error reports that the ledger can't be used.
	Reserve(ctx context.Context, profile string, d limits.Demand) (LedgerEntry, error)
}

// LedgerEntry is the reservation of a [Ledger] for one request.
type LedgerEntry struct {
	// Demand is the reserved demand, with the output lowered to what fits.
	Demand limits.Demand
	// Lowered is the limit that lowered the output, or nil.
	Lowered *limits.ExceededError
	// Warnings are the limits of which four fifths are used, each one once.
	Warnings []limits.ExceededError
	// Settle replaces the reservation with what was used, nil for a request that
	// used nothing. It must be called once.
	Settle func(used *limits.Usage) error
}

// Bounds of requests under a limit of tokens or cost.
const (
	// defaultMaxOutput bounds the answer of a profile that sets no bound. No model in
	// use refuses it as too long, unless its window is small.
	defaultMaxOutput = 16_384
	// minOutput is the shortest answer worth its request.
	minOutput = 1_024
)

// reservation bounds the use of a request. The zero value is that of a request without
// a limit of tokens or cost.
type reservation struct {
	demand limits.Demand
	// maxOutput is the length at which the provider cuts the answer, 0 for its default.
	maxOutput int64
	// lowered is the limit that lowered maxOutput, or nil.
	lowered *limits.ExceededError
	settle  func(used *limits.Usage) error
}

// reserveRequest reserves what a request to the current profile may use: of the turn's
// budget, and then of the ledger. It returns the ending if too little is left.
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
		return &ending{reason: StopLimit, limit: refused, truncated: true, err: refused}
	}
	c.reservation = reservation{demand: fit, maxOutput: fit.Output, lowered: lowered}
	if t.Ledger == nil {
		return nil
	}
	entry, err := t.Ledger.Reserve(ctx, t.profile.Name, fit)
	if err != nil {
		return endingForLedger(ctx, t.log, err)
	}
	c.reservation.demand, c.reservation.maxOutput, c.reservation.settle = entry.Demand, entry.Demand.Output, entry.Settle
	if entry.Lowered != nil {
		c.reservation.lowered = entry.Lowered
	}
	for _, w := range entry.Warnings {
		t.emit(newBudgetWarning(w))
	}
	return nil
}

// settleRequest replaces the reservation of a request with what it used. If the provider
// counted nothing, or the answer broke off, for which it may charge too, the limits count
// what was reserved for the input and what arrived of the answer.
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

// endingForLedger returns the ending for an error of the ledger.
func endingForLedger(ctx context.Context, log *zap.Logger, err error) *ending {
	if e, ok := errors.AsType[*limits.ExceededError](err); ok {
		return &ending{reason: StopLimit, limit: e, truncated: true, err: err}
	}
	if ctx.Err() != nil {
		return new(endingForCause(context.Cause(ctx)))
	}
	log.Error("the ledger can't be used", zap.Error(err))
	return &ending{reason: StopTraceUnwritable, err: fmt.Errorf("count usage: %w", err)}
}

// makeDemand returns the most that a request with the given input can use.
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

// newBudgetWarning returns the event for a limit of which four fifths are used.
func newBudgetWarning(e limits.ExceededError) BudgetWarning {
	return BudgetWarning{What: e.Kind, Limit: e.Limit, Used: e.Used, Period: e.Period, Profile: e.Profile}
}

// countedInput is the number of input tokens that the provider counted for a request.
// The zero value has counted nothing.
type countedInput struct {
	// model is the one that counted, as [ModelInfo.String] has it.
	model string
	// messages is the number of messages of the request, and last identifies the
	// last one.
	messages int
	last     any
	// toolBytes is the size of the definitions of the request.
	toolBytes, tokens int64
}

// recordCount keeps the count of a request.
func (n *countedInput) recordCount(c *pendingCall, model string, used limits.Usage) {
	used.OutputTokens = 0
	*n = countedInput{
		model: model, messages: len(c.messages), last: messageIdentity(c.messages[len(c.messages)-1]),
		toolBytes: definitionBytes(c.offered), tokens: used.Tokens(),
	}
}

// addShortened counts results that were shortened since: in rare cases the shorter text
// has more tokens.
func (n *countedInput) addShortened(results int) {
	if n.tokens > 0 {
		n.tokens += int64(results) * minShortenBytes
	}
}

// addSummary counts a summary that took the place of messages, so that the given number
// of messages less comes before the last one that was counted.
func (n *countedInput) addSummary(dropped int, summary Message) {
	if n.tokens > 0 {
		n.messages -= dropped
		n.tokens += messageBound(summary)
	}
}

// Sizes of what a provider adds to the text of a request, in tokens. The largest
// preamble that providers document is that of Anthropic's tools, below 1,000.
const (
	requestTokens    = 1_024
	messageTokens    = 32
	definitionTokens = 64
	// imageTokens bounds one image. The dearest documented one is a large image for
	// gpt-4o-mini: 2,833 tokens and 5,667 for each of at most 8 tiles.
	imageTokens = 50_000
)

// estimateInput returns an upper bound of the input tokens of a request to a model:
// the last count of the provider, as far as the request begins like the one that was
// counted, and one token per byte of the rest. A token of the tokenizers in use stands
// for at least one byte of the text.
func (n *countedInput) estimateInput(messages []Message, offered []tools.Definition, model string) int64 {
	total, from, defined := int64(requestTokens), 0, definitionBytes(offered)
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

// messageIdentity returns a value that is the same for the same message of a history,
// however it was rendered, and different for any other one.
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

// messageBound returns an upper bound of the tokens of a message.
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

// textBound returns an upper bound of the tokens of a text: its length in bytes, also
// where the template of a server escapes it as JSON.
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

// definitionBytes returns an upper bound of the tokens of the definitions of tools.
func definitionBytes(offered []tools.Definition) int64 {
	var n int64
	for _, d := range offered {
		n += definitionTokens + textBound(string(d.Name)) + textBound(d.Description) + textBound(string(d.InputSchema))
	}
	return n
}
