package trace

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// Overview is a session at a glance, from all of its records.
type Overview struct {
	Session string
	// Task is what the user asked for: the task of the session, or else the first
	// message.
	Task string
	// Created is the first record, Ended the last; nil where it is missing.
	Created *record.SessionCreated
	Ended   *record.SessionEnded
	// Sandbox is the attestation of the last container that was started.
	Sandbox     *sandbox.Attestation
	Begun, Last time.Time
	Live        bool
	Pruned      bool
	// Records were read, Omitted are gone; Hash is that of the last line. Torn
	// and Damage are as in [Verdict]; values in files were not compared.
	Records, Omitted int64
	Hash             string
	Torn             bool
	Damage           string

	Turns, ModelCalls, ToolCalls, Denied, Failed int
	InputTokens, CachedTokens, OutputTokens      int64
	// CostMicroUSD is what the model calls cost; CostUnknown says that the price
	// of one was not known.
	CostMicroUSD int64
	CostUnknown  bool
}

// Read reads a session whole and gives each record to visit, nil is nobody.
// What is damaged ends it, and is in the Overview; the records before it count.
// Its errors are a [*runner.Error]: the file can't be read at all.
func Read(s Session, visit func(record.Record)) (Overview, error) { return walk(s, visit, nil, nil) }

// walk is Read that also passes each step to step, unless that is nil. again, if
// it is not nil, is called at the end of the records of a session that lives, and
// reports whether to go on with those that are added.
func walk(s Session, record func(record.Record), step func(Step), again func() bool) (Overview, error) {
	o := Overview{Session: s.ID, Pruned: s.Pruned, Live: !s.Pruned && sessiondir.SessionLives(s.Dir)}
	in, err := s.Open()
	if err != nil {
		return o, err
	}
	defer func() { _ = in.Close() }() // only read
	steps := NewSteps(func(s Step) {
		o.count(s)
		if step != nil {
			step(s)
		}
	})
	lives := o.Live
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) && again != nil && lives && o.Ended == nil && again() {
			lives = sessiondir.SessionLives(s.Dir) // what it wrote before its end is read once more
			in.resume()
			continue
		}
		if err != nil {
			steps.Close()
			o.Torn, o.Hash, o.Omitted = in.Torn(), in.Hash(), in.Omitted()
			if !errors.Is(err, io.EOF) {
				o.Damage = err.Error()
			}
			return o, nil
		}
		o.record(rec)
		steps.Record(rec)
		if record != nil {
			record(rec)
		}
	}
}

func (o *Overview) record(r record.Record) {
	if o.Records == 0 {
		o.Begun = r.Time
		o.Session = r.Session
	}
	o.Records, o.Last = o.Records+1, r.Time
	switch r.Kind {
	case record.KindSessionCreated:
		if p, ok := decoded[record.SessionCreated](r); ok && o.Created == nil {
			o.Created, o.Task = &p, p.Task
		}
	case record.KindSandboxStarted:
		if p, ok := decoded[record.SandboxStarted](r); ok {
			o.Sandbox = &p.Attestation
		}
	case record.KindSandboxRestarted:
		if p, ok := decoded[record.SandboxRestarted](r); ok {
			o.Sandbox = &p.Attestation
		}
	case record.KindSessionEnded:
		if p, ok := decoded[record.SessionEnded](r); ok {
			o.Ended = &p
		}
	}
}

// count adds a step up.
func (o *Overview) count(s Step) {
	switch s.Kind {
	case StepTurn:
		o.Turns++
	case StepUser:
		o.Task = cmp.Or(o.Task, s.Text)
	case StepModel:
		o.ModelCalls++
		u := s.Model.Usage
		o.InputTokens += u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens
		o.CachedTokens += u.CachedInputTokens
		o.OutputTokens += u.OutputTokens
		switch {
		case u.CostMicroUSD != nil:
			o.CostMicroUSD += *u.CostMicroUSD
		case s.Model.Error == "":
			o.CostUnknown = true
		}
	case StepCall:
		o.ToolCalls++
		switch s.Call.Status {
		case CallDenied:
			o.Denied++
		case CallFailed, CallInvalid:
			o.Failed++
		}
	}
}

// Cost is what it cost, in words.
func (o Overview) Cost() string {
	switch {
	case o.Ended != nil && o.Ended.CostUSD != "":
		return dollars(o.Ended.CostUSD)
	case o.CostUnknown:
		return "cost unknown"
	}
	return dollars(micro(o.CostMicroUSD))
}

// Wall is how long it took.
func (o Overview) Wall() time.Duration {
	if o.Ended != nil {
		return milliseconds(o.Ended.WallMS)
	}
	return o.Last.Sub(o.Begun)
}

// Outcome is how it ended, in a few words.
func (o Overview) Outcome() string {
	switch {
	case o.Damage != "":
		return "damaged"
	case o.Ended != nil:
		return string(o.Ended.Reason)
	case o.Live:
		return "running"
	}
	return "cut short"
}
