package livesandbox

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
)

// maxRecording bounds a recording's file.
const maxRecording = 16 << 20

// Recording records what a terminal shows, without secrets, as asciicast v2
// (docs.asciinema.org/manual/asciicast/v2). Its methods may be called concurrently.
type Recording struct {
	mu    sync.Mutex
	spill *spiller
	file  *os.File
	to    *bufio.Writer
	safe  *redact.Writer
	began time.Time
	sum   hash.Hash
	info  record.Recording

	// The redactor holds output back. marks has the times of the output that it was given
	// and has not passed on, by the offset of its end.
	marks      []mark
	in, out    int64
	unfinished []byte // the beginning of a character
}

type mark struct {
	end  int64
	time time.Duration
	// size, if not nil, is a new size instead of output.
	size *sandbox.TerminalSize
}

// StartRecording begins the recording of a terminal of a size. term is its kind ($TERM). The
// caller must close the recording.
func (x *Executor) StartRecording(size sandbox.TerminalSize, term string) (*Recording, error) {
	file, name, err := x.spill.createFile(x.spill.nextCommand(), "terminal.cast")
	if err != nil {
		return nil, fmt.Errorf("record terminal: %w", err)
	}
	r := &Recording{spill: x.spill, file: file, to: bufio.NewWriter(file), began: time.Now(), sum: sha256.New(), info: record.Recording{Path: name}}
	r.safe = x.spill.redact.NewWriter(passed{r})
	r.writeLine(map[string]any{
		"version": 2, "width": size.Columns, "height": size.Rows, "timestamp": r.began.Unix(), "env": map[string]string{"TERM": term},
	})
	return r, nil
}

// Write records output. It never fails: what is not recorded is still shown.
func (r *Recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.info.Truncated {
		return len(p), nil
	}
	r.in += int64(len(p))
	now := time.Since(r.began).Truncate(time.Millisecond)
	if last := len(r.marks) - 1; last >= 0 && r.marks[last].time == now && r.marks[last].size == nil {
		r.marks[last].end = r.in
	} else {
		r.marks = append(r.marks, mark{end: r.in, time: now})
	}
	_, _ = r.safe.Write(p) // passed never fails
	return len(p), nil
}

// Resize records a new size. Of several sizes between two outputs only the last is kept.
func (r *Recording) Resize(size sandbox.TerminalSize) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.began)
	switch last := len(r.marks) - 1; {
	case r.info.Truncated:
	case last >= 0 && r.marks[last].size != nil: // nothing was shown since
		r.marks[last].time, r.marks[last].size = now, &size
	default:
		r.marks = append(r.marks, mark{end: r.in, time: now, size: &size})
	}
}

// Close ends the recording and describes its file.
func (r *Recording) Close() record.Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.safe.Close()
	r.passMarks(true)
	if r.to.Flush() != nil || r.file.Close() != nil {
		r.info.Truncated = true
	}
	r.info.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
	return r.info
}

// passed takes the output without secrets.
type passed struct{ r *Recording }

// Write gives each piece of output its time. A secret's mark can be shorter or longer than the
// secret; then the rest of what the redactor holds gets the time of a neighbour.
func (w passed) Write(p []byte) (int, error) {
	r := w.r
	for rest := p; len(rest) > 0; {
		r.passMarks(false)
		n := len(rest)
		var at time.Duration
		if len(r.marks) > 0 {
			n, at = min(n, int(r.marks[0].end-r.out)), r.marks[0].time
		} else {
			at = time.Since(r.began)
		}
		r.writeOutput(at, rest[:n])
		r.out += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

// passMarks drops the marks whose output has passed, or all, and records their sizes.
func (r *Recording) passMarks(all bool) {
	for len(r.marks) > 0 && (all || r.marks[0].end <= r.out) {
		if m := r.marks[0]; m.size != nil {
			r.writeEvent(m.time, "r", fmt.Sprintf("%dx%d", m.size.Columns, m.size.Rows))
		}
		r.marks = r.marks[1:]
	}
}

// writeOutput writes output up to its last whole character.
func (r *Recording) writeOutput(at time.Duration, p []byte) {
	p = append(r.unfinished, p...)
	whole := len(p)
	for i := max(0, whole-utf8.UTFMax+1); i < len(p); i++ {
		if utf8.RuneStart(p[i]) && !utf8.FullRune(p[i:]) {
			whole = i
			break
		}
	}
	r.unfinished = append([]byte(nil), p[whole:]...)
	if whole > 0 {
		r.writeEvent(at, "o", string(p[:whole]))
	}
}

func (r *Recording) writeEvent(at time.Duration, kind, text string) {
	r.writeLine([]any{json.Number(fmt.Sprintf("%.3f", at.Seconds())), kind, text})
}

// writeLine writes a line if it fits into the bounds, and otherwise none any more.
func (r *Recording) writeLine(v any) {
	line, err := json.Marshal(v)
	line = append(line, '\n')
	if r.info.Truncated || err != nil || r.info.Bytes+int64(len(line)) > maxRecording || !r.spill.reserveBytes(len(line)) {
		r.info.Truncated = true
		return
	}
	if _, err := r.to.Write(line); err != nil {
		r.info.Truncated = true
		return
	}
	r.sum.Write(line)
	r.info.Bytes += int64(len(line))
}
