package trace

import (
	"cmp"
	"errors"
	"io"
	"math"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// Overview summarizes a session from all of its records.
type Overview struct {
	Session string
	// Task is the session's task, or its first message if it has none.
	Task string
	// Created is the first record, and Ended the last; nil if missing.
	Created *record.SessionCreated
	Ended   *record.SessionEnded
	// Sandbox is the attestation of the last container that was started.
	Sandbox *sandbox.Attestation
	// Egress is what commands may reach, nil for nothing.
	Egress      *record.Egress
	Begun, Last time.Time
	Live        bool
	Pruned      bool
	// Records counts the records that were read, and Omitted the ones that
	// retention removed. Hash is the last line's. Torn and Damage are as in
	// [Verdict], but values in files were not compared.
	Records, Omitted int64
	Hash             string
	Torn             bool
	Damage           string

	Turns, ModelCalls, ToolCalls, Denied, Failed int
	InputTokens, CachedTokens, OutputTokens      int64
	// CostMicroUSD is the cost of the model calls. CostUnknown reports that the
	// price of at least one is unknown.
	CostMicroUSD int64
	CostUnknown  bool
}

// Read reads a whole session and calls visit, unless it is nil, with each
// record. It stops at the first damaged record, which the Overview reports. It
// returns an error, of type [*Error], only if the file can't be read.
func Read(s Session, visit func(record.Record)) (Overview, error) {
	return walkSession(s, visit, nil, nil)
}

// walkSession is like Read, and also calls step, unless it is nil, with each
// step. again is as for scanRecords.
func walkSession(s Session, visit func(record.Record), step func(Step), again func() bool) (Overview, error) {
	o := newOverview(s)
	steps := NewSteps(func(s Step) {
		o.countStep(s)
		if step != nil {
			step(s)
		}
	})
	err := o.scanRecords(s, again, func(_ *record.Reader, r record.Record) {
		steps.Record(r)
		if visit != nil {
			visit(r)
		}
	})
	steps.Close()
	return o, err
}

func newOverview(s Session) Overview {
	return Overview{Session: s.ID, Pruned: s.Pruned, Live: !s.Pruned && sessiondir.SessionLives(s.Dir)}
}

// scanRecords adds a session's records, up to the first damaged one, and calls
// visit with each. again, if not nil, is called at the end of the records of a
// live session and reports whether to continue with records added since.
func (o *Overview) scanRecords(s Session, again func() bool, visit func(*record.Reader, record.Record)) error {
	f, err := s.openFile()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	in := record.NewReader(f)
	lives := o.Live
	for {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) && again != nil && lives && o.Ended == nil && again() {
			lives = sessiondir.SessionLives(s.Dir) // read what it wrote before its end
			in = readFrom(f, in.Position(), math.MaxInt64)
			continue
		}
		if err != nil {
			o.Torn, o.Hash, o.Omitted = in.Torn(), in.Hash(), in.Omitted()
			if !errors.Is(err, io.EOF) {
				o.Damage = err.Error()
			}
			return nil
		}
		o.addRecord(rec)
		visit(in, rec)
	}
}

func (o *Overview) addRecord(r record.Record) {
	if o.Records == 0 {
		o.Begun = r.Time
		o.Session = r.Session
	}
	o.Records, o.Last = o.Records+1, r.Time
	switch r.Kind {
	case record.KindSessionCreated:
		if p, ok := record.DecodePayload(r).(record.SessionCreated); ok && o.Created == nil {
			o.Created = &p
			o.Task = p.Task
			o.Egress = p.Egress
		}
	case record.KindSessionResumed:
		if p, ok := record.DecodePayload(r).(record.SessionResumed); ok {
			o.Egress = p.Egress
		}
		o.Ended = nil
	case record.KindSandboxStarted:
		if p, ok := record.DecodePayload(r).(record.SandboxStarted); ok {
			o.Sandbox = &p.Attestation
		}
	case record.KindSandboxRestarted:
		if p, ok := record.DecodePayload(r).(record.SandboxRestarted); ok {
			o.Sandbox = &p.Attestation
		}
	case record.KindSessionEnded:
		if p, ok := record.DecodePayload(r).(record.SessionEnded); ok {
			o.Ended = &p
		}
	}
}

func (o *Overview) countStep(s Step) {
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

// Cost returns the cost for display.
func (o Overview) Cost() string {
	switch {
	case o.Ended != nil && o.Ended.CostUSD != "":
		return formatDollars(o.Ended.CostUSD)
	case o.CostUnknown:
		return "cost unknown"
	}
	return formatDollars(record.CostUSD(&o.CostMicroUSD))
}

// Wall returns the wall time of the session.
func (o Overview) Wall() time.Duration {
	if o.Ended != nil {
		return fromMilliseconds(o.Ended.WallMS)
	}
	return o.Last.Sub(o.Begun)
}

// Outcome returns how the session ended, in a few words.
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
