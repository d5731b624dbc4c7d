package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// openWatch records which files were opened and which directories read.
type openWatch struct {
	t     *testing.T
	fd    int
	paths map[int32]string
}

// watchOpens watches a directory that is read, and others in which files are opened.
// Syncing a directory opens it without reading.
func watchOpens(t *testing.T, read string, opened ...string) *openWatch {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	w := &openWatch{t, fd, map[int32]string{}}
	for _, path := range append(opened, read) {
		mask := uint32(unix.IN_OPEN)
		if path == read {
			mask = unix.IN_ACCESS
		}
		wd, err := unix.InotifyAddWatch(fd, path, mask)
		must(t, err)
		w.paths[int32(wd)] = path
	}
	return w
}

// take returns the paths that were opened or read since the last call, each once. Those
// of watched directories themselves end in a slash.
func (w *openWatch) take() []string {
	w.t.Helper()
	var opened []string
	for buf := make([]byte, 1<<16); ; {
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			slices.Sort(opened)
			return slices.Compact(opened)
		}
		must(w.t, err)
		for b := buf[:n]; len(b) > 0; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			opened = append(opened, w.paths[int32(binary.NativeEndian.Uint32(b))]+"/"+name)
			b = b[size:]
		}
	}
}

// TestStartsReadNoOtherSessions: a start neither lists sessions nor opens files of
// ended ones, except the session that it resumes. The control is a command that lists
// them.
func TestStartsReadNoOtherSessions(t *testing.T) {
	w := newWorld(t, "  - text: done\n  - text: done again\n")
	for range 3 { // the first start looks for old sessions
		if status := w.run(); status != 0 {
			t.Fatalf("status %d", status)
		}
	}
	state := filepath.Join(filepath.Dir(w.dir), "home/.local/state/caisson")
	past, err := sessiondir.List(state)
	if err != nil || len(past) != 3 {
		t.Fatalf("sessions %q, %v", past, err)
	}
	all := filepath.Dir(sessiondir.Path(state, "x"))
	var paths []string
	for _, id := range past {
		paths = append(paths, sessiondir.Path(state, id))
	}
	opens := watchOpens(t, all, paths...)
	ofOthers := func(own string) []string {
		return slices.DeleteFunc(opens.take(), func(path string) bool {
			return filepath.Dir(path) == all && !slices.Contains(past, filepath.Base(path)) && path != all+"/" || strings.HasPrefix(path+"/", sessiondir.Path(state, own)+"/")
		})
	}
	if status := w.run(); status != 0 {
		t.Fatalf("status %d", status)
	}
	if opened := ofOthers("none"); len(opened) > 0 {
		t.Errorf("a start opened %q", opened)
	}
	now, err := sessiondir.List(state)
	if err != nil || len(now) != 4 {
		t.Fatalf("sessions %q, %v", now, err)
	}
	_ = opens.take()
	var errs bytes.Buffer
	w.app.stderr = &errs
	if status := w.run("--resume", "last"); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	if opened := ofOthers(now[3]); len(opened) > 0 {
		t.Errorf("resuming opened %q", opened)
	}
	if status := run(t.Context(), []string{"trace", "ls"}, w.env, w.app); status != 0 {
		t.Fatalf("status %d", status)
	}
	if opened := ofOthers("none"); !slices.Contains(opened, all+"/") || !slices.Contains(opened, filepath.Join(paths[0], "trace.jsonl")) {
		t.Errorf("control: listing opened %q", opened)
	}
}

// TestLastResumable: the last session on a workspace is found whether its note is
// right, missing or wrong.
func TestLastResumable(t *testing.T) {
	w := newWorld(t, "  - text: done\n")
	for range 2 {
		if status := w.run(); status != 0 {
			t.Fatalf("status %d", status)
		}
	}
	state := filepath.Join(filepath.Dir(w.dir), "home/.local/state/caisson")
	all, err := sessiondir.List(state)
	if err != nil || len(all) != 2 {
		t.Fatalf("sessions %q, %v", all, err)
	}
	find := func(note, want string) {
		t.Helper()
		if s, err := findResumable(state, trace.Last, w.dir); err != nil || s.ID != want {
			t.Errorf("the note %s: %s, %v; want %s", note, s.ID, err, want)
		}
	}
	find("is right", all[1])
	must(t, os.Remove(filepath.Join(sessiondir.Path(state, all[1]), "trace.jsonl")))
	find("names one without records", all[0])
	must(t, sessiondir.SetLast(sessiondir.Path(state, "ses_x"), w.dir))
	find("names none", all[0])
	must(t, os.RemoveAll(filepath.Join(state, "last")))
	find("is missing", all[0])
}
