package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// Verdict is what [Verify] found.
type Verdict struct {
	Session string `json:"session"`
	// OK says that nothing that is there was changed. A session that was cut
	// short is OK: a crash is no change.
	OK bool `json:"ok"`
	// Records were read; Omitted were removed by retention.
	Records int64 `json:"records"`
	Omitted int64 `json:"omitted,omitempty"`
	// Values counts the long values in files, which were compared with the
	// hashes that the records have of them.
	Values int64 `json:"values"`
	// Hash is that of the last good line: whoever noted it elsewhere can tell
	// that nothing before it was changed, and nothing removed.
	Hash string `json:"hash"`
	// Ended says that session.ended is the last record, Torn that a line at the
	// end is not whole, Live that the session runs.
	Ended bool `json:"ended"`
	Torn  bool `json:"torn,omitempty"`
	Live  bool `json:"live,omitempty"`
	// Damage says what was changed: the line, and how that is known.
	Damage string `json:"damage,omitempty"`
}

// Verify reads a session whole: the chain of its lines, and the values in
// files that they refer to. Its errors are a [*runner.Error]: the records can't
// be read at all.
func Verify(s Session) (Verdict, error) {
	v := Verdict{Session: s.ID, Live: !s.Pruned && sessiondir.SessionLives(s.Dir)}
	in, err := s.Open()
	if err != nil {
		return v, err
	}
	defer func() { _ = in.Close() }() // only read
	for {
		rec, err := in.Next()
		if err != nil {
			v.Torn, v.Hash, v.Omitted = in.Torn(), in.Hash(), in.Omitted()
			if !errors.Is(err, io.EOF) && v.Damage == "" {
				v.Damage = err.Error()
			}
			break
		}
		v.Records++
		v.Ended = rec.Kind == record.KindSessionEnded
		for _, value := range record.SpilledValues(rec) {
			v.Values++
			if err := verifyValue(s, value); err != nil && v.Damage == "" {
				v.Damage = fmt.Sprintf("record %d: %v", rec.Seq, err)
			}
		}
	}
	v.OK = v.Damage == ""
	return v, nil
}

// verifyValue compares a value in a file with what its record says.
func verifyValue(s Session, value record.Spilled) error {
	f, err := openRegular(filepath.Join(s.Dir, value.Path))
	if err != nil {
		return fmt.Errorf("its value %s can't be read: %w", value.Path, err)
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, int64(value.Bytes)+1))
	switch {
	case err != nil:
		return fmt.Errorf("its value %s can't be read: %w", value.Path, err)
	case n != int64(value.Bytes) || hex.EncodeToString(sum.Sum(nil)) != value.SHA256:
		return fmt.Errorf("its value %s was changed: it has not the size and hash that the record says", value.Path)
	}
	return nil
}
