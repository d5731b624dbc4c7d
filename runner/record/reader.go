package record

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrChain reports that a trace was changed after it was written: a record is missing,
// changed, repeated or out of order.
var ErrChain = errors.New("hash chain broken")

// Trace is a trace that was read back.
type Trace struct {
	Records []Record
	// Torn reports that the last line was cut short, as by a crash; it is
	// not among the records.
	Torn bool
}

// ReadTrace reads a trace whole, as a [TraceReader] does. The records before
// damage are returned all the same.
func ReadTrace(src io.Reader) (Trace, error) {
	var t Trace
	in := NewReader(src)
	for {
		rec, err := in.Next()
		if err != nil {
			t.Torn = in.Torn()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return t, err
		}
		t.Records = append(t.Records, rec)
	}
}

// Reader reads a trace line by line and verifies its chain: seq from 1
// without gaps, one session, and each line's hash in the next. It holds one
// line. It reads traces that retention has shortened too, where an [Omission]
// stands for the records that are gone. It belongs to one goroutine.
//
// The chain can't show whether whole records are missing at the end; a trace
// without session.ended was cut short.
type Reader struct {
	in      *bufio.Reader
	line    int64
	seq     int64
	prev    string
	session string
	text    []byte
	torn    bool
	omitted int64
	offset  int64
	err     error
}

// Position is a place between two lines of a trace, with what reading on
// from there needs to verify the chain.
type Position struct {
	// Offset is that of the next line in bytes, Line the number of lines before
	// it, and Seq the number of the last record before it.
	Offset, Line, Seq int64
	// Hash is that of the line before, and Session the session's id, "" at the start.
	Hash, Session string
}

// StartPosition returns the position before the first line.
func StartPosition() Position { return Position{Hash: FirstHash} }

// NewReader reads from src, which stays the caller's.
func NewReader(src io.Reader) *Reader { return ResumeReader(src, StartPosition()) }

// ResumeReader reads from src, which begins at the given position of a trace
// and stays the caller's.
func ResumeReader(src io.Reader, at Position) *Reader {
	return &Reader{
		in: bufio.NewReaderSize(src, MaxLineBytes), line: at.Line, seq: at.Seq, prev: at.Hash, session: at.Session, offset: at.Offset,
	}
}

// Position returns the place behind the last good line.
func (t *Reader) Position() Position {
	return Position{Offset: t.offset, Line: t.line, Seq: t.seq, Hash: t.prev, Session: t.session}
}

// Next returns the next record. It ends with io.EOF; a torn last line is left
// out. Damage is an error that wraps [ErrChain] and names the line, and comes
// again however often it is called.
func (t *Reader) Next() (Record, error) {
	for t.err == nil {
		rec, ok, err := t.readLine()
		if err == nil && ok {
			return rec, nil
		}
		t.err = err
	}
	return Record{}, t.err
}

// readLine reads one line; ok is false for an omission.
func (t *Reader) readLine() (_ Record, ok bool, err error) {
	text, err := t.in.ReadSlice('\n')
	t.line++
	switch {
	case errors.Is(err, io.EOF):
		t.line--
		t.torn = len(text) > 0
		return Record{}, false, io.EOF
	case errors.Is(err, bufio.ErrBufferFull):
		return Record{}, false, t.chainError(fmt.Errorf("longer than %d bytes", MaxLineBytes))
	case err != nil:
		return Record{}, false, fmt.Errorf("read trace line %d: %w", t.line, err)
	}
	size := int64(len(text))
	text = bytes.TrimSuffix(text, []byte("\n"))
	if o, ok := decodeOmission(text); ok {
		err := t.skipOmitted(o)
		if err == nil {
			t.offset += size
		}
		return Record{}, false, err
	}
	rec, err := Decode(text)
	if err == nil {
		err = t.checkNext(rec)
	}
	if err != nil {
		return Record{}, false, t.chainError(err)
	}
	sum := sha256.Sum256(text)
	t.text, t.seq, t.session, t.prev = text, rec.Seq, rec.Session, hex.EncodeToString(sum[:])
	t.offset += size
	return rec, true, nil
}

// skipOmitted continues after records that retention removed.
func (t *Reader) skipOmitted(o Omission) error {
	switch {
	case o.First != t.seq+1 || o.Last < o.First:
		return t.chainError(fmt.Errorf("records %d to %d are said to be gone, want some from %d", o.First, o.Last, t.seq+1))
	case o.Prev != t.prev:
		return t.chainError(errors.New("prev is not the hash of the line before"))
	case len(o.SHA256) != len(FirstHash) || strings.Trim(o.SHA256, "0123456789abcdef") != "":
		return t.chainError(errors.New("the hash of the records that are gone is none"))
	}
	t.omitted += o.Last - o.First + 1
	t.seq, t.prev = o.Last, o.SHA256
	return nil
}

func (t *Reader) chainError(err error) error {
	return fmt.Errorf("line %d: %w: %w", t.line, ErrChain, err)
}

// checkNext reports why rec can't be the next record.
func (t *Reader) checkNext(rec Record) error {
	switch {
	case rec.SchemaVersion != SchemaVersion:
		return fmt.Errorf("schema version %d, this program reads %d", rec.SchemaVersion, SchemaVersion)
	case rec.Seq != t.seq+1:
		return fmt.Errorf("seq %d, want %d", rec.Seq, t.seq+1)
	case rec.Prev != t.prev:
		return errors.New("prev is not the hash of the line before")
	case t.session != "" && rec.Session != t.session:
		return fmt.Errorf("session %s in a trace of %s", rec.Session, t.session)
	}
	return nil
}

// Line is the text of the record that Next gave last, without its newline; it
// holds until the next call.
func (t *Reader) Line() []byte { return t.text }

// Hash is the hex SHA-256 of the last line: a copy of it proves later
// that the trace up to there is the same.
func (t *Reader) Hash() string { return t.prev }

// Torn reports, at the end, whether the last line was cut short, as by a crash.
func (t *Reader) Torn() bool { return t.torn }

// Omitted is how many records retention has removed so far.
func (t *Reader) Omitted() int64 { return t.omitted }

// Omission stands, in an audit.jsonl, for records that retention has removed.
// It carries the chain across them: Prev is the hash of the line before the
// first, SHA256 that of the last.
//
//	{"omitted":{"first":3,"last":41,"prev":"…","sha256":"…"}}
type Omission struct {
	First  int64  `json:"first"` // seq, as in the records
	Last   int64  `json:"last"`
	Prev   string `json:"prev"`
	SHA256 string `json:"sha256"`
}

type omissionLine struct {
	Omitted Omission `json:"omitted"`
}

// EncodeOmission returns the line that stands for records that were left out.
func EncodeOmission(o Omission) ([]byte, error) { return json.Marshal(omissionLine{o}) }

// decodeOmission tells an omission from a record by how the line begins.
func decodeOmission(text []byte) (Omission, bool) {
	if !bytes.HasPrefix(text, []byte(`{"omitted":`)) {
		return Omission{}, false
	}
	var l omissionLine
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&l)
	return l.Omitted, err == nil
}
