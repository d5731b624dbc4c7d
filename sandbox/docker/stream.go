package docker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/docker/docker/api/types"
)

// stream is an attached container as a byte stream: writes go to its standard
// input, reads come from its standard output. The engine sends both outputs in
// frames:
//
//	u8 stream (1 stdout, 2 stderr, 3 the engine's own error) │ 3 zero bytes │ u32 length │ bytes
//
// Standard error, where only a crashing guest writes, is kept for messages up
// to maxStderr. One goroutine may read and one write; Close unblocks both.
type stream struct {
	conn      net.Conn
	reader    *bufio.Reader
	kind      byte   // of the current frame
	remaining uint32 // in the frame
	mu        sync.Mutex
	stderr    []byte
	once      sync.Once
	closed    error
}

const (
	frameHeader = 8
	kindStdin   = 0 // the engine's name for a detached container's stdout
	kindStdout  = 1
	kindStderr  = 2
	kindError   = 3
	// maxStderr fits a Go panic with its first goroutine.
	maxStderr = 8 << 10
)

// readSize is the read buffer's size. The client's own buffer holds only an
// eighth of what the engine sends at a time.
const readSize = 128 << 10

// newStream continues with what the client has read beyond the answer's header.
func newStream(r *types.HijackedResponse) *stream {
	return &stream{conn: r.Conn, reader: bufio.NewReaderSize(r.Reader, readSize)}
}

func (s *stream) Read(p []byte) (int, error) {
	for {
		for s.remaining == 0 {
			if err := s.readHeader(); err != nil {
				return 0, err
			}
		}
		if s.kind == kindStdout || s.kind == kindStdin {
			n, err := s.reader.Read(p[:min(len(p), int(s.remaining))])
			s.remaining -= uint32(n)
			return n, err
		}
		if err := s.readOther(); err != nil {
			return 0, err
		}
	}
}

func (s *stream) readHeader() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(s.reader, header[:]); err != nil {
		return err
	}
	s.kind, s.remaining = header[0], binary.BigEndian.Uint32(header[4:])
	if s.kind > kindError {
		return fmt.Errorf("read from engine: frame of unknown stream %d", s.kind)
	}
	return nil
}

func (s *stream) readOther() error {
	chunk := make([]byte, min(s.remaining, 4096))
	n, err := io.ReadFull(s.reader, chunk)
	s.remaining -= uint32(n)
	if s.kind == kindError {
		return fmt.Errorf("engine: %q", chunk[:n])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stderr = append(s.stderr, chunk[:min(n, maxStderr-len(s.stderr))]...)
	return err
}

func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close closes the connection. The engine then closes the container's standard
// input.
func (s *stream) Close() error {
	s.once.Do(func() { s.closed = s.conn.Close() })
	return s.closed
}

func (s *stream) Stderr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.stderr)
}
