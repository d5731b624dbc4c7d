package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// DecisionAsk is a decider's ruling that a person is asked. It is not recorded.
const DecisionAsk Decision = "ask"

// Decider is a program or service of the operator that rules on calls before
// anybody else is asked. It can only tighten the policy unless MayAllow is set.
// Methods are safe for concurrent use. A nil Decider rules on nothing.
type Decider struct {
	// Name identifies it in records, as the client of its decisions.
	Name string
	// Ask sends a question to it and returns its answer, both JSON. It must return
	// when ctx ends.
	Ask func(ctx context.Context, question []byte) ([]byte, error)
	// Classes are the classes of calls that it rules on. Hosts reports that it also
	// rules on hosts that no egress rule covers.
	Classes []tools.Class
	Hosts   bool
	// Timeout bounds each question, from when it is sent.
	Timeout time.Duration
	// MayAllow lets it allow what a person would be asked about.
	MayAllow bool
	// AskOnFailure asks a person if it fails. Otherwise the call is refused.
	AskOnFailure bool

	slots chan struct{}
}

// maxDeciding bounds the questions that a decider gets at once.
const maxDeciding = 16

// NewDecider returns a decider with the options.
func NewDecider(options Decider) *Decider {
	options.slots = make(chan struct{}, maxDeciding)
	return &options
}

// MaxDecisionBytes bounds a decider's answer.
const MaxDecisionBytes = 64 << 10

// deciderQuestion is what a decider gets: what a person would be shown, with the
// input as it is.
//
//	{"version":1,"id":"00ff…","tool":"shell","class":"execute","runs":"sandbox","workspace":"/home/me/p","input":{"command":"git push"},"input_sha256":"…","summary":"git push","policy":"auto"}
type deciderQuestion struct {
	Version   int             `json:"version"`
	ID        string          `json:"id"`
	CallID    string          `json:"tool_use_id,omitempty"`
	Tool      tools.Name      `json:"tool"`
	Class     tools.Class     `json:"class"`
	Runs      tools.Place     `json:"runs,omitempty"`
	Workspace string          `json:"workspace,omitempty"`
	Input     json.RawMessage `json:"input"`
	InputHash string          `json:"input_sha256"`
	Summary   string          `json:"summary"`
	Paths     []string        `json:"paths,omitempty"`
	Diff      string          `json:"diff,omitempty"`
	Dangerous string          `json:"dangerous,omitempty"`
	Notices   []string        `json:"notices,omitempty"`
	// Policy is what happens without the decider: auto, or prompt.
	Policy string `json:"policy"`
}

// deciderAnswer is a decider's answer. ID is the question's.
type deciderAnswer struct {
	ID       string   `json:"id"`
	Decision Decision `json:"decision"`
	Reason   string   `json:"reason"`
}

// Covers reports whether the decider rules on a class.
func (d *Decider) Covers(class tools.Class) bool {
	return d != nil && slices.Contains(d.Classes, class)
}

// CoversHosts reports whether the decider rules on hosts.
func (d *Decider) CoversHosts() bool { return d != nil && d.Hosts }

// Decide asks about a call. prompt reports that the policy asks a person about it.
// The answer is DecisionAllow, DecisionDeny or DecisionAsk; a failure is one of the
// latter two, with the failure as its reason. An allow of a call that a person
// would be asked about is DecisionAsk unless MayAllow is set and the call is
// neither dangerous nor for administrators.
func (d *Decider) Decide(ctx context.Context, c Confirmation, prompt bool) Answer {
	q := deciderQuestion{
		Version: 1, ID: c.ID, CallID: c.CallID, Tool: c.Name, Class: c.Class, Runs: c.Runs, Workspace: c.Workspace, Input: c.Exact, InputHash: c.InputHash,
		Summary: c.Summary, Paths: c.Projected, Diff: c.Diff, Dangerous: c.Dangerous, Notices: c.Notices, Policy: "auto",
	}
	if prompt {
		q.Policy = "prompt"
	}
	got, err := d.exchange(ctx, q)
	if err != nil {
		a := Answer{Decision: DecisionDeny, Reason: "the decider " + d.Name + " failed: " + err.Error()}
		if d.AskOnFailure {
			a.Decision = DecisionAsk
		}
		a.Reason = cleanReason(a)
		return a
	}
	a := Answer{Decision: got.Decision, Scope: ScopeOnce, Reason: got.Reason}
	a.Reason = cleanReason(a)
	if a.Decision == DecisionAllow && prompt && (!d.MayAllow || c.Dangerous != "" || c.RequiresAdmin) {
		a.Decision = DecisionAsk
	}
	return a
}

func (d *Decider) exchange(ctx context.Context, q deciderQuestion) (got deciderAnswer, err error) {
	text, err := json.Marshal(q)
	if err != nil {
		return got, fmt.Errorf("encode question: %w", err)
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return got, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.Timeout, fmt.Errorf("no answer within %v", d.Timeout))
	defer cancel()
	answer, err := d.Ask(ctx, text)
	switch {
	case ctx.Err() != nil:
		return got, context.Cause(ctx)
	case err != nil:
		return got, err
	case len(answer) > MaxDecisionBytes:
		return got, fmt.Errorf("its answer has more than %d bytes", MaxDecisionBytes)
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return got, errors.New(`its answer is not a JSON object with id, decision and reason`)
	}
	if got.ID != q.ID {
		return got, errors.New("its answer has another id than the question")
	}
	switch got.Decision {
	case DecisionAllow, DecisionDeny, DecisionAsk:
		return got, nil
	}
	return got, errors.New("its decision is not allow, deny or ask")
}
