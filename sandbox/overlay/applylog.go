package overlay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
)

// applyLog lists what an apply is going to change. It is written before the
// first change. A log that exists belongs to an apply that was killed or did
// not finish, which may have changed the listed paths.
//
//	{"run":"…"}          the name in its temporary files
//	{"b":"YS9i"}         a path, in base64
type applyLog struct {
	paths map[string]bool
	runs  []string
}

type applyLogLine struct {
	Run   string `json:"run,omitempty"`
	Bytes []byte `json:"b,omitempty"`
}

func readApplyLog(l *Layers) (applyLog, error) {
	return readLogFile(filepath.Join(l.dir, applyFile))
}

// readApplied reads the changes that were applied. They are no changes any
// more, whatever happens to them in the directory.
func readApplied(l *Layers) (applyLog, error) { return readLogFile(filepath.Join(l.dir, doneFile)) }

// readLogFile reads a log. A missing file is an empty log.
func readLogFile(path string) (applyLog, error) {
	j := applyLog{paths: map[string]bool{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return j, fmt.Errorf("read journal: %w", err)
	}
	defer func() { _ = f.Close() }()
	dec := json.NewDecoder(bufio.NewReader(f))
	for dec.More() {
		var line applyLogLine
		if err := dec.Decode(&line); err != nil {
			return applyLog{}, fmt.Errorf("read journal: %w", err)
		}
		switch {
		case line.Run != "":
			j.runs = append(j.runs, line.Run)
		case line.Bytes != nil:
			j.paths[string(line.Bytes)] = true
		}
	}
	return j, nil
}

// writeLogFile replaces a log atomically and syncs it.
func (l *Layers) writeLogFile(name string, j applyLog) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	var all []error
	for _, r := range j.runs {
		all = append(all, enc.Encode(applyLogLine{Run: r}))
	}
	for p := range j.paths {
		all = append(all, enc.Encode(applyLogLine{Bytes: []byte(p)}))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := state.Replace(filepath.Join(l.dir, name), text.Bytes()); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// extendApplyLog adds a run and its changes to the previous log, and writes it.
func (l *Layers) extendApplyLog(before applyLog, run string, todo []*Change) error {
	before.runs = append(slices.Clone(before.runs), run)
	for _, c := range todo {
		before.paths[c.Path] = true
	}
	return l.writeLogFile(applyFile, before)
}

// recordApplied records the applied changes. If none failed, it removes the
// apply log.
func recordApplied(l *Layers, r *Result) error {
	done, err := readApplied(l)
	if err != nil {
		return err
	}
	for i := range r.Applied {
		done.paths[r.Applied[i].Path] = true
	}
	if err := l.writeLogFile(doneFile, done); err != nil {
		return err
	}
	if len(r.Failed) > 0 {
		return nil // the log still covers changes that are half done
	}
	if err := os.Remove(filepath.Join(l.dir, applyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove journal: %w", err)
	}
	return nil
}

// tempPrefix returns the prefix of the names of temporary files of a run.
func tempPrefix(run string) string { return ".caisson-apply-" + run + "-" }

func tempName(run string, n int) string { return tempPrefix(run) + strconv.Itoa(n) + ".tmp" }

// isTemporary reports whether a file with this name is a temporary one of a run.
func (j applyLog) isTemporary(name string) bool {
	return slices.ContainsFunc(j.runs, func(run string) bool { return strings.HasPrefix(name, tempPrefix(run)) })
}

// removeTemporary removes the temporary files of killed runs from the
// directories that they were going to change.
func (j applyLog) removeTemporary(original tree) {
	if len(j.runs) == 0 {
		return
	}
	done := map[string]bool{}
	for p := range j.paths {
		if dir := parent(p); !done[dir] {
			done[dir] = true
			j.removeTemporaryIn(original, dir)
		}
	}
}

func (j applyLog) removeTemporaryIn(original tree, dir string) {
	fd, err := original.openDir(dir)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = eachName(fd, func(name string) error {
		if j.isTemporary(name) {
			_ = unix.Unlinkat(fd, name, 0)
		}
		return nil
	})
}
