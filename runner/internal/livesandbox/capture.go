package livesandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

const (
	// spillFrom is the length from which a stream is spilled. Shorter ones are shown almost
	// in full anyway.
	spillFrom = 4 << 10
	// captureBytes is how much of each end of a stream is kept in memory: more than half of
	// the 50,000 bytes that a model is shown.
	captureBytes = 32 << 10
	// spillBytes bounds the spilled output of a session's commands together.
	// [sandbox.DefaultLiveBytes] bounds one stream of one command.
	spillBytes = 256 << 20
)

// spiller makes the files for long output, bounds their total size, and finds them by
// handle. It is safe for concurrent use.
type spiller struct {
	dir    string
	redact *redact.Redactor

	mu    sync.Mutex
	count int
	left  int64
	kept  map[string]keptOutput
}

type keptOutput struct {
	path            string
	size, total     int64
	whole, redacted bool
}

func newSpiller(dir string, secrets []redact.Secret) *spiller {
	return &spiller{dir: dir, redact: redact.New(secrets), left: spillBytes, kept: map[string]keptOutput{}}
}

func (s *spiller) nextCommand() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return s.count
}

// createFile creates the file of a command's stream and returns its name relative to the
// session's directory. If an earlier process of the session used the number, it takes the
// next free one.
func (s *spiller) createFile(command int, stream string) (*os.File, string, error) {
	for ; ; command = s.nextCommand() {
		name := filepath.Join(record.SpillDir, fmt.Sprintf("command-%04d-%s", command, stream))
		f, err := os.OpenFile(s.filePath(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, fs.ErrExist) {
			return f, name, err
		}
	}
}

func (s *spiller) filePath(name string) string { return filepath.Join(s.dir, name) }

// reserveBytes takes n bytes from the budget, or reports that they are not left.
func (s *spiller) reserveBytes(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < int64(n) {
		return false
	}
	s.left -= int64(n)
	return true
}

func (s *spiller) addOutput(name string, k keptOutput) string {
	handle := filepath.Base(name)
	k.path = s.filePath(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[handle] = k
	return handle
}

// Output opens spilled output by its handle.
func (s *spiller) Output(handle string) (shell.Kept, error) {
	s.mu.Lock()
	k, ok := s.kept[handle]
	s.mu.Unlock()
	if !ok {
		return shell.Kept{}, shell.ErrNoOutput
	}
	f, err := os.Open(k.path)
	if err != nil {
		return shell.Kept{}, fmt.Errorf("open spilled output: %w", err)
	}
	return shell.Kept{ReaderAt: f, Closer: f, Size: k.size, Total: k.total, Whole: k.whole, Redacted: k.redacted}, nil
}

// capture keeps the first and the last bytes of a stream, passes the stream on to watch, and
// spills it, without secrets, once it is longer than spillFrom. Only the goroutine that
// writes uses it, and afterwards the one that waited for it.
type capture struct {
	command int
	stream  string
	watch   io.Writer
	spill   *spiller

	head []byte
	tail limits.Tail
	file *os.File
	safe *redact.Writer // writes to file
	name string
	full bool // nothing more is spilled
}

func (s *spiller) newCapture(command int, stream string, watch io.Writer) *capture {
	return &capture{command: command, stream: stream, watch: watch, spill: s, tail: limits.Tail{Size: captureBytes}}
}

// Write takes a piece of output. It never fails: output that can't be spilled is still shown.
func (c *capture) Write(p []byte) (int, error) {
	_, _ = c.watch.Write(p)
	before := c.head
	rest := p
	if room := captureBytes - len(c.head); room > 0 {
		n := min(room, len(rest))
		c.head = append(c.head, rest[:n]...)
		rest = rest[n:]
	}
	switch {
	case c.file != nil:
		c.spillPiece(p)
	case !c.full && len(before)+len(p) > spillFrom:
		c.openFile()
		c.spillPiece(before)
		c.spillPiece(p)
	}
	_, _ = c.tail.Write(rest) // never fails
	return len(p), nil
}

func (c *capture) openFile() {
	f, name, err := c.spill.createFile(c.command, c.stream)
	if err != nil {
		c.full = true
		return
	}
	c.file, c.name = f, name
	c.safe = c.spill.redact.NewWriter(f)
}

func (c *capture) spillPiece(p []byte) {
	if c.full || !c.spill.reserveBytes(len(p)) {
		c.full = true
		return
	}
	if _, err := c.safe.Write(p); err != nil {
		c.full = true
	}
}

// finishCapture ends the capture. It appends the tail that the guest kept.
func (c *capture) finishCapture(s sandbox.Stream) shell.Capture {
	out := shell.Capture{Head: c.head, Total: s.Total, SHA256: s.SHA256, Spill: c.name}
	var tail []byte
	if gap := s.Total - s.Live - int64(len(s.Tail)); gap <= 0 {
		tail = append(tail, c.tail.String()...)
	}
	tail = append(tail, s.Tail...)
	if over := len(tail) - captureBytes; over > 0 {
		tail = tail[over:]
	}
	out.Tail = tail
	// A lost guest could not count, but what arrived was written.
	out.Total = max(out.Total, int64(len(out.Head)+len(out.Tail)))
	if c.file != nil {
		out.Handle = c.closeFile(s, out.Total)
	}
	return out
}

func (c *capture) closeFile(s sandbox.Stream, total int64) string {
	if !c.full {
		// The guest kept the end of a stream that it did not send in full. Without a gap
		// before that end, spill it too.
		if s.Live+int64(len(s.Tail)) == s.Total {
			c.spillPiece(s.Tail)
		}
	}
	if err := c.safe.Close(); err != nil {
		c.full = true
	}
	if err := c.file.Close(); err != nil {
		c.full = true
	}
	return c.spill.addOutput(c.name, keptOutput{
		size: c.safe.Written(), total: total, redacted: c.safe.Changed(),
		whole: !c.full && s.Live+int64(len(s.Tail)) >= total,
	})
}
