package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// Defaults of [Options].
const (
	// DefaultConcurrency is the number of a session's calls that run at once
	// (docs/internal/specification.md §4).
	DefaultConcurrency = 4
	// DefaultConfirmTimeout bounds the wait for an answer
	// (docs/internal/specification.md §5.2).
	DefaultConfirmTimeout = 5 * time.Minute
	// DefaultAbandon bounds the wait for a cancelled tool
	// (docs/internal/specification.md §8).
	DefaultAbandon = 30 * time.Second
)

// ErrNoApprover means that nobody can answer a prompt under [OnPromptFail]. It ends
// the run.
var ErrNoApprover = errors.New("no approver")

// Options configures a [Dispatcher]. Emit is required.
type Options struct {
	// Session is the session's ID, for logs.
	Session string
	// Workspace is the workspace's absolute host path with symlinks resolved, or
	// "". It decides which relaxed workspaces and stored answers apply, and makes
	// absolute paths of calls comparable.
	Workspace string
	// Mount is the workspace's absolute path in the container; "" means
	// "/workspace".
	Mount  string
	Policy policy.Policy
	// Broker gets people's answers. It must serve no other dispatcher. Nil means
	// that nobody can be asked.
	Broker *approval.Broker
	// Decider rules on calls before anybody is asked. Nil rules on nothing.
	Decider *approval.Decider
	// OnPrompt is the result of a prompt if nobody can be asked; "" means
	// OnPromptDeny.
	OnPrompt OnPrompt
	// Grants keeps answers of scope always. Nil doesn't offer that scope.
	Grants *approval.Grants
	// Emit gets every event, one at a time. Except for OutputDelta, an error means
	// that the event could not be recorded: nothing more is started, and Round
	// returns [tools.ErrRecord]. Emit must not call the dispatcher.
	Emit func(Event) error
	// Scope checks a path of an input against the workspace before anything runs.
	// Nil checks only the name. A *workspace.Error other than escape and invalid is
	// left to the tool.
	Scope func(path string) error
	// Allow reports whether this session may use a tool. Nil allows tools that are
	// EnabledByDefault and not RequiresAdmin. Other tools are neither offered nor run.
	Allow func(tools.Definition) bool
	// Refusal returns why Allow refuses a tool. Nil or an empty reason means that
	// the session does not permit it.
	Refusal func(tools.Definition) (reason, message string)
	// Concurrency is the number of calls that run at once; zero means
	// [DefaultConcurrency].
	Concurrency int
	// ConfirmTimeout bounds the wait for an answer; zero means
	// [DefaultConfirmTimeout].
	ConfirmTimeout time.Duration
	// Abandon bounds the wait for a cancelled tool; zero means [DefaultAbandon].
	// OnAbandon, if not nil, is told of a tool that is given up, so that its
	// container can be killed.
	Abandon   time.Duration
	OnAbandon func(callID string, def tools.Definition)
	// ResultCharacters bounds every result in characters (4,000 for workers). Zero
	// means no such bound.
	ResultCharacters int
	// Logger gets what may not be shown. It may be nil.
	Logger *zap.Logger
}

// OnPrompt is the result of a prompt when nobody can be asked.
type OnPrompt string

const (
	// OnPromptDeny refuses the call and continues; [Dispatcher.Unapproved] counts
	// it.
	OnPromptDeny OnPrompt = "deny"
	// OnPromptFail ends the run at once with [ErrNoApprover].
	OnPromptFail OnPrompt = "fail"
	// OnPromptAllow runs the call. The events report that nobody was asked.
	OnPromptAllow OnPrompt = "allow"
)

// Dispatcher runs the tool calls of one session. Methods are safe for concurrent
// use. Close it after use.
type Dispatcher struct {
	opts    Options
	log     *zap.Logger
	tools   tools.Registry
	slots   *scheduler
	out     emitter
	answers approval.SessionAnswers
	danger  policy.DangerMatcher

	confirmations atomic.Int64 // number requested so far

	mu         sync.Mutex
	unapproved int
	rounds     map[*round]struct{}
	closed     bool
	running    sync.WaitGroup
}

// New returns a dispatcher without tools, or an error if the options are invalid.
func New(opts Options) (*Dispatcher, error) {
	if opts.Emit == nil {
		return nil, errors.New("make dispatcher: Options.Emit is missing")
	}
	if err := opts.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("make dispatcher: %w", err)
	}
	switch opts.OnPrompt {
	case "", OnPromptDeny, OnPromptFail, OnPromptAllow:
	default:
		return nil, fmt.Errorf("make dispatcher: OnPrompt is %q, must be deny, fail or allow", opts.OnPrompt)
	}
	if opts.Concurrency < 0 || opts.ConfirmTimeout < 0 || opts.Abandon < 0 || opts.ResultCharacters < 0 {
		return nil, errors.New("make dispatcher: Concurrency, ConfirmTimeout, Abandon and ResultCharacters must not be negative")
	}
	opts = withDefaults(opts)
	danger, err := opts.Policy.DangerMatcher(opts.Mount)
	if err != nil {
		return nil, fmt.Errorf("make dispatcher: %w", err)
	}
	d := &Dispatcher{
		danger: danger,
		opts:   opts,
		log:    opts.Logger.With(zap.String("session", opts.Session)),
		slots:  newScheduler(opts.Concurrency),
		rounds: map[*round]struct{}{},
	}
	d.out.sink = opts.Emit
	if opts.Broker != nil {
		if err := opts.Broker.Bind(approval.Binding{
			RecordAttempt: func(a approval.Attempt) error { return d.out.emit(ConfirmationAttempted{a}) },
			Warn:          func(message string) { _ = d.out.emit(Warning{Message: message}) },
			Go:            d.running.Go,
			Logger:        d.log,
		}); err != nil {
			return nil, fmt.Errorf("make dispatcher: %w", err)
		}
	}
	return d, nil
}

func withDefaults(o Options) Options {
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	o.ConfirmTimeout = cmp.Or(o.ConfirmTimeout, DefaultConfirmTimeout)
	o.Abandon = cmp.Or(o.Abandon, DefaultAbandon)
	o.Mount = cmp.Or(o.Mount, "/workspace")
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Scope == nil {
		o.Scope = nameScope(o.Workspace, o.Mount)
	}
	if o.Allow == nil {
		o.Allow = func(def tools.Definition) bool { return def.EnabledByDefault && !def.RequiresAdmin }
	}
	return o
}

// Register adds a tool. Its error is a [*tools.RegistrationError].
func (d *Dispatcher) Register(f tools.Factory) error { return d.tools.Register(f) }

// Unregister removes a tool by either form of its name. It reports whether the tool
// was registered. Running calls go on. Calls that wait for an answer or a slot fail
// with tool.failed{execution_error}, reason "tool_removed", even if another tool
// gets the name: it is not the one that was checked and shown.
func (d *Dispatcher) Unregister(name string) bool { return d.tools.Unregister(name) }

// Definitions returns the tools that this session may use, sorted by name. The
// caller must not change what they point to.
func (d *Dispatcher) Definitions() []tools.Definition {
	var defs []tools.Definition
	for _, t := range d.tools.All() {
		if d.opts.Allow(t.Definition) {
			defs = append(defs, t.Definition)
		}
	}
	return defs
}

// Registered returns all tools, sorted by name, including those that this session
// may not use. The caller must not change what they point to.
func (d *Dispatcher) Registered() []tools.Definition {
	all := d.tools.All()
	defs := make([]tools.Definition, len(all))
	for i, t := range all {
		defs[i] = t.Definition
	}
	return defs
}

// Names returns the names of all tools, sorted, including those that this session
// may not use.
func (d *Dispatcher) Names() []tools.Name {
	var names []tools.Name
	for _, def := range d.Registered() {
		names = append(names, def.Name)
	}
	return names
}

// Lookup finds a tool by its canonical name, or else its wire name, even if this
// session may not use it.
func (d *Dispatcher) Lookup(name string) (tools.Definition, bool) {
	t, ok := d.tools.Find(name)
	if !ok {
		return tools.Definition{}, false
	}
	return t.Definition, true
}

// UnmatchedRules returns the policy's per-tool keys, sorted, that match no
// registered tool and none of the servers, whose tools come later. A misspelt deny
// protects nothing, so the user should know.
func (d *Dispatcher) UnmatchedRules(servers ...string) []string {
	return d.opts.Policy.Unmatched(d.Registered(), servers...)
}

// Unapproved returns the number of calls refused because nobody could be asked or
// answered in time. A run in which it is not 0 ends with status 56.
func (d *Dispatcher) Unapproved() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unapproved
}

// Cancel cancels every call that runs or waits for a slot or an answer; later
// rounds are not affected. Each call ends with tool.failed{cancelled}. Cancel
// doesn't wait, and repeating it does nothing.
func (d *Dispatcher) Cancel(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.rounds {
		r.cancel(cause)
	}
}

// errClosed is the cause with which a closed dispatcher cancels calls.
var errClosed = errors.New("session closed")

// Close cancels all calls and waits for them, including abandoned tools, until ctx
// ends. An error means that some still run. A later round cancels all its calls.
// Close is idempotent.
func (d *Dispatcher) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.Cancel(errClosed)
	if d.opts.Broker != nil {
		defer d.opts.Broker.Close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close dispatcher: tools still run: %w", context.Cause(ctx))
	}
}
