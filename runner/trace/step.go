package trace

import (
	"encoding/json"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// StepKind is what a [Step] is.
type StepKind string

// The kinds of steps.
const (
	StepTurn       StepKind = "turn"       // a turn begins; Turn counts from 1
	StepSystem     StepKind = "system"     // the instructions; Text
	StepUser       StepKind = "user"       // a user's message; Text
	StepModel      StepKind = "model"      // one model call; Model
	StepThinking   StepKind = "thinking"   // Text
	StepAssistant  StepKind = "assistant"  // what the model says; Text
	StepCall       StepKind = "call"       // one tool call, whole; Call
	StepSandbox    StepKind = "sandbox"    // it started, was lost, started again; Text, Failed, Start
	StepCommand    StepKind = "command"    // a user's command in the sandbox; Text, Failed, Start
	StepBackground StepKind = "background" // a command in the background ended; Text, Failed, Start
	StepAttempt    StepKind = "attempt"    // an answer that changed nothing; Text
	StepWarning    StepKind = "warning"    // Text
	StepTurnEnd    StepKind = "turn end"   // Text, Failed, Start
	StepOmitted    StepKind = "omitted"    // retention removed records here; Count
	StepUnknown    StepKind = "unknown"    // a kind that this program doesn't know, or a payload that it can't read; Text
	StepEnd        StepKind = "end"        // the session's; Text, Failed
)

// Step is one thing that happened, made of one record or several. Texts are as
// they were recorded: foreign, and not safe to show.
type Step struct {
	Kind StepKind
	// Seq is that of the record that completes it; Record its id.
	Seq    int64
	Record string
	// Start is when it began, Time when it was complete.
	Start, Time time.Time
	Turn        int
	Text        string
	Failed      bool
	Count       int64
	Model       *ModelCall
	Call        *Call
}

// ModelCall is one call of the model.
type ModelCall struct {
	Round     int
	Model     loop.ModelInfo
	LatencyMS int64
	Usage     limits.Usage
	Finish    string
	// Error is what it failed with, "" where it did not.
	Error string
}

// Call is one tool call, from the model's wish to its result.
type Call struct {
	ID      string
	Name    tools.Name
	Class   tools.Class // "" where it is unknown
	Summary string
	Input   string // JSON
	Rule    string
	// Asked are the questions about it, in order.
	Asked []Question
	// Started is when it got its slot; zero is never. Ended is when it ended.
	Started, Ended time.Time
	LatencyMS      int64
	Status         CallStatus
	// Class of the failure, and its reason and text, where it failed.
	ErrorClass, Reason, Error string
	// Ending is how its command ended, "" where none ran.
	Ending      string
	Modified    []string
	Denied      []record.NetworkDenied
	Output      string // as the model got it
	OutputBytes int
	IsError     bool
	answered    bool
}

// CallStatus is how a call ended.
type CallStatus string

// The ways. A call is open where the records end before it does.
const (
	CallOpen      CallStatus = "open"
	CallDone      CallStatus = "done"
	CallUnsuccess CallStatus = "unsuccessful" // it ran to its end, which was no success
	CallFailed    CallStatus = "failed"
	CallDenied    CallStatus = "denied"
	CallInvalid   CallStatus = "invalid"
)

// Question is one confirmation, or an earlier answer that was used again.
type Question struct {
	At, Answered     time.Time // Answered is zero while it is open
	Decision         approval.Decision
	Scope            approval.Scope
	By, Client, Diff string
	Display          string
	Hidden           bool
}

const (
	// maxText bounds what a step keeps of one text, and maxOpen the calls that
	// are held until their result is there: a round has at most 256.
	maxText = 32 << 10
	maxOpen = 300
)

// Steps makes steps of records, in order. It holds the calls that are under
// way, and nothing else; it belongs to one goroutine. Close gives what is left.
type Steps struct {
	visit   func(Step)
	turn    int
	turnAt  time.Time
	asked   *Step
	classes map[tools.Name]tools.Class
	open    map[string]*Step
	order   []string
	exec    map[string]Step
	seq     int64
}

// NewSteps gives each step to visit, which may keep it.
func NewSteps(visit func(Step)) *Steps {
	return &Steps{visit: visit, classes: map[tools.Name]tools.Class{}, open: map[string]*Step{}, exec: map[string]Step{}}
}

// Record takes the next record.
func (s *Steps) Record(r record.Record) {
	if gap := r.Seq - s.seq - 1; gap > 0 {
		s.visit(Step{Kind: StepOmitted, Seq: r.Seq - 1, Start: r.Time, Time: r.Time, Turn: s.turn, Count: gap})
	}
	s.seq = r.Seq
	if !s.known(r) {
		s.say(r, StepUnknown, string(r.Kind), false)
	}
}

// Close gives the calls that never ended.
func (s *Steps) Close() {
	for _, id := range s.order {
		if step := s.open[id]; step != nil {
			s.visit(*step)
		}
	}
	s.open, s.order = map[string]*Step{}, nil
}

// idle reports whether no step is half made.
func (s *Steps) idle() bool { return len(s.open) == 0 && len(s.exec) == 0 && s.asked == nil }

// say gives a step of one record.
func (s *Steps) say(r record.Record, kind StepKind, text string, failed bool) {
	s.visit(s.step(r, kind, text, failed))
}

func (s *Steps) step(r record.Record, kind StepKind, text string, failed bool) Step {
	return Step{Kind: kind, Seq: r.Seq, Record: r.ID, Start: r.Time, Time: r.Time, Turn: s.turn, Text: cut(text, maxText), Failed: failed}
}

// with calls f with a record's payload; false is that it can't be read.
func with[P record.Payload](r record.Record, f func(P)) bool {
	p, ok := decoded[P](r)
	if ok {
		f(p)
	}
	return ok
}

// call is the step of a tool call, which may be new.
func (s *Steps) call(r record.Record, id string, name tools.Name) *Call {
	step := s.open[id]
	if step == nil {
		for len(s.order) >= maxOpen { // a foreign trace
			s.settle(s.order[0])
		}
		made := s.step(r, StepCall, "", false)
		made.Call = &Call{ID: id, Name: name, Class: s.classes[name], Status: CallOpen}
		step = &made
		s.open[id], s.order = step, append(s.order, id)
	}
	step.Seq, step.Record, step.Time = r.Seq, r.ID, r.Time
	if step.Call.Name == "" {
		step.Call.Name = name
	}
	return step.Call
}

// settle gives a call that is whole.
func (s *Steps) settle(id string) {
	step := s.open[id]
	delete(s.open, id)
	for i, other := range s.order {
		if other == id {
			s.order = append(s.order[:i], s.order[i+1:]...)
			break
		}
	}
	if step != nil {
		step.Failed = step.Call.bad()
		s.visit(*step)
	}
}

func (c *Call) bad() bool { return c.Status != CallDone && c.Status != CallOpen }

func compact(input json.RawMessage) string {
	if len(input) == 0 {
		return "{}"
	}
	return string(input)
}
