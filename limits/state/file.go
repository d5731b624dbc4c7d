package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/moby/sys/atomicwriter"
)

// ErrDamaged is the error for a file that no store wrote.
var ErrDamaged = errors.New("the file is damaged")

// Read returns the content of a regular file of at most limit bytes. For any other file
// it returns [ErrDamaged]; it follows no symlinks and doesn't wait for pipes.
func Read(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	damaged := fmt.Errorf("%w: not a regular file of at most %d bytes", ErrDamaged, limit)
	if !info.Mode().IsRegular() {
		return nil, damaged
	}
	f, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0) // the file may have been replaced since
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, damaged
	}
	return text, nil
}

// Decode decodes a store's JSON document. Unknown fields, and anything after the
// document, are errors.
func Decode(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if len(bytes.TrimSpace(text[dec.InputOffset():])) > 0 {
		return errors.New("something follows its content")
	}
	return nil
}

// Replace replaces a file. Only its owner can read the new one. Others see the old or
// the new content, never a mixture. The new one is on disk when Replace returns.
func Replace(path string, text []byte) error {
	if err := atomicwriter.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// ReplaceJSON is [Replace] with indented JSON.
func ReplaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(text, '\n'))
}

// SetAside renames a damaged file to keep it as evidence, and returns its new path.
func SetAside(path string, now time.Time) (string, error) {
	to := path + ".corrupt-" + now.UTC().Format("20060102T150405.000000000")
	if err := os.Rename(path, to); err != nil {
		return "", err
	}
	return to, nil
}

// SyncDir syncs a directory, if its file system can.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // nothing was written through it
	if err := dir.Sync(); err != nil && !IsUnsyncable(err) {
		return err
	}
	return nil
}

// IsUnsyncable reports whether err means that the system can't sync such a file or
// directory.
func IsUnsyncable(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrPermission)
}

// IgnoreMissing returns err, or nil if it is [fs.ErrNotExist].
func IgnoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
