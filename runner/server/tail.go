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

// tail reads the lines of a trace that may still grow. After reporting the end,
// it can continue with lines added since. It holds one line, and is not safe
// for concurrent use.
type tail struct {
	file *os.File
	buf  []byte // data read from file
	used int    // bytes of buf that were returned
}

// openTail opens a session's trace, or its audit records if retention has
// removed the rest.
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

// seekCheckpoint seeks to a checkpoint of the trace, and reports whether its
// record is there. If not, it seeks to the beginning.
func (t *tail) seekCheckpoint(c trace.Checkpoint) (bool, error) {
	if err := t.seekOffset(c.Offset); err != nil {
		return false, err
	}
	e, ok, err := t.nextEntry()
	if err == nil && ok && e.Seq == c.Seq {
		var chained struct {
			Prev string `json:"prev"`
		}
		if json.Unmarshal(e.line, &chained) == nil && chained.Prev == c.Prev {
			return true, t.seekOffset(c.Offset)
		}
	}
	return false, t.seekOffset(0)
}

func (t *tail) seekOffset(offset int64) error {
	t.buf, t.used = t.buf[:0], 0
	if _, err := t.file.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	return nil
}

// entry is one line and the fields that the stream needs. The line is valid
// until the next call.
type entry struct {
	line []byte
	Seq  int64       `json:"seq"`
	Kind record.Kind `json:"kind"`
}

// nextEntry returns the next whole line; ok is false if there is none yet. It
// skips the placeholders of records that retention has removed.
func (t *tail) nextEntry() (e entry, ok bool, err error) {
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
