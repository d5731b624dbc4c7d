package dispatch

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// claim describes what a call must not share while it runs.
type claim struct {
	class    tools.Class
	parallel bool
	// inOrder is the tool, if its calls run in order.
	inOrder tools.Name
	// paths are relative to the workspace, clean, with slashes.
	paths []string
}

// conflicts reports whether two calls may not run at the same time, and so run in
// the order in which they were asked for: reads share; a write excludes calls
// on the same path; an execute excludes every write and execute unless it is
// parallel; and some tools run in order.
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

// overlaps reports whether a write touches a path that another call names: the same
// path, or one above or below it. A write that names nothing may touch
// anything that is named, and anything that another write does.
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

// claimPaths brings paths to the form that claims compare: relative to the
// workspace, whether they were given so or absolute below one of its roots. Symlinks
// are not followed: two names of one file are ordered by the file system.
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

// ticket is one call's place in the scheduler.
type ticket struct {
	claim   claim
	state   ticketState
	started chan struct{} // closed when it holds a slot

	// after is closed when the call that started before has said so, told when
	// this one has: calls are reported in the order in which they start.
	after, told chan struct{}
}

type ticketState int

const (
	ticketHeld    ticketState = iota // not yet allowed to start
	ticketReady                      // waits for its turn and a slot
	ticketRunning                    // holds a slot
)

// scheduler assigns the slots of a session to calls, in the order in which they
// arrived, and keeps calls that conflict in that order.
type scheduler struct {
	mu      sync.Mutex
	slots   int
	tickets []*ticket // in order of arrival, none done
	last    chan struct{}
}

func newScheduler(slots int) *scheduler {
	s := &scheduler{slots: slots, last: make(chan struct{})}
	close(s.last)
	return s
}

// nextTickets returns the tickets that start now, given all that are not done in order of
// arrival: those that are ready, conflict with no earlier one, and find a slot.
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

// arrival is a call as it comes: held until an answer was given, or ready.
type arrival struct {
	claim claim
	ready bool
}

// addCalls adds calls, in order; those that are ready start at once where they can.
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

// acquireSlot waits until the call holds a slot, or ctx ends. Whatever it returns,
// the ticket must be given back.
func (s *scheduler) acquireSlot(ctx context.Context, t *ticket) error {
	s.releaseTicket(t)
	select {
	case <-t.started:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// holdTicket releases the slot and keeps the call's place in the order.
func (s *scheduler) holdTicket(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.started = make(chan struct{})
	t.state = ticketHeld
	s.startTickets()
}

// giveBack ends a call: what waited for it or its slot can start.
func (s *scheduler) giveBack(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.announceStart()
	s.tickets = slices.DeleteFunc(s.tickets, func(o *ticket) bool { return o == t })
	s.startTickets()
}

// releaseTicket lets a call that was held start when it is its turn.
func (s *scheduler) releaseTicket(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.state == ticketHeld {
		t.state = ticketReady
		s.startTickets()
	}
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

// announceStart lets the calls that started later be reported. It is called by the
// goroutine of the call alone, and may be called again.
func (t *ticket) announceStart() {
	select {
	case <-t.told:
	default:
		close(t.told)
	}
}
