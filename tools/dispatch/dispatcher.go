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
	// DefaultConcurrency is the number of calls of a session that run at once
	// (docs/internal/specification.md §4).
	DefaultConcurrency = 4
	// DefaultConfirmTimeout bounds the wait for an answer (docs/internal/specification.md §5.2).
	DefaultConfirmTimeout = 5 * time.Minute
	// DefaultAbandon bounds the wait for a cancelled tool (docs/internal/specification.md §8).
	DefaultAbandon = 30 * time.Second
)

// ErrNoApprover is a prompt that no one can answer under [OnPromptFail]. It ends the
// run.
var ErrNoApprover = errors.New("no approver")

// Options configure a [Dispatcher]. The zero value is invalid: Emit is needed.
type Options struct {
	// Session is the session's id, for logs.
	Session string
	// Workspace is the absolute host path of the workspace, symlinks resolved:
	// it decides which relaxed workspaces and stored answers apply, and the
	// order of calls that name files by absolute paths. "" applies none.
	Workspace string
	// Mount is the workspace's absolute path inside the container; "" means
	// "/workspace".
	Mount string
	// Policy decides what needs an answer. The zero Policy asks about everything.
	Policy policy.Policy
	// Broker gets the answers of people; it must serve no other dispatcher. Nil
	// means that no one can be asked.
	Broker *approval.Broker
	// OnPrompt is then the result of a prompt; "" means OnPromptDeny.
	OnPrompt OnPrompt
	// Grants keeps answers of scope always; nil offers no such scope.
	Grants *approval.Grants
	// Emit gets every event, one at a time. An error of any event but
	// OutputDelta means that it could not be recorded: nothing more is
	// started, and Round returns [tools.ErrRecord]. It must not call the dispatcher.
	Emit func(Event) error
	// Scope checks one path of an input against the workspace before anything
	// runs; nil means by name alone. A *workspace.Error other than escape and
	// invalid is left to the tool to say.
	Scope func(path string) error
	// Allow reports whether this session may use a tool; nil allows what is
	// EnabledByDefault and doesn't RequireAdmin. What it refuses is neither
	// offered nor run.
	Allow func(tools.Definition) bool
	// Refusal returns the reason and the message of a call whose tool Allow refuses;
	// nil, and an empty reason, mean that the session does not permit it.
	Refusal func(tools.Definition) (reason, message string)
	// Concurrency is the number of calls that run at once; zero means
	// [DefaultConcurrency].
	Concurrency int
	// ConfirmTimeout bounds the wait for an answer; zero means
	// [DefaultConfirmTimeout].
	ConfirmTimeout time.Duration
	// Abandon bounds the wait for a tool that was cancelled; zero means
	// [DefaultAbandon]. OnAbandon is told of a tool that is given up, so that
	// its container can be killed; nil does nothing.
	Abandon   time.Duration
	OnAbandon func(callID string, def tools.Definition)
	// ResultBytes bounds every result below the tool's own bound; zero leaves
	// it to the tool. ResultCharacters bounds it in characters too (4,000 for
	// workers); zero does not.
	ResultBytes, ResultCharacters int
	// Logger gets what may not be shown; nil discards.
	Logger *zap.Logger
}

// OnPrompt is the result of a prompt when no one can be asked.
type OnPrompt string

// The results. The zero value is OnPromptDeny.
const (
	// OnPromptDeny refuses the call and goes on; [Dispatcher.Unapproved] counts it.
	OnPromptDeny OnPrompt = "deny"
	// OnPromptFail ends the run at once with [ErrNoApprover].
	OnPromptFail OnPrompt = "fail"
	// OnPromptAllow runs the call; the events report that no one was asked.
	OnPromptAllow OnPrompt = "allow"
)

// Dispatcher runs the tool calls of one session. It is safe for concurrent
// use. Close it after use.
type Dispatcher struct {
	opts    Options
	log     *zap.Logger
	tools   tools.Registry
	slots   *scheduler
	out     emitter
	answers approval.SessionAnswers
	// danger are the policy's patterns of dangerous commands.
	danger policy.DangerMatcher

	confirmations atomic.Int64 // that were requested

	mu         sync.Mutex
	unapproved int
	rounds     map[*round]struct{}
	closed     bool
	running    sync.WaitGroup
}

// New makes a dispatcher without tools. It fails for options that can't work.
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
	if opts.Concurrency < 0 || opts.ConfirmTimeout < 0 || opts.Abandon < 0 || opts.ResultBytes < 0 || opts.ResultCharacters < 0 {
		return nil, errors.New("make dispatcher: Concurrency, ConfirmTimeout, Abandon, ResultBytes and ResultCharacters must not be negative")
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
	if o.Scope == nil {
		o.Scope = nameScope(o.Workspace, o.Mount)
	}
	if o.Allow == nil {
		o.Allow = func(def tools.Definition) bool { return def.EnabledByDefault && !def.RequiresAdmin }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Register adds a tool. It fails with a *RegistrationError, and then the tool
// is not there.
func (d *Dispatcher) Register(f tools.Factory) error { return d.tools.Register(f) }

// Unregister removes a tool by either form of its name and reports whether
// it was there. Calls that run are not affected. Those that wait for an answer or a slot
// end with tool.failed{execution_error}, reason "tool_removed": what was checked and shown
// is not there any more, also if another tool gets the name.
func (d *Dispatcher) Unregister(name string) bool { return d.tools.Unregister(name) }

// Definitions are the tools that this session may use, sorted by name. The
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

// Registered returns the definitions of all tools, sorted by name, those included that this
// session may not use. The caller must not change what they point to.
func (d *Dispatcher) Registered() []tools.Definition {
	all := d.tools.All()
	defs := make([]tools.Definition, len(all))
	for i, t := range all {
		defs[i] = t.Definition
	}
	return defs
}

// Names returns the names of all tools, sorted, those included that this session may not
// use.
func (d *Dispatcher) Names() []tools.Name {
	var names []tools.Name
	for _, def := range d.Registered() {
		names = append(names, def.Name)
	}
	return names
}

// Lookup finds a tool by its canonical or its wire name, whether or not this
// session may use it. The canonical form wins.
func (d *Dispatcher) Lookup(name string) (tools.Definition, bool) {
	t, ok := d.tools.Find(name)
	if !ok {
		return tools.Definition{}, false
	}
	return t.Definition, true
}

// UnmatchedRules are the keys of the policy's per-tool modes that match no
// registered tool, nor one of the servers, whose tools come later; sorted. A misspelt deny
// protects nothing, and the user should know.
func (d *Dispatcher) UnmatchedRules(servers ...string) []string {
	return d.opts.Policy.Unmatched(d.Registered(), servers...)
}

// Unapproved returns the number of calls that were refused because no one could be
// asked or no answer came in time. A run in which it is not 0 ends with status 56.
func (d *Dispatcher) Unapproved() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unapproved
}

// Cancel cancels every call that is under way, the ones that wait for a slot
// or an answer included; rounds that begin later are not affected. Each ends
// with tool.failed{cancelled}. It doesn't wait, and a second one does nothing.
func (d *Dispatcher) Cancel(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.rounds {
		r.cancel(cause)
	}
}

// errClosed is the cause that calls see when their dispatcher is closed.
var errClosed = errors.New("session closed")

// Close cancels what is under way and waits for it, abandoned tools included,
// until ctx ends; its error is then that some still run. A later round
// cancels all of its calls. It is idempotent.
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
