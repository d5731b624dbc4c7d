package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// script is everything that happens in one session, decided beforehand. Times are
// whole seconds from its start, so that events often coincide; 0 is never.
type script struct {
	policy                              string
	once, noBroker, attended            bool
	onPrompt                            OnPrompt
	concurrency                         int
	rounds                              [][]scriptedCall
	clients                             []scriptedClient
	answers                             []scriptedAnswer
	cancelContext, cancel, close, sleep int
	// failFrom is the first event that can't be recorded, counted from 1.
	failFrom int
}

type scriptedCall struct {
	tools.Call
	work int
	// deaf ignores its context; changing gives another projection each time.
	deaf, panics, changing bool
	err                    error
}

type scriptedClient struct {
	attach, detach, delay int
	act                   string
	answer                approval.Answer
}

type scriptedAnswer struct {
	at, nth int
	answer  approval.Answer
}

var scriptedTools = []struct {
	name  string
	class tools.Class
}{{"do_none", tools.ClassNone}, {"do_read", tools.ClassRead}, {"do_write", tools.ClassWrite}, {"do_execute", tools.ClassExecute}, {"do_network", tools.ClassNetwork}}

var errScriptedLoss = fmt.Errorf("scripted: %w", tools.ErrSandboxLost)

func drawScript(t *rapid.T) script {
	number := func(name string, to int) int { return rapid.IntRange(0, to).Draw(t, name) }
	rare := func(name string, n int) bool { return number(name, n) == n }
	now := func(name string) int {
		if rapid.Bool().Draw(t, name) {
			return 1 + number(name+" at", 60)
		}
		return 0
	}
	answer := func() approval.Answer {
		return approval.Answer{
			Decision: rapid.SampledFrom([]approval.Decision{approval.DecisionAllow, approval.DecisionAllow, approval.DecisionDeny, approval.DecisionTimeout, "?"}).Draw(t, "decision"),
			Scope:    rapid.SampledFrom([]approval.Scope{approval.ScopeOnce, approval.ScopeOnce, approval.ScopeSession, approval.ScopeAlways, ""}).Draw(t, "scope"),
		}
	}
	s := script{
		policy:   rapid.SampledFrom([]string{"strict", "default", "sandboxed", "ci"}).Draw(t, "policy"),
		onPrompt: rapid.SampledFrom([]OnPrompt{OnPromptDeny, OnPromptAllow, OnPromptFail}).Draw(t, "on prompt"),
		once:     rapid.Bool().Draw(t, "once"), attended: rapid.Bool().Draw(t, "attended"), noBroker: rare("no broker", 6),
		concurrency:   1 + number("concurrency", 3),
		cancelContext: now("cancel context"), cancel: now("cancel"), close: 3 * now("close"),
	}
	if rare("sleep", 4) {
		s.sleep = 1 + number("sleep at", 60)
	}
	if rare("fail", 4) {
		s.failFrom = 1 + number("fail from", 30)
	}
	for r := range 1 + number("rounds", 2) {
		var calls []scriptedCall
		for c := range 1 + number("calls", 7) {
			name := "unknown"
			if i := number("tool", len(scriptedTools)); i < len(scriptedTools) {
				name = scriptedTools[i].name
			}
			input := rapid.SampledFrom([]string{`{}`, `{"path":"a"}`, `{"path":"a"}`, `{"path":"b"}`, `{"path":"../x"}`, `{"path":1}`}).Draw(t, "input")
			sc := scriptedCall{
				Call: call(fmt.Sprintf("%d.%d", r, c), name, input), work: number("work", 40),
				deaf: rare("deaf", 8), panics: rare("panics", 10), changing: rare("changing", 5),
				err: rapid.SampledFrom([]error{nil, nil, nil, errors.New("boom"), &tools.Error{Class: tools.ErrorExecution, Message: "no", Visible: true}}).Draw(t, "error"),
			}
			if rare("lost", 50) {
				sc.err = errScriptedLoss
			}
			calls = append(calls, sc)
		}
		s.rounds = append(s.rounds, calls)
	}
	for range number("clients", 3) {
		s.clients = append(s.clients, scriptedClient{
			attach: number("attach", 20), detach: now("detach"), delay: number("delay", 30), answer: answer(),
			act: rapid.SampledFrom([]string{"answer", "answer", "answer", "silent", "deaf", "panic", "error", "goexit"}).Draw(t, "act"),
		})
	}
	for range number("answers", 8) {
		s.answers = append(s.answers, scriptedAnswer{at: 1 + number("answer at", 60), nth: number("nth", 9), answer: answer()})
	}
	return s
}

// played is the result of a script.
type played struct {
	script
	mu      sync.Mutex
	events  []Event
	results map[string]tools.Result
	calls   []tools.Call // of the rounds that ran
	inputs  map[string]string
	heard   []heard
	causes  map[string][]error // of clients, by confirmation
	cancels []time.Time
	other   []string
}

// heard is the result of one answer over HTTP.
type heard struct {
	told
	id, label string
	at        time.Time
	answer    approval.Answer
}

func (p *played) problem(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.other = append(p.other, fmt.Sprintf(format, args...))
}

// emit is the sink. It keeps each event even if it then fails.
func (p *played) emit(ev Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, ev)
	if p.failFrom > 0 && len(p.events) >= p.failFrom {
		return errors.New("disk full")
	}
	return nil
}

func (p *played) requested() []approval.Confirmation {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []approval.Confirmation
	for _, ev := range p.events {
		if ev, ok := ev.(ConfirmationRequested); ok {
			all = append(all, ev.Confirmation)
		}
	}
	return all
}

// at runs f at a moment of the script. all waits for it.
func at(all *sync.WaitGroup, second int, f func()) {
	if second > 0 {
		all.Go(func() {
			time.Sleep(time.Duration(second) * time.Second)
			f()
		})
	}
}

// play runs a script to its end, inside a bubble.
func play(t *testing.T, s script) *played {
	p := &played{script: s, results: map[string]tools.Result{}, inputs: map[string]string{}, causes: map[string][]error{}}
	rules := preset(t, s.policy)
	if s.once {
		rules.Tools = map[string]policy.Mode{"do_execute": policy.ModePromptOnce}
	}
	opts := Options{
		Policy: rules, OnPrompt: s.onPrompt, Concurrency: s.concurrency, Emit: p.emit,
		ConfirmTimeout: 20 * time.Second, Abandon: 5 * time.Second,
	}
	var all sync.WaitGroup
	release := make(chan struct{})
	var asleep atomic.Int64
	broker := approval.NewBroker(approval.BrokerOptions{Attended: s.attended, Uptime: func() time.Duration { return time.Duration(asleep.Load()) }})
	if !s.noBroker {
		opts.Broker = broker
		at(&all, s.sleep, func() { asleep.Add(int64(time.Hour)) })
		p.attach(broker, &all, release)
	}
	d, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	fates := map[string]scriptedCall{}
	for _, calls := range s.rounds {
		for _, c := range calls {
			fates[c.ID] = c
		}
	}
	for _, tool := range scriptedTools {
		if err := d.Register(p.tool(tool.name, tool.class, fates)); err != nil {
			t.Fatal(err)
		}
	}
	for i, a := range s.answers {
		at(&all, a.at, func() { p.answer(broker, a, fmt.Sprint("http:", i)) })
	}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	at(&all, s.cancelContext, func() { stop(errors.New("ctrl-c")); p.cancelled() })
	at(&all, s.cancel, func() { d.Cancel(errors.New("turn cancelled")); p.cancelled() })
	at(&all, s.close, func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.Close(closing)
	})
	for _, calls := range s.rounds {
		var round []tools.Call
		for _, c := range calls {
			round = append(round, c.Call)
		}
		results, err := d.Round(ctx, round)
		p.calls = append(p.calls, round...)
		if len(results) != len(round) {
			p.problem("%d results for %d calls", len(results), len(round))
		}
		for i, r := range results {
			if r.CallID != round[i].ID || len(r.Content) == 0 {
				p.problem("result %d is %+v", i, r)
			}
			p.results[r.CallID] = r
		}
		if err != nil {
			break
		}
	}
	all.Wait()
	close(release)
	if err := d.Close(context.Background()); err != nil {
		p.problem("close: %v", err)
	}
	if open := len(broker.Pending()) + broker.Unrecorded(); open > 0 {
		p.problem("%d questions are open in the end", open)
	}
	if len(d.slots.tickets) > 0 {
		p.problem("%d calls keep their place", len(d.slots.tickets))
	}
	return p
}

func (p *played) cancelled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancels = append(p.cancels, time.Now())
}

func (p *played) attach(broker *approval.Broker, all *sync.WaitGroup, release chan struct{}) {
	for i, c := range p.clients {
		client := approver(func(ctx context.Context, q approval.Confirmation) (approval.Answer, error) {
			defer func() {
				if cause := context.Cause(ctx); cause != nil {
					p.mu.Lock()
					p.causes[q.ID] = append(p.causes[q.ID], cause)
					p.mu.Unlock()
				}
			}()
			if c.act == "deaf" {
				<-release
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
			}
			wait := time.After(time.Duration(c.delay) * time.Second)
			if c.act == "silent" {
				wait = nil
			}
			select {
			case <-wait:
			case <-ctx.Done():
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil // too late, whatever it says
			}
			switch c.act {
			case "panic":
				panic("boom")
			case "error":
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, errors.New("nobody there")
			case "goexit":
				runtime.Goexit()
			}
			return c.answer, nil
		})
		detach := func() {}
		attach := func() {
			var once sync.Once
			leave := broker.Attach(fmt.Sprint("client:", i), client)
			detach = func() { once.Do(leave) }
		}
		if c.attach == 0 {
			attach()
			at(all, c.detach, func() { detach() })
			continue
		}
		at(all, c.attach, func() {
			attach()
			if c.detach > 0 {
				time.Sleep(time.Duration(c.detach) * time.Second)
				detach()
			}
		})
	}
}

// answer answers the nth question that was asked, or one that was not.
func (p *played) answer(broker *approval.Broker, a scriptedAnswer, label string) {
	id := "0123456789abcdef0123456789abcdef"
	if asked := p.requested(); a.nth < len(asked) {
		id = asked[a.nth].ID
	}
	h := heard{id: id, label: label, at: time.Now(), answer: a.answer}
	h.resolution, h.err = broker.Answer(context.Background(), id, a.answer, label)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, h)
}

func (p *played) tool(name string, class tools.Class, fates map[string]scriptedCall) tools.Factory {
	def := testDefinition(name, class)
	def.Timeout = 25 * time.Second
	projections := 0
	tool := fakeTool{def: def, execute: func(ctx context.Context, c *tools.Call) (tools.Output, error) {
		fate := fates[c.ID]
		p.mu.Lock()
		p.inputs[c.ID] = hashInput(c.Input)
		p.mu.Unlock()
		c.Delta("stdout", "x")
		stop := ctx.Done()
		if fate.deaf {
			stop = nil
		}
		select {
		case <-time.After(time.Duration(fate.work) * time.Second):
		case <-stop:
		}
		c.Delta("stdout", "y")
		if fate.panics {
			panic("boom")
		}
		return tools.Output{Content: []tools.Block{{Text: c.ID}}, Success: fate.work%2 == 0}, fate.err
	}}
	if class == tools.ClassWrite {
		tool.project = func(_ context.Context, c *tools.Call) (tools.Projection, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			state := "same"
			if fates[c.ID].changing {
				projections++
				state = fmt.Sprint(projections / 3)
			}
			return tools.Projection{Diff: "+x\n", State: state}, nil
		}
	}
	return tool.factory()
}

// problems returns the violations of what must hold for any session.
func (p *played) problems() []string {
	var recorded []Event
	for i, ev := range p.events {
		if p.failFrom == 0 || i+1 < p.failFrom || isTerminal(ev) {
			recorded = append(recorded, ev)
		}
	}
	problems := append(p.other, eventProblems(recorded, p.calls, p.concurrency)...)
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	resolved := map[string]ConfirmationResolved{}
	asked := map[string]approval.Confirmation{}
	for i, ev := range p.events {
		switch ev := ev.(type) {
		case ConfirmationRequested:
			asked[ev.Confirmation.ID] = ev.Confirmation
		case ConfirmationResolved:
			if p.failFrom == 0 || i+1 < p.failFrom {
				resolved[ev.RequestID] = ev
			}
		case Called:
			if got := p.inputs[ev.CallID]; got != "" && got != ev.InputHash {
				add("call %s ran with the input %s, %s was checked", ev.CallID, got, ev.InputHash)
			}
		case Completed:
			if r := p.results[ev.CallID]; r.IsError == ev.Success || r.Class != "" {
				add("call %s completed, its result is %+v", ev.CallID, r)
			}
		case Failed:
			if r := p.results[ev.CallID]; !r.IsError || r.Class != ev.Class {
				add("call %s failed with %s, its result is %+v", ev.CallID, ev.Class, r)
			}
		}
	}
	for id, c := range asked {
		if _, ok := resolved[id]; !ok && p.failFrom == 0 {
			add("question %s of call %s has no resolution", id, c.CallID)
		}
	}
	matches := func(r approval.Resolution, id string) bool {
		ev, ok := resolved[id]
		return ok && r == ev.Resolution
	}
	for _, h := range p.heard {
		late, isLate := errors.AsType[*approval.ResolvedError](h.err)
		switch {
		case h.err == nil:
			if !matches(h.resolution, h.id) || h.resolution.Client != h.label || h.resolution.By != "user" {
				add("%s was told %+v, recorded is %+v", h.label, h.resolution, resolved[h.id])
			}
			if h.resolution.Decision == approval.DecisionAllow && h.answer.Decision != approval.DecisionAllow {
				add("%s said %q, recorded is allow", h.label, h.answer.Decision)
			}
			if !h.at.Before(asked[h.id].Expires) {
				add("%s answered at %v, it expired at %v", h.label, h.at, asked[h.id].Expires)
			}
			for _, cancelled := range p.cancels {
				if begun := asked[h.id].Expires.Add(-20 * time.Second); begun.Before(cancelled) && cancelled.Before(h.at) {
					add("%s answered at %v, it was cancelled at %v", h.label, h.at, cancelled)
				}
			}
		case isLate:
			if !matches(late.Resolution, h.id) {
				add("%s was told of %+v, recorded is %+v", h.label, late.Resolution, resolved[h.id])
			}
		case errors.Is(h.err, approval.ErrUnknownConfirmation):
			if _, known := asked[h.id]; known && !p.noBroker {
				add("%s was told that %s is unknown", h.label, h.id)
			}
		case !errors.Is(h.err, tools.ErrRecord) || p.failFrom == 0:
			add("%s was told %v", h.label, h.err)
		}
	}
	for id, causes := range p.causes {
		for _, cause := range causes {
			late, isLate := errors.AsType[*approval.ResolvedError](cause)
			if isLate && !matches(late.Resolution, id) || !isLate && !errors.Is(cause, context.Canceled) && !errors.Is(cause, tools.ErrRecord) {
				add("a client was told %v of %s, recorded is %+v", cause, id, resolved[id])
			}
		}
	}
	return problems
}

// eventProblems requires for each call one terminal event, followed only by
// warnings and attempts, and at most one Called, not after a refusal; for each
// question one resolution; and never more running calls than slots, or two that
// exclude each other.
func eventProblems(events []Event, calls []tools.Call, slots int) []string {
	problems := terminalProblems(&recorder{events: events}, calls)
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	open, last, called := map[string]string{}, map[string]ConfirmationResolved{}, map[string]bool{}
	answered := map[string]bool{}
	now := map[string]running{}
	for _, ev := range events {
		switch ev := ev.(type) {
		case ConfirmationRequested:
			open[ev.Confirmation.ID] = ev.Confirmation.CallID
			delete(last, ev.Confirmation.CallID)
			answered[ev.Confirmation.CallID] = false
		case ConfirmationResolved:
			if ev.RequestID != "" && open[ev.RequestID] != ev.CallID {
				add("question %s of %s is resolved and was not open", ev.RequestID, ev.CallID)
			}
			delete(open, ev.RequestID)
			last[ev.CallID], answered[ev.CallID] = ev, true
		case Called:
			if was, asked := answered[ev.CallID]; called[ev.CallID] || asked && (!was || last[ev.CallID].Decision != approval.DecisionAllow) {
				add("call %s runs: again %t, after %+v", ev.CallID, called[ev.CallID], last[ev.CallID])
			}
			called[ev.CallID] = true
			this := runningOf(ev, calls)
			for id, other := range now {
				if this.excludes(other) || other.excludes(this) {
					add("calls %s and %s run at one time", id, ev.CallID)
				}
			}
			if now[ev.CallID] = this; len(now) > slots {
				add("%d calls run in %d slots", len(now), slots)
			}
		case Completed:
			if delete(now, ev.CallID); !called[ev.CallID] {
				add("call %s completed and never ran", ev.CallID)
			}
		case Failed:
			delete(now, ev.CallID)
		}
	}
	return problems
}

type running struct {
	class tools.Class
	path  string
}

func runningOf(ev Called, calls []tools.Call) running {
	r := running{class: ev.Class}
	if i := slices.IndexFunc(calls, func(c tools.Call) bool { return c.ID == ev.CallID }); i >= 0 {
		if paths := testPaths(calls[i].Input); len(paths) > 0 {
			r.path = paths[0]
		}
	}
	return r
}

// excludes is the scheduler's rule in other words: a command runs alone among
// changes, and a write among calls that name its path. A write without paths runs
// alone among writes and calls that name any path.
func (r running) excludes(o running) bool {
	if r.class == tools.ClassExecute {
		return o.class == tools.ClassExecute || o.class == tools.ClassWrite
	}
	if r.class != tools.ClassWrite {
		return false
	}
	if r.path == "" {
		return o.path != "" || o.class == tools.ClassWrite
	}
	return o.path == r.path
}

// Whatever calls, answers, clients, cancels, timeouts, closes and faults come
// together, each call has exactly one terminal event and one result, in request
// order; nothing runs without permission; and everybody hears what was recorded.
func TestAnySequenceEndsEveryCallOnce(t *testing.T) {
	seen := map[string]bool{}
	unseen := func() []string {
		return slices.DeleteFunc([]string{
			"completed true", "completed false", "failed cancelled", "failed timeout", "failed execution_error", "failed user_denied",
			"failed confirmation_timeout", "failed permission_denied", "failed not_found", "invalid", "warning", "attempted",
			"resolved allow by user", "resolved deny by user", "resolved timeout by timeout", "resolved deny by cancel",
			"resolved allow by session", "resolved deny by session", "resolved deny by on_prompt", "resolved allow by on_prompt",
			"told true", "told false",
		}, func(text string) bool { return seen[text] })
	}
	// 100 scripts (20 with -short) in each round, and more rounds if chance leaves
	// something out.
	for rounds := 0; !t.Failed() && (rounds < 8 || rounds < 200 && len(unseen()) > 0); rounds++ {
		rapid.Check(t, func(rt *rapid.T) {
			s := drawScript(rt)
			var p *played
			synctest.Test(t, func(t *testing.T) { p = play(t, s) })
			if p == nil {
				rt.Fatal("the script did not come to its end")
			}
			for _, problem := range p.problems() {
				rt.Error(problem)
			}
			for _, ev := range p.events {
				_, text := brief(ev)
				seen[text] = true
			}
			for _, h := range p.heard {
				seen[fmt.Sprintf("told %t", h.err == nil)] = true
				seen["told of the record"] = seen["told of the record"] || errors.Is(h.err, tools.ErrRecord)
			}
		})
	}
	if left := unseen(); len(left) > 0 {
		t.Errorf("no sequence had %q, so this test doesn't show what it says", left)
	}
}

// The control of the test above: the check sees faults.
func TestSequenceCheckSeesFaults(t *testing.T) {
	calls := []tools.Call{call("a", "do_write", `{"path":"x"}`), call("b", "do_write", `{"path":"x"}`)}
	began := func(id string) Event { return Called{CallID: id, Class: tools.ClassWrite} }
	done := func(id string) Event { return Completed{CallID: id} }
	ask := ConfirmationRequested{approval.Confirmation{Question: approval.Question{ID: "1", CallID: "a"}}}
	yes := ConfirmationResolved{approval.Resolution{CallID: "a", RequestID: "1", Decision: approval.DecisionAllow}}
	no := ConfirmationResolved{approval.Resolution{CallID: "a", RequestID: "1", Decision: approval.DecisionDeny}}
	rest := []Event{began("b"), done("b")}
	for name, events := range map[string][]Event{
		"no end":                 {began("a")},
		"two ends":               {began("a"), done("a"), Failed{CallID: "a"}},
		"output after":           {began("a"), done("a"), OutputDelta{CallID: "a"}},
		"another's end":          {began("a"), done("b")},
		"never ran":              {done("a")},
		"twice":                  {began("a"), began("a"), done("a")},
		"not allowed yet":        {ask, began("a"), done("a")},
		"refused":                {ask, no, began("a"), done("a")},
		"asked again":            {ask, yes, ConfirmationRequested{approval.Confirmation{Question: approval.Question{ID: "2", CallID: "a"}}}, began("a"), done("a")},
		"two answers":            {ask, no, yes, began("a"), done("a")},
		"an answer to no one":    {yes, began("a"), done("a")},
		"two writes of one path": {began("a"), began("b"), done("a"), done("b")},
	} {
		if name != "two writes of one path" {
			events = append(events, rest...)
		}
		if len(eventProblems(events, calls, 4)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
	good := append([]Event{ask, yes, began("a"), done("a"), Warning{CallID: "a"}, ConfirmationAttempted{approval.Attempt{CallID: "a"}}}, rest...)
	if wrong := eventProblems(good, calls, 4); len(wrong) > 0 {
		t.Errorf("a good sequence is refused: %q", wrong)
	}
	reads := []Event{Called{CallID: "a", Class: tools.ClassRead}, Called{CallID: "b", Class: tools.ClassRead}, done("a"), done("b")}
	if len(eventProblems(reads, calls, 2)) > 0 || len(eventProblems(reads, calls, 1)) == 0 {
		t.Error("the number of slots is not checked")
	}
	p := &played{script: script{concurrency: 4}, events: good, calls: calls, results: map[string]tools.Result{"a": {IsError: true}, "b": {IsError: true}}}
	if wrong := p.problems(); len(wrong) > 0 {
		t.Errorf("a good session is refused: %q", wrong)
	}
	for name, h := range map[string]heard{
		"two who were first":      {id: "1", label: "late", told: told{resolution: approval.Resolution{RequestID: "1", CallID: "a", Decision: approval.DecisionAllow, By: "user", Client: "late"}}},
		"told of something else":  {id: "1", told: told{err: &approval.ResolvedError{Resolution: approval.Resolution{RequestID: "1", CallID: "a", Decision: approval.DecisionDeny}}}},
		"unknown, though it was":  {id: "1", told: told{err: approval.ErrUnknownConfirmation}},
		"a failure without cause": {id: "1", told: told{err: tools.ErrRecord}},
	} {
		p.heard = []heard{h}
		if len(p.problems()) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
	p.heard, p.events = nil, append([]Event{ConfirmationRequested{approval.Confirmation{Question: approval.Question{ID: "2", CallID: "b"}}}}, good...)
	if len(p.problems()) == 0 {
		t.Error("a question without an end is not seen")
	}
	p.events, p.inputs = good, map[string]string{"a": "other bytes"}
	if len(p.problems()) == 0 {
		t.Error("other bytes are not seen")
	}
	p.inputs, p.results["a"] = nil, tools.Result{}
	if len(p.problems()) == 0 {
		t.Error("a result that does not fit its event is not seen")
	}
}
