package changes

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// scratch is an unnamed file, which is gone with the process, for data that is too large for
// memory. It is safe for concurrent use.
type scratch struct {
	mu   sync.Mutex
	file *os.File
	size int64 // including buffer
	// buffer is yet to be written. If that fails with err, it stays readable, and nothing more
	// can be added.
	buffer []byte
	err    error
}

const bufferBytes = 256 << 10

type extent struct {
	offset int64
	length int
}

func newScratch(dir string) (*scratch, error) {
	f, err := os.CreateTemp(dir, "scratch-")
	if err != nil {
		return nil, fmt.Errorf("create scratch file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("create scratch file: %w", err), f.Close())
	}
	return &scratch{file: f}, nil
}

func (s *scratch) appendText(text []byte) (extent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return extent{}, s.err
	}
	e := extent{s.size, len(text)}
	s.buffer = append(s.buffer, text...)
	if len(s.buffer) >= bufferBytes {
		if _, err := s.file.WriteAt(s.buffer, s.size+int64(len(text)-len(s.buffer))); err != nil {
			s.err = fmt.Errorf("write scratch file: %w", err)
			s.buffer = s.buffer[:len(s.buffer)-len(text)]
			return extent{}, s.err
		}
		s.buffer = s.buffer[:0]
	}
	s.size += int64(len(text))
	return e, nil
}

// readExtent returns a piece of the file. It needs no room on disk, which commands may have
// filled.
func (s *scratch) readExtent(e extent) ([]byte, error) {
	text := make([]byte, e.length)
	s.mu.Lock()
	written := s.size - int64(len(s.buffer))
	if e.offset >= written {
		copy(text, s.buffer[e.offset-written:])
		s.mu.Unlock()
		return text, nil
	}
	s.mu.Unlock()
	if _, err := s.file.ReadAt(text, e.offset); err != nil {
		return nil, fmt.Errorf("read scratch file: %w", err)
	}
	return text, nil
}

func (s *scratch) close() error { return s.file.Close() }
