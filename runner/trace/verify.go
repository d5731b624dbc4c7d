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
// once the session has ended, the patch and the file of HTTP requests. It returns
// an error, of type [*Error], only if the records can't be read.
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
		if changed := verifyFiles(s, o.Ended); changed != nil {
			v.Damage = changed.Error()
		}
	}
	v.OK = err == nil && v.Damage == ""
	return v, err
}

// verifyFiles compares files beside the records with their hashes in session.ended. Retention
// removes them.
func verifyFiles(s Session, ended *record.SessionEnded) error {
	want := map[string]string{record.PatchFile: "", record.RequestsFile: ""}
	if ended != nil {
		want[record.PatchFile] = ended.PatchSHA256
		if ended.Network != nil {
			want[record.RequestsFile] = ended.Network.RequestsSHA256
		}
	}
	for _, name := range []string{record.PatchFile, record.RequestsFile} {
		got, err := hashFile(filepath.Join(s.Dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist) && (want[name] == "" || s.Pruned):
		case err != nil:
			return fmt.Errorf("%s can't be read: %w", name, err)
		case want[name] == "":
			return fmt.Errorf("%s was added: session.ended has no hash of it", name)
		case got != want[name]:
			return fmt.Errorf("%s was changed: session.ended has another hash", name)
		}
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
