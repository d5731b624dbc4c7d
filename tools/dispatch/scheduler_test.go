package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/tools"
)

func TestConflicts(t *testing.T) {
	read := func(paths ...string) claim { return claim{class: tools.ClassRead, paths: paths} }
	write := func(paths ...string) claim { return claim{class: tools.ClassWrite, paths: paths} }
	execute, parallel := claim{class: tools.ClassExecute}, claim{class: tools.ClassExecute, parallel: true}
	none, network := claim{class: tools.ClassNone}, claim{class: tools.ClassNetwork}
	tests := []struct {
		a, b claim
		want bool
	}{
		{read("a"), read("a"), false},
		{read("a"), write("a"), true},
		{read("a"), write("b"), false},
		{write("a"), write("a"), true},
		{write("a"), write("b"), false},
		{write("d/a"), read("d"), true},
		{write("d"), read("d/a"), true},
		{write("."), read("a"), true},
		{write("da"), read("d"), false},
		{write("d/a"), write("d/ab"), false},
		{write("a", "b"), read("c", "b"), true},
		{write(), read("a"), true},
		{write(), read(), false},
		{write(), write(), true},
		{write(), write("a"), true},
		{execute, execute, true},
		{execute, write("a"), true},
		{execute, read("a"), false},
		{execute, none, false},
		{execute, network, false},
		{execute, parallel, true},
		{parallel, parallel, false},
		{parallel, write("a"), false},
		{parallel, read("a"), false},
		{none, none, false},
		{claim{class: tools.ClassNone, inOrder: "load_skill"}, claim{class: tools.ClassNone, inOrder: "load_skill"}, true},
		{claim{class: tools.ClassNone, inOrder: "load_skill"}, claim{class: tools.ClassNone, inOrder: "other"}, false},
		{claim{class: tools.ClassNone, inOrder: "load_skill"}, none, false},
		{network, network, false},
		{network, write("a"), false},
		{none, write("a"), false},
	}
	for _, tt := range tests {
		if got := tt.a.conflicts(tt.b); got != tt.want {
			t.Errorf("%v against %v: %t, want %t", tt.a, tt.b, got, tt.want)
		}
		if got := tt.b.conflicts(tt.a); got != tt.want {
			t.Errorf("%v against %v: %t, want %t", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestClaimPathsAreOneForm(t *testing.T) {
	got := claimPaths([]string{"a", "./a/", "a/../b", "/workspace/a", "/home/me/p/a", "/workspace", "", "/workspace-2/a", "/home/me/p/workspace/a"}, "/home/me/p", "/workspace")
	want := []string{"a", "a", "b", "a", "a", ".", ".", "workspace-2/a", "workspace/a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// drawClaim draws a claim over a few paths, so that conflicts are common.
func drawClaim(t *rapid.T) claim {
	c := claim{class: rapid.SampledFrom([]tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork}).Draw(t, "class")}
	c.parallel = c.class == tools.ClassExecute && rapid.Bool().Draw(t, "parallel")
	c.paths = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "d", "d/x"}), 0, 2).Draw(t, "paths")
	return c
}

// history drives a scheduler through a random sequence of arrivals, answers and
// ends, and returns what went wrong, or "". The model is just three rules: never
// more than the slots, never two that conflict, and of two that conflict the
// earlier one first.
func history(t *rapid.T, choose func([]*ticket, int) []*ticket) string {
	slots := rapid.IntRange(1, 4).Draw(t, "slots")
	var open []*ticket
	started := map[*ticket]int{}
	ended := map[*ticket]int{}
	clock := 0
	settle := func() {
		for _, tk := range choose(open, slots) {
			tk.state = ticketRunning
			clock++
			started[tk] = clock
		}
	}
	pick := func(state ticketState) *ticket {
		var of []*ticket
		for _, tk := range open {
			if tk.state == state {
				of = append(of, tk)
			}
		}
		if len(of) == 0 {
			return nil
		}
		return of[rapid.IntRange(0, len(of)-1).Draw(t, "which")]
	}
	end := func(tk *ticket) {
		clock++
		ended[tk] = clock
		open = slices.DeleteFunc(open, func(o *ticket) bool { return o == tk })
	}
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 3).Draw(t, "step") {
		case 0:
			tk := &ticket{claim: drawClaim(t)}
			open = append(open, tk)
		case 1:
			if tk := pick(ticketHeld); tk != nil {
				tk.state = ticketReady
			}
		case 2:
			if tk := pick(ticketRunning); tk != nil {
				end(tk)
			}
		case 3: // refused
			if tk := pick(ticketHeld); tk != nil {
				end(tk)
			}
		}
		settle()
		running := 0
		for i, a := range open {
			if a.state != ticketRunning {
				continue
			}
			running++
			for _, b := range open[:i] {
				if a.claim.conflicts(b.claim) {
					return fmt.Sprintf("%v runs while the earlier %v is not done", a.claim, b.claim)
				}
			}
		}
		if running > slots {
			return fmt.Sprintf("%d run in %d slots", running, slots)
		}
		if running < slots {
			for i, a := range open {
				if a.state == ticketReady && !slices.ContainsFunc(open[:i], func(b *ticket) bool { return a.claim.conflicts(b.claim) }) {
					return fmt.Sprintf("%v waits though nothing is in its way", a.claim)
				}
			}
		}
	}
	// When every question is answered, the rest ends: nothing waits forever.
	for _, tk := range open {
		if tk.state == ticketHeld {
			tk.state = ticketReady
		}
	}
	for len(open) > 0 {
		settle()
		tk := pick(ticketRunning)
		if tk == nil {
			return "calls wait for each other"
		}
		end(tk)
	}
	return ""
}

func TestSchedulerAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if wrong := history(t, nextTickets); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// The model must catch schedulers that each leave out a rule.
func TestSchedulerModelSeesWrongSchedulers(t *testing.T) {
	wrong := map[string]func([]*ticket, int) []*ticket{
		"everything at once": func(tickets []*ticket, _ int) []*ticket { return nextTickets(tickets, len(tickets)) },
		"no order": func(tickets []*ticket, slots int) []*ticket {
			running, rest := []*ticket{}, []*ticket{}
			for _, tk := range tickets {
				if tk.state == ticketRunning {
					running = append(running, tk)
				} else {
					rest = append(rest, tk)
				}
			}
			slices.Reverse(rest)
			return nextTickets(append(running, rest...), slots)
		},
		"no exclusion": func(tickets []*ticket, slots int) []*ticket {
			var start []*ticket
			for _, tk := range tickets {
				if tk.state == ticketRunning {
					slots--
				}
			}
			for _, tk := range tickets {
				if tk.state == ticketReady && slots > 0 {
					start = append(start, tk)
					slots--
				}
			}
			return start
		},
		"nothing": func([]*ticket, int) []*ticket { return nil },
	}
	for name, choose := range wrong {
		seen := ""
		for seed := range 300 {
			seen = rapid.Custom(func(t *rapid.T) string { return history(t, choose) }).Example(seed)
			if seen != "" {
				break
			}
		}
		if seen == "" {
			t.Errorf("the model does not see a scheduler with %s", name)
		}
	}
}

func TestSchedulerWaitsAndCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(1)
		tickets := s.addCalls(make([]arrival, 3))
		if err := s.acquireSlot(t.Context(), tickets[0]); err != nil {
			t.Fatal(err)
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error, 2)
		go func() { got <- s.acquireSlot(ctx, tickets[1]) }()
		synctest.Wait()
		cancel(cause)
		if err := <-got; !errors.Is(err, cause) {
			t.Errorf("a cancelled wait ends with %v", err)
		}
		s.giveBack(tickets[1])
		go func() { got <- s.acquireSlot(t.Context(), tickets[2]) }()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("two hold one slot")
		}
		s.holdTicket(tickets[0]) // gives the slot back, keeps its place
		if err := <-got; err != nil {
			t.Error(err)
		}
		s.giveBack(tickets[2])
		if err := s.acquireSlot(t.Context(), tickets[0]); err != nil {
			t.Error(err)
		}
		s.giveBack(tickets[0])
		s.giveBack(tickets[0])
		if len(s.tickets) != 0 {
			t.Errorf("%d tickets are left", len(s.tickets))
		}
	})
}
