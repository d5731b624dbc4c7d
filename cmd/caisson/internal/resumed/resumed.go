// Package resumed finds the session that a command goes on with, and the settings that it
// keeps.
package resumed

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// Session is a session to go on with.
type Session struct {
	ID string
	// Created is its first record, and Settings has the newest settings: those of the last
	// process that had the session.
	Created, Settings record.SessionCreated
}

// Find returns the session that name names: an id or the beginning of one, or
// [trace.Last] for the newest one with a model on a workspace. It fails with a
// [trace.Error].
func Find(stateDir, name, workspace string) (Session, error) {
	if name == trace.Last {
		return findLast(stateDir, workspace)
	}
	found, err := trace.Find(stateDir, name)
	if err != nil {
		return Session{}, err
	}
	if found.Pruned || found.Dir != sessiondir.Path(stateDir, found.ID) {
		return Session{}, &trace.Error{Reason: trace.NoRecords, Name: found.ID}
	}
	s, err := readSession(found)
	if err != nil {
		return Session{}, err
	}
	return s, s.readSettings(found.Path)
}

// findLast returns the newest session with a model on a workspace.
func findLast(stateDir, workspace string) (Session, error) {
	dir, err := filepath.Abs(workspace)
	if err != nil {
		return Session{}, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil && workspace == "." {
		dir = real
	}
	names, err := sessiondir.List(stateDir)
	if err != nil {
		return Session{}, &trace.Error{Reason: trace.NotListed, Name: stateDir, Err: err}
	}
	for _, id := range slices.Backward(names) { // ids sort by time
		path := filepath.Join(sessiondir.Path(stateDir, id), record.TraceFile)
		s, err := readSession(trace.Session{ID: id, Path: path})
		if err == nil && s.Created.Workspace == dir && s.Created.Model.Provider != "" {
			return s, s.readSettings(path)
		}
	}
	return Session{}, &trace.Error{Reason: trace.NoSession, Name: "on " + dir}
}

// readSession reads the first record of a session.
func readSession(s trace.Session) (Session, error) {
	f, err := record.OpenRegular(s.Path)
	if err != nil {
		return Session{}, &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	defer func() { _ = f.Close() }() // only read
	created, err := trace.ReadCreated(bufio.NewReader(f))
	if err != nil {
		return Session{}, &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	return Session{ID: s.ID, Created: created, Settings: created}, nil
}

// readSettings reads the settings of the processes behind the first. Lines that are no
// records are left out: opening the session checks all of them.
func (s *Session) readSettings(path string) error {
	f, err := record.OpenRegular(path)
	if err != nil {
		return &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	defer func() { _ = f.Close() }() // only read
	kind := []byte(`"` + string(record.KindSessionResumed) + `"`)
	in := bufio.NewReaderSize(f, record.MaxLineBytes)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil { // the end, a torn line, or one that is too long for a record
			return nil
		}
		if !bytes.Contains(line, kind) {
			continue
		}
		rec, err := record.Decode(line)
		if err != nil || rec.Kind != record.KindSessionResumed {
			continue
		}
		var p record.SessionResumed
		if json.Unmarshal(rec.Payload, &p) == nil {
			s.Settings = p.SessionCreated
		}
	}
}

// Fill sets the settings that the session keeps unless the command line has them: its
// mode, the path of its workspace in the sandbox, its image, its backend and its model.
func (s Session) Fill(f *config.File) {
	set := func(to **string, value string) {
		if *to == nil && value != "" {
			*to = &value
		}
	}
	set(&f.Mode, s.Created.WorkspaceMode)
	set(&f.Workdir, s.Created.WorkspaceTarget)
	set(&f.Image, s.Settings.Image)
	set(&f.Backend, s.Settings.Backend.Asked)
	set(&f.Model, cmp.Or(s.Settings.Profile, s.Settings.Model.String()))
}

// Hint returns what to do about an error of a session that can't go on, "" for others.
func Hint(err error) string {
	e, ok := errors.AsType[*runner.ResumeError](err)
	switch {
	case errors.Is(err, sessiondir.ErrAlive):
		return "Wait for its end, or end it: caisson sandbox ls lists what runs."
	case errors.Is(err, sessiondir.ErrNoRecords):
		return "caisson trace ls lists sessions; the records of old ones are removed, and those can't go on."
	case !ok:
		return ""
	}
	switch e.Reason {
	case runner.ResumeDamaged:
		return "caisson trace verify " + e.Session + " shows where; start a new session with the task."
	case runner.ResumeOtherWorkspace:
		return "Name the session's own directory with --workspace, or start a new session."
	case runner.ResumeOtherMode, runner.ResumeOtherTarget:
		return "Leave out --mode, --apply, --patch-out and --workdir: the session keeps its own."
	case runner.ResumePartlyApplied:
		return "Apply the rest with caisson apply " + e.Session + ", or discard it, and then go on."
	case runner.ResumeApplying:
		return "Wait until its changes are applied, and then go on."
	case runner.ResumeNoModel:
		return "Name a session of caisson run or caisson chat."
	}
	return "Give it a task: caisson run --resume " + e.Session + ` "TASK".`
}

// Exists reports whether the directory of the session's workspace is still there.
func (s Session) Exists() bool {
	info, err := os.Stat(s.Created.Workspace)
	return err == nil && info.IsDir()
}
