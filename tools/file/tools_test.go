package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestDefinitions(t *testing.T) {
	f := newFixture(t)
	d, err := dispatch.New(dispatch.Options{Emit: func(dispatch.Event) error { return nil }})
	f.must(err)
	var names, readers []tools.Name
	for _, factory := range f.all {
		if err := d.Register(factory); err != nil {
			t.Error(err)
		}
		def := factory().Definition()
		names = append(names, def.Name)
		if !def.EnabledByDefault || def.Description == "" || def.Paths == nil {
			t.Errorf("definition of %s: %+v", def.Name, def)
		}
		want := tools.PlaceHost
		if def.Class == tools.ClassWrite {
			want = tools.PlaceSandbox
		} else {
			readers = append(readers, def.Name)
		}
		if def.Runs != want {
			t.Errorf("%s runs in %s", def.Name, def.Runs)
		}
	}
	want := []tools.Name{"read_file", "list_dir", "glob", "grep", "write_file", "patch_file", "delete_file", "apply_patch"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("tools (-want +got):\n%s", d)
	}
	only, err := Factories(Options{Reader: f.reader})
	f.must(err)
	names = nil
	for _, factory := range only {
		names = append(names, factory().Definition().Name)
	}
	if d := cmp.Diff(readers, names); d != "" {
		t.Errorf("tools without an applier (-want +got):\n%s", d)
	}
	if _, err := Factories(Options{}); err == nil {
		t.Error("Factories took options without a reader")
	}
}

func TestPaths(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		tool  tools.Name
		input string
		want  []string
	}{
		{"read_file", `{"path":"a"}`, []string{"a"}},
		{"write_file", `{"path":"a","content":""}`, []string{"a"}},
		{"list_dir", `{}`, []string{"."}},
		{"glob", `{"pattern":"*","path":""}`, []string{"."}},
		{"grep", `{"pattern":"x","path":"d"}`, []string{"d"}},
		{"delete_file", `{"path":1}`, nil},
	} {
		if d := cmp.Diff(c.want, f.tools[c.tool]().Definition().Paths(json.RawMessage(c.input))); d != "" {
			t.Errorf("paths of %s %s (-want +got):\n%s", c.tool, c.input, d)
		}
	}
}

func TestSummaries(t *testing.T) {
	f := newFixture(t)
	for input, want := range map[string]string{
		`{"pattern":"a.*b"}`: "a.*b", `{"pattern":"x","path":"."}`: "x", `{"pattern":"x","path":"src"}`: "x in src", `[]`: "",
	} {
		for _, name := range []tools.Name{"glob", "grep"} {
			if got := f.tools[name]().Definition().Summary(json.RawMessage(input)); got != want {
				t.Errorf("summary of %s %s: %q, want %q", name, input, got, want)
			}
		}
	}
}

// The whole way: aliases, validation, scope, policy, projection, execution.
func TestThroughTheDispatcher(t *testing.T) {
	f := newFixture(t)
	f.must(os.Symlink("/etc/passwd", filepath.Join(f.root, "passwd")))
	d, err := dispatch.New(dispatch.Options{
		Emit: func(dispatch.Event) error { return nil }, OnPrompt: dispatch.OnPromptAllow,
		Scope: func(p string) error { return f.reader.Scope(context.Background(), p) },
	})
	f.must(err)
	for _, factory := range f.all {
		f.must(d.Register(factory))
	}
	for _, c := range []struct {
		name  tools.Name
		input string
		class tools.ErrorClass
		want  string
	}{
		{"write_file", `{"file_path":"src/a.go","file_text":"package a\n"}`, "", "Created src/a.go (10 bytes)."},
		{"write_file", `{"path":"src/a.go","contents":"package b\n"}`, "", "Overwrote src/a.go (10 bytes)."},
		{"patch_file", `{"filePath":"/workspace/src/a.go","old_str":"b","new_string":"c"}`, "", "Patched src/a.go: replaced 1 place (now 10 bytes)."},
		{"read_file", `{"filename":"src/a.go"}`, "", "package c\n"},
		{"read_file", `{"path":"src/a.go","file_path":"x"}`, tools.ErrorValidation, "means the same"},
		{"read_file", `{"path":"src/a.go","offset":0}`, tools.ErrorValidation, "offset"},
		{"read_file", `{"path":"../../etc/passwd"}`, tools.ErrorPermissionDenied, "outside the workspace"},
		{"read_file", `{"path":"passwd"}`, tools.ErrorPermissionDenied, "outside the workspace"},
		{"read_file", `{"path":"/etc/passwd"}`, tools.ErrorPermissionDenied, "outside the workspace"},
		{"write_file", `{"path":"passwd","content":"x"}`, tools.ErrorPermissionDenied, "outside the workspace"},
		{"read_file", `{"path":"missing"}`, tools.ErrorExecution, "no such file"},
		{"patch_file", `{"path":"src/a.go","old":"zzz","new":""}`, tools.ErrorExecution, "0 matches"},
		{"delete_file", `{"path":"src"}`, tools.ErrorExecution, "recursive"},
		{"delete_file", `{"path":"src","recursive":true}`, "", "Deleted src (2 entries)."},
	} {
		results, err := d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: c.name, Input: json.RawMessage(c.input)}})
		f.must(err)
		got := results[0]
		if got.Class != c.class || got.IsError != (c.class != "") || !strings.Contains(got.Content[0].Text, c.want) {
			t.Errorf("%s %s: class %q, %q; want class %q, %q", c.name, c.input, got.Class, got.Content[0].Text, c.class, c.want)
		}
	}
}

func TestChanges(t *testing.T) {
	f := newFixture(t)
	f.file("f", "one\ntwo\none\n")
	f.file("deep/down/x", "one\n")
	for name, target := range map[string]string{"link": "dir/up", "dir": "deep/down", "deep/down/up": "../y"} {
		f.must(os.Symlink(target, filepath.Join(f.root, name)))
	}
	f.file("deep/y", "one\n")
	for _, c := range []struct {
		tool     tools.Name
		input    object
		want     string
		modified []string
		content  map[string]string
	}{
		{"write_file", object{"path": "d/new", "content": "x\n"}, "Created d/new (2 bytes).", []string{"d/new"}, map[string]string{"d/new": "x\n"}},
		{"write_file", object{"path": "./d//new", "content": ""}, "Overwrote d/new (0 bytes).", []string{"d/new"}, map[string]string{"d/new": ""}},
		{"patch_file", object{"path": "f", "old": "two\n", "new": ""}, "Patched f: replaced 1 place (now 8 bytes).", []string{"f"}, map[string]string{"f": "one\none\n"}},
		{"patch_file", object{"path": "f", "old": "one", "new": "2", "replace_all": true}, "Patched f: replaced 2 places (now 4 bytes).", []string{"f"}, map[string]string{"f": "2\n2\n"}},
		{"delete_file", object{"path": "f"}, "Deleted f.", []string{"f"}, nil},
		{"patch_file", object{"path": "link", "old": "one", "new": "two"}, "Patched deep/y: replaced 1 place (now 4 bytes).", []string{"deep/y"}, map[string]string{"link": "two\n", "deep/y": "two\n"}},
		{"write_file", object{"path": "/workspace/dir/up", "content": "3"}, "Overwrote deep/y (1 byte).", []string{"deep/y"}, map[string]string{"deep/y": "3"}},
		{
			"apply_patch",
			object{"patch": patchOf("*** Update File: link", "@@", "-3", "+4", "*** Update File: deep/y", "@@", " 4", "+5")},
			"Applied the patch:\nchanged deep/y (2 hunks, now 3 bytes)\n",
			[]string{"deep/y"},
			map[string]string{"deep/y": "4\n5"},
		},
		{"delete_file", object{"path": "link"}, "Deleted link.", []string{"link"}, map[string]string{"deep/y": "4\n5"}},
		{"write_file", object{"path": "a\nb\u202e", "content": ""}, `Created "a\nb\u202e" (0 bytes).`, []string{"a\nb\u202e"}, nil},
	} {
		out, err := f.call(c.tool, c.input)
		f.must(err)
		if out.Content[0].Text != c.want || !out.Success || !slices.Equal(out.FilesModified, c.modified) {
			t.Errorf("%s %v: %+v, want %q", c.tool, c.input, out, c.want)
		}
		for name, want := range c.content {
			if got := f.content(name); got != want {
				t.Errorf("%s holds %q, want %q", name, got, want)
			}
		}
	}
}

func TestFailures(t *testing.T) {
	f := newFixture(t)
	f.file("f", "aa")
	f.file("d/x", "")
	f.file("A\u0308/v\u00a01", "") // as macOS writes them
	f.file("A\u0308/twin\u00a0", "")
	f.file("A\u0308/twin\u202f", "")
	f.must(os.Symlink(f.outside, filepath.Join(f.root, "out")))
	f.must(os.Symlink("nothing", filepath.Join(f.root, "dangling")))
	if b, err := os.ReadFile(filepath.Join(f.root, "out/canary")); err != nil || string(b) != f.canary {
		t.Fatal("control: a plain read does not reach the canary")
	}
	escapes := map[tools.Name]bool{}
	for _, c := range []struct {
		tool   tools.Name
		input  object
		class  tools.ErrorClass
		reason string
		says   string
	}{
		{"read_file", object{"path": "out/canary"}, tools.ErrorPermissionDenied, "workspace_escape", "outside the workspace"},
		{"read_file", object{"path": "../outside/canary"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"list_dir", object{"path": "out"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"glob", object{"path": "out", "pattern": "*"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"glob", object{"pattern": "/etc/*"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"grep", object{"path": "out", "pattern": "."}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"write_file", object{"path": "out/new", "content": "x"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"patch_file", object{"path": "out/canary", "old": "a", "new": "b"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"apply_patch", object{"patch": "*** Begin Patch\n*** Add File: out/new\n+x\n*** End Patch\n"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"delete_file", object{"path": "out/canary"}, tools.ErrorPermissionDenied, "workspace_escape", ""},
		{"read_file", object{"path": "none"}, tools.ErrorExecution, "not_found", `"none": no such file or directory`},
		{"read_file", object{"path": "\u00c4/v 1"}, tools.ErrorExecution, "not_found", `no such file or directory; a similar name is there: "A` + "\u0308" + `/v\u00a01", in JSON "A\u0308/v\u00a01"`},
		{"patch_file", object{"path": "\u00c4/v 1", "old": "a", "new": "b"}, tools.ErrorExecution, "not_found", `in JSON "A\u0308/v\u00a01"`},
		{"apply_patch", object{"patch": patchOf("*** Update File: \u00c4/v 1", "@@", "-one", "+x")}, tools.ErrorExecution, "not_found", `in JSON "A\u0308/v\u00a01"`},
		{"read_file", object{"path": "A\u0308/twin "}, tools.ErrorExecution, "not_found", `/twin ": no such file or directory`},
		{"read_file", object{"path": "d"}, tools.ErrorExecution, "is_dir", "directory"},
		{"list_dir", object{"path": "f"}, tools.ErrorExecution, "not_dir", ""},
		{"patch_file", object{"path": "f", "old": "a", "new": "b"}, tools.ErrorExecution, "no_match", "2 matches"},
		{"patch_file", object{"path": "f", "old": "x", "new": "b"}, tools.ErrorExecution, "no_match", "0 matches"},
		{"write_file", object{"path": "dangling", "content": "x"}, tools.ErrorExecution, "not_found", "symlink to a file that does not exist"},
		{"apply_patch", object{"patch": patchOf("*** Add File: dangling", "+x")}, tools.ErrorExecution, "not_found", "symlink to a file that does not exist"},
		{"delete_file", object{"path": "d"}, tools.ErrorExecution, "is_dir", "recursive"},
		{"delete_file", object{"path": "."}, tools.ErrorExecution, "invalid", "workspace itself"},
	} {
		escapes[c.tool] = escapes[c.tool] || c.reason == "workspace_escape"
		_, err := f.call(c.tool, c.input)
		class, reason, message := f.refused(err)
		if class != c.class || reason != c.reason || !strings.Contains(message, c.says) {
			t.Errorf("%s %v: %s, %s, %q; want %s, %s, %q", c.tool, c.input, class, reason, message, c.class, c.reason, c.says)
		}
	}
	for name := range f.tools {
		if !escapes[name] {
			t.Errorf("%s: add a path that leads out of the workspace to the table", name)
		}
	}
	if got := f.content("f"); got != "aa" {
		t.Errorf("f holds %q", got)
	}
}

// The loss of the sandbox is no error for the model.
func TestSandboxLost(t *testing.T) {
	f := newFixture(t)
	f.sandbox.err = fmt.Errorf("apply change: %w", tools.ErrSandboxLost)
	_, err := f.call("write_file", object{"path": "f", "content": ""})
	if !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("error %v does not wrap ErrSandboxLost", err)
	}
	if _, ok := errors.AsType[*tools.Error](err); ok {
		t.Errorf("error %v is one for the model", err)
	}
}

// TestSwappedPath: a change is made only to what was shown, and not to what its
// path leads to since, even if that has the same content or no diff could be shown.
func TestSwappedPath(t *testing.T) {
	relink := func(f *fixture, to string) {
		link := filepath.Join(f.root, "link")
		_ = os.Remove(link)
		f.must(os.Symlink(to, link))
	}
	for _, c := range []struct {
		tool          tools.Name
		input         object
		before, after string // where the symlink leads; "" moves the directory shown
		target        string
	}{
		{"write_file", object{"path": "link", "content": "new\n"}, "shown/f", "other/f", "f"},
		{"write_file", object{"path": "link/f", "content": "new\n"}, "shown", "other", "f"},
		{"write_file", object{"path": "link/huge", "content": "new\n"}, "shown", "other", "huge"},
		{"write_file", object{"path": "link", "content": "new\n"}, "nothing", "other/f", ""},
		{"apply_patch", object{"patch": patchOf("*** Update File: link", "-same", "+new")}, "nothing", "other/f", ""},
		{"patch_file", object{"path": "link/f", "old": "none", "new": "x"}, "shown", "other", ""},
		{"delete_file", object{"path": "link/f"}, "shown", "other", "f"},
		{"delete_file", object{"path": "link/d", "recursive": true}, "shown", "other", "d"},
		{"delete_file", object{"path": "link/d", "recursive": true}, "shown", "", "d"},
	} {
		for _, swap := range []bool{false, true} {
			f := newFixture(t)
			for _, dir := range []string{"shown", "other"} {
				f.file(dir+"/f", "same\n")
				f.file(dir+"/d/x", "same\n")
				f.file(dir+"/huge", "")
				f.must(os.Truncate(filepath.Join(f.root, dir, "huge"), workspace.MaxWriteBytes+1))
			}
			relink(f, c.before)
			raw, err := json.Marshal(c.input)
			f.must(err)
			p, err := f.tools[c.tool]().(tools.Projector).Project(t.Context(), &tools.Call{Input: raw})
			if err != nil && p.State == "" {
				p.State = tools.Unprojected // as the dispatcher does
			}
			other := "other/"
			switch {
			case swap && c.after == "":
				f.must(os.Rename(filepath.Join(f.root, "shown"), filepath.Join(f.root, "away")))
				f.must(os.Rename(filepath.Join(f.root, "other"), filepath.Join(f.root, "shown")))
				other = "shown/"
			case swap:
				relink(f, c.after)
			}
			_, err = f.tools[c.tool]().Execute(t.Context(), &tools.Call{Input: raw, Projected: p.State})
			if made := err == nil; made != (!swap && c.target != "") || c.target != "" && !strings.Contains(p.Diff, "/shown/"+c.target) {
				t.Errorf("%s %v, swapped %t: %v; shown %q", c.tool, c.input, swap, err, p.Diff)
			}
			if _, err := os.Stat(filepath.Join(f.root, other, "huge")); f.content(other+"f") != "same\n" || f.content(other+"d/x") != "same\n" || err != nil {
				t.Errorf("%s %v, swapped %t: %v; it was done to what was not shown", c.tool, c.input, swap, err)
			}
		}
	}
}

func TestProjection(t *testing.T) {
	f := newFixture(t)
	f.file("f", "one\ntwo\n")
	f.file("bin", "a\x00b")
	f.file("big", strings.Repeat("x\n", 600_000))
	f.file("d/x", "")
	f.must(os.Symlink("f", filepath.Join(f.root, "link")))
	f.must(os.Symlink("nothing", filepath.Join(f.root, "dangling")))
	for _, c := range []struct {
		tool  tools.Name
		input object
		diff  string
		state string
		fails bool
	}{
		{tool: "write_file", input: object{"path": "f", "content": "one\n2\n"}, state: "f", diff: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"},
		{tool: "write_file", input: object{"path": "new", "content": "x\n"}, state: "absent", diff: "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"},
		{tool: "patch_file", input: object{"path": "f", "old": "two", "new": "2"}, state: "f", diff: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"},
		{tool: "delete_file", input: object{"path": "f"}, state: "f", diff: "--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"},
		{tool: "write_file", input: object{"path": "bin", "content": "x"}, state: "bin", diff: "--- a/bin\n+++ b/bin\nBinary: 3 bytes before, 1 after.\n"},
		{tool: "write_file", input: object{"path": "big", "content": ""}, state: "big", diff: "--- a/big\n+++ b/big\nToo large for a diff: 1200000 bytes before, 0 after.\n"},
		{tool: "write_file", input: object{"path": "link", "content": "one\n2\n"}, state: "f", diff: "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"},
		{tool: "patch_file", input: object{"path": "new", "old": "none", "new": "2"}, state: " new", diff: "--- a/new\n+++ b/new\nNo diff: \"new\": no such file or directory.\n"},
		{tool: "delete_file", input: object{"path": "new"}, state: " new", diff: "--- a/new\n+++ b/new\nNo diff: \"new\": no such file or directory.\n"},
		{tool: "delete_file", input: object{"path": "link"}, state: " link", diff: "--- a/link\n+++ /dev/null\nNo file: a symlink.\n"},
		{tool: "delete_file", input: object{"path": "d"}, state: " d", diff: "--- a/d\n+++ /dev/null\nNo file: a dir.\n"},
		{tool: "write_file", input: object{"path": "dangling", "content": ""}, fails: true},
	} {
		raw, err := json.Marshal(c.input)
		f.must(err)
		tool := f.tools[c.tool]().(tools.Projector)
		p, err := tool.Project(t.Context(), &tools.Call{Input: raw})
		if (err != nil) != c.fails {
			t.Errorf("%s %v: %v", c.tool, c.input, err)
			continue
		}
		want := tools.Projection{Diff: c.diff, State: c.state}
		switch {
		case strings.HasPrefix(c.state, " "), c.fails:
		case c.state == "absent":
			want.State = "absent new"
		default:
			want.State = hash(f.content(c.state)) + " " + c.state
		}
		if d := cmp.Diff(want, p); d != "" {
			t.Errorf("%s %v (-want +got):\n%s", c.tool, c.input, d)
		}
	}
	if len(f.sandbox.ops) != 0 {
		t.Errorf("a projection changed something: %+v", f.sandbox.ops)
	}
	// The change that was shown is made, or none.
	raw := json.RawMessage(`{"path":"f","content":"x"}`)
	tool := f.tools["write_file"]()
	p, err := tool.(tools.Projector).Project(t.Context(), &tools.Call{Input: raw})
	f.must(err)
	f.file("f", "changed meanwhile")
	_, err = f.tools["write_file"]().Execute(t.Context(), &tools.Call{Input: raw, Projected: p.State})
	if _, reason, _ := f.refused(err); reason != string(workspace.KindConflict) || f.content("f") != "changed meanwhile" {
		t.Errorf("write to a file that has changed: %v", err)
	}
	p, err = tool.(tools.Projector).Project(t.Context(), &tools.Call{Input: raw})
	f.must(err)
	if _, err = f.tools["write_file"]().Execute(t.Context(), &tools.Call{Input: raw, Projected: p.State}); err != nil || f.content("f") != "x" {
		t.Errorf("write to the file that was shown: %v", err)
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
