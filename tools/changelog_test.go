package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// logged gives the changes of a folder in short: seq, who made them, what went
// and came, and what became of it.
func logged(t *testing.T, folder string) []string {
	t.Helper()
	changes, err := ReadChanges(folder)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range changes {
		text := fmt.Sprintf("%d %s %s", c.Seq, c.By, c.File)
		for _, e := range c.Removed {
			text += " -" + shortEntry(e)
		}
		for _, e := range c.Added {
			text += " +" + shortEntry(e)
		}
		out = append(out, text+" "+string(c.Result))
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
		t.Fatalf("no log gives %v, %v", changes, err)
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
		"1 a approvals.json +allowls/p made",
		"2 b trust.json +/… made",
		"3 a approvals.json -allowls/p +denyls/p made",
		"4 a approvals.json +deny/p made",
		"5 b trust.json -/… made", // what changed nothing is no change
		"6 c approvals.json -denyls/p -deny/p made",
	}
	if diff := cmp.Diff(want, logged(t, dir)); diff != "" {
		t.Error(diff)
	}
	path := filepath.Join(dir, ChangeLogFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	changes, err := ReadChanges(dir)
	me, failed := user.Current()
	if err != nil || failed != nil || changes[0].User != me.Username || changes[0].UID != os.Getuid() || changes[0].Before != "" || changes[0].Time.IsZero() {
		t.Errorf("%+v, %v", changes[0], err)
	}
}

// TestChangesThatAreNotLoggedAreNotMade: where the log can't be written, or is
// damaged, nothing is approved, revoked, trusted or forgotten. The control makes
// the same changes beside a good log.
func TestChangesThatAreNotLoggedAreNotMade(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"the control": func(string) error { return nil },
		"no file":     func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		},
		"a changed line": func(path string) error { return edit(path, `"shell"`, `"shelf"`) },
		"not ours":       func(path string) error { return os.WriteFile(path, []byte("x\n"), 0o600) },
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

func edit(path, from, to string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), from) {
		return fmt.Errorf("%s has no %s", path, from)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o600)
}

// TestChangedLogsAreFound changes each byte of a log, takes out each line and
// turns lines around: reading it never says that it is good.
func TestChangedLogsAreFound(t *testing.T) {
	dir := t.TempDir()
	grants := NewGrants(filepath.Join(dir, "approvals.json"))
	for _, phrase := range []string{"a", "b", "c"} {
		if err := grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: phrase, Decision: DecisionAllow}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, ChangeLogFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	good = bytes.TrimSuffix(good, []byte("\n"))
	lines := bytes.Split(good, []byte("\n"))
	if len(lines) != 3 {
		t.Fatalf("%d lines", len(lines))
	}
	bad := [][]byte{
		bytes.Join([][]byte{lines[1], lines[2]}, []byte("\n")), bytes.Join([][]byte{lines[0], lines[2]}, []byte("\n")),
		bytes.Join([][]byte{lines[1], lines[0], lines[2]}, []byte("\n")), bytes.Join([][]byte{lines[0], lines[1], lines[1], lines[2]}, []byte("\n")),
	}
	for i := range len(lines[0]) + 1 + len(lines[1]) { // the last line's hash stands nowhere
		changed := bytes.Clone(good)
		changed[i] ^= 1
		bad = append(bad, changed)
	}
	for _, text := range append(bad, good) {
		if err := os.WriteFile(path, append(bytes.Clone(text), '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		changes, err := ReadChanges(dir)
		if isGood := bytes.Equal(text, good); errors.Is(err, ErrChangeLog) == isGood || isGood && (err != nil || len(changes) != 3) {
			t.Fatalf("%d changes, %v of %s", len(changes), err, text)
		}
	}
}

// TestDamagedLogs: what stands before the damage is read; what can't be read at all,
// and a file that the log can't be compared with, are errors of another kind.
func TestDamagedLogs(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil   func(log, file string) error
		changes int
		damaged bool
	}{
		"a bad second line": {func(log, _ string) error {
			text, err := os.ReadFile(log)
			return errors.Join(err, os.WriteFile(log, append(text, "x\n"...), 0o600))
		}, 1, true},
		"no file":                  {func(log, _ string) error { return errors.Join(os.Remove(log), os.Mkdir(log, 0o700)) }, 0, false},
		"a directory for the file": {func(_, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) }, 0, false},
	} {
		dir := t.TempDir()
		log, file := filepath.Join(dir, ChangeLogFile), filepath.Join(dir, "approvals.json")
		if err := NewGrants(file).Add(Grant{Tool: "shell", Workspace: "/p", Decision: DecisionAllow}); err != nil {
			t.Fatal(err)
		}
		if err := tt.spoil(log, file); err != nil {
			t.Fatal(err)
		}
		if changes, err := ReadChanges(dir); err == nil || errors.Is(err, ErrChangeLog) != tt.damaged || len(changes) != tt.changes || tt.damaged && !strings.Contains(err.Error(), "line 2 of "+log) {
			t.Errorf("%s: %d changes, %v", name, len(changes), err)
		}
	}
}

// TestLogsThatCantBeUsed: a log that can't be opened or read is an error, and not
// an empty one.
func TestLogsThatCantBeUsed(t *testing.T) {
	dir := t.TempDir()
	if err := (changeLog{filepath.Join(dir, "none", ChangeLogFile)}).append(Change{File: "f"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (changeLog{filepath.Join(dir, "file", ChangeLogFile)}).read(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if runtime.GOOS != "linux" {
		return
	}
	if _, _, err := (changeLog{"/proc/self/mem"}).read(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a file that can't be read: %v", err)
	}
}

func TestNextChange(t *testing.T) {
	line := func(version, seq int, prev, file string) string {
		return fmt.Sprintf(`{"schema_version":%d,"seq":%d,"prev":%q,"file":%q}`, version, seq, prev, file)
	}
	good := line(1, 7, "p", "f")
	for text, want := range map[string]string{
		good: "",
		good + strings.Repeat(" ", maxChangeBytes-len(good)):   "",
		good + strings.Repeat(" ", maxChangeBytes-len(good)+1): "longer than 16777216 bytes",
		line(2, 7, "p", "f"):                        "schema version 2, this program reads 1",
		line(1, 8, "p", "f"):                        "seq 8, want 7",
		line(1, 7, "q", "f"):                        "prev is not the hash of the line before",
		line(1, 7, "p", "a/f"):                      `"a/f" is no name of a file`,
		line(1, 7, "p", ""):                         `"" is no name of a file`,
		strings.Replace(good, "{", `{"more":1,`, 1): `json: unknown field "more"`,
	} {
		c, err := nextChange([]byte(text), 7, "p")
		if want == "" && (err != nil || c.File != "f") || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%.80s: %+v, %v", text, c, err)
		}
	}
}

// TestRedactionThatBreaksJSON: a change that can't be written to the log is not made.
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

// TestWhatBecameOfAChange: what the log announces and a kill kept from being
// made is said to be not made, and what changed a file past the log is seen.
func TestWhatBecameOfAChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "approvals.json")
	grants := NewGrants(path)
	add := func(phrase string) {
		t.Helper()
		if err := grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: phrase, Decision: DecisionAllow}); err != nil {
			t.Fatal(err)
		}
	}
	undo := func(change func()) { // as if it was killed between the log and the file
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		change()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add("a")
	undo(func() { add("b") })
	if diff := cmp.Diff([]string{"1  approvals.json +allowa/p made", "2  approvals.json +allowb/p not made"}, logged(t, dir)); diff != "" {
		t.Error(diff)
	}
	add("c")
	if err := os.WriteFile(path, []byte(`{"version":1,"grants":[]}`), 0o600); err != nil { // by hand
		t.Fatal(err)
	}
	add("d")
	want := []string{
		"1  approvals.json +allowa/p made", "2  approvals.json +allowb/p not made",
		"3  approvals.json +allowc/p unknown", "4  approvals.json +allowd/p made",
	}
	if diff := cmp.Diff(want, logged(t, dir)); diff != "" {
		t.Error(diff)
	}
	// A line that was cut short announced nothing, and the next takes its place.
	log := filepath.Join(dir, ChangeLogFile)
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"schema_version":1,"seq":5,`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, logged(t, dir)); diff != "" {
		t.Error(diff)
	}
	add("e")
	if diff := cmp.Diff(append(want, "5  approvals.json +allowe/p made"), logged(t, dir)); diff != "" {
		t.Error(diff)
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
		if c.Result != ChangeMade || len(c.Added) != 1 || len(c.Removed) != 0 {
			t.Errorf("%+v", c)
		}
	}
}
