//go:build linux

package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// maxQuery is the longest query that is read, in bytes: one has a question of
	// at most 259, and options.
	maxQuery = 1232
	// maxQueryConns bounds the connections for lookups.
	maxQueryConns = 8
	// queryTime is how long one of them may be idle.
	queryTime = 10 * time.Second
)

// lookup is a name that the host was asked for.
type lookup struct {
	s      *Server
	id     uint32
	answer chan wire.LookupAnswer
}

// takeFrame processes the host's answer.
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

// answerQuery answers a message; nil is no answer. It may wait for the host.
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

// answerDatagrams answers the queries that come by UDP, for good. While the most
// lookups wait for the host, others wait in the socket, and are dropped by the
// kernel when that is full.
func (s *Server) answerDatagrams(names *socket) {
	places := make(chan struct{}, wire.MaxLookups)
	for {
		var message [maxQuery]byte
		var n int
		var from unix.Sockaddr
		var failed error
		err := names.raw.Read(func(fd uintptr) bool {
			places <- struct{}{}
			s.slots.Do(func() { n, from, failed = unix.Recvfrom(int(fd), message[:], 0) })
			if failed != nil {
				<-places
			}
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil {
			return // the socket is closed, which only tests do
		}
		if failed != nil {
			continue
		}
		go func() {
			defer func() { <-places }()
			if answer := s.answerQuery(message[:n]); answer != nil {
				_ = names.raw.Control(func(fd uintptr) {
					s.slots.Do(func() { _ = unix.Sendto(int(fd), answer, 0, from) }) // lost answers are asked for again
				})
			}
		}()
	}
}

// answerQueries answers the queries that come on a connection: each has its
// length before it.
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
