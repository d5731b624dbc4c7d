package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
)

// tail reads the lines of a trace that may still grow: at its end it says so,
// and goes on when it is asked again. It holds one line. It belongs to one
// goroutine.
type tail struct {
	file *os.File
	buf  []byte // what is read and not handed out
	used int    // of buf, handed out
}

// openTail opens a session's trace, or what retention has left of it.
func openTail(dir string) (*tail, error) {
	file, err := os.Open(filepath.Join(dir, record.TraceFile))
	if errors.Is(err, fs.ErrNotExist) {
		file, err = os.Open(filepath.Join(dir, record.AuditFile))
	}
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	return &tail{file: file}, nil
}

func (t *tail) close() { _ = t.file.Close() } // only read

// seek goes to a checkpoint of the trace, and reports whether the record that
// should be there is. Otherwise it goes to the beginning.
func (t *tail) seek(c trace.Checkpoint) (bool, error) {
	if err := t.move(c.Offset); err != nil {
		return false, err
	}
	e, ok, err := t.next()
	if err == nil && ok && e.Seq == c.Seq {
		var chained struct {
			Prev string `json:"prev"`
		}
		if json.Unmarshal(e.line, &chained) == nil && chained.Prev == c.Prev {
			return true, t.move(c.Offset)
		}
	}
	return false, t.move(0)
}

// move goes to an offset of the file.
func (t *tail) move(offset int64) error {
	t.buf, t.used = t.buf[:0], 0
	if _, err := t.file.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	return nil
}

// entry is one line, and what of it the stream needs. The line holds until the
// next call.
type entry struct {
	line []byte
	Seq  int64       `json:"seq"`
	Kind record.Kind `json:"kind"`
}

// next gives the next whole line; ok is false where there is none yet. Records
// that retention has removed are left out.
func (t *tail) next() (e entry, ok bool, err error) {
	for {
		if i := bytes.IndexByte(t.buf[t.used:], '\n'); i >= 0 {
			e = entry{line: t.buf[t.used : t.used+i]}
			t.used += i + 1
			if err := json.Unmarshal(e.line, &e); err != nil {
				return entry{}, false, fmt.Errorf("read trace: a line is damaged: %w", err)
			}
			if e.Seq == 0 {
				continue // an omission
			}
			return e, true, nil
		}
		t.buf = append(t.buf[:0], t.buf[t.used:]...)
		t.used = 0
		if len(t.buf) > record.MaxLineBytes {
			return entry{}, false, fmt.Errorf("read trace: a line is longer than %d bytes", record.MaxLineBytes)
		}
		n := len(t.buf)
		t.buf = append(t.buf, make([]byte, 32<<10)...)
		got, err := t.file.Read(t.buf[n:])
		t.buf = t.buf[:n+got]
		if err != nil && !errors.Is(err, io.EOF) {
			return entry{}, false, fmt.Errorf("read trace: %w", err)
		}
		if got == 0 {
			return entry{}, false, nil
		}
	}
}
