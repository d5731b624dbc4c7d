package trace

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/record"
)

// Verdict is the result of [Verify].
type Verdict struct {
	Session string `json:"session"`
	// OK reports that no existing record or value was changed. It is true for a
	// session cut short by a crash.
	OK bool `json:"ok"`
	// Records counts the records that were read, and Omitted the ones that
	// retention removed.
	Records int64 `json:"records"`
	Omitted int64 `json:"omitted,omitempty"`
	// Values counts the long values in files, which were compared with their
	// hashes in the records.
	Values int64 `json:"values"`
	// Hash is the last good line's. Compared with a copy kept elsewhere, it
	// shows that no record up to that line was changed or removed.
	Hash string `json:"hash"`
	// Ended reports that session.ended is the last record, Torn that the last
	// line is incomplete, Live that the session is running.
	Ended bool `json:"ended"`
	Torn  bool `json:"torn,omitempty"`
	Live  bool `json:"live,omitempty"`
	// Damage describes the first change: the line, and how it was detected.
	Damage string `json:"damage,omitempty"`
}

// Verify verifies the hash chain of a session's lines, the values in files and,
// once the session has ended, the file of HTTP requests. It returns an error,
// of type [*Error], only if the records can't be read.
func Verify(s Session) (Verdict, error) {
	o, v := newOverview(s), Verdict{Session: s.ID}
	err := o.scanRecords(s, nil, func(_ *record.Reader, r record.Record) {
		v.Ended = r.Kind == record.KindSessionEnded
		for _, value := range record.SpilledValues(r) {
			v.Values++
			if err := value.Verify(s.Dir); err != nil && v.Damage == "" {
				v.Damage = fmt.Sprintf("record %d: %v", r.Seq, err)
			}
		}
	})
	v.Records = o.Records
	v.Omitted = o.Omitted
	v.Hash = o.Hash
	v.Torn = o.Torn
	v.Live = o.Live
	v.Damage = cmp.Or(v.Damage, o.Damage)
	if err == nil && v.Damage == "" && v.Ended && !v.Live {
		if changed := verifyRequests(s, o.Ended); changed != nil {
			v.Damage = changed.Error()
		}
	}
	v.OK = err == nil && v.Damage == ""
	return v, err
}

// verifyRequests compares the file of HTTP requests with its hash in
// session.ended. Retention removes the file.
func verifyRequests(s Session, ended *record.SessionEnded) error {
	want := ""
	if ended != nil && ended.Network != nil {
		want = ended.Network.RequestsSHA256
	}
	got, err := hashFile(filepath.Join(s.Dir, record.RequestsFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) && (want == "" || s.Pruned):
		return nil
	case err != nil:
		return fmt.Errorf("the requests in %s can't be read: %w", record.RequestsFile, err)
	case got != want:
		return fmt.Errorf("the requests in %s were changed: session.ended has another hash", record.RequestsFile)
	}
	return nil
}

// hashFile returns the SHA-256 of a regular file, in hexadecimal.
func hashFile(path string) (string, error) {
	f, err := record.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}
