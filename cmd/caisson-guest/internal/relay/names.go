package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// maxQuery bounds a query, in bytes: a question has at most 259, and
	// options.
	maxQuery      = 1232
	maxQueryConns = 8
	// queryTime is how long such a connection may be idle.
	queryTime = 10 * time.Second
)

// lookup is a name that the host was asked for.
type lookup struct {
	s      *Server
	id     uint32
	answer chan wire.LookupAnswer
}

func (l *lookup) takeFrame(f wire.Frame) error {
	var answer wire.LookupAnswer
	if f.Type != wire.TypeEnd {
		return fmt.Errorf("%w: a host doesn't send this for a lookup", wire.ErrProtocol)
	}
	if err := wire.Decode(f.Payload, &answer); err != nil {
		return err
	}
	l.s.remove(l.id)
	l.answer <- answer
	return nil
}

// answerQuery returns the answer to a message, or nil. It may wait for the
// host.
func (s *Server) answerQuery(message []byte) []byte {
	q, ok := parseQuery(message)
	if !ok {
		return nil
	}
	if q.name == "" || q.code != 0 {
		return q.respond(false, [4]byte{})
	}
	l := &lookup{s: s, answer: make(chan wire.LookupAnswer, 1)}
	s.lookups <- struct{}{}
	s.open(wire.Open{Lookup: &wire.Lookup{Name: q.name}}, func(id uint32) stream {
		l.id = id
		return l
	}, nil)
	answer := <-l.answer
	<-s.lookups
	if answer.Address == nil || !answer.Address.Is4() {
		return q.respond(false, [4]byte{})
	}
	return q.respond(true, answer.Address.As4())
}

// datagram is a query over UDP.
type datagram struct {
	message []byte
	from    unix.Sockaddr
}

const (
	// maxWaiting bounds the waiting queries. A port has at most one for
	// portShare free places, 16 of 1,024 if no others wait, so that a program
	// with few ports leaves room for others.
	maxWaiting = 1024
	portShare  = 64
)

// turns holds datagrams until their turn. Ports take turns: most programs use
// one for each lookup, so a program that asks without end from a port doesn't
// keep others from being answered. A datagram's command can't be found out.
type turns struct {
	mu      sync.Mutex
	waiting map[int][]datagram // by port
	ports   []int              // of waiting, in order
	total   int
	added   chan struct{} // has an element for each datagram
}

func newTurns() *turns {
	return &turns{waiting: map[int][]datagram{}, added: make(chan struct{}, maxWaiting)}
}

// add adds a datagram of a port, or drops it.
func (q *turns) add(port int, d datagram) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.waiting[port]
	if len(before)*portShare >= maxWaiting-q.total {
		return
	}
	if len(before) == 0 {
		q.ports = append(q.ports, port)
	}
	q.waiting[port] = append(before, d)
	q.total++
	q.added <- struct{}{}
}

// next waits for the next datagram, and removes it.
func (q *turns) next() datagram {
	<-q.added
	q.mu.Lock()
	defer q.mu.Unlock()
	port := q.ports[0]
	q.ports = q.ports[1:]
	list := q.waiting[port]
	if len(list) > 1 {
		q.waiting[port] = list[1:]
		q.ports = append(q.ports, port)
	} else {
		delete(q.waiting, port)
	}
	q.total--
	return list[0]
}

// readDatagrams adds queries over UDP to the turns, for good. It waits for
// nothing else: one program's queries could fill the socket, and the kernel
// would drop all others.
func (s *Server) readDatagrams(names *socket, q *turns) {
	var message [maxQuery]byte
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := names.raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), message[:], unix.MSG_DONTWAIT)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil {
			return // the socket is closed, which only tests do
		}
		if in, ok := from.(*unix.SockaddrInet4); ok && failed == nil {
			q.add(in.Port, datagram{slices.Clone(message[:n]), from})
		}
	}
}

// answerDatagrams answers queries over UDP, for good.
func (s *Server) answerDatagrams(names *socket, q *turns) {
	places := make(chan struct{}, wire.MaxLookups)
	for {
		places <- struct{}{}
		d := q.next()
		go func() {
			defer func() { <-places }()
			if answer := s.answerQuery(d.message); answer != nil {
				_ = names.raw.Control(func(fd uintptr) {
					s.slots.Do(func() { _ = unix.Sendto(int(fd), answer, 0, d.from) }) // lost answers are asked for again
				})
			}
		}()
	}
}

// answerQueries answers the queries of a connection. Each follows its length.
func (s *Server) answerQueries(c connection) {
	defer func() { _ = c.file.Close() }()
	var buf [2 + maxQuery]byte
	for {
		_ = c.file.SetDeadline(time.Now().Add(queryTime))
		if _, err := io.ReadFull(c.file, buf[:2]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(buf[:2]))
		if size > maxQuery {
			return
		}
		if _, err := io.ReadFull(c.file, buf[2:2+size]); err != nil {
			return
		}
		answer := s.answerQuery(buf[2 : 2+size])
		if answer == nil {
			return
		}
		if _, err := c.file.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
