package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Errors that [Broker.Answer] wraps; [tools.ErrRecord] is the third.
var (
	// ErrUnknownConfirmation means that the session never used the ID, or forgot
	// it.
	ErrUnknownConfirmation = errors.New("no such confirmation")
	// ErrResolved means that another client or the clock resolved the confirmation.
	// The error is a [*ResolvedError].
	ErrResolved = errors.New("confirmation is resolved already")
)

// ResolvedError reports an answer that came too late; the recorded decision stands.
// It is also the cause with which an [Approver]'s context ends.
type ResolvedError struct{ Resolution Resolution }

func (e *ResolvedError) Error() string {
	by := e.Resolution.By
	if e.Resolution.Client != "" {
		by += " at " + e.Resolution.Client
	}
	return fmt.Sprintf("%v: %s by %s", ErrResolved, e.Resolution.Decision, by)
}

func (e *ResolvedError) Unwrap() error { return ErrResolved }

// Resolution is the recorded result of a confirmation.
type Resolution struct {
	CallID    string   `json:"tool_use_id"`
	RequestID string   `json:"confirmation_request_id"` // the confirmation's ID
	Decision  Decision `json:"decision"`
	// Scope is how long the answer holds, perhaps less than was asked for.
	Scope Scope `json:"scope,omitempty"`
	// By is who resolved it: ByUser; BySession or ByGrant for an earlier answer
	// (RequestID is then ""); ByDecider; ByOnPrompt if nobody could be asked;
	// ByTimeout; ByCancel.
	By string `json:"by"`
	// Client is the label of the client that answered, or "".
	Client string `json:"client,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Attempt is an answer that changed nothing: it was late, or for an unknown
// confirmation, or forbidden.
type Attempt struct {
	// RequestID is what the client gave, cut to 128 bytes. CallID is "" if unknown.
	RequestID string `json:"confirmation_request_id"`
	CallID    string `json:"tool_use_id,omitempty"`
	// Decision and Scope are the answer's. By is the client's label.
	Decision Decision       `json:"decision"`
	Scope    Scope          `json:"scope,omitempty"`
	By       string         `json:"by"`
	Outcome  AttemptOutcome `json:"outcome"`
	// Recorded is the decision that stands and RecordedBy who made it, as in
	// [Resolution], or "".
	Recorded   Decision `json:"recorded_decision,omitempty"`
	RecordedBy string   `json:"recorded_by,omitempty"`
	// Omitted is the number of unreported attempts before this one; there were too
	// many.
	Omitted int `json:"omitted,omitempty"`
}

// AttemptOutcome is why an answer changed nothing.
type AttemptOutcome string

// The outcomes.
const (
	// AttemptResolved means that another answer was first.
	AttemptResolved AttemptOutcome = "resolved_already"
	// AttemptExpired means that the clock was first.
	AttemptExpired AttemptOutcome = "expired"
	// AttemptUnknown means that the session never asked this.
	AttemptUnknown AttemptOutcome = "unknown"
	// AttemptForbidden means that the client's roles do not allow this answer.
	AttemptForbidden AttemptOutcome = "forbidden"
)

// maxPast bounds the resolved confirmations that a broker remembers for late
// answers. A round asks at most 256 times.
const maxPast = 4096

// maxLabelBytes bounds a client's label and the IDs it gives. Both go into records.
const maxLabelBytes = 128

// BrokerOptions configures a [Broker]. With the zero value, only attached clients
// are asked.
type BrokerOptions struct {
	// Attended reports that clients may still come: a confirmation then waits for
	// its timeout even if no client is attached or could ask anyone.
	Attended bool
	// Uptime is a clock that is never set and runs while the machine sleeps. Nil
	// means CLOCK_BOOTTIME. It must not call the broker.
	Uptime func() time.Duration
}

// Broker resolves the confirmations of one session. Clients that ask a person are
// attached; others read [Broker.Pending] and call [Broker.Answer]. The first answer
// wins; a timeout or cancellation counts as one. Clients learn of an answer only
// after it is recorded. A broker serves one dispatcher, whose Close waits for
// clients that are still asking. Methods are safe for concurrent use. Use
// [NewBroker]; the zero value is not useful.
//
//	dispatcher                     broker                          clients
//	──────────                     ──────                          ───────
//	                 Request ────▶ pending ◀──── Answer ────────── HTTP
//	ConfirmationRequested             │
//	                 Deliver ────▶    ├───── Approve ────────────▶ terminal
//	                                  ▼
//	ConfirmationResolved ◀─ Wait ── resolved
//	        └─ Record ───────────▶ past ────── 200, or 409 ──────▶ the client that answered
//	                                  └─────── ResolvedError ────▶ clients that still ask
type Broker struct {
	opts BrokerOptions

	mu       sync.Mutex
	bound    Binding
	clients  []*client
	pending  []*Request // oldest first
	past     map[string]outcome
	pastIDs  []string // keys of past, oldest first
	attempts attempts
}

// Binding connects a broker to its dispatcher.
type Binding struct {
	// RecordAttempt records an answer that changed nothing.
	RecordAttempt func(Attempt) error
	// Warn tells users of a fact.
	Warn func(message string)
	// Go starts a goroutine that the dispatcher's Close waits for.
	Go func(func())
	// Logger is never nil.
	Logger *zap.Logger
}

type client struct {
	label    string
	approver Approver
}

// NewBroker returns a broker without clients.
func NewBroker(opts BrokerOptions) *Broker {
	if opts.Uptime == nil {
		opts.Uptime = sinceBoot
	}
	return &Broker{opts: opts, past: map[string]outcome{}, attempts: newAttempts()}
}

// Bind makes the broker serve a dispatcher. It fails if it already serves one.
func (b *Broker) Bind(to Binding) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound.RecordAttempt != nil {
		return errors.New("Options.Broker serves another dispatcher")
	}
	b.bound = to
	return nil
}

// Attach adds a client, whose Approve is called for every pending and later
// confirmation. The label is recorded with its answers. detach cancels its
// questions and removes it; it may be called twice.
func (b *Broker) Attach(label string, a Approver) (detach func()) {
	c := &client{label: cleanLabel(label), approver: a}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, c)
	for _, q := range b.pending {
		b.showRequest(q, c)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.clients = slices.DeleteFunc(b.clients, func(other *client) bool { return other == c })
		for _, q := range b.pending {
			b.removeClient(q, c)
		}
	}
}

// Pending returns the confirmations that wait for an answer, oldest first. The
// caller must not change what they point to.
func (b *Broker) Pending() []Confirmation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Confirmation
	for _, q := range b.pending {
		if !q.resolved && b.endedBy(q) == "" {
			list = append(list, q.Confirmation)
		}
	}
	return list
}

// Unrecorded returns the number of confirmations whose resolution is not recorded.
func (b *Broker) Unrecorded() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// Answer answers one confirmation for a client and returns the recorded resolution.
// It waits for the record, so that no client learns of an answer that a crash could
// still lose. If ctx ends that wait, the answer stands. Errors wrap
// [ErrUnknownConfirmation], [ErrResolved], or [tools.ErrRecord] if the decision
// could not be recorded and nothing was allowed. The first two are also reported as
// an [Attempt].
func (b *Broker) Answer(ctx context.Context, id string, a Answer, label string) (Resolution, error) {
	label = cleanLabel(label)
	b.mu.Lock()
	at := slices.IndexFunc(b.pending, func(q *Request) bool { return q.ID == id })
	if at < 0 {
		past, known := b.past[id]
		b.mu.Unlock()
		return b.rejectAnswer(id, a, label, past, known)
	}
	q := b.pending[at]
	first := b.resolve(q, Reply{a, label, ByUser})
	b.mu.Unlock()
	select {
	case <-q.recorded:
	case <-ctx.Done():
		select {
		case <-q.recorded:
		default:
			return Resolution{}, fmt.Errorf("wait for the record: %w", context.Cause(ctx))
		}
	}
	if !first || q.outcome.err != nil {
		return b.rejectAnswer(id, a, label, q.outcome, true)
	}
	return q.outcome.resolution, nil
}

// Misdirected reports an answer that named the wrong turn, or an impossible ID. It
// changes nothing. The error is as from [Broker.Answer] for an unknown ID.
func (b *Broker) Misdirected(id string, a Answer, label string) error {
	_, err := b.rejectAnswer(id, a, cleanLabel(label), outcome{}, false)
	return err
}

// Forbidden reports an answer from a client without permission for it. The
// confirmation stays pending. The error is the recorder's.
func (b *Broker) Forbidden(id string, a Answer, label string) error {
	return b.reportAttempt(newAttempt(id, a, cleanLabel(label), AttemptForbidden))
}

// cleanLabel repairs and bounds text from a client.
func cleanLabel(s string) string { return utf8text.Clip(utf8text.Repair(s), maxLabelBytes) }

func newAttempt(id string, a Answer, label string, outcome AttemptOutcome) Attempt {
	return Attempt{
		RequestID: cleanLabel(id), By: label, Outcome: outcome,
		Decision: Decision(cleanLabel(string(a.Decision))),
		Scope:    Scope(cleanLabel(string(a.Scope))),
	}
}

// rejectAnswer reports an answer that changes nothing and returns the standing
// resolution.
func (b *Broker) rejectAnswer(id string, a Answer, label string, past outcome, known bool) (Resolution, error) {
	id = cleanLabel(id)
	if past.err != nil {
		return Resolution{}, fmt.Errorf("answer %q: %w", id, past.err)
	}
	attempt := newAttempt(id, a, label, AttemptUnknown)
	var err error = &ResolvedError{past.resolution}
	if known {
		r := past.resolution
		attempt.CallID, attempt.Recorded, attempt.RecordedBy = r.CallID, r.Decision, r.By
		attempt.Outcome = AttemptResolved
		if r.By == ByTimeout {
			attempt.Outcome = AttemptExpired
		}
	} else {
		err = fmt.Errorf("answer %q: %w", id, ErrUnknownConfirmation)
	}
	return past.resolution, errors.Join(err, b.reportAttempt(attempt))
}

// reportAttempt reports an answer that changed nothing, unless there are too many.
func (b *Broker) reportAttempt(attempt Attempt) error {
	b.mu.Lock()
	record := b.bound.RecordAttempt
	omitted, ok := b.attempts.takeReport(time.Now())
	b.mu.Unlock()
	if record == nil || !ok {
		return nil
	}
	attempt.Omitted = omitted
	return record(attempt) // a failure to record ends the session by itself
}

// Close reports how many attempts were not reported one by one. The dispatcher
// calls it.
func (b *Broker) Close() {
	b.mu.Lock()
	omitted := b.attempts.omitted
	b.attempts.omitted = 0
	b.mu.Unlock()
	if omitted > 0 {
		b.bound.Warn(fmt.Sprintf("%d more answers to confirmations changed nothing and were not recorded one by one", omitted))
	}
}

// sinceBoot is a clock that is never set and runs while the machine sleeps. Go's
// monotonic clock stands still then.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // can't fail since Linux 2.6.39; with 0 the other clock still counts
	return time.Duration(t.Nano())
}

// Bounds of the recorded attempts. Each is on disk before its client hears of it,
// so a flooding client must not fill the disk. Fifty clients that race for one
// confirmation are far below.
const (
	attemptBurst    = 1000
	attemptInterval = time.Second // one more each
)

// attempts limits reports, and counts those it refused.
type attempts struct {
	reports *rate.Limiter
	omitted int
}

func newAttempts() attempts {
	return attempts{reports: rate.NewLimiter(rate.Every(attemptInterval), attemptBurst)}
}

// takeReport asks to report one attempt. It returns how many before it were not
// reported, or false if this one isn't either.
func (a *attempts) takeReport(now time.Time) (omitted int, ok bool) {
	if !a.reports.AllowN(now, 1) {
		a.omitted++
		return 0, false
	}
	omitted, a.omitted = a.omitted, 0
	return omitted, true
}
