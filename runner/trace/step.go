package trace

import (
	"fmt"
	"maps"
	"slices"
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
	StepAssistant  StepKind = "assistant"  // one text of the model; Text
	StepCall       StepKind = "call"       // one complete tool call; Call
	StepSandbox    StepKind = "sandbox"    // the sandbox started, was lost or restarted; Text, Failed, Start
	StepCommand    StepKind = "command"    // a user's command in the sandbox; Text, Failed, Start
	StepBackground StepKind = "background" // a background command ended; Text, Failed, Start
	StepNetwork    StepKind = "network"    // a connection without a known call ended; Text, Start
	StepServer     StepKind = "mcp"        // an MCP server started, failed, changed, stopped, or had a request refused; Text, Failed, Start
	StepAttempt    StepKind = "attempt"    // an answer that changed nothing; Text
	StepContext    StepKind = "context"    // old messages were shortened or summarized; Text, Failed, Detail
	StepWorker     StepKind = "worker"     // a worker's call; Text, Failed
	StepWarning    StepKind = "warning"    // Text
	StepTurnEnd    StepKind = "turn end"   // Text, Failed, Start, End
	StepOmitted    StepKind = "omitted"    // retention removed records here; Count
	StepUnknown    StepKind = "unknown"    // a record of an unknown kind, or with an unreadable payload; Text
	StepEnd        StepKind = "end"        // the session's end; Text, Failed
)

// Step is one event of a session, made from one or more records. Texts are as
// recorded: untrusted, and not safe to display.
type Step struct {
	Kind StepKind
	// Seq and Record are the number and ID of the record that completes the
	// step. A call without an end has the ID of its last record. Part counts the
	// steps of one record from 0.
	Seq    int64
	Part   int
	Record string
	// Start is when it began, Time when it was complete.
	Start, Time time.Time
	Turn        int
	Text        string
	Detail      string // a summary
	Failed      bool
	Count       int64
	Recording   *record.Recording // of a command with a terminal
	Model       *ModelCall
	Call        *Call
	End         *TurnEnd
}

// Anchor returns the step's ID in a page, such as s12 or s12-1.
func (s Step) Anchor() string {
	if s.Part == 0 {
		return fmt.Sprintf("s%d", s.Seq)
	}
	return fmt.Sprintf("s%d-%d", s.Seq, s.Part)
}

// texts returns the texts of a step that people can search for.
func (s Step) texts() []string {
	all := []string{s.Text, s.Detail}
	if m := s.Model; m != nil {
		all = append(all, m.Label(), m.Error)
	}
	if c := s.Call; c != nil {
		all = append(all, string(c.Name), c.Summary, c.Input, c.Rule, c.ErrorClass, c.Reason, c.Error, c.Ending, c.Diff, c.Output)
		all = append(all, c.Modified...)
		for _, q := range c.Asked {
			all = append(all, q.Words(), q.Diff, q.Display)
		}
		for _, d := range c.Denied {
			all = append(all, d.String())
		}
		for _, r := range c.Reached {
			all = append(all, r.Words())
		}
	}
	return all
}

// TurnEnd is the result of a turn.
type TurnEnd struct {
	// TurnCompleted has the reason loop.StopCancelled for every cancelled turn;
	// Step.Text has the cause.
	record.TurnCompleted
	// Answer is the last text of the model, whole, if the reason is
	// loop.StopAnswered.
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

// Label returns what the call was for, such as "round 3".
func (m ModelCall) Label() string {
	if m.Purpose != "" {
		return tools.Elide(string(m.Purpose), 40)
	}
	return fmt.Sprintf("round %d", m.Round)
}

// Call is one tool call, from the model's request to its result.
type Call struct {
	ID      string
	Name    tools.Name
	Class   tools.Class // "" if unknown
	Summary string
	Input   string // JSON
	Rule    string
	Asked   []Question
	// Started is when it got its slot, or zero if it never did.
	Started, Ended time.Time
	LatencyMS      int64
	Status         CallStatus
	// The class, reason and text of a failure.
	ErrorClass, Reason, Error string
	// Ending is how its command ended, "" if none ran.
	Ending   string
	Modified []string
	Diff     string // of a change that no one was asked about
	// Denied are the refused connections of the call's command. Reached are its
	// other connections by host. Each has at most maxHosts.
	Denied      []record.NetworkDenied
	Reached     []Reached
	Output      string // as the model got it
	OutputBytes int
	IsError     bool
}

// Reached are the connections of a call's command to one host.
type Reached struct {
	Host           string // with a port
	Connections    int
	Sent, Received int64
	// Ending is how the last connection that failed ended, "" if none did.
	Ending string
}

// CallStatus is how a call ended.
type CallStatus string

// The statuses of a call. A call is open if the records end before it does.
const (
	CallOpen      CallStatus = "open"
	CallDone      CallStatus = "done"
	CallUnsuccess CallStatus = "unsuccessful" // it ran to its end, unsuccessfully
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
	// maxText bounds each text of a step. maxOpen bounds the calls that wait
	// for their result: a round has at most 256.
	maxText  = 32 << 10
	maxOpen  = 300
	maxAsked = 20
	// maxHosts bounds the hosts of a call, and its refused connections.
	maxHosts = 20
)

// Steps makes steps from records, in order. It holds only the calls that have
// not ended. It is not safe for concurrent use.
type Steps struct {
	each          func(Step) // or nil
	changed       Step       // by the record that is being added
	visited       int64      // the number of the last step, and its part
	part          int
	turn          int
	turnAt        time.Time
	answer        string // of the turn, so far
	openModelCall *Step
	classes       map[tools.Name]tools.Class // shared with clones
	open          map[string]*Step
	order         []string
	exec          map[string]Step
	egress        *record.Egress // what commands may reach
	seq           int64
}

// NewSteps returns Steps that call visit with each complete step, which visit
// may retain. Nil visits none.
func NewSteps(visit func(Step)) *Steps {
	return &Steps{each: visit, open: map[string]*Step{}, exec: map[string]Step{}}
}

// visit numbers a complete step, so that numbers and parts never decrease. A
// call without an end is completed by the record that ends the turn.
func (s *Steps) visit(step Step) {
	step.Seq, step.Part = max(step.Seq, s.seq), 0
	if step.Seq == s.visited {
		step.Part = s.part + 1
	}
	s.visited, s.part, s.changed = step.Seq, step.Part, step
	if s.each != nil {
		s.each(step)
	}
}

// clone returns a copy that visits no one.
func (s *Steps) clone() *Steps {
	c := *s
	c.each, c.changed = nil, Step{}
	c.order, c.exec = slices.Clone(s.order), maps.Clone(s.exec)
	c.open = make(map[string]*Step, len(s.open))
	for id, step := range s.open {
		copied := step.copyOpen()
		c.open[id] = &copied
	}
	return &c
}

// copyOpen returns a copy of an open call, which the next record doesn't change.
func (s Step) copyOpen() Step {
	call := *s.Call
	call.Asked, call.Denied, call.Reached = slices.Clone(call.Asked), slices.Clone(call.Denied), slices.Clone(call.Reached)
	s.Call = &call
	return s
}

// weight returns about how many bytes a clone keeps.
func (s *Steps) weight() int {
	const each = 1 << 10
	n := len(s.answer)
	for _, step := range s.exec {
		n += each + len(step.Text)
	}
	for _, step := range s.open {
		n += each
		for _, text := range step.texts() {
			n += len(text)
		}
	}
	return n
}

// Record adds the next record, and returns the last step that it began, changed
// or completed, or the zero Step if there is none. The next record may change
// the step's Call.
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

func (s *Steps) visitStep(r record.Record, kind StepKind, text string, failed bool) {
	s.visit(s.newStep(r, kind, text, failed))
}

func (s *Steps) newStep(r record.Record, kind StepKind, text string, failed bool) Step {
	return Step{Kind: kind, Seq: r.Seq, Record: r.ID, Start: r.Time, Time: r.Time, Turn: s.turn, Text: tools.Elide(text, maxText), Failed: failed}
}

// callStep returns the call's step, which it adds if it is new.
func (s *Steps) callStep(r record.Record, id string, name tools.Name) *Call {
	step := s.open[id]
	if step == nil {
		for len(s.order) >= maxOpen { // only in a foreign trace
			s.finishCall(s.order[0])
		}
		made := s.newStep(r, StepCall, "", false)
		made.Call = &Call{ID: id, Name: name, Class: s.classes[name], Status: CallOpen}
		step = &made
		s.open[id], s.order = step, append(s.order, id)
	}
	step.Seq = r.Seq
	step.Record = r.ID
	step.Time = r.Time
	if step.Call.Name == "" {
		step.Call.Name = name
	}
	s.changed = *step
	return step.Call
}

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
