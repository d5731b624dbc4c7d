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

// seekBefore seeks to a record at or before the one with number seq. Records are
// in the order of their numbers, so it need not read all of them.
func (t *tail) seekBefore(seq int64) error {
	info, err := t.file.Stat()
	if err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	from, to := int64(0), info.Size() // the first record after from is a valid result
	for to-from > 2*record.MaxLineBytes {
		middle := from + (to-from)/2
		if err := t.seekLine(middle); err != nil {
			return err
		}
		if e, ok, err := t.nextEntry(); err == nil && ok && e.Seq <= seq {
			from = middle
		} else {
			to = middle // also at a damaged line, which the caller may not need
		}
	}
	return t.seekLine(from)
}

// seekLine seeks to the first line that begins after an offset, or to the
// beginning of the file for 0.
func (t *tail) seekLine(offset int64) error {
	t.buf, t.used = t.buf[:0], 0
	if _, err := t.file.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	if offset == 0 {
		return nil
	}
	_, _, err := t.nextLine()
	return err
}

// entry is one line and the fields that the stream needs. The line is valid
// until the next call.
type entry struct {
	line []byte
	Seq  int64       `json:"seq"`
	Kind record.Kind `json:"kind"`
}

// nextEntry returns the next record; ok is false if there is none yet. It skips
// the placeholders of records that retention has removed.
func (t *tail) nextEntry() (e entry, ok bool, err error) {
	for {
		line, ok, err := t.nextLine()
		if err != nil || !ok {
			return entry{}, false, err
		}
		e = entry{line: line}
		if err := json.Unmarshal(line, &e); err != nil {
			return entry{}, false, fmt.Errorf("read trace: a line is damaged: %w", err)
		}
		if e.Seq != 0 {
			return e, true, nil
		}
	}
}

// nextLine returns the next whole line; ok is false if there is none yet.
func (t *tail) nextLine() (line []byte, ok bool, err error) {
	for {
		if i := bytes.IndexByte(t.buf[t.used:], '\n'); i >= 0 {
			line = t.buf[t.used : t.used+i]
			t.used += i + 1
			return line, true, nil
		}
		t.buf = append(t.buf[:0], t.buf[t.used:]...)
		t.used = 0
		if len(t.buf) > record.MaxLineBytes {
			return nil, false, fmt.Errorf("read trace: a line is longer than %d bytes", record.MaxLineBytes)
		}
		n := len(t.buf)
		t.buf = append(t.buf, make([]byte, 32<<10)...)
		got, err := t.file.Read(t.buf[n:])
		t.buf = t.buf[:n+got]
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, fmt.Errorf("read trace: %w", err)
		}
		if got == 0 {
			return nil, false, nil
		}
	}
}
