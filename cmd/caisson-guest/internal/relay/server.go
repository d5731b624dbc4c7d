package relay

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/output"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Server moves the connections and lookups of programs, for one host.
type Server struct {
	writer  *wire.Writer
	slots   output.Slots
	l       *Listeners
	owners  *owners
	places  chan struct{} // one element for each accepted connection
	shares  *shares
	lookups chan struct{} // one element for each lookup
	blocks  chan struct{} // one element for each block in use
	pool    sync.Pool     // of *wire.Block
	pace    pace
	pause   pause

	opening sync.Mutex // held while a stream is opened: ids go out in order
	mu      sync.Mutex
	streams map[uint32]stream
	last    uint32
}

// stream is a stream that the guest opened. The goroutine that reads frames
// calls its methods, which must not wait.
type stream interface {
	takeFrame(f wire.Frame) error
}

// blockSize is the size of one read of a connection, movingBlocks the number of
// blocks read and not yet sent.
const (
	blockSize    = 128 << 10
	movingBlocks = 4
)

// New returns a server of listeners. slots bounds the concurrent system calls
// that move data.
func New(l *Listeners, w *wire.Writer, slots output.Slots) *Server {
	owners := newOwners()
	rate, pausing := connRate, pauseTime
	if !owners.useDiag() { // gVisor
		rate, pausing = slowConnRate, slowPauseTime
	}
	return &Server{
		writer: w, slots: slots, l: l, owners: owners, streams: map[uint32]stream{},
		places: make(chan struct{}, maxAccepted), shares: newShares(wire.MaxRelays), lookups: make(chan struct{}, wire.MaxLookups), blocks: make(chan struct{}, movingBlocks),
		pool: sync.Pool{New: func() any { return wire.NewBlock(blockSize) }},
		pace: pace{interval: time.Second / time.Duration(rate*runtime.NumCPU())}, pause: pause{time: pausing},
	}
}

// Start begins to accept connections and lookups, for good.
func (s *Server) Start() {
	for _, l := range s.l.streams {
		go s.acceptAll(l, s.places, s.runRelay)
	}
	if s.l.names != nil {
		q := newTurns()
		go s.readDatagrams(s.l.names, q)
		go s.answerDatagrams(s.l.names, q)
		go s.acceptAll(s.l.queries, make(chan struct{}, maxQueryConns), s.answerQueries)
	}
}

// TakeFrame processes a host's frame on a stream that the guest opened. The
// host ends each stream last, so the stream must be open.
func (s *Server) TakeFrame(f wire.Frame) error {
	s.mu.Lock()
	st, last := s.streams[f.Stream], s.last
	s.mu.Unlock()
	if st == nil {
		return fmt.Errorf("%w: stream %d of %d of the guest is not open", wire.ErrProtocol, f.Stream, last)
	}
	return st.takeFrame(f)
}

// open opens a stream and sends its first frames. The goroutine that reads will
// see a failure to send.
func (s *Server) open(request wire.Open, make func(id uint32) stream, first []byte) {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.mu.Lock()
	s.last += 2
	id := s.last
	s.streams[id] = make(id)
	s.mu.Unlock()
	open, err := wire.JSON(id, wire.TypeOpen, request)
	if err != nil {
		panic("caisson-guest: " + err.Error()) // plain values always encode
	}
	frames := []wire.Frame{open}
	if len(first) > 0 {
		frames = append(frames, wire.Frame{Stream: id, Type: wire.TypeData, Channel: wire.Stdout, Payload: first})
	}
	_ = s.writer.Send(frames...)
}

func (s *Server) remove(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, id)
}

// errorPause is how long a listener waits after an error, such as too many open
// files.
const errorPause = 50 * time.Millisecond

// acceptAll accepts a listener's connections, as many at once as places has
// room for; others wait in the backlog. A place is free again when serve has
// returned.
func (s *Server) acceptAll(l *socket, places chan struct{}, serve func(connection)) {
	for {
		var c connection
		var failed error
		err := l.raw.Read(func(fd uintptr) bool {
			places <- struct{}{}
			s.slots.Do(func() { c, failed = accept(int(fd)) })
			if failed != nil {
				<-places
			}
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return // the listener is closed, which only tests do
		case failed != nil:
			if !errors.Is(failed, unix.ECONNABORTED) && !errors.Is(failed, unix.EINTR) {
				<-time.After(errorPause)
			}
		default:
			pause := s.pace.next()
			if pause > 0 && c.hasEnded() {
				pause = 0
				s.pace.skip()
			}
			go func() {
				defer func() { <-places }()
				serve(c)
			}()
			if pause > 0 {
				<-time.After(pause)
			}
		}
	}
}
