package relay

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// maxAccepted is how many connections are accepted at once: those that have a relay,
// and those that wait for one. Further ones wait in the backlog, where they keep those
// of other commands waiting. The guest may have 4,096 files.
const maxAccepted = 1024

// share is how many times as many relays as are free one owner may have.
const share = 3

// owner is what has a share of the relays: the connections of a user to one address,
// which is that of a command's proxy or of a name.
type owner struct {
	addr netip.Addr
	uid  int64 // -1 if it is unknown
}

func ownerOf(a wire.Accept) owner {
	o := owner{a.Local.Addr(), -1}
	if a.UID != nil {
		o.uid = int64(*a.UID)
	}
	return o
}

// shares divides the relays among owners. An owner has at most three times as many as
// are free: alone it has 48 of 64, a second one beside it 12, and a third 3. So one
// whose connections stay open for long doesn't keep others from having any. Its further
// ones wait.
type shares struct {
	mu      sync.Mutex
	free    int
	held    map[owner]int
	waiting []waiting
}

// waiting is a connection that has no relay yet.
type waiting struct {
	owner owner
	ready chan struct{} // closed when it has one
}

func newShares(relays int) *shares {
	return &shares{free: relays, held: map[owner]int{}}
}

// take waits until an owner may have one more relay, and takes it.
func (s *shares) take(o owner) {
	w := waiting{o, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.hand()
	s.mu.Unlock()
	<-w.ready
}

// put returns a relay of an owner.
func (s *shares) put(o owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	s.held[o]--
	if s.held[o] == 0 {
		delete(s.held, o)
	}
	s.hand()
}

// hand hands free relays to those that wait and may have one: the owner that holds the
// fewest is first.
func (s *shares) hand() {
	for {
		next, fewest := -1, share*s.free
		for i, w := range s.waiting {
			if held := s.held[w.owner]; held < fewest {
				next, fewest = i, held
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		s.free--
		s.held[w.owner]++
		close(w.ready)
	}
}
