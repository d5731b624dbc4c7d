package runner

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrChain says that a trace is not what was written: a record is missing,
// changed, repeated or out of order.
var ErrChain = errors.New("hash chain broken")

// Trace is a trace that was read back.
type Trace struct {
	Records []Record
	// Torn says that the last line was cut short, as a crash leaves it; it is
	// not among the records.
	Torn bool
}

// ReadTrace reads a trace and verifies its chain: seq from 1 without gaps, one
// session, and each line's hash in the next. A torn last line is left out; any
// other damage is an error that wraps [ErrChain] and names the line. The
// records before it are returned all the same. A chain can't tell that whole
// records are missing at the end; a trace without session.ended was cut short.
func ReadTrace(src io.Reader) (Trace, error) {
	var t Trace
	in := bufio.NewReaderSize(src, MaxLineBytes)
	prev := strings.Repeat("0", 64)
	for n := 1; ; n++ {
		text, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			t.Torn = len(text) > 0
			return t, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return t, fmt.Errorf("line %d: %w: longer than %d bytes", n, ErrChain, MaxLineBytes)
		case err != nil:
			return t, fmt.Errorf("read trace line %d: %w", n, err)
		}
		text = bytes.TrimSuffix(text, []byte("\n"))
		rec, err := Decode(text)
		if err != nil {
			return t, fmt.Errorf("line %d: %w: %w", n, ErrChain, err)
		}
		if err := follows(rec, t.Records, prev); err != nil {
			return t, fmt.Errorf("line %d: %w: %w", n, ErrChain, err)
		}
		t.Records = append(t.Records, rec)
		sum := sha256.Sum256(text)
		prev = hex.EncodeToString(sum[:])
	}
}

// follows says why rec can't be the next record, or nil.
func follows(rec Record, before []Record, prev string) error {
	switch {
	case rec.SchemaVersion != SchemaVersion:
		return fmt.Errorf("schema version %d, this program reads %d", rec.SchemaVersion, SchemaVersion)
	case rec.Seq != int64(len(before))+1:
		return fmt.Errorf("seq %d, want %d", rec.Seq, len(before)+1)
	case rec.Prev != prev:
		return errors.New("prev is not the hash of the line before")
	case len(before) > 0 && rec.Session != before[0].Session:
		return fmt.Errorf("session %s in a trace of %s", rec.Session, before[0].Session)
	}
	return nil
}
