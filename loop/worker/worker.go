// Package worker asks models questions outside an agent's conversation: one question to
// several models ([Confer]), or a proposal that critics judge and a synthesizer
// combines with their judgments ([Coordinate]).
//
// Workers have no tools unless the caller asks for some, and then at most fetch and
// verify, which don't write, run commands or call models. They call them with tags in
// their text (see package tags), at most [HopBudget] times.
package worker

import (
	"cmp"
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

const (
	// HopBudget bounds a worker's tool calls, refused ones included. The next call ends
	// its calls.
	HopBudget = 2
	// ResultCharacters bounds a result's text.
	ResultCharacters = 4_000
	// MaxWorkers bounds a panel's models.
	MaxWorkers = 16
	// Concurrency is how many of them are asked at once.
	Concurrency = 4
	// DefaultWallTime bounds each worker if the budget has no wall time.
	DefaultWallTime = 5 * time.Minute
)

// ErrInvalid is the error for invalid options.
var ErrInvalid = errors.New("invalid worker options")

// Options are common to [Confer] and [Coordinate].
type Options struct {
	// Question is for all workers. It is trusted like an agent's task.
	Question string
	Tools    ToolOptions
	// Format is the answer's format; nil means text.
	Format *Format
	// Budget bounds all workers together. Rounds and ToolCalls are ignored.
	Budget limits.Budget
	// Ledger bounds the requests further; it may be nil.
	Ledger loop.Ledger
	// Session and Turn are IDs for calls and events; "" means new ones.
	Session, Turn string
	// Emit receives the events, one at a time. An error ends all workers. It may be
	// nil.
	Emit func(Event) error
	// Logger receives details that users must not see. It may be nil.
	Logger *zap.Logger
}

// Format is a format that answers must have.
type Format struct {
	// Request describes the format to the model.
	Request string
	// Check returns an answer's value and its problems.
	Check func(answer string) (value string, problems []string)
}

// Role is a worker's role in [Coordinate].
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
	// StatusAnswered means an answer, in a valid format.
	StatusAnswered Status = "answered"
	// StatusInvalid means that the format was still invalid after one retry.
	StatusInvalid Status = "invalid"
	// StatusFailed means no answer.
	StatusFailed Status = "failed"
)

// Answer is one worker's result.
type Answer struct {
	Profile  string `json:"profile"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Role     Role   `json:"role,omitempty"`
	Status   Status `json:"status"`
	// Answer is the text, or its value if Format is set and valid.
	Answer string `json:"answer"`
	// Problems are set for StatusInvalid.
	Problems []string `json:"problems,omitempty"`
	// Error is set if there is no answer.
	Error *Failure `json:"error,omitempty"`
	// Truncated means that the provider, or a limit, cut the answer.
	Truncated bool `json:"truncated,omitempty"`
	// Usage and WallMS cover all the worker's requests.
	Usage  limits.Usage `json:"usage"`
	WallMS int64        `json:"wall_ms"`
	// InnerToolCalls are the worker's calls; nil if it had no tools.
	InnerToolCalls []InnerCall `json:"inner_tool_calls,omitzero"`
	// CostCap is nil if there is no cap.
	CostCap *CostCapState `json:"cost_cap,omitempty"`
	// CanaryLeaked means that the answer repeated a token; see [Conference].
	CanaryLeaked bool `json:"canary_leaked,omitempty"`
	leaks        int
}

// CanaryLeak says how often an answer repeated tokens.
type CanaryLeak struct {
	Profile  string `json:"profile"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Count    int    `json:"count"`
}

func listLeaks(answers []Answer) []CanaryLeak {
	var out []CanaryLeak
	for _, a := range answers {
		if a.CanaryLeaked {
			out = append(out, CanaryLeak{Profile: a.Profile, Provider: a.Provider, Model: a.Model, Count: a.leaks})
		}
	}
	return out
}

// Failure says why a worker has no answer.
type Failure struct {
	Reason  loop.StopReason `json:"reason"`
	Message string          `json:"message"`
	err     error
}

// Used is the usage of some workers.
type Used struct {
	Workers int          `json:"workers"`
	Usage   limits.Usage `json:"usage"`
}

// Accounting is the workers' usage: in total, by provider, and by role if they have
// roles.
type Accounting struct {
	Total       Used            `json:"total"`
	PerProvider map[string]Used `json:"per_provider"`
	PerRole     map[Role]Used   `json:"per_role,omitempty"`
}

func (u Used) addUsage(a Answer) Used {
	if u.Workers == 0 {
		return Used{Workers: 1, Usage: a.Usage}
	}
	return Used{Workers: u.Workers + 1, Usage: u.Usage.Plus(a.Usage)}
}

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

type panel struct {
	opts   Options
	log    *zap.Logger
	ledger loop.Ledger
	cancel context.CancelCauseFunc
	slots  chan struct{}
	tools  *toolset
	cap    CostCap

	mu      sync.Mutex
	emitErr error
	names   map[string]int
}

func (o Options) validate(profiles []loop.Profile) error {
	switch {
	case o.Question == "":
		return errors.New("the question is empty")
	case len(profiles) > MaxWorkers:
		return fmt.Errorf("%d models, at most %d are asked", len(profiles), MaxWorkers)
	}
	for _, p := range profiles {
		if err := cmp.Or(p.CheckPrice(o.Budget), o.Tools.checkPrice(p)); err != nil {
			return err
		}
	}
	return o.Budget.Validate()
}

// newPanel checks the options and starts the wall time. The caller must call stop.
func newPanel(ctx context.Context, o Options, profiles []loop.Profile) (_ *panel, _ context.Context, stop func(), err error) {
	if len(profiles) == 0 || slices.ContainsFunc(profiles, func(p loop.Profile) bool { return p.Model == nil }) {
		return nil, nil, nil, loop.ErrNoModel
	}
	if err := o.validate(profiles); err != nil {
		return nil, nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	o.Session = cmp.Or(o.Session, "ses_"+ulid.Make().String())
	o.Turn = cmp.Or(o.Turn, "trn_"+ulid.Make().String())
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	p := &panel{opts: o, log: o.Logger.With(zap.String("session", o.Session)), ledger: o.Ledger, slots: make(chan struct{}, Concurrency), cap: o.Tools.CostCap.normalize(), names: map[string]int{}}
	if o.Budget.Tokens != nil || o.Budget.CostMicroUSD != nil {
		p.ledger, _ = loop.NewSharedBudget(o.Budget, o.Ledger) // the budget is valid
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

// emit passes an event on. If that fails, all workers end.
func (p *panel) emit(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opts.Emit == nil || p.emitErr != nil {
		return
	}
	p.emitErr = p.opts.Emit(e)
	if p.emitErr != nil {
		p.cancel(p.emitErr)
	}
}

func (p *panel) emitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.emitErr
}

type assignment struct {
	profile loop.Profile
	role    Role
	// question is the user message. format may be nil.
	question string
	format   *Format
	tools    bool
}

// askAll asks all workers, a few at a time, and returns their answers in order.
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

// nameWorker returns a worker's name for events, unique in the panel.
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

// sortedNames returns a map's sorted keys, never nil.
func sortedNames[T any](m map[string]T) []string {
	return append([]string{}, slices.Sorted(maps.Keys(m))...)
}

// Event is a worker's event, reported through [Options].Emit. The types of this package
// are the only ones.
type Event interface {
	Kind() string
}

// ToolStarted reports that a permitted call begins. A [ToolCalled] follows.
type ToolStarted struct {
	Worker string `json:"worker"`
	// CallID is unique in the session.
	CallID string `json:"inner_call_id"`
}

// ToolCalled reports a worker's call and its result.
type ToolCalled struct {
	Worker string `json:"worker"`
	InnerCall
	// CallID is as in [ToolStarted], or "" if the call didn't run.
	CallID string `json:"inner_call_id,omitempty"`
	// Summary describes the input in one line that is safe to display. InputHash is the
	// input's hex SHA-256. Both are "" if the call didn't run.
	Summary   string `json:"summary,omitempty"`
	InputHash string `json:"input_hash,omitempty"`
}

// InputRefused reports a call whose arguments the tool's schema refused.
type InputRefused struct {
	Worker      string `json:"worker"`
	Hop         int    `json:"hop"`
	Name        string `json:"name"`
	SchemaError string `json:"schema_error"`
}

// CostWarned reports, once for each worker, a cost above the cap.
type CostWarned struct {
	Worker      string  `json:"worker"`
	CapUSD      float64 `json:"cap_usd"`
	ObservedUSD float64 `json:"observed_usd"`
}

// ModelEvent is a loop event of a worker's request.
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

	// Profiles are the models. Each is asked once.
	Profiles []loop.Profile
}

// Conference is the result of [Confer].
type Conference struct {
	// Answers are in the profiles' order.
	Answers []Answer `json:"answers"`
	// Tools is nil if no tools were requested.
	Tools *ToolReport `json:"worker_tools,omitempty"`
	Usage Accounting  `json:"usage"`
	// CanaryLeaks are the answers that repeated tokens which mark untrusted text. The
	// tokens are replaced in them.
	CanaryLeaks []CanaryLeak `json:"canary_leaks,omitempty"`
}

// Confer asks several models the same question at once. No model sees another's answer,
// and one that fails doesn't end the others. The error is for invalid options, and then
// wraps [ErrInvalid] or [loop.ErrNoModel], or comes from Emit.
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
