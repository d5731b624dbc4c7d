package changes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// scratch is a file without a name, which is gone with the process: it keeps
// what is too much for memory. It is safe for concurrent use.
type scratch struct {
	mu   sync.Mutex
	file *os.File
	size int64 // with what is in buffer
	// buffer is what is yet to be written.
	buffer []byte
}

// bufferBytes is the size from which text is written.
const bufferBytes = 256 << 10

// extent is a piece of a scratch file.
type extent struct {
	offset int64
	length int
}

// newScratch creates a scratch file in the directory dir.
func newScratch(dir string) (*scratch, error) {
	f, err := os.CreateTemp(dir, "scratch-")
	if err != nil {
		return nil, fmt.Errorf("create scratch file: %w", err)
	}
	// Where an open file can't be removed, close does it.
	_ = os.Remove(f.Name())
	return &scratch{file: f}, nil
}

// appendText adds text to the file.
func (s *scratch) appendText(text []byte) (extent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := extent{s.size, len(text)}
	s.buffer = append(s.buffer, text...)
	s.size += int64(len(text))
	if len(s.buffer) < bufferBytes {
		return e, nil
	}
	return e, s.flush()
}

// flush writes the buffer. The caller holds mu.
func (s *scratch) flush() error {
	if _, err := s.file.WriteAt(s.buffer, s.size-int64(len(s.buffer))); err != nil {
		return fmt.Errorf("write scratch file: %w", err)
	}
	s.buffer = s.buffer[:0]
	return nil
}

// readExtent returns a piece of the file.
func (s *scratch) readExtent(e extent) ([]byte, error) {
	s.mu.Lock()
	err := s.flush()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	text := make([]byte, e.length)
	if _, err := s.file.ReadAt(text, e.offset); err != nil && e.length > 0 {
		return nil, fmt.Errorf("read scratch file: %w", err)
	}
	return text, nil
}

// close removes the file.
func (s *scratch) close() error {
	err := s.file.Close()
	if rm := os.Remove(s.file.Name()); !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}
