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

// ErrChain reports that a trace was changed after it was written: a record is
// missing, changed, repeated or out of order.
var ErrChain = errors.New("hash chain broken")

// Trace is a whole trace.
type Trace struct {
	Records []Record
	// Torn reports that the last line was cut short, as by a crash. It is not
	// among the records.
	Torn bool
}

// ReadTrace reads a whole trace with a [Reader]. With an error, it returns the
// records before the damage.
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

// Reader reads a trace line by line and verifies its chain: seq counts from 1
// without gaps, there is one session, and each line has the hash of the one
// before. It holds one line. It also reads traces that retention has shortened,
// in which an [Omission] stands for removed records. It is not safe for
// concurrent use.
//
// The chain can't show whether whole records are missing at the end. A trace
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

// Position is a place between two lines of a trace, with what a reader needs to
// verify the chain from there.
type Position struct {
	// Offset is the next line's offset in bytes, Line the number of lines
	// before it, and Seq the number of the last record before it.
	Offset, Line, Seq int64
	// Hash is the hash of the line before. Session is the session's ID, "" at
	// the start.
	Hash, Session string
}

// StartPosition returns the position before the first line.
func StartPosition() Position { return Position{Hash: FirstHash} }

// NewReader reads a trace from src. The caller closes src.
func NewReader(src io.Reader) *Reader { return ResumeReader(src, StartPosition()) }

// ResumeReader reads a trace from the given position, at which src begins. The
// caller closes src.
func ResumeReader(src io.Reader, at Position) *Reader {
	return &Reader{
		in: bufio.NewReaderSize(src, MaxLineBytes), line: at.Line, seq: at.Seq, prev: at.Hash, session: at.Session, offset: at.Offset,
	}
}

// Position returns the position after the last good line.
func (t *Reader) Position() Position {
	return Position{Offset: t.offset, Line: t.line, Seq: t.seq, Hash: t.prev, Session: t.session}
}

// Next returns the next record, or io.EOF at the end. It leaves out a torn last
// line. The error for damage wraps [ErrChain] and names the line; all further
// calls return it again.
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

// Line returns the text of the last record, without its newline. It is valid
// until the next call of Next.
func (t *Reader) Line() []byte { return t.text }

// Hash returns the hex SHA-256 of the last line. A copy of it later proves that
// the trace up to there is unchanged.
func (t *Reader) Hash() string { return t.prev }

// Torn reports, at the end, whether the last line was cut short.
func (t *Reader) Torn() bool { return t.torn }

// Omitted returns the number of records so far that retention has removed.
func (t *Reader) Omitted() int64 { return t.omitted }

// Omission stands for records that retention has removed, in an audit.jsonl. It
// carries the chain across them: Prev is the hash of the line before the first,
// SHA256 the hash of the last one.
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

// EncodeOmission returns the line for o, without its newline.
func EncodeOmission(o Omission) ([]byte, error) { return json.Marshal(omissionLine{o}) }

// decodeOmission tells an omission from a record by its beginning.
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
