package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// maxStateBytes bounds a file of lasting answers: some ten thousand entries.
const maxStateBytes = 4 << 20

// stateLockTimeout bounds the wait for another process, which holds the lock
// for a millisecond.
const stateLockTimeout = 5 * time.Second

// stateFile is one JSON file of what a person decided for good. It belongs
// outside every workspace. It is read anew for each call, under a lock that
// other processes take too, replaced whole, and on disk before a change returns.
// Each change is in the change log before it is made, see [Change].
// A file that is not exactly what is written here is moved aside and counts as
// empty.
type stateFile[T any] struct {
	path string
	// what names the content in errors: "approvals".
	what string
	now  func() time.Time
	// parse returns the content of a text whose JSON holds no duplicate keys.
	parse func(text []byte) (T, error)
	// entries are the content's, each for itself, for the change log.
	entries func(T) []any
	author  Author
}

// CorruptError is a file of lasting answers that this package did not write. It was
// moved aside and counts as empty.
type CorruptError struct {
	// What names the content: "approvals", "trusted workspaces".
	What string
	// Path is the file, Quarantine where it is now; "" where it could not be moved.
	Path, Quarantine string
	Err              error
}

// Error names both paths and the cause.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("read %s %s: %v (moved to %q)", e.What, e.Path, e.Err, e.Quarantine)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// load returns the content, the zero T if there is no file.
func (s *stateFile[T]) load() (content T, err error) {
	if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return content, nil // without making a directory
	}
	err = s.withLock(func() (err error) {
		content, err = s.read()
		return err
	})
	return content, err
}

// change replaces the content with the result of edit, once the change is in the
// change log. A corrupt file counts as empty. Nothing is written if edit changes
// nothing or the log cannot be written.
func (s *stateFile[T]) change(edit func(T) T) error {
	return s.withLock(func() error { return s.changeLocked(edit) })
}

func (s *stateFile[T]) changeLocked(edit func(T) T) error {
	content, err := s.read()
	if _, corrupt := errors.AsType[*CorruptError](err); err != nil && !corrupt {
		return err
	}
	before, err := s.encodeEntries(content)
	if err != nil {
		return err
	}
	content = edit(content)
	after, err := s.encodeEntries(content)
	if err != nil {
		return err
	}
	removed, added := diffEntries(before, after)
	if len(removed)+len(added) == 0 {
		return nil
	}
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", s.what, err)
	}
	text = append(text, '\n')
	err = appendChange(filepath.Dir(s.path), Change{
		Time: s.now().UTC().Truncate(time.Microsecond), By: s.author.By, File: filepath.Base(s.path),
		Removed: s.redactEntries(removed), Added: s.redactEntries(added),
	})
	if err != nil {
		return fmt.Errorf("change %s: %w", s.what, err)
	}
	return s.write(text)
}

func (s *stateFile[T]) encodeEntries(content T) ([]json.RawMessage, error) {
	entries := []json.RawMessage{} // never null
	for _, e := range s.entries(content) {
		text, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", s.what, err)
		}
		entries = append(entries, text)
	}
	return entries, nil
}

func (s *stateFile[T]) redactEntries(entries []json.RawMessage) []json.RawMessage {
	for i := range entries {
		if s.author.Redact != nil {
			entries[i] = s.author.Redact(entries[i])
		}
	}
	return entries
}

func (s *stateFile[T]) withLock(f func() error) error { return withFileLock(s.path, s.what, f) }

// withFileLock calls f while it holds the lock of a file against other processes. The
// lock is a file of its own, because the file itself is replaced.
func withFileLock(path, what string, f func() error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make directory of %s: %w", what, err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), stateLockTimeout, errors.New("held by another process"))
	defer cancel()
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("lock %s %s: %w", what, path, err)
	}
	return errors.Join(f(), lock.Close())
}

// read returns the content of the file, the zero T if there is none.
func (s *stateFile[T]) read() (content T, err error) {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return content, nil
	}
	if err != nil {
		return content, fmt.Errorf("read %s: %w", s.what, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxStateBytes {
		return content, s.moveAside(fmt.Errorf("not a regular file of at most %d bytes", maxStateBytes))
	}
	text, err := os.ReadFile(s.path)
	if err != nil {
		return content, fmt.Errorf("read %s: %w", s.what, err)
	}
	if _, err = strictjson.Decode(text, maxStateBytes, 8); err == nil {
		content, err = s.parse(text)
	}
	if err != nil {
		var none T
		return none, s.moveAside(err)
	}
	return content, nil
}

func (s *stateFile[T]) moveAside(cause error) error {
	corrupt := &CorruptError{
		What: s.what, Path: s.path, Quarantine: s.path + ".corrupt-" + s.now().UTC().Format("20060102T150405.000000000"), Err: cause,
	}
	if err := os.Rename(s.path, corrupt.Quarantine); err != nil {
		corrupt.Quarantine = ""
		corrupt.Err = errors.Join(cause, err)
	}
	return corrupt
}

// write replaces the file: whole or not at all, and on disk before it returns.
func (s *stateFile[T]) write(text []byte) error {
	if err := atomicwriter.WriteFile(s.path, text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", s.what, err)
	}
	return syncDir(filepath.Dir(s.path))
}

// decodeState decodes what this package wrote, and nothing else.
func decodeState[T any](text []byte) (content T, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err = dec.Decode(&content)
	return content, err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}
