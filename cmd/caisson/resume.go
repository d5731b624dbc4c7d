package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

type resumableSession struct {
	ID string
	// Created is its first record. Settings is from the last process that had the
	// session.
	Created, Settings record.SessionCreated
}

// findResumable finds a session by its id or the beginning of it. [trace.Last] is the
// newest one with a model on the workspace. It fails with a [trace.Error].
func findResumable(stateDir, name, workspace string) (resumableSession, error) {
	if name == trace.Last {
		return findLastResumable(stateDir, workspace)
	}
	found, err := trace.Find(stateDir, name)
	if err != nil {
		return resumableSession{}, err
	}
	if found.Pruned || found.Dir != sessiondir.Path(stateDir, found.ID) {
		return resumableSession{}, &trace.Error{Reason: trace.NoRecords, Name: found.ID}
	}
	s, err := readResumable(found)
	if err != nil {
		return resumableSession{}, err
	}
	return s, s.readSettings(found.Path)
}

func findLastResumable(stateDir, workspace string) (resumableSession, error) {
	dir, err := filepath.Abs(workspace)
	if err != nil {
		return resumableSession{}, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil && workspace == "." {
		dir = real
	}
	matches := func(id string) bool {
		s, err := readResumable(trace.Session{ID: id, Path: filepath.Join(sessiondir.Path(stateDir, id), record.TraceFile)})
		return err == nil && s.Created.Workspace == dir && s.Created.Model.Provider != ""
	}
	if id, ok := sessiondir.Last(stateDir, dir); ok && matches(id) {
		return findResumable(stateDir, id, workspace)
	}
	names, err := sessiondir.List(stateDir)
	if err != nil {
		return resumableSession{}, &trace.Error{Reason: trace.NotListed, Name: stateDir, Err: err}
	}
	for _, id := range slices.Backward(names) { // ids sort by time
		if matches(id) {
			return findResumable(stateDir, id, workspace)
		}
	}
	return resumableSession{}, &trace.Error{Reason: trace.NoSession, Name: "on " + dir}
}

func readResumable(s trace.Session) (resumableSession, error) {
	f, err := record.OpenRegular(s.Path)
	if err != nil {
		return resumableSession{}, &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	defer func() { _ = f.Close() }() // only read
	created, err := trace.ReadCreated(bufio.NewReader(f))
	if err != nil {
		return resumableSession{}, &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	return resumableSession{ID: s.ID, Created: created, Settings: created}, nil
}

// readSettings reads the settings of later processes. It skips lines that are not
// records: opening the session checks them all.
func (s *resumableSession) readSettings(path string) error {
	f, err := record.OpenRegular(path)
	if err != nil {
		return &trace.Error{Reason: trace.Unreadable, Name: s.ID, Err: err}
	}
	defer func() { _ = f.Close() }() // only read
	kind := []byte(`"` + string(record.KindSessionResumed) + `"`)
	in := bufio.NewReaderSize(f, record.MaxLineBytes)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil { // the end, a torn line, or one too long for a record
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

// fill sets the settings that the session keeps, unless the command line has them.
func (s resumableSession) fill(f *config.File) {
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
