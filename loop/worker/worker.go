// Package worker asks models questions outside of an agent's conversation: one question
// to several models ([Confer]), or a proposal that critics judge and a synthesizer
// combines with what they say ([Coordinate]).
//
// A worker has no tools unless the caller asks for some, and then at most fetch and
// verify, which neither write, run a command nor call a model. It calls them by tags in
// its text, see package tags, at most [HopBudget] times.
package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// Bounds of a panel.
const (
	// HopBudget is the number of tool calls of one worker that are run or refused for
	// themselves. The next one ends its calls.
	HopBudget = 2
	// ResultCharacters bounds the text of a result.
	ResultCharacters = 4_000
	// MaxWorkers is the number of models that one panel asks.
	MaxWorkers = 16
	// Concurrency is the number of them that are asked at once.
	Concurrency = 4
	// DefaultWallTime bounds each worker if the budget has no wall time.
	DefaultWallTime = 5 * time.Minute
)

// ErrInvalid is the error of options that can't be used.
var ErrInvalid = errors.New("invalid worker options")

// Options are common to [Confer] and [Coordinate].
type Options struct {
	// Question is for all workers. It is trusted like the task of an agent.
	Question string
	// Tools are the tools that the workers may call; the zero value is none.
	Tools ToolOptions
	// Format is the form of the answer; nil is any text.
	Format *Format
	// Budget bounds all workers together, in tokens, cost and wall time. Rounds and
	// ToolCalls are ignored.
	Budget limits.Budget
	// Ledger bounds the requests further; nil does not.
	Ledger loop.Ledger
	// Session and Turn are the IDs for calls and events; "" makes new ones.
	Session, Turn string
	// Emit receives the events, one at a time. An error ends all workers. Nil discards
	// them.
	Emit func(Event) error
	// Logger receives details that users must not see; nil discards them.
	Logger *zap.Logger
}

// Format is a form that an answer must have.
type Format struct {
	// Request tells the model about the form.
	Request string
	// Check returns the value of an answer and what is wrong with it.
	Check func(answer string) (value string, problems []string)
}

// Role is the part of a worker in [Coordinate].
type Role string

// The roles.
const (
	RoleProposer    Role = "proposer"
	RoleCritic      Role = "critic"
	RoleSynthesizer Role = "synthesizer"
)

// Status is how a worker ended.
type Status string

// The statuses.
const (
	// StatusAnswered is an answer, valid where a form was asked for.
	StatusAnswered Status = "answered"
	// StatusInvalid is an answer that does not have the form, after one retry.
	StatusInvalid Status = "invalid"
	// StatusFailed is no answer.
	StatusFailed Status = "failed"
)

// Answer is the result of one worker, with its usage.
type Answer struct {
	Profile  string `json:"profile"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Role     Role   `json:"role,omitempty"`
	Status   Status `json:"status"`
	// Answer is the text; where a form was asked for and is met, its value.
	Answer string `json:"answer"`
	// Problems are those of an answer with StatusInvalid.
	Problems []string `json:"problems,omitempty"`
	// Error is why there is no answer.
	Error *Failure `json:"error,omitempty"`
	// Truncated reports that the provider, or a limit, cut the answer.
	Truncated bool `json:"truncated,omitempty"`
	// Usage and WallMS are sums over all requests of the worker.
	Usage  limits.Usage `json:"usage"`
	WallMS int64        `json:"wall_ms"`
	// InnerToolCalls are the worker's calls; nil if it had no tools.
	InnerToolCalls []InnerCall `json:"inner_tool_calls,omitzero"`
	// CostCap is the state of the cap on the worker's cost, nil without one.
	CostCap *CostCapState `json:"cost_cap,omitempty"`
	// CanaryLeaked reports that the answer repeated a token, see [Conference].
	CanaryLeaked bool `json:"canary_leaked,omitempty"`
	leaks        int
}

// CanaryLeak is an answer that repeated a token, and how often.
type CanaryLeak struct {
	Profile  string `json:"profile"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Count    int    `json:"count"`
}

// listLeaks returns the answers that repeated a token.
func listLeaks(answers []Answer) []CanaryLeak {
	var out []CanaryLeak
	for _, a := range answers {
		if a.CanaryLeaked {
			out = append(out, CanaryLeak{Profile: a.Profile, Provider: a.Provider, Model: a.Model, Count: a.leaks})
		}
	}
	return out
}

// Failure is why a worker has no answer.
type Failure struct {
	Reason loop.StopReason `json:"reason"`
	// Message is for users.
	Message string `json:"message"`
	err     error
}

// Used is the sum of the usage of some workers.
type Used struct {
	Workers int          `json:"workers"`
	Usage   limits.Usage `json:"usage"`
}

// Accounting is the usage of the workers: in total, by provider, and by role where they
// have roles.
type Accounting struct {
	Total       Used            `json:"total"`
	PerProvider map[string]Used `json:"per_provider"`
	PerRole     map[Role]Used   `json:"per_role,omitempty"`
}

// addUsage adds the usage of a worker to that of others.
func (u Used) addUsage(a Answer) Used {
	if u.Workers == 0 {
		return Used{Workers: 1, Usage: a.Usage}
	}
	return Used{Workers: u.Workers + 1, Usage: u.Usage.Plus(a.Usage)}
}

// newAccounting adds up the usage of the workers.
func newAccounting(answers []Answer) Accounting {
	out := Accounting{PerProvider: map[string]Used{}}
	for _, a := range answers {
		out.Total = out.Total.addUsage(a)
		out.PerProvider[a.Provider] = out.PerProvider[a.Provider].addUsage(a)
		if a.Role == "" {
			continue
		}
		if out.PerRole == nil {
			out.PerRole = map[Role]Used{}
		}
		out.PerRole[a.Role] = out.PerRole[a.Role].addUsage(a)
	}
	return out
}

// panel runs the workers of one call of [Confer] or [Coordinate].
type panel struct {
	opts   Options
	log    *zap.Logger
	budget *loop.SharedBudget
	ledger loop.Ledger
	cancel context.CancelCauseFunc
	slots  chan struct{}
	tools  *toolset
	cap    CostCap

	mu      sync.Mutex
	emitErr error
	names   map[string]int
}

// newPanel checks the options and starts the panel's time. The caller calls stop.
func newPanel(ctx context.Context, o Options, profiles []loop.Profile) (_ *panel, _ context.Context, stop func(), err error) {
	switch {
	case o.Question == "":
		return nil, nil, nil, fmt.Errorf("%w: the question is empty", ErrInvalid)
	case len(profiles) == 0:
		return nil, nil, nil, loop.ErrNoModel
	case len(profiles) > MaxWorkers:
		return nil, nil, nil, fmt.Errorf("%w: %d models, at most %d are asked", ErrInvalid, len(profiles), MaxWorkers)
	}
	if err := o.Budget.Validate(); err != nil {
		return nil, nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, p := range profiles {
		if p.Model == nil {
			return nil, nil, nil, loop.ErrNoModel
		}
		if err := p.CheckPrice(o.Budget); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err := o.Tools.checkPrice(p); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if o.Session == "" {
		o.Session = "ses_" + ulid.Make().String()
	}
	if o.Turn == "" {
		o.Turn = "trn_" + ulid.Make().String()
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	p := &panel{opts: o, log: o.Logger.With(zap.String("session", o.Session)), ledger: o.Ledger, slots: make(chan struct{}, Concurrency), cap: o.Tools.CostCap.normalize(), names: map[string]int{}}
	if o.Budget.Tokens != nil || o.Budget.CostMicroUSD != nil {
		if p.budget, err = loop.NewSharedBudget(o.Budget, o.Ledger); err != nil {
			return nil, nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		p.ledger = p.budget
	}
	if p.tools, err = newToolset(o.Tools); err != nil {
		return nil, nil, nil, err
	}
	ctx, p.cancel = context.WithCancelCause(ctx)
	wall := DefaultWallTime
	if o.Budget.WallTime != nil {
		wall = *o.Budget.WallTime
	}
	ctx, stopTime := context.WithTimeoutCause(ctx, wall, &limits.ExceededError{Kind: limits.KindWallTime, Limit: wall.Milliseconds(), Used: wall.Milliseconds()})
	return p, ctx, func() { stopTime(); p.cancel(nil) }, nil
}

// emit passes an event on. An error ends all workers.
func (p *panel) emit(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opts.Emit == nil || p.emitErr != nil {
		return
	}
	if p.emitErr = p.opts.Emit(e); p.emitErr != nil {
		p.cancel(p.emitErr)
	}
}

// emitError returns the first error of Emit.
func (p *panel) emitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.emitErr
}

// assignment is the task of one worker.
type assignment struct {
	profile loop.Profile
	role    Role
	// question is the user's message, format the form of the answer or nil.
	question string
	format   *Format
	// tools reports whether the worker may call tools.
	tools bool
}

// askAll asks all workers, a few at once, and returns their answers in order.
func (p *panel) askAll(ctx context.Context, all []assignment) []Answer {
	answers := make([]Answer, len(all))
	var wg sync.WaitGroup
	for i, a := range all {
		w := p.newWorker(a)
		wg.Go(func() {
			select {
			case p.slots <- struct{}{}:
				defer func() { <-p.slots }()
			case <-ctx.Done():
			}
			answers[i] = w.answerQuestion(ctx)
		})
	}
	wg.Wait()
	return answers
}

// nameWorker returns the name of a worker in events, which no other one of the panel
// has.
func (p *panel) nameWorker(a assignment) string {
	name := a.profile.Name
	if a.role != "" {
		name = string(a.role) + " " + name
	}
	p.names[name]++
	if n := p.names[name]; n > 1 {
		name = fmt.Sprintf("%s (%d)", name, n)
	}
	return name
}

// sortedNames returns the keys of a set, sorted; never nil.
func sortedNames(set map[string]bool) []string {
	return append([]string{}, slices.Sorted(maps.Keys(set))...)
}

// Event is an event of a worker, reported through [Options].Emit. The types of this
// package are the only ones.
type Event interface {
	// Kind is the event's name in records and logs.
	Kind() string
}

// ToolStarted reports that a call of a worker is permitted and begins. A [ToolCalled]
// follows it.
type ToolStarted struct {
	Worker string `json:"worker"`
	// CallID is that of the call, which no other one of the session has.
	CallID string `json:"inner_call_id"`
}

// ToolCalled reports a call of a worker and its result.
type ToolCalled struct {
	Worker string `json:"worker"`
	InnerCall
	// CallID is that of [ToolStarted], "" for a call that did not run.
	CallID string `json:"inner_call_id,omitempty"`
	// Summary is one line about the input, safe for display, and InputHash its hex
	// SHA-256; "" for a call that did not run.
	Summary   string `json:"summary,omitempty"`
	InputHash string `json:"input_hash,omitempty"`
}

// InputRefused reports a call whose arguments the tool's schema refused.
type InputRefused struct {
	Worker string `json:"worker"`
	Hop    int    `json:"hop"`
	Name   string `json:"name"`
	// SchemaError lists their problems.
	SchemaError string `json:"schema_error"`
}

// CostWarned reports, once for each worker, that its cost is above the cap.
type CostWarned struct {
	Worker      string  `json:"worker"`
	CapUSD      float64 `json:"cap_usd"`
	ObservedUSD float64 `json:"observed_usd"`
}

// ModelEvent is an event of the loop around a worker's request.
type ModelEvent struct {
	Worker string
	Event  loop.Event
}

// Kind implements [Event].
func (ToolStarted) Kind() string { return "worker_inner_call_started" }

// Kind implements [Event].
func (ToolCalled) Kind() string { return "worker_inner_call" }

// Kind implements [Event].
func (InputRefused) Kind() string { return "worker_inner_validation_fail" }

// Kind implements [Event].
func (CostWarned) Kind() string { return "worker_tool_cost_warning" }

// Kind implements [Event].
func (ModelEvent) Kind() string { return "worker_model_event" }

// ConferOptions configures [Confer]. Question and Profiles are required.
type ConferOptions struct {
	Options

	// Profiles are the models, each of which is asked once.
	Profiles []loop.Profile
}

// Conference is the response of [Confer].
type Conference struct {
	// Answers are those of the profiles, in their order.
	Answers []Answer `json:"answers"`
	// Tools is nil if no tools were asked for.
	Tools *ToolReport `json:"worker_tools,omitempty"`
	Usage Accounting  `json:"usage"`
	// CanaryLeaks are the answers that repeated a token which marks untrusted text. The
	// token is replaced in them.
	CanaryLeaks []CanaryLeak `json:"canary_leaks,omitempty"`
}

// Confer asks several models the same question, at the same time. No model sees the
// answer of another. A model that fails does not end the others. The error is non-nil
// for invalid options, and then wraps [ErrInvalid] or [loop.ErrNoModel], and for an error
// of Emit.
func Confer(ctx context.Context, o ConferOptions) (Conference, error) {
	p, ctx, stop, err := newPanel(ctx, o.Options, o.Profiles)
	if err != nil {
		return Conference{}, err
	}
	defer stop()
	var all []assignment
	for _, profile := range o.Profiles {
		all = append(all, assignment{profile: profile, question: o.Question, format: o.Format, tools: true})
	}
	answers := p.askAll(ctx, all)
	return Conference{Answers: answers, Tools: p.tools.newReport(p.cap, answers), Usage: newAccounting(answers), CanaryLeaks: listLeaks(answers)}, p.emitError()
}
