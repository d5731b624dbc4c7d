package execsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// kind is the kind of a frame.
type kind byte

const (
	kindRequest kind = iota + 1 // JSON, once, first
	kindStdin
	kindStdinEnd
	kindCancel
	kindCredit // four bytes: so much more stdin may come
	kindStdout
	kindStderr
	kindResult // JSON, once, last
)

const (
	// maxData bounds a piece of a stream.
	maxData = 32 << 10
	// maxRequest holds the longest command that a guest takes (2.5 MB) in JSON.
	maxRequest = 6 << 20
	// maxResult holds a result with the cause of a loss.
	maxResult = 64 << 10
	// window is how much stdin may be under way, so that a command that does
	// not read keeps neither a cancellation from being seen nor memory.
	window = 64 << 10
)

// errProtocol says that the other side broke the rules of the package's
// comment.
var errProtocol = errors.New("the other side does not speak this protocol")

// bound gives the longest payload of a kind, and whether it is known.
func (k kind) bound() (int, bool) {
	switch k {
	case kindRequest:
		return maxRequest, true
	case kindStdin, kindStdout, kindStderr:
		return maxData, true
	case kindStdinEnd, kindCancel:
		return 0, true
	case kindCredit:
		return 4, true
	case kindResult:
		return maxResult, true
	}
	return 0, false
}

const headerSize = 5

// readFrame reads one frame. The payload is the caller's.
func readFrame(r io.Reader) (kind, []byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	k, length := kind(header[0]), binary.BigEndian.Uint32(header[1:])
	most, ok := k.bound()
	if !ok || int64(length) > int64(most) {
		return 0, nil, fmt.Errorf("%w: a frame of kind %d with %d bytes", errProtocol, k, length)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return k, payload, nil
}

// sender writes whole frames. After a write that failed, which may have left
// half a frame, nothing more is sent. It is safe for concurrent use.
type sender struct {
	mu   sync.Mutex
	conn net.Conn
	err  error
}

func (s *sender) send(k kind, payload []byte) error {
	most, ok := k.bound()
	if !ok || len(payload) > most {
		return fmt.Errorf("%w: a frame of kind %d with %d bytes is not sent", errProtocol, k, len(payload))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	frame := make([]byte, headerSize, headerSize+len(payload))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, s.err = s.conn.Write(append(frame, payload...))
	return s.err
}

// output is one output stream as a writer.
type output struct {
	sender *sender
	kind   kind
}

func (o output) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		piece := p[sent:min(len(p), sent+maxData)]
		if err := o.sender.send(o.kind, piece); err != nil {
			return sent, err
		}
		sent += len(piece)
	}
	return sent, nil
}
