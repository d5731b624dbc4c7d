package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// maxRestored bounds the bytes of the long values restored into one record.
const maxRestored = 64 << 20

// Restore returns a record with its long values, from their files in dir; see
// [Spilled]. It returns an error if a value is missing or changed, or if they
// have more than maxRestored bytes.
func Restore(dir string, rec Record) (Record, error) {
	values := SpilledValues(rec)
	if len(values) == 0 {
		return rec, nil
	}
	var payload any
	dec := json.NewDecoder(bytes.NewReader(rec.Payload))
	dec.UseNumber()
	if err := dec.Decode(&payload); err != nil {
		return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	left := int64(maxRestored)
	for _, v := range values {
		if left -= int64(v.Bytes); v.Bytes < 0 || left < 0 {
			return rec, fmt.Errorf("record %d: its values have more than %d bytes", rec.Seq, maxRestored)
		}
		var text bytes.Buffer
		if err := v.copyTo(&text, dir); err != nil {
			return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
		}
		if v.Pointer == "" {
			rec.Payload = text.Bytes()
			return rec, nil
		}
		found := false
		findStrings(payload, "", nil, func(s stringAt) {
			if s.pointer == v.Pointer {
				found = true
				s.set(text.String())
			}
		})
		if !found {
			return rec, fmt.Errorf("record %d: there is no %s in it", rec.Seq, v.Pointer)
		}
	}
	if object, ok := payload.(map[string]any); ok {
		delete(object, "spilled")
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		return rec, fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	rec.Payload = raw
	return rec, nil
}

// Verify compares the value's file in dir with its size and hash.
func (v Spilled) Verify(dir string) error { return v.copyTo(io.Discard, dir) }

// copyTo copies the value to w. If it returns an error, what it wrote is not
// the value.
func (v Spilled) copyTo(w io.Writer, dir string) error {
	f, err := OpenRegular(filepath.Join(dir, v.Path))
	if err != nil {
		return fmt.Errorf("its value %s can't be read: %w", v.Path, err)
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(f, int64(v.Bytes)+1))
	switch {
	case err != nil:
		return fmt.Errorf("its value %s can't be read: %w", v.Path, err)
	case n != int64(v.Bytes) || hex.EncodeToString(sum.Sum(nil)) != v.SHA256:
		return fmt.Errorf("its value %s was changed: its size or hash differs from the record", v.Path)
	}
	return nil
}

// OpenRegular opens a regular file for reading. It refuses pipes and devices,
// which could block or have side effects.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
