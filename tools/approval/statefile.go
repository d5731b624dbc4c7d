package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// maxStateBytes allows some ten thousand entries.
const maxStateBytes = 4 << 20

// lockTime bounds the wait for another process, which holds the lock for a
// millisecond.
const lockTime = 5 * time.Second

// stateFile is a JSON file of lasting decisions. It must be outside every
// workspace. It is read anew for each call, under a lock that other processes take
// too. A change is logged first (see [Change]), then replaces the whole file, and
// is on disk when it returns. A file in any other format is moved aside and counts
// as empty.
type stateFile[T any] struct {
	path string
	// what names the content in errors, such as "approvals".
	what string
	now  func() time.Time
	// parse returns the content of a text, which has no duplicate JSON keys.
	parse func(text []byte) (T, error)
	// entries splits the content for the change log.
	entries func(T) []any
	author  Author
}

// CorruptError reports a file of lasting decisions that this package did not write.
// It was moved aside and counts as empty.
type CorruptError struct {
	// What names the content: "approvals", "trusted workspaces".
	What string
	// Path is the file. Quarantine is where it is now, or "" if it could not be
	// moved.
	Path, Quarantine string
	Err              error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read %s %s: %v (moved to %q)", e.What, e.Path, e.Err, e.Quarantine)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// load returns the content, or the zero T if there is no file.
func (s *stateFile[T]) load() (content T, err error) {
	if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return content, nil // without making a directory
	}
	err = withLock(s.path, func() (err error) {
		content, err = s.read()
		return err
	})
	return content, err
}

// change replaces the content by the result of edit, once the change is logged. A
// corrupt file counts as empty. If edit changes nothing, nothing is written.
func (s *stateFile[T]) change(edit func(T) T) error {
	return withLock(s.path, func() error { return s.changeLocked(edit) })
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
	removed := entriesMissing(before, after)
	added := entriesMissing(after, before)
	if len(removed)+len(added) == 0 {
		return nil
	}
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", s.what, err)
	}
	err = appendChange(filepath.Dir(s.path), Change{
		Time: s.now().UTC().Truncate(time.Microsecond), By: s.author.By, File: filepath.Base(s.path),
		Removed: s.redactEntries(removed), Added: s.redactEntries(added),
	})
	if err != nil {
		return fmt.Errorf("change %s: %w", s.what, err)
	}
	if err := state.Replace(s.path, append(text, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", s.what, err)
	}
	return nil
}

func (s *stateFile[T]) encodeEntries(content T) ([]json.RawMessage, error) {
	entries := []json.RawMessage{} // not null in JSON
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

// withLock calls f while no other process changes the file.
func withLock(path string, f func() error) error {
	lock, err := state.Acquire(context.Background(), path+".lock", lockTime)
	if err != nil {
		return err
	}
	return errors.Join(f(), lock.Release())
}

// read is load without locking.
func (s *stateFile[T]) read() (content T, err error) {
	text, err := state.Read(s.path, maxStateBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return content, nil
	case err != nil && !errors.Is(err, state.ErrDamaged):
		return content, fmt.Errorf("read %s: %w", s.what, err)
	case err == nil:
		_, err = strictjson.Decode(text, maxStateBytes, 8)
	}
	if err == nil {
		content, err = s.parse(text)
	}
	if err != nil {
		var none T
		to, asideErr := state.SetAside(s.path, s.now())
		return none, &CorruptError{What: s.what, Path: s.path, Quarantine: to, Err: errors.Join(err, asideErr)}
	}
	return content, nil
}
