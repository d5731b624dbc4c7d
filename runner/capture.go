package runner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

const (
	// captureBytes is what is kept in memory of each end of a stream: more
	// than half of the 50,000 bytes that a model is shown.
	captureBytes = 32 << 10
	// spillBytes bounds the output that all commands of a session spill; one
	// stream of one command is bounded by sandbox.DefaultLiveBytes.
	spillBytes = 256 << 20
)

// spiller makes the files for long output and bounds their sum. It is safe for
// concurrent use.
type spiller struct {
	dir string

	mu    sync.Mutex
	count int
	left  int64
}

func newSpiller(dir string) *spiller { return &spiller{dir: dir, left: spillBytes} }

// create makes the next file and gives its name below the session's folder.
func (s *spiller) create(stream string) (*os.File, string, error) {
	s.mu.Lock()
	s.count++
	name := filepath.Join("spill", fmt.Sprintf("command-%04d-%s", s.count, stream))
	s.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

// take reserves n bytes and says whether they were left.
func (s *spiller) take(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < int64(n) {
		return false
	}
	s.left -= int64(n)
	return true
}

// capture keeps the first and the last bytes of a stream as it arrives, passes
// it on to be watched, and spills it once it is longer than the first bytes.
// It belongs to the goroutine that writes, and then to the one that waited for it.
type capture struct {
	stream string
	watch  io.Writer
	spill  *spiller

	head []byte
	tail []byte // a window that grows to twice its size before it is cut
	file *os.File
	name string
	full bool // nothing more is spilled
}

// Write takes a piece of output. It never fails: what can't be spilled is
// still shown.
func (c *capture) Write(p []byte) (int, error) {
	_, _ = c.watch.Write(p)
	rest := p
	if room := captureBytes - len(c.head); room > 0 {
		n := min(room, len(rest))
		c.head = append(c.head, rest[:n]...)
		rest = rest[n:]
	}
	if len(rest) == 0 {
		return len(p), nil
	}
	if c.file == nil && !c.full {
		c.open()
	}
	c.keep(rest)
	c.tail = append(c.tail, rest...)
	if len(c.tail) > 2*captureBytes {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-captureBytes:]...)
	}
	return len(p), nil
}

func (c *capture) open() {
	f, name, err := c.spill.create(c.stream)
	if err != nil {
		c.full = true
		return
	}
	c.file, c.name = f, name
	c.keep(c.head)
}

func (c *capture) keep(p []byte) {
	if c.full || !c.spill.take(len(p)) {
		c.full = true
		return
	}
	if _, err := c.file.Write(p); err != nil {
		c.full = true
	}
}

// result ends the capture. What the guest kept of the end follows what arrived.
func (c *capture) result(s sandbox.Stream) shell.Capture {
	out := shell.Capture{Head: c.head, Total: s.Total, SHA256: s.SHA256, Spill: c.name}
	tail := c.tail
	if gap := s.Total - s.Live - int64(len(s.Tail)); gap > 0 {
		tail = nil
	}
	tail = append(slices.Clip(tail), s.Tail...)
	if over := len(tail) - captureBytes; over > 0 {
		tail = tail[over:]
	}
	out.Tail = tail
	// A guest that was lost could not count; what arrived was written.
	out.Total = max(out.Total, int64(len(out.Head)+len(out.Tail)))
	if c.file != nil {
		_ = c.file.Close()
	}
	return out
}
