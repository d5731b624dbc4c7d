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
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// loggedChanges returns the logged changes of a directory in short: who made them
// and what was removed and added.
func loggedChanges(t *testing.T, dir string) []string {
	t.Helper()
	changes, err := ReadChanges(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range changes {
		text := c.By + " " + c.File
		for _, e := range c.Removed {
			text += " -" + shortEntry(e)
		}
		for _, e := range c.Added {
			text += " +" + shortEntry(e)
		}
		out = append(out, text)
	}
	return out
}

func shortEntry(raw json.RawMessage) string {
	var e struct{ Decision, Phrase, Workspace string }
	if err := json.Unmarshal(raw, &e); err != nil {
		return err.Error()
	}
	return e.Decision + e.Phrase + e.Workspace
}

func TestEachChangeIsLogged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caisson")
	if changes, err := ReadChanges(dir); changes != nil || err != nil {
		t.Fatalf("without a log: %v, %v", changes, err)
	}
	grants := NewGrants(filepath.Join(dir, "approvals.json")).As(Author{By: "a"})
	trust := NewTrust(filepath.Join(dir, "trust.json")).As(Author{By: "b", Redact: func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("hush"), []byte("…")) }})
	allow := Grant{Tool: "shell", Workspace: "/p", Phrase: "ls", Decision: DecisionAllow}
	deny := allow
	deny.Decision = DecisionDeny
	for _, err := range []error{
		grants.Add(allow), trust.Add("/hush", nil), grants.Add(deny), grants.Add(Grant{Tool: "x", Workspace: "/p", Decision: DecisionDeny}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := trust.Remove("/other"); removed || err != nil {
		t.Fatal(removed, err)
	}
	if removed, err := trust.Remove("/hush"); !removed || err != nil {
		t.Fatal(removed, err)
	}
	if _, err := grants.As(Author{By: "c"}).Revoke(func(Grant) bool { return true }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a approvals.json +allowls/p",
		"b trust.json +/…",
		"a approvals.json -allowls/p +denyls/p",
		"a approvals.json +deny/p",
		"b trust.json -/…", // an edit that changes nothing is not logged
		"c approvals.json -denyls/p -deny/p",
	}
	if diff := cmp.Diff(want, loggedChanges(t, dir)); diff != "" {
		t.Error(diff)
	}
	path := filepath.Join(dir, ChangeLogFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	changes, err := ReadChanges(dir)
	me, failed := user.Current()
	if err != nil || failed != nil || changes[0].User != me.Username || changes[0].UID != os.Getuid() || changes[0].Time.IsZero() {
		t.Errorf("%+v, %v", changes[0], err)
	}
}

// TestChangesThatAreNotLoggedAreNotMade: if the log cannot be written, nothing is
// approved, revoked, trusted or forgotten. The control makes the same changes beside
// a good log.
func TestChangesThatAreNotLoggedAreNotMade(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"the control": func(string) error { return nil },
		"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a dead link": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink(filepath.Join(path+"2", "none"), path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			grants, trust := NewGrants(filepath.Join(dir, "approvals.json")), NewTrust(filepath.Join(dir, "trust.json"))
			if err := errors.Join(grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: "ls", Decision: DecisionAllow}), trust.Add("/p", nil)); err != nil {
				t.Fatal(err)
			}
			if err := spoil(filepath.Join(dir, ChangeLogFile)); err != nil {
				t.Fatal(err)
			}
			before := contents(t, dir)
			add := grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: "id", Decision: DecisionAllow})
			removed, revoke := grants.Revoke(func(Grant) bool { return true })
			believe := trust.Add("/q", nil)
			_, forget := trust.Remove("/p")
			good, unchanged := name == "the control", contents(t, dir) == before
			if (add == nil) != good || (revoke == nil) != good || (forget == nil) != good || (believe == nil) != good || unchanged == good {
				t.Errorf("errors %v, %v (%v), %v, %v; unchanged %t", add, revoke, removed, forget, believe, unchanged)
			}
		})
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	var all string
	for _, name := range []string{"approvals.json", "trust.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	return all
}

// TestUnreadableLines: a line that a crash cut short, and one that is not a change,
// are reported; all others are read, and the next change goes on a line of its own.
func TestUnreadableLines(t *testing.T) {
	dir := t.TempDir()
	log, grants := filepath.Join(dir, ChangeLogFile), NewGrants(filepath.Join(dir, "approvals.json"))
	add := func(phrase string) {
		t.Helper()
		if err := grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: phrase, Decision: DecisionAllow}); err != nil {
			t.Fatal(err)
		}
	}
	add("a")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, append(text, "x\n{\"ts\":"...), 0o600); err != nil {
		t.Fatal(err)
	}
	add("b")
	changes, err := ReadChanges(dir)
	if len(changes) != 2 || len(changes[1].Added) != 1 || !strings.Contains(string(changes[1].Added[0]), `"b"`) {
		t.Errorf("changes are %+v", changes)
	}
	if err == nil || !strings.Contains(err.Error(), "line 2 of "+log) || !strings.Contains(err.Error(), "line 3 of "+log) || strings.Contains(err.Error(), "line 4") {
		t.Errorf("the error is %v", err)
	}
}

// TestLogsThatCantBeUsed: a log that can't be opened, written or read is an error,
// and not an empty one.
func TestLogsThatCantBeUsed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(filepath.Join(dir, ChangeLogFile), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := appendLine(filepath.Join(dir, "none", ChangeLogFile), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if err := appendChange(dir, Change{File: "f"}); err == nil || !strings.Contains(err.Error(), "write change log: ") {
		t.Errorf("a directory: %v", err)
	}
	if err := appendChange(file, Change{File: "f"}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	for _, dir := range []string{dir, file} {
		if changes, err := ReadChanges(dir); changes != nil || err == nil || !strings.Contains(err.Error(), "read change log: ") {
			t.Errorf("%s: read %v, %v", dir, changes, err)
		}
	}
}

// TestRedactionThatBreaksJSON: a change that cannot be encoded for the log is not made.
func TestRedactionThatBreaksJSON(t *testing.T) {
	g, _ := testGrants(t)
	broken := g.As(Author{Redact: func([]byte) []byte { return []byte("{") }})
	if err := broken.Add(Grant{Tool: "shell", Workspace: "/p", Decision: DecisionAllow}); err == nil {
		t.Error("it is made")
	}
	if list, err := g.List(); err != nil || len(list) != 0 {
		t.Errorf("stored are %v, %v", list, err)
	}
}

// TestChangesAtTheSameTime come from several stores, as from several processes.
func TestChangesAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	const each = 5
	for i := range 4 {
		wg.Go(func() {
			grants, trust := NewGrants(filepath.Join(dir, "approvals.json")), NewTrust(filepath.Join(dir, "trust.json"))
			for k := range each {
				err := errors.Join(
					grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: fmt.Sprint(i, k), Decision: DecisionAllow}),
					trust.Add(fmt.Sprintf("/p/%d/%d", i, k), nil))
				if _, failed := ReadChanges(dir); err != nil || failed != nil {
					t.Error(err, failed)
				}
			}
		})
	}
	wg.Wait()
	changes, err := ReadChanges(dir)
	if err != nil || len(changes) != 4*each*2 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	for _, c := range changes {
		if len(c.Added) != 1 || len(c.Removed) != 0 {
			t.Errorf("%+v", c)
		}
	}
}
