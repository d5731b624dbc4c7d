package relay

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestShares checks that owners with a full share leave relays to others, which
// need not wait until one of theirs ends.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(wire.MaxRelays)
		got := map[owner]int{}
		open := func(o owner, n int) {
			for range n {
				go func() {
					s.take(o)
					s.mu.Lock()
					got[o]++
					s.mu.Unlock()
				}()
			}
			synctest.Wait()
		}
		of := func(addr string, uid int64) owner { return owner{netip.MustParseAddr(addr), uid} }
		a, b, c, d, e := of("127.80.0.1", 1), of("127.80.0.2", 1), of("127.80.0.1", 2), of("127.96.0.1", 1), of("127.96.0.2", -1)
		want := func(what string, numbers ...int) {
			t.Helper()
			for i, o := range []owner{a, b, c, d, e} {
				if got[o] != numbers[i] {
					t.Errorf("%s: %v has had %d, want %d", what, o, got[o], numbers[i])
				}
			}
		}
		open(a, 100)
		want("one alone", 48, 0, 0, 0, 0)
		open(b, 1)
		want("another one", 48, 1, 0, 0, 0)
		open(b, 20)
		want("two", 48, 12, 0, 0, 0)
		open(c, 10)
		open(d, 10)
		open(e, 10)
		want("five", 48, 12, 3, 1, 0)
		s.put(a)
		synctest.Wait()
		want("a place is free", 48, 12, 3, 1, 1)
		for range 11 {
			s.put(b)
		}
		synctest.Wait()
		// Owners that hold the fewest are first.
		want("those of b have ended", 48, 15, 4, 4, 4)
		for s.freeAll(a, b, c, d, e) {
			synctest.Wait()
		}
		want("all", 100, 21, 10, 10, 10)
		if s.free != wire.MaxRelays || len(s.held) != 0 || len(s.waiting) != 0 {
			t.Errorf("%d are free, %v held, %d wait", s.free, s.held, len(s.waiting))
		}
	})
}

// freeAll returns a relay of each owner, and reports whether each had one.
func (s *shares) freeAll(list ...owner) bool {
	any := false
	for _, o := range list {
		s.mu.Lock()
		held := s.held[o]
		s.mu.Unlock()
		if held > 0 {
			s.put(o)
			any = true
		}
	}
	return any
}
