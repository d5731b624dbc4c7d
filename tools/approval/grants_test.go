package approval

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

func testGrants(t *testing.T) (*Grants, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state", "caisson", "approvals.json")
	g := NewGrants(path)
	g.file.now = func() time.Time { return time.Date(2026, 11, 20, 10, 0, 0, 5, time.FixedZone("x", 3600)) }
	return g, path
}

func TestGrantsAreStoredFoundAndRevoked(t *testing.T) {
	g, path := testGrants(t)
	if list, err := g.List(); len(list) != 0 || err != nil {
		t.Fatalf("no file gives %v, %v", list, err)
	}
	allow := Grant{Tool: "shell", Workspace: "/p", Phrase: "git status", Decision: DecisionAllow}
	other := Grant{Tool: "write_file", Workspace: "/p", Decision: DecisionAllow}
	for _, grant := range []Grant{allow, other} {
		if err := g.Add(grant); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		key  Grant
		want Decision
	}{
		{allow, DecisionAllow},
		{other, DecisionAllow},
		{Grant{Tool: "shell", Workspace: "/p"}, ""},
		{Grant{Tool: "shell", Workspace: "/p/sub", Phrase: "git status"}, ""},
		{Grant{Tool: "shell", Workspace: "/p", Phrase: "git status -s"}, ""},
		{Grant{Tool: "other", Workspace: "/p"}, ""},
	} {
		if d, ok, err := NewGrants(path).Find(tt.key); d != tt.want || ok != (tt.want != "") || err != nil {
			t.Errorf("Find(%+v) is %q, %t, %v, want %q", tt.key, d, ok, err, tt.want)
		}
	}
	for _, path := range []string{path, path + ".lock"} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: %v, %v", path, info.Mode(), err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(text, []byte("}\n")) {
		t.Errorf("the file ends with no newline: %q, %v", text, err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder mode %v, %v", info.Mode(), err)
	}
	deny := allow
	deny.Decision = DecisionDeny
	if err := g.Add(deny); err != nil { // takes the allow's place
		t.Fatal(err)
	}
	if list, err := g.List(); err != nil || len(list) != 2 || list[1].Decision != DecisionDeny || list[1].Created.Format(time.RFC3339Nano) != "2026-11-20T09:00:00Z" {
		t.Errorf("list %+v, %v", list, err)
	}
	if n, err := g.Revoke(func(g Grant) bool { return g.Tool == "shell" }); len(n) != 1 || err != nil {
		t.Errorf("revoked %v, %v", n, err)
	}
	if n, err := g.Revoke(func(Grant) bool { return false }); len(n) != 0 || err != nil {
		t.Errorf("revoked %v, %v", n, err)
	}
	if list, _ := g.List(); len(list) != 1 {
		t.Errorf("%v is left", list)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".tmp-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestDenyBeatsAllow(t *testing.T) {
	g, path := testGrants(t)
	entry := `{"tool":"shell","workspace":"/p","decision":"%s","created":"2026-11-20T10:00:00Z"}`
	for _, order := range [][]any{{"allow", "deny"}, {"deny", "allow"}} {
		text := fmt.Sprintf(`{"version":1,"grants":[`+entry+`,`+entry+`]}`, order...)
		writeGrants(t, path, text)
		if d, ok, err := g.Find(Grant{Tool: "shell", Workspace: "/p"}); d != DecisionDeny || !ok || err != nil {
			t.Errorf("%v gives %q, %t, %v", order, d, ok, err)
		}
	}
}

func writeGrants(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCorruptGrantsAreQuarantined(t *testing.T) {
	good := `{"version":1,"grants":[{"tool":"shell","workspace":"/p","decision":"allow","created":"2026-11-20T10:00:00Z"}]}`
	key := Grant{Tool: "shell", Workspace: "/p"}
	g, path := testGrants(t)
	writeGrants(t, path, good)
	if d, _, err := g.Find(key); d != DecisionAllow || err != nil {
		t.Fatalf("the good file gives %q, %v: the cases below show nothing", d, err)
	}
	for name, text := range map[string]string{
		"empty": "", "cut": good[:len(good)-3], "trailing": good + "x", "not JSON": "allow everything", "another version": strings.Replace(good, "1", "2", 1),
		"unknown key": strings.Replace(good, `"tool"`, `"every":true,"tool"`, 1), "duplicate key": strings.Replace(good, `"tool"`, `"tool":"x","tool"`, 1),
		"another decision": strings.Replace(good, "allow", "yes", 1), "no workspace": strings.Replace(good, "/p", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			g, path := testGrants(t)
			writeGrants(t, path, text)
			d, ok, err := g.Find(key)
			var corrupt *CorruptError
			if d != "" || ok || !errors.As(err, &corrupt) || corrupt.Path != path {
				t.Fatalf("gives %q, %t, %v", d, ok, err)
			}
			if kept, err := os.ReadFile(corrupt.Quarantine); err != nil || string(kept) != text {
				t.Errorf("quarantine holds %q, %v", kept, err)
			}
			if _, ok, err := g.Find(key); ok || err != nil {
				t.Errorf("afterwards %t, %v, want an empty file", ok, err)
			}
			if err := g.Add(Grant{Tool: "shell", Workspace: "/p", Decision: DecisionAllow}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("a link", func(t *testing.T) {
		g, path := testGrants(t)
		elsewhere := filepath.Join(t.TempDir(), "planted.json")
		writeGrants(t, elsewhere, good)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, path); err != nil {
			t.Fatal(err)
		}
		if d, ok, err := g.Find(key); ok || err == nil {
			t.Errorf("a link is followed: %q, %v", d, err)
		}
	})
}

func TestGrantsOfManyWritersAreAllKept(t *testing.T) {
	_, path := testGrants(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			grant := Grant{Tool: tools.Name(fmt.Sprintf("tool_%02d", i)), Workspace: "/p", Decision: DecisionAllow}
			if err := NewGrants(path).Add(grant); err != nil { // a process of its own, as far as the lock can tell
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := NewGrants(path).List()
	names := map[tools.Name]bool{}
	for _, grant := range list {
		names[grant.Tool] = true
	}
	if len(names) != 20 || err != nil {
		t.Errorf("%d of 20 are kept, %v", len(names), err)
	}
}

func TestGrantThatSaysNothingIsRefused(t *testing.T) {
	g, _ := testGrants(t)
	for _, grant := range []Grant{{}, {Tool: "shell", Workspace: "/p"}, {Tool: "shell", Decision: DecisionAllow}, {Workspace: "/p", Decision: DecisionDeny}, {Tool: "a", Workspace: "/p", Decision: DecisionTimeout}} {
		if err := g.Add(grant); err == nil {
			t.Errorf("%+v is stored", grant)
		}
	}
	if diff := cmp.Diff([]Grant(nil), func() []Grant { l, _ := g.List(); return l }()); diff != "" {
		t.Error(diff)
	}
}

// TestGrantsAreFoundUnderEitherSpelling: what an operator wrote in the wire form
// must count for the tool, which the dispatcher knows by its canonical name.
func TestGrantsAreFoundUnderEitherSpelling(t *testing.T) {
	g, path := testGrants(t)
	writeGrants(t, path, `{"version":1,"grants":[{"tool":"notion__create-pages","workspace":"/p","decision":"deny","created":"2026-11-20T10:00:00Z"}]}`)
	canonical := Grant{Tool: "notion/create-pages", Workspace: "/p", Decision: DecisionAllow}
	if d, ok, err := g.Find(canonical); d != DecisionDeny || !ok || err != nil {
		t.Errorf("the canonical name finds %q, %t, %v", d, ok, err)
	}
	if d, ok, _ := g.Find(Grant{Tool: "notion/create", Workspace: "/p"}); ok {
		t.Errorf("another tool finds %q", d)
	}
	if err := g.Add(canonical); err != nil { // takes the place of the other spelling
		t.Fatal(err)
	}
	if list, err := g.List(); len(list) != 1 || list[0].Tool != "notion/create-pages" || err != nil {
		t.Errorf("%+v, %v", list, err)
	}
	naive := map[tools.Name]Decision{"notion__create-pages": DecisionDeny} // the control: a store keyed by the bytes
	if _, found := naive[canonical.Tool]; found {
		t.Error("the naive store finds it too: this test can't fail")
	}
}
