package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
)

// approveFunc is an approver that calls a function.
type approveFunc func(ctx context.Context, c Confirmation) (Answer, error)

func (f approveFunc) Approve(ctx context.Context, c Confirmation) (Answer, error) { return f(ctx, c) }

// bind binds a broker without a dispatcher. Missing functions do nothing.
func bind(t *testing.T, b *Broker, to Binding) {
	t.Helper()
	to.Logger = zap.NewNop()
	if to.RecordAttempt == nil {
		to.RecordAttempt = func(Attempt) error { return nil }
	}
	if err := b.Bind(to); err != nil {
		t.Fatal(err)
	}
}

// TestFirstAnswerClosesItsQuestion: a second answer is none, and the other questions
// stay open.
func TestFirstAnswerClosesItsQuestion(t *testing.T) {
	broker := NewBroker(BrokerOptions{Attended: true})
	open := func(id string) *Request {
		return broker.Request(t.Context(), Confirmation{Question: Question{ID: id}, Expires: time.Now().Add(time.Hour)})
	}
	first, second := open("first"), open("second")
	defer second.cancel()
	if !broker.resolve(first, Reply{By: ByUser}) || broker.resolve(first, Reply{By: ByUser}) {
		t.Error("the first answer is not the only one that counts")
	}
	if n := broker.Unrecorded(); n != 2 {
		t.Errorf("%d are not recorded, want both", n)
	}
	broker.Record(first, Resolution{}, nil)
	if got := broker.Pending(); len(got) != 1 || got[0].ID != "second" {
		t.Errorf("%+v wait", got)
	}
}

// TestWhoIsShownAQuestion: a client is shown what is presented and waits still, and
// nothing once it has gone.
func TestWhoIsShownAQuestion(t *testing.T) {
	broker := NewBroker(BrokerOptions{Attended: true})
	var asking sync.WaitGroup
	bind(t, broker, Binding{Go: asking.Go})
	var mu sync.Mutex
	var shown []string
	attach := func(label string) (detach func()) {
		return broker.Attach(label, approveFunc(func(_ context.Context, c Confirmation) (Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			shown = append(shown, label+" "+c.ID)
			return Answer{}, errors.New("busy")
		}))
	}
	attach("gone")()
	detach := attach("detached")
	attach("first")
	detach()
	ctx, cancel := context.WithCancel(t.Context())
	open := func(ctx context.Context, id string) *Request {
		return broker.Request(ctx, Confirmation{Question: Question{ID: id}, Expires: time.Now().Add(time.Hour)})
	}
	early, answered, ended := open(t.Context(), "early"), open(t.Context(), "answered"), open(ctx, "ended")
	broker.Deliver(answered, ended)
	broker.resolveAlone(answered, Answer{}, ByCancel)
	cancel()
	attach("late")
	asking.Wait()
	slices.Sort(shown)
	if want := []string{"first answered", "first ended"}; !slices.Equal(shown, want) {
		t.Errorf("shown before the third is presented: %q, want %q", shown, want)
	}
	broker.Deliver(early)
	asking.Wait()
	slices.Sort(shown)
	if want := []string{"first answered", "first early", "first ended", "late early"}; !slices.Equal(shown, want) {
		t.Errorf("shown: %q, want %q", shown, want)
	}
	for _, q := range []*Request{early, answered, ended} {
		broker.Record(q, Resolution{}, nil)
	}
}

// TestOmittedAttemptsAreCounted: the next report counts those before it, and the end of
// the session those that no report followed.
func TestOmittedAttemptsAreCounted(t *testing.T) {
	broker := NewBroker(BrokerOptions{})
	var attempts []Attempt
	var warnings []string
	bind(t, broker, Binding{
		RecordAttempt: func(a Attempt) error { attempts = append(attempts, a); return nil },
		Warn:          func(message string) { warnings = append(warnings, message) },
	})
	broker.attempts.omitted = 7
	for range 2 {
		if err := broker.Misdirected("id", Answer{}, ""); !errors.Is(err, ErrUnknownConfirmation) {
			t.Error(err)
		}
	}
	if len(attempts) != 2 || attempts[0].Omitted != 7 || attempts[1].Omitted != 0 {
		t.Errorf("attempts %+v", attempts)
	}
	broker.Close()
	if len(warnings) != 0 {
		t.Errorf("warnings %q without omitted attempts", warnings)
	}
	broker.attempts.omitted = 1
	broker.Close()
	broker.Close()
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "1 more ") {
		t.Errorf("warnings %q", warnings)
	}
}

// TestThePastIsBounded: what is kept for late answers is bounded, the oldest are
// forgotten, and IDs that were never used are not kept.
func TestThePastIsBounded(t *testing.T) {
	broker := NewBroker(BrokerOptions{Attended: true})
	bind(t, broker, Binding{})
	answer := func(i int) error {
		_, err := broker.Answer(t.Context(), fmt.Sprint(i), Answer{Decision: DecisionAllow, Scope: ScopeOnce}, "")
		return err
	}
	const forgotten = 3
	for i := range maxPast + forgotten {
		if err := answer(i); !errors.Is(err, ErrUnknownConfirmation) {
			t.Fatalf("an unknown one gives %v", err)
		}
		broker.Record(broker.Request(t.Context(), Confirmation{Question: Question{ID: fmt.Sprint(i)}, Expires: time.Now().Add(time.Hour)}), Resolution{}, nil)
	}
	if len(broker.past) != maxPast || len(broker.pastIDs) != maxPast || len(broker.pending) != 0 {
		t.Fatalf("%d and %d are kept, %d wait", len(broker.past), len(broker.pastIDs), len(broker.pending))
	}
	for i := range maxPast + forgotten {
		want := ErrResolved
		if i < forgotten {
			want = ErrUnknownConfirmation
		}
		if err := answer(i); !errors.Is(err, want) {
			t.Fatalf("confirmation %d gives %v, want %v", i, err, want)
		}
	}
}
