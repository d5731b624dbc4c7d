package approval

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testTrust(t *testing.T) (*Trust, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state", "caisson", "trust.json")
	return NewTrust(path), path
}

func trustedConfig(digit string) []TrustedFile {
	return []TrustedFile{{Path: ".caisson/config.yaml", SHA256: strings.Repeat(digit, 64)}}
}

func TestTrustIsStoredFoundAndRemoved(t *testing.T) {
	trust, path := testTrust(t)
	if w, ok, err := trust.Find("/p"); ok || err != nil {
		t.Fatalf("no file gives %+v, %v", w, err)
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("looking makes a folder")
	}
	for _, add := range []struct {
		workspace string
		files     []TrustedFile
	}{{"/p", trustedConfig("a")}, {"/q", nil}, {"/p", trustedConfig("b")}} {
		if err := trust.Add(add.workspace, add.files); err != nil {
			t.Fatal(err)
		}
	}
	list, err := NewTrust(path).List()
	want := []TrustedWorkspace{{Workspace: "/q", Files: []TrustedFile{}}, {Workspace: "/p", Files: trustedConfig("b")}}
	if diff := cmp.Diff(want, list, cmpopts.IgnoreFields(TrustedWorkspace{}, "Created")); diff != "" || err != nil {
		t.Errorf("(-want +got):\n%s%v", diff, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if found, err := trust.Remove("/p"); !found || err != nil {
		t.Errorf("removed %t, %v", found, err)
	}
	if found, err := trust.Remove("/p"); found || err != nil {
		t.Errorf("removed again: %t, %v", found, err)
	}
}

func TestTrustCoversExactlyItsFiles(t *testing.T) {
	w := TrustedWorkspace{Files: trustedConfig("a")}
	more := append(trustedConfig("a"), TrustedFile{Path: ".mcp.json", SHA256: strings.Repeat("c", 64)})
	for name, tc := range map[string]struct {
		files []TrustedFile
		want  bool
	}{
		"same": {trustedConfig("a"), true}, "changed": {trustedConfig("b"), false},
		"gone": {nil, false}, "one more": {more, false},
	} {
		if got := w.Covers(tc.files); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !(TrustedWorkspace{Files: []TrustedFile{}}).Covers(nil) || (TrustedWorkspace{Files: []TrustedFile{}}).Covers(more) {
		t.Error("trust without files covers something else than no files")
	}
}

func TestCorruptTrustIsQuarantined(t *testing.T) {
	good := `{"version":1,"workspaces":[{"workspace":"/p","files":[{"path":".caisson/config.yaml","sha256":"` + strings.Repeat("a", 64) + `"}],"created":"2026-11-20T10:00:00Z"}]}`
	trust, path := testTrust(t)
	writeGrants(t, path, good)
	if _, ok, err := trust.Find("/p"); !ok || err != nil {
		t.Fatalf("the good file gives %t, %v: the cases below show nothing", ok, err)
	}
	for name, text := range map[string]string{
		"empty": "", "cut": good[:len(good)-3], "trailing": good + "{}", "not JSON": "trust everything", "another version": strings.Replace(good, "1", "2", 1),
		"unknown key": strings.Replace(good, `"workspace"`, `"all":true,"workspace"`, 1), "duplicate key": strings.Replace(good, `"workspace"`, `"workspace":"/q","workspace"`, 1),
		"relative": strings.Replace(good, "/p", "p", 1), "no hash": strings.Replace(good, strings.Repeat("a", 64), "*", 1),
		"no files": strings.Replace(good, `"files"`, `"path"`, 1), "null files": `{"version":1,"workspaces":[{"workspace":"/p","files":null,"created":"2026-11-20T10:00:00Z"}]}`,
		"twice": strings.Replace(good, "}]}", `},{"workspace":"/p","files":[],"created":"2026-11-20T10:00:00Z"}]}`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			trust, path := testTrust(t)
			writeGrants(t, path, text)
			w, ok, err := trust.Find("/p")
			corrupt, is := errors.AsType[*CorruptError](err)
			if ok || !is || corrupt.Path != path || name == "twice" && !strings.Contains(err.Error(), "is there twice") {
				t.Fatalf("gives %+v, %t, %v", w, ok, err)
			}
			if kept, err := os.ReadFile(corrupt.Quarantine); err != nil || string(kept) != text {
				t.Errorf("quarantine holds %q, %v", kept, err)
			}
			if err := trust.Add("/p", trustedConfig("a")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTrustOfManyWritersIsAllKept(t *testing.T) {
	_, path := testTrust(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := NewTrust(path).Add(fmt.Sprintf("/p%02d", i), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if list, err := NewTrust(path).List(); len(list) != 20 || err != nil {
		t.Errorf("%d of 20 are kept, %v", len(list), err)
	}
}

func TestTrustThatSaysNothingIsRefused(t *testing.T) {
	trust, _ := testTrust(t)
	file := func(path string) TrustedFile { return TrustedFile{Path: path, SHA256: strings.Repeat("a", 64)} }
	if err := trust.Add("/q", []TrustedFile{file("a"), file("b"), file("c")}); err != nil {
		t.Fatalf("the control is refused: %v", err)
	}
	for _, w := range []TrustedWorkspace{
		{Workspace: "p"},
		{Files: trustedConfig("a")},
		{Workspace: "/p", Files: []TrustedFile{{Path: "x", SHA256: "short"}}},
		{Workspace: "/p", Files: []TrustedFile{file("b"), file("a")}},
		{Workspace: "/p", Files: []TrustedFile{file("a"), file("c"), file("b")}},
		{Workspace: "/p", Files: []TrustedFile{file("a"), file("a")}},
		{Workspace: "/p", Files: []TrustedFile{{SHA256: strings.Repeat("a", 64)}}},
	} {
		if err := trust.Add(w.Workspace, w.Files); err == nil {
			t.Errorf("%+v is stored", w)
		}
	}
}
