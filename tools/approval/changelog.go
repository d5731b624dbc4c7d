package approval

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

// ChangeLogFile is the name of the change log. It is beside the files whose changes
// it records.
const ChangeLogFile = "changes.jsonl"

// Change is one line of the change log: a change of the stored approvals or the
// trusted workspaces. It is written before the change is made; without it the
// change is not made.
//
//	{"ts":"2026-11-20T10:00:00.000001Z","uid":1000,"user":"me","by":"caisson approvals trust","file":"approvals.json","removed":[],"added":[{"tool":"shell",…}]}
type Change struct {
	// Time is UTC, in microseconds.
	Time time.Time `json:"ts"`
	// UID is the user ID of the process that made the change, -1 on systems without
	// one, and User its name or "".
	UID  int    `json:"uid"`
	User string `json:"user"`
	// By names the origin: a command, or a session and the client that answered.
	By   string `json:"by"`
	File string `json:"file"`
	// Removed and Added are the entries removed from and added to the file.
	Removed []json.RawMessage `json:"removed"`
	Added   []json.RawMessage `json:"added"`
}

// Author identifies who changes a store.
type Author struct {
	// By becomes [Change].By.
	By string
	// Redact removes secrets from JSON before it is logged. It may be nil.
	Redact func([]byte) []byte
}

// ReadChanges returns the logged changes in a directory, oldest first. The error
// names the lines that can't be decoded; the other changes are returned all the
// same.
func ReadChanges(dir string) ([]Change, error) {
	path := filepath.Join(dir, ChangeLogFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read change log: %w", err)
	}
	var changes []Change
	var errs []error
	number := 0
	for line := range bytes.Lines(text) {
		number++
		var c Change
		if err := json.Unmarshal(line, &c); err != nil {
			errs = append(errs, fmt.Errorf("read change log: line %d of %s: %w", number, path, err))
			continue
		}
		changes = append(changes, c)
	}
	return changes, errors.Join(errs...)
}

func appendChange(dir string, c Change) error {
	c.UID = os.Getuid()
	if u, err := user.LookupId(strconv.Itoa(c.UID)); err == nil {
		c.User = u.Username
	}
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode change: %w", err)
	}
	path := filepath.Join(dir, ChangeLogFile)
	return withLock(path, func() error {
		if err := appendLine(path, line); err != nil {
			return fmt.Errorf("write change log: %w", err)
		}
		return nil
	})
}

// appendLine adds a whole line or nothing. If a crash cut the last line short, it
// ends that one first.
func appendLine(path string, line []byte) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if last := []byte{'\n'}; size > 0 {
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = slices.Concat([]byte("\n"), line)
		}
	}
	_, err = f.Write(append(line, '\n'))
	if err == nil {
		err = errors.Join(f.Sync(), state.SyncDir(filepath.Dir(path)))
	}
	if err != nil { // the change is not made, so its line must not stay
		return errors.Join(err, f.Truncate(size))
	}
	return nil
}

func entriesMissing(list, other []json.RawMessage) []json.RawMessage {
	known := map[string]bool{}
	for _, e := range other {
		known[string(e)] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(e json.RawMessage) bool { return known[string(e)] })
}
