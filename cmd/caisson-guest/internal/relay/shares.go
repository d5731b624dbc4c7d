package relay

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// maxAccepted bounds the accepted connections, with a relay or waiting for one.
// Others wait in the backlog, where they make other commands' connections wait.
// The guest may have 4,096 files.
const maxAccepted = 1024

// share bounds an owner's relays: one that holds share times as many as are
// free gets no more.
const share = 3

// owner is what has a share of the relays: the connections of one user to one
// address of the guest. Each command's proxy and each name has its own address.
type owner struct {
	addr netip.Addr
	uid  int64 // -1 if unknown
}

func ownerOf(a wire.Accept) owner {
	o := owner{a.Local.Addr(), -1}
	if a.UID != nil {
		o.uid = int64(*a.UID)
	}
	return o
}

// shares divides the relays among owners by [share]: of 64 relays, one owner
// alone has at most 48, a second one then 12, and a third 3. So an owner of
// long-lived connections doesn't keep others from having any. Its other
// connections wait.
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

// take waits until an owner may have another relay, and takes it.
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

// hand hands free relays to waiting connections that may have one, first to the
// owner that holds the fewest.
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
