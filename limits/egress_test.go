package limits_test

import (
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
)

func TestEgressBudgetValidate(t *testing.T) {
	if err := limits.DefaultEgressBudget().Validate(); err != nil {
		t.Fatalf("the default: %v", err)
	}
	for name, b := range map[string]limits.EgressBudget{
		"zero":           {},
		"no bytes":       {Hosts: 1},
		"no hosts":       {Bytes: 1},
		"negative bytes": {Bytes: -1, Hosts: 1},
	} {
		if _, err := limits.NewEgress(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestEgressHosts(t *testing.T) {
	e, err := limits.NewEgress(limits.EgressBudget{Bytes: 1, Hosts: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"a", "b", "a", "b"} {
		if err := e.Host(host); err != nil {
			t.Errorf("host %s: %v", host, err)
		}
	}
	over, ok := errors.AsType[*limits.ExceededError](e.Host("c"))
	if !ok || over.Kind != limits.KindEgressHosts || over.Limit != 2 || over.Used != 2 {
		t.Errorf("a third host: %v", over)
	}
	if err := e.Host("a"); err != nil {
		t.Errorf("a known host: %v", err)
	}
}

func TestEgressLeft(t *testing.T) {
	e, err := limits.NewEgress(limits.EgressBudget{Bytes: 2, Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	for want := range int64(2) {
		if bytes, _ := e.Used(); bytes != want || e.Left() != nil {
			t.Errorf("%d bytes used, want %d, left %v", bytes, want, e.Left())
		}
		if n, err := e.Take(1); n != 1 || err != nil {
			t.Errorf("Take(1) = %d, %v", n, err)
		}
	}
	n, err := e.Take(1)
	want := limits.ExceededError{Kind: limits.KindEgressBytes, Limit: 2, Used: 2}
	for _, err := range []error{err, e.Left()} {
		if over, ok := errors.AsType[*limits.ExceededError](err); n != 0 || !ok || *over != want {
			t.Errorf("with nothing left: %d, %v", n, err)
		}
	}
}

// TestEgressIsNeverExceeded takes and returns bytes in many goroutines. The
// bytes used never exceed the budget, and all of the budget can be used.
func TestEgressIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(1, 1000).Draw(t, "budget")
		e, err := limits.NewEgress(limits.EgressBudget{Bytes: budget, Hosts: 1})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var used int64
		var wg sync.WaitGroup
		for range rapid.IntRange(1, 8).Draw(t, "goroutines") {
			want := rapid.Int64Range(1, 100).Draw(t, "want")
			kept := rapid.Int64Range(1, 100).Draw(t, "kept")
			wg.Go(func() {
				for {
					n, err := e.Take(want)
					if err != nil {
						return
					}
					keep := min(n, kept)
					e.Return(n - keep)
					mu.Lock()
					used += keep
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if bytes, _ := e.Used(); used > budget || bytes != used {
			t.Fatalf("%d bytes used, %d counted, of %d", used, bytes, budget)
		}
		for n, err := e.Take(1); err == nil; n, err = e.Take(1) {
			used += n
		}
		if used != budget || e.Left() == nil {
			t.Fatalf("only %d of %d could be used", used, budget)
		}
	})
}

func TestEgressRejectsInvalidCounts(t *testing.T) {
	e, _ := limits.NewEgress(limits.DefaultEgressBudget())
	for _, n := range []int64{0, -1} {
		if got, err := e.Take(n); err == nil || got != 0 {
			t.Errorf("Take(%d) = %d, %v", n, got, err)
		}
	}
	if n, err := e.Take(1); n != 1 || err != nil {
		t.Errorf("Take(1) = %d, %v", n, err)
	}
	e.Return(1)
	e.Return(-5)
	if bytes, _ := e.Used(); bytes != 0 {
		t.Errorf("%d bytes used, want 0", bytes)
	}
}

// TestEgressUpload checks that sent bytes have a separate bound and count towards both.
func TestEgressUpload(t *testing.T) {
	e, err := limits.NewEgress(limits.EgressBudget{Bytes: 10, Upload: 4, Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e.TakeUpload(6); n != 4 || err != nil {
		t.Errorf("took %d: %v", n, err)
	}
	var over *limits.ExceededError
	if _, err := e.TakeUpload(1); !errors.As(err, &over) || over.Kind != limits.KindEgressUpload || over.Used != 4 {
		t.Errorf("beyond: %v", err)
	}
	e.ReturnUpload(1)
	if n, err := e.TakeUpload(6); n != 1 || err != nil {
		t.Errorf("took %d after a return: %v", n, err)
	}
	if n, err := e.Take(10); n != 6 || err != nil {
		t.Errorf("downloads took %d: %v", n, err)
	}
	e, err = limits.NewEgress(limits.EgressBudget{Bytes: 3, Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e.TakeUpload(5); n != 3 || err != nil {
		t.Errorf("without a bound of its own: took %d: %v", n, err)
	}
	if _, err := e.TakeUpload(1); !errors.As(err, &over) || over.Kind != limits.KindEgressBytes {
		t.Errorf("beyond all bytes: %v", err)
	}
}

func TestEgressConnections(t *testing.T) {
	e, err := limits.NewEgress(limits.EgressBudget{Bytes: 1, Connections: 2, Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Connection(), e.Connection()); err != nil {
		t.Error(err)
	}
	var over *limits.ExceededError
	if err := e.Connection(); !errors.As(err, &over) || over.Kind != limits.KindEgressConnections || over.Limit != 2 {
		t.Errorf("third: %v", err)
	}
	if _, err := limits.NewEgress(limits.EgressBudget{Bytes: 1, Connections: -1, Hosts: 1}); err == nil {
		t.Error("a negative bound is accepted")
	}
	if err := limits.DefaultCommandEgressBudget().Validate(); err != nil {
		t.Error(err)
	}
}
