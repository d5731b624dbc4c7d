package trace

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// StepKind is the kind of a [Step].
type StepKind string

// The kinds of steps.
const (
	StepTurn       StepKind = "turn"       // a turn begins; Turn counts from 1
	StepSystem     StepKind = "system"     // the instructions; Text
	StepUser       StepKind = "user"       // a user's message; Text
	StepModel      StepKind = "model"      // one model call; Model
	StepThinking   StepKind = "thinking"   // Text
	StepAssistant  StepKind = "assistant"  // a text of the model; Text
	StepCall       StepKind = "call"       // one complete tool call; Call
	StepSandbox    StepKind = "sandbox"    // the sandbox started, was lost, started again; Text, Failed, Start
	StepCommand    StepKind = "command"    // a user's command in the sandbox; Text, Failed, Start
	StepBackground StepKind = "background" // a command in the background ended; Text, Failed, Start
	StepNetwork    StepKind = "network"    // a connection of a command of no known call has ended; Text, Start
	StepServer     StepKind = "mcp"        // a server of tools started, failed, changed, was refused something, stopped; Text, Failed, Start
	StepAttempt    StepKind = "attempt"    // an answer that changed nothing; Text
	StepContext    StepKind = "context"    // old messages are shortened, or summarized; Text, Failed, Detail
	StepWorker     StepKind = "worker"     // a call of a worker; Text, Failed
	StepWarning    StepKind = "warning"    // Text
	StepTurnEnd    StepKind = "turn end"   // Text, Failed, Start, End
	StepOmitted    StepKind = "omitted"    // retention removed records here; Count
	StepUnknown    StepKind = "unknown"    // a kind that this program doesn't know, or a payload that it can't read; Text
	StepEnd        StepKind = "end"        // the session's end; Text, Failed
)

// Step is one event of a session, made from one or more records. Texts are as
// they were recorded: untrusted, and not safe to display.
type Step struct {
	Kind StepKind
	// Seq is the number of the record that completes the step, Record its ID.
	Seq    int64
	Record string
	// Start is when it began, Time when it was complete.
	Start, Time time.Time
	Turn        int
	Text        string
	Detail      string // a summary
	Failed      bool
	Count       int64
	Model       *ModelCall
	Call        *Call
	End         *TurnEnd
}

// TurnEnd is the result of a turn.
type TurnEnd struct {
	// TurnCompleted has the reason loop.StopCancelled for every cancelled turn; Step.Text
	// has the cause.
	record.TurnCompleted
	// Answer is the last text of the model, whole, if the reason is loop.StopAnswered.
	Answer string
}

// ModelCall is one call of the model.
type ModelCall struct {
	Round     int
	Purpose   loop.Purpose
	Model     loop.ModelInfo
	LatencyMS int64
	Usage     limits.Usage
	Finish    string
	// Error is the error of a failed call, or "".
	Error string
}

// Label returns what a call was for, such as "round 3".
func (m ModelCall) Label() string {
	if m.Purpose != "" {
		return cutMiddle(string(m.Purpose), 40)
	}
	return fmt.Sprintf("round %d", m.Round)
}

// Call is one tool call, from the model's request to its result.
type Call struct {
	ID      string
	Name    tools.Name
	Class   tools.Class // "" where it is unknown
	Summary string
	Input   string // JSON
	Rule    string
	// Asked lists the confirmations of the call, in order.
	Asked []Question
	// Started is when it got its slot, zero if it never did. Ended is when it ended.
	Started, Ended time.Time
	LatencyMS      int64
	Status         CallStatus
	// The class, reason and text of a failure.
	ErrorClass, Reason, Error string
	// Ending is how its command ended, "" if none ran.
	Ending   string
	Modified []string
	Diff     string // of a change that no one was asked about
	// Denied and Reached are the refused connections of the call's command, and the
	// others by host, at most maxHosts each.
	Denied      []record.NetworkDenied
	Reached     []Reached
	Output      string // as the model got it
	OutputBytes int
	IsError     bool
	answered    bool
}

// Reached is the connections of a call's command to one host.
type Reached struct {
	Host           string // with a port
	Connections    int
	Sent, Received int64
	// Ending is how the last one that failed ended, "" if none did.
	Ending string
}

// CallStatus is how a call ended.
type CallStatus string

// The statuses of a call. A call is open if the records end before it does.
const (
	CallOpen      CallStatus = "open"
	CallDone      CallStatus = "done"
	CallUnsuccess CallStatus = "unsuccessful" // it ran to its end without success
	CallFailed    CallStatus = "failed"
	CallDenied    CallStatus = "denied"
	CallInvalid   CallStatus = "invalid"
)

// Question is one confirmation, or an earlier answer that was used again.
type Question struct {
	ID               string
	At, Answered     time.Time // Answered is zero while it is open
	Decision         approval.Decision
	Scope            approval.Scope
	By, Client, Diff string
	Display          string
	Hidden           bool
	// Reason is why the user refused, in their words.
	Reason string
}

const (
	// maxText bounds each text of a step, and maxOpen the calls that wait for
	// their result: a round has at most 256.
	maxText = 32 << 10
	maxOpen = 300
	// maxAsked bounds the confirmations of a call.
	maxAsked = 20
	// maxHosts bounds the hosts of a call, and its refused connections.
	maxHosts = 20
)

// Steps makes steps from records, in order. It holds only the calls that have not
// ended; Close visits those. It is not safe for concurrent use.
type Steps struct {
	visit         func(Step)
	changed       Step // by the record that is being added
	turn          int
	turnAt        time.Time
	answer        string // of the turn, so far
	openModelCall *Step
	classes       map[tools.Name]tools.Class
	open          map[string]*Step
	order         []string
	exec          map[string]Step
	egress        *record.Egress // what commands may reach
	seq           int64
}

// NewSteps returns Steps that call visit with each complete step, which visit may
// retain. Nil visits none.
func NewSteps(visit func(Step)) *Steps {
	s := &Steps{classes: map[tools.Name]tools.Class{}, open: map[string]*Step{}, exec: map[string]Step{}}
	s.visit = func(step Step) {
		s.changed = step
		if visit != nil {
			visit(step)
		}
	}
	return s
}

// Record adds the next record, and returns the step that it began, changed or
// completed: the last one, or the zero Step if there is none. Its Call may change
// with the next record.
func (s *Steps) Record(r record.Record) Step {
	if gap := r.Seq - s.seq - 1; gap > 0 {
		s.visit(Step{Kind: StepOmitted, Seq: r.Seq - 1, Start: r.Time, Time: r.Time, Turn: s.turn, Count: gap})
	}
	s.seq, s.changed = r.Seq, Step{}
	if !s.handleRecord(r) {
		s.visitStep(r, StepUnknown, string(r.Kind), false)
	}
	return s.changed
}

// Close visits the calls that never ended.
func (s *Steps) Close() {
	for _, id := range s.order {
		if step := s.open[id]; step != nil {
			s.visit(*step)
		}
	}
	s.open, s.order = map[string]*Step{}, nil
}

// idle reports whether no step is incomplete.
func (s *Steps) idle() bool { return len(s.open) == 0 && len(s.exec) == 0 && s.openModelCall == nil }

// visitStep visits a step made from one record.
func (s *Steps) visitStep(r record.Record, kind StepKind, text string, failed bool) {
	s.visit(s.newStep(r, kind, text, failed))
}

func (s *Steps) newStep(r record.Record, kind StepKind, text string, failed bool) Step {
	return Step{Kind: kind, Seq: r.Seq, Record: r.ID, Start: r.Time, Time: r.Time, Turn: s.turn, Text: cutMiddle(text, maxText), Failed: failed}
}

// decodePayload returns a record's payload, and reports whether it has the kind
// of P and can be decoded.
func decodePayload[P record.Payload](rec record.Record) (P, bool) {
	var p P
	if rec.Kind != p.Kind() || json.Unmarshal(rec.Payload, &p) != nil {
		return p, false
	}
	return p, true
}

// withPayload calls f with a record's payload, and reports whether it could be
// decoded.
func withPayload[P record.Payload](r record.Record, f func(P)) bool {
	p, ok := decodePayload[P](r)
	if ok {
		f(p)
	}
	return ok
}

// callStep returns the call of a step, which it adds if there is none.
func (s *Steps) callStep(r record.Record, id string, name tools.Name) *Call {
	step := s.open[id]
	if step == nil {
		for len(s.order) >= maxOpen { // a foreign trace
			s.finishCall(s.order[0])
		}
		made := s.newStep(r, StepCall, "", false)
		made.Call = &Call{ID: id, Name: name, Class: s.classes[name], Status: CallOpen}
		step = &made
		s.open[id], s.order = step, append(s.order, id)
	}
	step.Seq, step.Record, step.Time = r.Seq, r.ID, r.Time
	if step.Call.Name == "" {
		step.Call.Name = name
	}
	s.changed = *step
	return step.Call
}

// finishCall visits a complete call.
func (s *Steps) finishCall(id string) {
	step := s.open[id]
	delete(s.open, id)
	for i, other := range s.order {
		if other == id {
			s.order = append(s.order[:i], s.order[i+1:]...)
			break
		}
	}
	if step != nil {
		step.Failed = step.Call.failed()
		s.visit(*step)
	}
}

func (c *Call) failed() bool { return c.Status != CallDone && c.Status != CallOpen }

func inputText(input json.RawMessage) string {
	if len(input) == 0 {
		return "{}"
	}
	return string(input)
}
