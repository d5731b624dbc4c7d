package tools

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ChangeLogFile is the log of changes, beside the files that it is about.
const ChangeLogFile = "changes.jsonl"

// maxChangeBytes bounds a line: all entries of a file that go, and all that come.
const maxChangeBytes = 4 * maxStateBytes

// firstChange is prev of the first line.
var firstChange = strings.Repeat("0", 2*sha256.Size)

// ErrChangeLog says that the log of changes is not what was written: a line is
// missing, changed, repeated or out of order.
var ErrChangeLog = errors.New("log of changes is not as it was written")

// Change is one change of what a person decided for good: of the lasting
// approvals or of the trusted workspaces. It is one line of the log, on the disk
// before the change is made; a change that can't be logged is not made.
//
//	{"schema_version":1,"seq":1,"ts":"2026-11-20T10:00:00.000001Z","uid":1000,"user":"me","by":"caisson approvals trust","file":"approvals.json","removed":[],"added":[{"tool":"shell",…}],"before":"","after":"9f86…","prev":"00…"}
type Change struct {
	SchemaVersion int `json:"schema_version"` // 1
	// Seq counts from 1 without gaps.
	Seq int64 `json:"seq"`
	// Time is UTC, microseconds.
	Time time.Time `json:"ts"`
	// UID is the user id of the process that made it, -1 where a system has none;
	// User is its name, "" where it has none.
	UID  int    `json:"uid"`
	User string `json:"user"`
	// By names the origin: a command, or a session and the client that answered.
	By string `json:"by"`
	// File is the name of the file that was changed.
	File string `json:"file"`
	// Removed and Added are its entries that went and came, as they stand there.
	Removed []json.RawMessage `json:"removed"`
	Added   []json.RawMessage `json:"added"`
	// Before and After are the SHA-256 of the whole file, hex; "" is no file.
	Before string `json:"before"`
	After  string `json:"after"`
	// Prev is that of the line before, without its newline.
	Prev string `json:"prev"`
}

// ChangeResult is what became of a logged change.
type ChangeResult string

// The results. They follow from the hashes: of the next change of the same file,
// or of the file itself.
const (
	// ChangeMade is a change that was made.
	ChangeMade ChangeResult = "made"
	// ChangeNotMade is one that failed, or whose process was killed before it.
	ChangeNotMade ChangeResult = "not made"
	// ChangeUnknown is one behind which the file was changed by something that
	// does not log: by hand, or by being moved aside because it was damaged.
	ChangeUnknown ChangeResult = "unknown"
)

// LoggedChange is a change with what became of it.
type LoggedChange struct {
	Change
	Result ChangeResult `json:"result"`
}

// Author is on whose behalf a store is changed.
type Author struct {
	// By is what makes the change, for [Change.By].
	By string
	// Redact takes secrets out of JSON before it is logged; nil changes nothing.
	Redact func([]byte) []byte
}

// ReadChanges gives the changes of all files in a folder, the oldest first. The
// error wraps [ErrChangeLog] where the log is damaged, and the changes before that
// are given all the same; a last line that a crash cut short was never a change.
func ReadChanges(folder string) (changes []LoggedChange, err error) {
	l := changeLog{filepath.Join(folder, ChangeLogFile)}
	if _, err := os.Lstat(l.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = l.locked(func() error {
		lines, _, err := l.read()
		if err != nil && !errors.Is(err, ErrChangeLog) {
			return err
		}
		var failed error
		changes, failed = withResults(folder, lines)
		return errors.Join(err, failed)
	})
	return changes, err
}

// withResults finds what became of each change.
func withResults(folder string, lines []Change) ([]LoggedChange, error) {
	now := map[string]string{} // the hash that each file had after the change that is looked at
	changes := make([]LoggedChange, len(lines))
	for i, c := range slices.Backward(lines) {
		after, known := now[c.File]
		if !known {
			var err error
			if after, err = hashOf(filepath.Join(folder, c.File)); err != nil {
				return nil, err
			}
		}
		result := ChangeUnknown
		switch after {
		case c.After:
			result = ChangeMade
		case c.Before:
			result = ChangeNotMade
		}
		changes[i] = LoggedChange{c, result}
		now[c.File] = c.Before
	}
	return changes, nil
}

func hashOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("compare with the log of changes: %w", err)
	}
	return hexSum(text), nil
}

func hexSum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// changeLog is the file of changes: it is only ever appended to, and whoever
// changes what it is about holds its lock.
type changeLog struct{ path string }

func (l changeLog) locked(f func() error) error { return lockBeside(l.path, "log of changes", f) }

// append puts a change on the disk. The caller holds the lock. A log that is
// damaged takes no more: what follows could not be believed.
func (l changeLog) append(c Change) error {
	before, end, err := l.read()
	if err != nil {
		return err
	}
	c.SchemaVersion, c.Seq, c.Prev, c.UID = 1, int64(len(before))+1, end.hash, os.Getuid()
	if known, err := user.LookupId(strconv.Itoa(c.UID)); err == nil {
		c.User = known.Username
	}
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode change: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write log of changes: %w", err)
	}
	err = f.Truncate(end.offset) // a line that a crash cut short announced nothing that was made
	if err == nil {
		_, err = f.Write(append(text, '\n'))
	}
	if err == nil {
		err = errors.Join(f.Sync(), syncFolder(filepath.Dir(l.path)))
	}
	if err != nil { // what was not made must not stand there
		err = fmt.Errorf("write log of changes: %w", errors.Join(err, f.Truncate(end.offset)))
	}
	return errors.Join(err, f.Close())
}

// logEnd is where the good lines of a log end, and the hash of the last one.
type logEnd struct {
	offset int64
	hash   string
}

// read reads and verifies the whole log; there may be none.
func (l changeLog) read() ([]Change, logEnd, error) {
	end := logEnd{hash: firstChange}
	info, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, end, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", l.path)
	}
	if err != nil {
		return nil, end, fmt.Errorf("read log of changes: %w", err)
	}
	text, err := os.ReadFile(l.path)
	if err != nil {
		return nil, end, fmt.Errorf("read log of changes: %w", err)
	}
	var changes []Change
	for line := range bytes.Lines(text) {
		entry, whole := bytes.CutSuffix(line, []byte("\n"))
		if !whole {
			break // it was cut short
		}
		c, err := nextChange(entry, int64(len(changes))+1, end.hash)
		if err != nil {
			return changes, end, fmt.Errorf("%w: line %d of %s: %w", ErrChangeLog, len(changes)+1, l.path, err)
		}
		changes = append(changes, c)
		end = logEnd{end.offset + int64(len(line)), hexSum(entry)}
	}
	return changes, end, nil
}

// nextChange reads the line that must follow.
func nextChange(text []byte, seq int64, prev string) (c Change, err error) {
	if len(text) > maxChangeBytes {
		return c, fmt.Errorf("longer than %d bytes", maxChangeBytes)
	}
	if c, err = decodeState[Change](text); err != nil {
		return c, err
	}
	switch {
	case c.SchemaVersion != 1:
		return c, fmt.Errorf("schema version %d, this program reads 1", c.SchemaVersion)
	case c.Seq != seq:
		return c, fmt.Errorf("seq %d, want %d", c.Seq, seq)
	case c.Prev != prev:
		return c, errors.New("prev is not the hash of the line before")
	case c.File != filepath.Base(c.File):
		return c, fmt.Errorf("%q is no name of a file", c.File)
	}
	return c, nil
}

// difference gives the entries that went and those that came, as JSON.
func difference(before, after []json.RawMessage) (removed, added []json.RawMessage) {
	missing := func(from, in []json.RawMessage) []json.RawMessage {
		known := map[string]bool{}
		for _, e := range in {
			known[string(e)] = true
		}
		return slices.DeleteFunc(slices.Clone(from), func(e json.RawMessage) bool { return known[string(e)] })
	}
	return missing(before, after), missing(after, before)
}
