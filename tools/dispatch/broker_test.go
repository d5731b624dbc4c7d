package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// told is what a client heard about its answer.
type told struct {
	resolution approval.Resolution
	err        error
}

// decisionProblems requires that one of several answers to a question was first,
// and that all others heard of it.
func decisionProblems(answers []told) []string {
	var problems []string
	var won []approval.Resolution
	for _, a := range answers {
		if a.err == nil {
			won = append(won, a.resolution)
		}
	}
	if len(won) != 1 {
		return []string{fmt.Sprintf("%d answers count: %+v", len(won), won)}
	}
	for _, a := range answers {
		if a.err == nil {
			continue
		}
		if late, ok := errors.AsType[*approval.ResolvedError](a.err); !ok || late.Resolution != won[0] {
			problems = append(problems, fmt.Sprintf("a late answer is told %v, recorded is %+v", a.err, won[0]))
		}
	}
	return problems
}

// together starts n functions at the same time and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// racers is how many clients answer one question at once; half of them allow.
const racers = 50

func racerAnswer(i int) approval.Answer {
	return approval.Answer{Decision: []approval.Decision{approval.DecisionAllow, approval.DecisionDeny}[i%2], Scope: approval.ScopeOnce}
}

// Fifty clients answer at the same moment, fifty times. There is one decision, the
// others hear of it, and each attempt is recorded.
func TestAnswersAtTheSameMoment(t *testing.T) {
	rec := &recorder{}
	broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	requested := make(chan string, 1)
	rec.fail = func(ev Event) error {
		if ev, ok := ev.(ConfirmationRequested); ok {
			requested <- ev.Confirmation.ID
		}
		return nil
	}
	allowed := 0
	for n := range 50 {
		id := fmt.Sprint(n)
		answers := make([]told, racers)
		var asking sync.WaitGroup
		asking.Go(func() {
			confirmation := <-requested
			together(racers, func(i int) {
				r, err := broker.Answer(t.Context(), confirmation, racerAnswer(i), fmt.Sprint("http:", i))
				answers[i] = told{r, err}
			})
		})
		result := roundOK(t, d, call(id, "shell", `{}`))[0]
		asking.Wait()
		for _, problem := range decisionProblems(answers) {
			t.Errorf("question %d: %s", n, problem)
		}
		won := answers[slices.IndexFunc(answers, func(a told) bool { return a.err == nil })].resolution
		if (won.Decision == approval.DecisionAllow) == result.IsError || won.By != "user" || won.CallID != id {
			t.Errorf("question %d was resolved as %+v, and the call gave %+v", n, won, result)
		}
		if won.Decision == approval.DecisionAllow {
			allowed++
		}
		var recorded []ConfirmationResolved
		for _, ev := range find[ConfirmationResolved](rec) {
			if ev.CallID == id {
				recorded = append(recorded, ev)
			}
		}
		want := []ConfirmationResolved{{won}}
		if diff := cmp.Diff(want, recorded); diff != "" {
			t.Errorf("question %d: recorded (-told +recorded):\n%s", n, diff)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	attempts := find[ConfirmationAttempted](rec)
	omitted := 0
	for _, w := range find[Warning](rec) {
		_, _ = fmt.Sscanf(w.Message, "%d more answers", &omitted)
	}
	for _, a := range attempts {
		omitted += a.Omitted
		if a.Recorded == "" || a.CallID == "" || a.By == "" || a.Outcome != approval.AttemptResolved {
			t.Errorf("attempt %+v does not say what it met", a)
		}
	}
	if got := len(attempts) + omitted; got != 50*(racers-1) || len(attempts) < 1000 {
		t.Errorf("%d attempts are recorded and %d counted, want %d", len(attempts), omitted, 50*(racers-1))
	}
	if called := len(find[Called](rec)); called != allowed {
		t.Errorf("%d calls ran, %d were allowed", called, allowed)
	}
}

// naiveBroker checks whether a question is open and then answers it, as a first
// attempt at a broker would.
type naiveBroker struct {
	mu       sync.Mutex
	resolved *approval.Resolution
	looked   sync.WaitGroup
}

func (b *naiveBroker) answer(a approval.Answer, label string) told {
	b.mu.Lock()
	before := b.resolved
	b.mu.Unlock()
	b.looked.Done()
	b.looked.Wait() // makes the time between checking and answering as long as it takes
	if before != nil {
		return told{*before, &approval.ResolvedError{Resolution: *before}}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resolved = &approval.Resolution{Decision: a.Decision, Client: label}
	return told{*b.resolved, nil}
}

// The control: the same check catches a broker that is open to a race.
func TestNaiveBrokerIsCaught(t *testing.T) {
	naive := &naiveBroker{}
	naive.looked.Add(racers)
	answers := make([]told, racers)
	together(racers, func(i int) { answers[i] = naive.answer(racerAnswer(i), fmt.Sprint(i)) })
	if len(decisionProblems(answers)) == 0 {
		t.Error("a broker that checks and then sets passes, so the check shows nothing")
	}
}

// A client may answer as soon as it has read the request, before the broker goes
// on.
func TestAnAnswerFindsItsQuestionAtOnce(t *testing.T) {
	rec := &recorder{}
	broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
	var answering sync.WaitGroup
	rec.fail = func(ev Event) error {
		ask, ok := ev.(ConfirmationRequested)
		if !ok {
			return nil
		}
		if !slices.ContainsFunc(broker.Pending(), func(c approval.Confirmation) bool { return c.ID == ask.Confirmation.ID }) {
			t.Errorf("the question about %s is recorded, and no answer finds it", ask.Confirmation.CallID)
		}
		answering.Go(func() {
			if _, err := broker.Answer(t.Context(), ask.Confirmation.ID, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, "http"); err != nil {
				t.Errorf("answer to %s: %v", ask.Confirmation.CallID, err)
			}
		})
		runtime.Gosched()
		return nil
	}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	for range 20 {
		for _, r := range roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`), call("c", "shell", `{}`)) {
			wantText(t, r, false, "done")
		}
	}
	answering.Wait()
}

// An answer that can't be recorded doesn't count: the client hears of the failure,
// nothing runs, and no lasting grant is left.
func TestAnAnswerThatCantBeRecorded(t *testing.T) {
	for _, scope := range []approval.Scope{approval.ScopeOnce, approval.ScopeSession, approval.ScopeAlways} {
		rec := &recorder{}
		broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
		grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		answers := make(chan told, 2)
		rec.fail = func(ev Event) error {
			switch ev := ev.(type) {
			case ConfirmationRequested:
				go func() {
					for range 2 { // the second one comes after the failure
						r, err := broker.Answer(context.Background(), ev.Confirmation.ID, approval.Answer{Decision: approval.DecisionAllow, Scope: scope}, "http:alice")
						answers <- told{r, err}
					}
				}()
			case ConfirmationResolved:
				return errors.New("disk full")
			}
			return nil
		}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker, Workspace: "/p", Grants: grants},
			fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
		calls := []tools.Call{call("a", "write_file", `{}`)}
		results, err := d.Round(t.Context(), calls)
		if !errors.Is(err, tools.ErrRecord) || !results[0].IsError || len(find[Called](rec)) != 0 {
			t.Errorf("%s: the round ends with %v, result %+v", scope, err, results[0])
		}
		for range 2 {
			if a := <-answers; !errors.Is(a.err, tools.ErrRecord) || a.resolution != (approval.Resolution{}) {
				t.Errorf("%s: the client is told %+v, %v", scope, a.resolution, a.err)
			}
		}
		if list, err := grants.List(); err != nil || len(list) != 0 {
			t.Errorf("%s: left behind are %+v, %v", scope, list, err)
		}
		if _, kept := d.answers.Find(approval.AnswerKey{Tool: "write_file"}); kept {
			t.Errorf("%s: the session keeps the answer", scope)
		}
		checkTerminals(t, rec, calls)
	}
}

// An answer for good that can't be stored counts once, with a warning.
func TestAnAnswerThatCantBeStored(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, approval.ChangeLogFile), 0o700); err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{
		Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeAlways)), Workspace: "/p", Grants: approval.NewGrants(filepath.Join(dir, "approvals.json")),
	}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
	for _, id := range []string{"a", "b"} {
		roundOK(t, d, call(id, "write_file", `{}`))
		wantEvents(t, rec, id, "requested", "warning", "resolved allow by user", "called write", "completed true")
	}
	for _, ev := range find[ConfirmationResolved](rec) {
		if ev.Scope != approval.ScopeOnce {
			t.Errorf("recorded is the scope %s", ev.Scope)
		}
	}
}

// Clients that are still asking learn what was recorded from their context's cause.
func TestOtherClientsAreToldOfTheDecision(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*Dispatcher, *approval.Broker, string)
		want approval.Resolution
		text string
	}{
		{"an answer elsewhere", func(_ *Dispatcher, b *approval.Broker, id string) {
			_, _ = b.Answer(context.Background(), id, approval.Answer{Decision: approval.DecisionAllow, Scope: "for ever"}, "http:alice")
		}, approval.Resolution{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce, By: "user", Client: "http:alice"}, "allow by user at http:alice"},
		{"the time is over", func(*Dispatcher, *approval.Broker, string) {}, approval.Resolution{Decision: approval.DecisionTimeout, Scope: approval.ScopeOnce, By: "timeout"}, "timeout by timeout"},
		{"a cancellation", func(d *Dispatcher, _ *approval.Broker, _ string) { d.Cancel(errors.New("stop")) }, approval.Resolution{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: "cancel"}, "deny by cancel"},
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := &recorder{}
			broker := approval.NewBroker(approval.BrokerOptions{})
			var mu sync.Mutex
			var causes []error
			waiting := approver(func(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				if causes = append(causes, context.Cause(ctx)); len(find[ConfirmationResolved](rec)) != 1 {
					t.Errorf("%s: a client is told before it is recorded", tt.name)
				}
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, nil
			})
			broker.Attach("terminal", waiting)
			broker.Attach("second", waiting)
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			go func() {
				synctest.Wait()
				tt.end(d, broker, find[ConfirmationRequested](rec)[0].Confirmation.ID)
			}()
			roundOK(t, d, call("a", "shell", `{}`))
			synctest.Wait()
			tt.want.CallID, tt.want.RequestID = "a", find[ConfirmationRequested](rec)[0].Confirmation.ID
			for range 2 {
				late, ok := errors.AsType[*approval.ResolvedError](causes[0])
				if !ok || late.Resolution != tt.want || late.Error() != "confirmation is resolved already: "+tt.text {
					t.Errorf("%s: a client is told %v, want %+v", tt.name, causes[0], tt.want)
				}
				causes = causes[1:]
			}
		})
	}
}

// A client that comes late is shown what waits. One that leaves leaves the question
// to the others, and the last one to nobody.
func TestClientsComeAndGo(t *testing.T) {
	silent := approver(func(ctx context.Context, _ approval.Confirmation) (approval.Answer, error) {
		<-ctx.Done()
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, nil // too late
	})
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		broker := approval.NewBroker(approval.BrokerOptions{})
		first := broker.Attach("first", silent)
		second := broker.Attach("second", silent)
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		go func() {
			synctest.Wait()
			first()
			first()
			synctest.Wait()
			if got := broker.Pending(); len(got) != 1 || got[0].CallID != "a" {
				t.Errorf("after the first has gone, %+v waits", got)
			}
			var shown approval.Confirmation
			third := broker.Attach("third", approver(func(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
				shown = c
				<-ctx.Done()
				return approval.Answer{}, nil
			}))
			synctest.Wait()
			if shown.CallID != "a" {
				t.Errorf("the third was shown %+v", shown)
			}
			second()
			third()
		}()
		start := time.Now()
		wantText(t, roundOK(t, d, call("a", "shell", `{}`))[0], true, `Tool "shell" (class execute) needs an approval, and no one can be asked in this session.`)
		wantEvents(t, rec, "a", "requested", "resolved deny by on_prompt", "failed permission_denied")
		if took := time.Since(start); took != 0 || len(broker.Pending()) != 0 {
			t.Errorf("took %v, %d wait", took, len(broker.Pending()))
		}
		wantText(t, roundOK(t, d, call("b", "shell", `{}`))[0], true, `Tool "shell" (class execute) needs an approval, and no one can be asked in this session.`)
	})
}

// If a client may still come, a question waits for its whole timeout, whoever is
// attached.
func TestAttendedBrokerWaits(t *testing.T) {
	unable := approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{}, errors.New("no terminal")
	})
	for name, attach := range map[string]func(*approval.Broker){
		"nobody":         func(*approval.Broker) {},
		"unable clients": func(b *approval.Broker) { b.Attach("a", unable); b.Attach("b", unable) },
		"clients that go": func(b *approval.Broker) {
			detach := b.Attach("a", approver(func(ctx context.Context, _ approval.Confirmation) (approval.Answer, error) {
				<-ctx.Done()
				return approval.Answer{}, nil
			}))
			time.AfterFunc(time.Minute, detach)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := &recorder{}
			broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
			attach(broker)
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			start := time.Now()
			if r := roundOK(t, d, call("a", "shell", `{}`))[0]; r.Class != tools.ErrorConfirmationTimeout || time.Since(start) != DefaultConfirmTimeout {
				t.Errorf("%s: %q after %v", name, r.Class, time.Since(start))
			}
			if d.Unapproved() != 1 {
				t.Errorf("%s: %d unapproved, want 1", name, d.Unapproved())
			}
		})
	}
}

// Answers that can't count change nothing, are recorded, and leave the question
// open.
func TestAnswersThatCantCount(t *testing.T) {
	rec := &recorder{}
	broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
	var answering sync.WaitGroup
	rec.fail = func(ev Event) error {
		ask, ok := ev.(ConfirmationRequested)
		if !ok {
			return nil
		}
		answering.Go(func() {
			id, allow := ask.Confirmation.ID, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}
			if err := broker.Misdirected(id, allow, "wrong turn"); !errors.Is(err, approval.ErrUnknownConfirmation) {
				t.Errorf("of another turn: %v", err)
			}
			if err := broker.Forbidden(id, allow, "reader"); err != nil {
				t.Errorf("without the permission: %v", err)
			}
			if _, err := broker.Answer(t.Context(), id, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, "owner"); err != nil {
				t.Errorf("the one that counts: %v", err)
			}
		})
		return nil
	}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	if r := roundOK(t, d, call("a", "shell", `{}`))[0]; r.Class != tools.ErrorUserDenied {
		t.Errorf("the call ends with %q", r.Class)
	}
	answering.Wait()
	id := find[ConfirmationRequested](rec)[0].Confirmation.ID
	want := []ConfirmationAttempted{
		{approval.Attempt{RequestID: id, By: "wrong turn", Decision: approval.DecisionAllow, Scope: approval.ScopeOnce, Outcome: approval.AttemptUnknown}},
		{approval.Attempt{RequestID: id, By: "reader", Decision: approval.DecisionAllow, Scope: approval.ScopeOnce, Outcome: approval.AttemptForbidden}},
	}
	if diff := cmp.Diff(want, find[ConfirmationAttempted](rec)); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if err := d.Close(t.Context()); err != nil || len(find[Warning](rec)) != 0 {
		t.Errorf("%v, warnings %+v", err, find[Warning](rec))
	}
	rec.fail = func(Event) error { return errors.New("disk full") }
	if err := broker.Forbidden(id, approval.Answer{}, "reader"); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("an attempt that can't be recorded gives %v", err)
	}
}

// A client's own timeout ends its wait for the record, but its answer stands.
func TestAnswerStandsWithoutItsClient(t *testing.T) {
	rec := &recorder{}
	broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
	gone := make(chan struct{})
	rec.fail = func(ev Event) error {
		switch ev := ev.(type) {
		case ConfirmationRequested:
			go func() {
				defer close(gone)
				ctx, cancel := context.WithCancelCause(context.Background())
				cancel(errors.New("hung up"))
				if _, err := broker.Answer(ctx, ev.Confirmation.ID, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, "http"); err == nil || !strings.Contains(err.Error(), "hung up") {
					t.Errorf("the client is told %v", err)
				}
			}()
		case ConfirmationResolved:
			<-gone
		}
		return nil
	}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	wantText(t, roundOK(t, d, call("a", "shell", `{}`))[0], false, "done")
}

// A client that misbehaves harms only itself: the others are still asked.
func TestBadClientBesideAGoodOne(t *testing.T) {
	for name, bad := range map[string]approver{
		"panics": func(context.Context, approval.Confirmation) (approval.Answer, error) { panic("boom") },
		"ends its thread": func(context.Context, approval.Confirmation) (approval.Answer, error) {
			runtime.Goexit()
			return approval.Answer{}, nil
		},
		"fails": func(context.Context, approval.Confirmation) (approval.Answer, error) {
			return approval.Answer{}, errors.New("gone")
		},
		"answers and fails": func(context.Context, approval.Confirmation) (approval.Answer, error) {
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, errors.New("gone")
		},
		"blocks": func(context.Context, approval.Confirmation) (approval.Answer, error) {
			time.Sleep(time.Hour)
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := &recorder{}
			broker := approval.NewBroker(approval.BrokerOptions{})
			broker.Attach("bad", bad)
			broker.Attach("good", approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
				time.Sleep(time.Second)
				return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
			}))
			core, logs := observer.New(zapcore.WarnLevel)
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker, Logger: zap.New(core)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			roundOK(t, d, call("a", "shell", `{}`))
			var reasons []any
			for _, line := range logs.All() {
				reasons = append(reasons, line.ContextMap()["error"])
			}
			want := map[string][]any{"panics": {"panic: boom"}, "ends its thread": nil, "fails": {"gone"}, "answers and fails": {"gone"}, "blocks": nil}[name]
			if diff := cmp.Diff(want, reasons); diff != "" {
				t.Errorf("%s: logged (-want +got):\n%s", name, diff)
			}
			if got := find[ConfirmationResolved](rec); len(got) != 1 || got[0].Client != "good" || got[0].Decision != approval.DecisionDeny {
				t.Errorf("%s: resolved as %+v", name, got)
			}
			if name == "blocks" {
				// It delays only the end of the session, which reports it.
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := d.Close(ctx); err == nil {
					t.Error("Close does not wait for a client")
				}
			}
		})
	}
}

// Answers after the timeout on any clock don't count.
func TestNoClockMakesAQuestionLonger(t *testing.T) {
	for name, pass := range map[string]func(asleep *atomic.Int64){
		"time passes":        func(*atomic.Int64) { time.Sleep(DefaultConfirmTimeout) },
		"the machine sleeps": func(asleep *atomic.Int64) { asleep.Store(int64(DefaultConfirmTimeout)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := &recorder{}
			var asleep atomic.Int64
			broker := approval.NewBroker(approval.BrokerOptions{Attended: true, Uptime: func() time.Duration { return time.Duration(asleep.Load()) }})
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			go func() {
				synctest.Wait()
				id := broker.Pending()[0].ID
				pass(&asleep)
				if got := broker.Pending(); len(got) != 0 {
					t.Errorf("%s: %d wait still", name, len(got))
				}
				_, err := broker.Answer(t.Context(), id, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, "late")
				if late, ok := errors.AsType[*approval.ResolvedError](err); !ok || late.Resolution.Decision != approval.DecisionTimeout {
					t.Errorf("%s: told %v", name, err)
				}
			}()
			if r := roundOK(t, d, call("a", "shell", `{}`))[0]; r.Class != tools.ErrorConfirmationTimeout {
				t.Errorf("%s: ends with %q", name, r.Class)
			}
			synctest.Wait()
			events := slices.DeleteFunc(rec.of("a"), func(text string) bool { return text == "attempted" })
			if diff := cmp.Diff([]string{"requested", "resolved timeout by timeout", "failed confirmation_timeout"}, events); diff != "" {
				t.Errorf("%s: events (-want +got):\n%s", name, diff)
			}
			if got := find[ConfirmationAttempted](rec); len(got) != 1 || got[0].Recorded != approval.DecisionTimeout || got[0].Outcome != approval.AttemptExpired {
				t.Errorf("%s: attempts %+v", name, got)
			}
		})
	}
	// Setting the wall clock changes nothing: the end has a monotonic reading.
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce))}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	roundOK(t, d, call("a", "shell", `{}`))
	if c := find[ConfirmationRequested](rec)[0].Confirmation; !strings.Contains(c.Expires.String(), " m=") {
		t.Errorf("Expires %v has no monotonic reading", c.Expires)
	}
}

// A flood of answers that change nothing is bounded in the records and in memory,
// and counted completely.
func TestFloodOfAttempts(t *testing.T) {
	rec := &recorder{}
	broker := approval.NewBroker(approval.BrokerOptions{})
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	const flood = 20_000
	long := strings.Repeat("\x1b", 1<<20)
	for i := range flood {
		id := fmt.Sprintf("%032x", i)
		if i == 0 {
			id = long
		}
		if _, err := broker.Answer(t.Context(), id, approval.Answer{Decision: approval.Decision(id), Scope: approval.Scope(id)}, id); !errors.Is(err, approval.ErrUnknownConfirmation) || len(err.Error()) > 1000 {
			t.Fatalf("answer %d: %d bytes of %v", i, len(err.Error()), err)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	reported, omitted := 0, 0
	for _, a := range find[ConfirmationAttempted](rec) {
		reported++
		omitted += a.Omitted
		if len(a.RequestID)+len(a.Decision)+len(a.Scope)+len(a.By) > 4*128 {
			t.Errorf("an attempt of %d bytes", len(a.RequestID))
		}
	}
	if warnings := find[Warning](rec); len(warnings) != 1 {
		t.Errorf("warnings %+v", warnings)
	} else {
		rest := 0
		_, _ = fmt.Sscanf(warnings[0].Message, "%d", &rest)
		omitted += rest
	}
	// Each second that has passed allows one more report.
	if reported+omitted != flood || reported < 1000 || reported > 1300 {
		t.Errorf("%d reported, %d counted, of %d", reported, omitted, flood)
	}
	if err := d.Close(t.Context()); err != nil || len(find[Warning](rec)) > 1 { // the second one has nothing to report
		t.Errorf("%v, warnings %+v", err, find[Warning](rec))
	}
	if broker.Unrecorded() != 0 {
		t.Errorf("ids that nobody asked are kept: %d", broker.Unrecorded())
	}
}

// Of two contradictory answers for the session the deny holds. The client that
// allowed learns that its answer holds for its call.
func TestADenyForTheSessionBeatsAnAllow(t *testing.T) {
	seen := map[approval.Scope]bool{}
	for range 50 {
		rec := &recorder{}
		broker := approval.NewBroker(approval.BrokerOptions{Attended: true})
		var open []approval.Confirmation
		answers := map[approval.Decision]told{}
		var mu sync.Mutex
		var answering sync.WaitGroup
		rec.fail = func(ev Event) error {
			switch ev.(type) {
			case ConfirmationRequested:
				open = broker.Pending()
				if len(open) < 2 {
					break
				}
				for i, decision := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny} {
					answering.Go(func() {
						r, err := broker.Answer(context.Background(), open[i].ID, approval.Answer{Decision: decision, Scope: approval.ScopeSession}, "")
						mu.Lock()
						defer mu.Unlock()
						answers[decision] = told{r, err}
					})
				}
			case ConfirmationResolved:
				for len(broker.Pending()) > 0 {
					time.Sleep(time.Millisecond) // both are answered before either is recorded
				}
			}
			return nil
		}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: broker}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`))
		answering.Wait()
		scope := approval.ScopeSession
		if find[ConfirmationResolved](rec)[0].Decision == approval.DecisionDeny {
			scope = approval.ScopeOnce // it came after the deny
		}
		seen[scope] = true
		if got := answers[approval.DecisionAllow]; got.err != nil || got.resolution.Scope != scope {
			t.Errorf("the one who allowed is told %+v, %v, want scope %s", got.resolution, got.err, scope)
		}
		if got := answers[approval.DecisionDeny]; got.err != nil || got.resolution.Scope != approval.ScopeSession {
			t.Errorf("the one who denied is told %+v, %v", got.resolution, got.err)
		}
		open = nil
		if r := roundOK(t, d, call("c", "shell", `{}`))[0]; r.Class != tools.ErrorUserDenied {
			t.Errorf("afterwards a call gives %+v", r)
		}
	}
	// Both orders, without a race.
	for _, first := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny} {
		var m approval.SessionAnswers
		m.Keep(approval.AnswerKey{Tool: "shell"}, first, func(approval.Scope) bool { return true })
		for _, d := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny, approval.DecisionAllow} {
			m.Keep(approval.AnswerKey{Tool: "shell"}, d, func(s approval.Scope) bool { seen[s] = true; return true })
		}
		if got, _ := m.Find(approval.AnswerKey{Tool: "shell"}); got != approval.DecisionDeny || !seen[approval.ScopeOnce] || !seen[approval.ScopeSession] {
			t.Errorf("after %s first: %s, scopes %v", first, got, seen)
		}
	}
}

// An allow for the session doesn't cover a dangerous command; a deny does.
func TestSessionAnswersAndDangerousCommands(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
	shell.def.Commands = commandOfText
	rules := preset(t, "sandboxed")
	rules.Dangerous = []string{"rm -r /"}
	rules.Tools = map[string]policy.Mode{"shell": policy.ModePrompt}
	for _, session := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny} {
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: rules, Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			if c.Dangerous != "" {
				return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
			}
			return approval.Answer{Decision: session, Scope: approval.ScopeSession}, nil
		})}, shell)
		roundOK(t, d, call("a", "shell", `{"text":"ls"}`))
		roundOK(t, d, call("b", "shell", `{"text":"rm -r /"}`))
		roundOK(t, d, call("c", "shell", `{"text":"ls"}`))
		want := []string{"requested", "resolved deny by user", "failed user_denied"}
		if session == approval.DecisionDeny {
			want = []string{"resolved deny by session", "failed user_denied"}
		}
		wantEvents(t, rec, "b", want...)
		if got := rec.of("c")[0]; got != fmt.Sprintf("resolved %s by session", session) {
			t.Errorf("an ordinary call begins with %q", got)
		}
	}
}

// An answer about a dangerous command, for the session or with prompt_once, covers
// no later call. About an ordinary command it does.
func TestAnswersAboutDangerousCommandsCoverNothingElse(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
	shell.def.Commands = commandOfText
	for _, mode := range []policy.Mode{policy.ModePrompt, policy.ModePromptOnce} {
		for _, first := range []string{"rm -r /", "ls"} {
			for _, decision := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny} {
				rules := preset(t, "sandboxed")
				rules.Dangerous = []string{"rm -r /"}
				rules.Tools = map[string]policy.Mode{"shell": mode}
				rec, offered := &recorder{}, []approval.Scope(nil)
				d := newDispatcher(t, rec, Options{Policy: rules, Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
					if offered == nil {
						offered = c.Scopes
					}
					if mode == policy.ModePromptOnce {
						return approval.Answer{Decision: decision, Scope: approval.ScopeOnce}, nil
					}
					return approval.Answer{Decision: decision, Scope: approval.ScopeSession}, nil
				})}, shell)
				roundOK(t, d, call("a", "shell", fmt.Sprintf(`{"text":%q}`, first)))
				roundOK(t, d, call("b", "shell", `{"text":"ls -l"}`))
				asked := rec.of("b")[0] == "requested"
				if dangerous := first != "ls"; asked != dangerous || slices.Contains(offered, approval.ScopeSession) == dangerous {
					t.Errorf("%s, %s %s: the next call begins with %q, offered were %v", mode, decision, first, rec.of("b")[0], offered)
				}
			}
		}
	}
}

// A dangerous command is asked about each time. A lasting answer is not offered,
// counts once if given, and a stored allow is ignored. A stored deny holds.
func TestLastingAnswersAndDangerousCommands(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
	shell.def.Commands = commandOfText
	for _, c := range []struct {
		command string
		stored  approval.Decision
		events  []string
		offered bool
	}{
		{"rm -r /", "", []string{"requested", "resolved allow by user", "called execute", "completed true"}, false},
		{"rm -r /", approval.DecisionAllow, []string{"requested", "resolved allow by user", "called execute", "completed true"}, false},
		{"rm -r /", approval.DecisionDeny, []string{"resolved deny by grant", "failed user_denied"}, false},
		{"ls", "", []string{"requested", "resolved allow by user", "called execute", "completed true"}, true}, // the controls
		{"ls", approval.DecisionAllow, []string{"resolved allow by grant", "called execute", "completed true"}, false},
	} {
		rec, grants := &recorder{}, approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		if c.stored != "" {
			if err := grants.Add(approval.Grant{Tool: "shell", Workspace: "/p", Phrase: c.command, Decision: c.stored}); err != nil {
				t.Fatal(err)
			}
		}
		var shown approval.Confirmation
		d := newDispatcher(t, rec, Options{
			Policy: preset(t, "default"), Workspace: "/p", Grants: grants,
			Broker: brokerFunc(func(_ context.Context, q approval.Confirmation) (approval.Answer, error) {
				shown = q
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
			}),
		}, shell)
		input := fmt.Sprintf(`{"text":%q}`, c.command)
		roundOK(t, d, call("a", "shell", input))
		wantEvents(t, rec, "a", c.events...)
		if got := slices.Contains(shown.Scopes, approval.ScopeAlways); got != c.offered || got != (shown.Phrase != "") {
			t.Errorf("%+v: offers %v for %q", c, shown.Scopes, shown.Phrase)
		}
		want := 0
		if c.stored != "" || c.offered {
			want = 1
		}
		if list, err := grants.List(); err != nil || len(list) != want {
			t.Errorf("%+v: stored are %v, %v", c, list, err)
		}
		if c.stored == "" && !c.offered { // an answer for good was one for once
			roundOK(t, d, call("b", "shell", input))
			wantEvents(t, rec, "b", c.events...)
		}
	}
}

func TestOneBrokerServesOneDispatcher(t *testing.T) {
	broker := approval.NewBroker(approval.BrokerOptions{})
	newDispatcher(t, &recorder{}, Options{Broker: broker})
	if _, err := New(Options{Broker: broker, Emit: func(Event) error { return nil }}); err == nil {
		t.Error("a broker serves two dispatchers")
	}
	if _, err := approval.NewBroker(approval.BrokerOptions{}).Answer(t.Context(), "x", approval.Answer{}, ""); !errors.Is(err, approval.ErrUnknownConfirmation) {
		t.Errorf("a broker without a dispatcher gives %v", err)
	}
}
