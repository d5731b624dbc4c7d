package dispatch

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// claim is what a call must not share while it runs.
type claim struct {
	class    tools.Class
	parallel bool
	// inOrder is the tool's name if its calls run in order.
	inOrder tools.Name
	// paths are relative to the workspace and cleaned.
	paths []string
}

// conflicts reports whether two calls may not overlap in time, and so run in the
// order requested. Reads share; a write excludes calls on the same path; an execute
// excludes every write and execute unless it is parallel; and some tools run in
// order.
func (c claim) conflicts(o claim) bool {
	if c.inOrder != "" && c.inOrder == o.inOrder {
		return true
	}
	if c.runsAlone() && o.changesFiles() || o.runsAlone() && c.changesFiles() {
		return true
	}
	return c.class == tools.ClassWrite && c.overlaps(o) || o.class == tools.ClassWrite && o.overlaps(c)
}

func (c claim) runsAlone() bool { return c.class == tools.ClassExecute && !c.parallel }

func (c claim) changesFiles() bool {
	return c.class == tools.ClassWrite || c.class == tools.ClassExecute
}

// overlaps reports whether a write may touch a path that another call names: the
// same path, or one above or below it. A write without paths may touch any path and
// overlaps any other write.
func (c claim) overlaps(o claim) bool {
	if len(c.paths) == 0 {
		return len(o.paths) > 0 || o.class == tools.ClassWrite
	}
	for _, a := range c.paths {
		for _, b := range o.paths {
			if within(a, b) || within(b, a) {
				return true
			}
		}
	}
	return false
}

// within reports whether the clean path p is base or below it.
func within(p, base string) bool {
	return base == "." || p == base || strings.HasPrefix(p, base+"/")
}

// claimPaths cleans paths and makes them relative to the workspace, whose roots may
// precede them. It doesn't follow symlinks: the file system orders changes through
// two names.
func claimPaths(paths []string, roots ...string) []string {
	clean := make([]string, 0, len(paths))
	for _, p := range paths {
		for _, root := range roots {
			if root != "" && within(path.Clean(p), root) {
				p = strings.TrimPrefix(path.Clean(p), root)
				break
			}
		}
		clean = append(clean, path.Clean("./"+p))
	}
	return clean
}

type ticket struct {
	claim   claim
	state   ticketState
	started chan struct{} // closed when it gets a slot

	// after is closed when the call that started before has been reported, told
	// when this one has: calls are reported in the order in which they start.
	after, told chan struct{}
}

type ticketState int

const (
	ticketHeld  ticketState = iota // may not start yet
	ticketReady                    // waits for its turn and a slot
	ticketRunning
)

// scheduler gives a session's slots to calls in order of arrival. Conflicting calls
// run in that order.
type scheduler struct {
	mu      sync.Mutex
	slots   int
	tickets []*ticket // in order of arrival, without ended calls
	last    chan struct{}
}

func newScheduler(slots int) *scheduler {
	s := &scheduler{slots: slots, last: make(chan struct{})}
	close(s.last)
	return s
}

// nextTickets returns the tickets that start now: those that are ready, conflict
// with no earlier one, and find a slot.
func nextTickets(tickets []*ticket, slots int) []*ticket {
	for _, t := range tickets {
		if t.state == ticketRunning {
			slots--
		}
	}
	var start []*ticket
	for i, t := range tickets {
		if slots <= 0 {
			break
		}
		if t.state != ticketReady {
			continue
		}
		if slices.ContainsFunc(tickets[:i], func(earlier *ticket) bool { return earlier.claim.conflicts(t.claim) }) {
			continue
		}
		start = append(start, t)
		slots--
	}
	return start
}

// arrival is a new call, held until it is answered, or ready.
type arrival struct {
	claim claim
	ready bool
}

func (s *scheduler) addCalls(calls []arrival) []*ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*ticket, len(calls))
	for i, c := range calls {
		list[i] = &ticket{claim: c.claim, started: make(chan struct{}), told: make(chan struct{})}
		if c.ready {
			list[i].state = ticketReady
		}
	}
	s.tickets = append(s.tickets, list...)
	s.startTickets()
	return list
}

// acquireSlot waits until the call holds a slot, or ctx ends. The caller must give
// the ticket back in both cases.
func (s *scheduler) acquireSlot(ctx context.Context, t *ticket) error {
	s.mu.Lock()
	if t.state == ticketHeld {
		t.state = ticketReady
		s.startTickets()
	}
	s.mu.Unlock()
	select {
	case <-t.started:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// holdTicket releases the slot but keeps the call's place in the order.
func (s *scheduler) holdTicket(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.started = make(chan struct{})
	t.state = ticketHeld
	s.startTickets()
}

// giveBack ends a call, so that others can start.
func (s *scheduler) giveBack(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.announceStart()
	s.tickets = slices.DeleteFunc(s.tickets, func(o *ticket) bool { return o == t })
	s.startTickets()
}

func (s *scheduler) startTickets() {
	for _, t := range nextTickets(s.tickets, s.slots) {
		t.state = ticketRunning
		if t.after == nil {
			t.after, s.last = s.last, t.told
		}
		close(t.started)
	}
}

// announceStart lets calls that started later be reported. Only the call's
// goroutine calls it, perhaps more than once.
func (t *ticket) announceStart() {
	if !isClosed(t.told) {
		close(t.told)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
