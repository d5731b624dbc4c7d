package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// DecisionAsk is a decider's ruling that a person is asked. It is not recorded.
const DecisionAsk Decision = "ask"

// Decider is a program or service of the operator that rules on calls before
// anybody else is asked. It can only tighten the policy unless MayAllow is set.
// Methods are safe for concurrent use. A nil Decider rules on nothing. Make others with
// [NewDecider]: without it, no question is ever sent.
type Decider struct {
	// Name identifies it in records, as the client of its decisions.
	Name string
	// Ask sends a question about a call in a workspace and returns the answer, both
	// JSON. It must return when ctx ends. The model doesn't see its errors.
	Ask func(ctx context.Context, workspace string, question []byte) ([]byte, error)
	// Classes are the classes of calls that it rules on, and Tools more tools. Hosts
	// reports that it also rules on hosts that no egress rule covers.
	Classes []tools.Class
	Tools   []tools.Name
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

// NewDecider returns a decider with these fields.
func NewDecider(options Decider) *Decider {
	options.slots = make(chan struct{}, maxDeciding)
	return &options
}

// MaxDecisionBytes bounds a decider's answer.
const MaxDecisionBytes = 64 << 10

const maxDecisionDepth = 16

// deciderQuestion is what a decider gets: what a person would be shown, with the whole
// input. docs/approvals.md has an example.
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
	// Commands are those that the call runs. For text typed into a terminal, they are
	// what it may run together with what was typed before. If that may be anything,
	// [policy.AnyCommand] is among them.
	Commands []string `json:"commands,omitempty"`
	// Policy is the policy's mode: auto, or prompt.
	Policy string `json:"policy"`
}

// Covers reports whether the decider rules on calls of a tool.
func (d *Decider) Covers(def tools.Definition) bool {
	return d != nil && (slices.Contains(d.Classes, def.Class) || slices.Contains(d.Tools, def.Name))
}

// CoversHosts reports whether the decider rules on hosts.
func (d *Decider) CoversHosts() bool { return d != nil && d.Hosts }

// Case is what a decider rules on.
type Case struct {
	Confirmation
	// Dir is the workspace's absolute path.
	Dir string
	// Prompt reports that the policy asks about the call. An earlier answer may settle it.
	Prompt bool
	// Commands are those of the call; see [tools.Definition].
	Commands []string
}

// Decide asks the decider. The decision is DecisionAllow, DecisionDeny or
// DecisionAsk. An error says why there was no valid answer: the decision is then one
// of the latter two, without a reason.
func (d *Decider) Decide(ctx context.Context, c Case) (Answer, error) {
	q := deciderQuestion{
		Version: 1, ID: c.ID, CallID: c.CallID, Tool: c.Name, Class: c.Class, Runs: c.Runs, Workspace: c.Dir, Input: c.Exact, InputHash: c.InputHash,
		Summary: c.Summary, Paths: c.Projected, Diff: c.Diff, Dangerous: c.Dangerous, Notices: c.Notices, Commands: c.Commands, Policy: "auto",
	}
	if c.Prompt {
		q.Policy = "prompt"
	}
	a, err := d.exchange(ctx, q)
	if err != nil {
		a = Answer{Decision: DecisionDeny}
		if d.AskOnFailure {
			a.Decision = DecisionAsk
		}
		return a, fmt.Errorf("the decider %s gave no valid answer: %w", d.Name, err)
	}
	a.Reason = cleanReason(a)
	return a, nil
}

func (d *Decider) exchange(ctx context.Context, q deciderQuestion) (Answer, error) {
	text, err := strictjson.Canonical(q) // its input is what InputHash is of
	if err != nil {
		return Answer{}, fmt.Errorf("encode question: %w", err)
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.Timeout, fmt.Errorf("no answer within %v", d.Timeout))
	defer cancel()
	answer, err := d.Ask(ctx, q.Workspace, text)
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}
	if err != nil {
		return Answer{}, err
	}
	return parseDecision(answer, q.ID)
}

// parseDecision parses a decider's answer to the question with this ID. It ignores
// members that it doesn't know.
func parseDecision(text []byte, id string) (Answer, error) {
	decoded, err := strictjson.Decode(text, MaxDecisionBytes, maxDecisionDepth)
	if err != nil {
		return Answer{}, fmt.Errorf("not a JSON object: %w", err)
	}
	object, _ := decoded.(map[string]any) // nil has no id
	if got, ok := object["id"].(string); !ok || got != id {
		return Answer{}, errors.New("not a JSON object with the question's id")
	}
	decision, _ := object["decision"].(string)
	reason, ok := object["reason"].(string)
	if !ok && object["reason"] != nil {
		return Answer{}, errors.New("its reason is not a text")
	}
	switch a := (Answer{Decision: Decision(decision), Scope: ScopeOnce, Reason: reason}); a.Decision {
	case DecisionAllow, DecisionDeny, DecisionAsk:
		return a, nil
	default:
		return Answer{}, errors.New("its decision is not allow, deny or ask")
	}
}
