package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

func patchOf(lines ...string) string {
	return "*** Begin Patch\n" + strings.Join(lines, "\n") + "\n*** End Patch\n"
}

const tenLines = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"

// TestApplyPatch applies each kind of section to real files.
func TestApplyPatch(t *testing.T) {
	for name, c := range map[string]struct {
		before map[string]string
		patch  string
		want   map[string]string
		said   string
	}{
		"all kinds at once": {
			before: map[string]string{"a": tenLines, "gone": "x\n", "old/name.go": "package a\n\nvar x = 1\n"},
			patch: patchOf("*** Update File: a", "@@", " two", "-three", "+THREE", " four", "@@", " nine", "-ten", "+TEN", "+eleven", "*** End of File",
				"*** Delete File: gone", "*** Add File: new/b.txt", "+hello", "+", "+world",
				"*** Update File: old/name.go", "*** Move to: new/name.go", "@@", "-package a", "+package b"),
			want: map[string]string{
				"a":         strings.NewReplacer("three", "THREE", "ten\n", "TEN\neleven\n").Replace(tenLines),
				"new/b.txt": "hello\n\nworld\n", "new/name.go": "package b\n\nvar x = 1\n",
			},
			said: "Applied the patch:\nchanged a (2 hunks, now 56 bytes)\ndeleted gone\ncreated new/b.txt (13 bytes)\nmoved old/name.go to new/name.go (21 bytes)\n",
		},
		"a pure move": {
			before: map[string]string{"a": "x\n"}, patch: patchOf("*** Update File: a", "*** Move to: b"),
			want: map[string]string{"b": "x\n"}, said: "moved a to b",
		},
		"delete and add replaces": {
			before: map[string]string{"a": "x\n"}, patch: patchOf("*** Delete File: a", "*** Add File: a", "+y"),
			want: map[string]string{"a": "y\n"}, said: "changed a",
		},
		"one file in two sections": {
			before: map[string]string{"a": tenLines},
			patch:  patchOf("*** Update File: a", "@@", "-one", "+1", "*** Update File: a", "@@", "-1", "+I"),
			want:   map[string]string{"a": strings.Replace(tenLines, "one", "I", 1)}, said: "2 hunks",
		},
		"an anchor chooses": {
			before: map[string]string{"a": "func a() {\n\treturn 1\n}\nfunc b() {\n\treturn 1\n}\n"},
			patch:  patchOf("*** Update File: a", "@@ func b() {", "-\treturn 1", "+\treturn 2"),
			want:   map[string]string{"a": "func a() {\n\treturn 1\n}\nfunc b() {\n\treturn 2\n}\n"},
		},
		"anchors in a chain, without indentation and whole": {
			before: map[string]string{"a": "class A:\n  def f(self):\n    x = 1\nclass B:\n  def f(self):\n    x = 1\n"},
			patch:  patchOf("*** Update File: a", "@@ class B", "@@ def f(self):", "-    x = 1", "+    x = 2"),
			want:   map[string]string{"a": "class A:\n  def f(self):\n    x = 1\nclass B:\n  def f(self):\n    x = 2\n"},
		},
		"the order of hunks chooses": {
			before: map[string]string{"a": "x = 1\nx = 1\n"},
			patch:  patchOf("*** Update File: a", "@@", "-x = 1", "+x = 2", "@@", "-x = 1", "+x = 3"),
			want:   map[string]string{"a": "x = 2\nx = 3\n"},
		},
		"the end of the file chooses": {
			before: map[string]string{"a": "}\n}\n}\n"},
			patch:  patchOf("*** Update File: a", "@@", " }", "+// end", "*** End of File"),
			want:   map[string]string{"a": "}\n}\n}\n// end\n"},
		},
		"@@ lines with nothing after them": {
			before: map[string]string{"a": tenLines},
			patch:  patchOf("*** Update File: a", "@@", "-one", "+1", "@@", "@@", "-two", "+2", "@@"),
			want:   map[string]string{"a": strings.NewReplacer("one", "1", "two", "2").Replace(tenLines)}, said: "2 hunks",
		},
		"a byte order mark": {
			before: map[string]string{"a": "\ufeffone\r\ntwo\r\n"},
			patch:  patchOf("*** Update File: a", "@@", "-one", "+1", " two"),
			want:   map[string]string{"a": "\ufeff1\r\ntwo\r\n"},
		},
		"a line with another end": {
			before: map[string]string{"a": "one\r\ntwo\r\nthree\nfour\r\n"},
			patch:  patchOf("*** Update File: a", "@@", "+zero", " one", "-two", "+2", "+2b", "@@", "-three", "+3"),
			want:   map[string]string{"a": "zero\r\none\r\n2\r\n2b\r\n3\nfour\r\n"},
		},
		"hunks that share context": {
			before: map[string]string{"a": tenLines},
			patch:  patchOf("*** Update File: a", "@@", " one", "-two", "+2", " three", "@@", " three", "-four", "+4", " five"),
			want:   map[string]string{"a": strings.NewReplacer("two", "2", "four", "4").Replace(tenLines)},
		},
		"appending": {
			before: map[string]string{"a": "x"},
			patch:  patchOf("*** Update File: a", "@@", "+y", "*** End of File"),
			want:   map[string]string{"a": "x\ny"},
		},
		"into an empty file": {
			before: map[string]string{"a": ""}, patch: patchOf("*** Update File: a", "@@", "+y"), want: map[string]string{"a": "y\n"},
		},
		"CRLF stays": {
			before: map[string]string{"a": "one\r\ntwo\r\nthree\r\n"},
			patch:  patchOf("*** Update File: a", "@@", " one", "-two", "+2", "+2b", " three"),
			want:   map[string]string{"a": "one\r\n2\r\n2b\r\nthree\r\n"},
		},
		"a patch in CRLF": {
			before: map[string]string{"a": "one\ntwo\n"},
			patch:  strings.ReplaceAll(patchOf("*** Update File: a", "@@", " one", "-two", "+2", "*** Add File: b", "+x"), "\n", "\r\n"),
			want:   map[string]string{"a": "one\n2\n", "b": "x\n"},
		},
		"white space at line ends": {
			before: map[string]string{"a": "one  \ntwo\t\nthree\n"},
			patch:  patchOf("*** Update File: a", "@@", " one", "-two", "+2", " three"),
			want:   map[string]string{"a": "one  \n2\nthree\n"}, said: "white space at line ends ignored",
		},
		"look-alikes": {
			before: map[string]string{"a": "say “hi” – now\nx\n"},
			patch:  patchOf("*** Update File: a", "@@", ` say "hi" - now`, "-x", "+y"),
			want:   map[string]string{"a": "say “hi” – now\ny\n"}, said: "look-alike",
		},
		"no newline at the end, and one": {
			before: map[string]string{"a": "x", "b": "x\n"},
			patch: patchOf("*** Update File: a", "@@", "-x", `\ No newline at end of file`, "+y",
				"*** Update File: b", "@@", "-x", "+y", `\ No newline at end of file`),
			want: map[string]string{"a": "y\n", "b": "y"},
		},
		"absolute path": {
			before: map[string]string{"d/a": "x\n"}, patch: patchOf("*** Update File: /workspace/d/../d/a", "@@", "-x", "+y"), want: map[string]string{"d/a": "y\n"},
		},
		"content that looks like a header": {
			before: map[string]string{"a": "*** End Patch\n*** Add File: x\n"},
			patch:  patchOf("*** Update File: a", "@@", " *** End Patch", "-*** Add File: x", "+*** End of File", "*** Add File: b", "+*** End Patch"),
			want:   map[string]string{"a": "*** End Patch\n*** End of File\n", "b": "*** End Patch\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for path, content := range c.before {
				f.file(path, content)
			}
			said := f.text("apply_patch", object{"patch": c.patch})
			if d := cmp.Diff(c.want, f.files()); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
			if !strings.Contains(said, c.said) {
				t.Errorf("said %q, want %q in it", said, c.said)
			}
		})
	}
}

// files returns the content of every file.
func (f *fixture) files() map[string]string {
	f.t.Helper()
	all := map[string]string{}
	f.must(filepath.WalkDir(f.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(f.root, path)
			all[name] = f.content(name)
		}
		return err
	}))
	return all
}

// TestApplyPatchWrappings tests what models put around the envelope.
func TestApplyPatchWrappings(t *testing.T) {
	inner := "*** Update File: a\n@@\n-x\n+y\n"
	for name, patch := range map[string]string{
		"here document":          "apply_patch <<'EOF'\n*** Begin Patch\n" + inner + "*** End Patch\nEOF\n",
		"odd delimiter":          "cat <<\"PATCH-1\"\n*** Begin Patch\n" + inner + "*** End Patch\nPATCH-1",
		"only the redirection":   "<<EOF\n*** Begin Patch\n" + inner + "*** End Patch\nEOF",
		"code fence":             "```diff\n*** Begin Patch\n" + inner + "*** End Patch\n```\n",
		"name alone":             "apply_patch\n\n*** Begin Patch\n" + inner + "*** End Patch",
		"stars and capitals":     "*** Begin patch ***\n***update file: a\n@@\n-x\n+y\n*** END PATCH ***",
		"byte order mark":        "\ufeff*** Begin Patch\n" + inner + "*** End Patch",
		"spaces":                 "  *** Begin Patch  \n*** Update File: a  \n@@\n-x\n+y\n*** End Patch  \n\n",
		"unified headers":        "*** Begin Patch\n*** Update File: a\n--- a/a\n+++ b/a\n@@ -1,1 +1,1 @@\n-x\n+y\n*** End Patch",
		"function in the header": "*** Begin Patch\n*** Update File: a\n@@ -1 +1 @@ func elsewhere()\n-x\n+y\n*** End Patch",
		"no @@":                  "*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch",
		"blank lines":            "*** Begin Patch\n\n*** Update File: a\n\n@@\n-x\n+y\n\n*** End Patch",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.file("a", "x\n")
			f.text("apply_patch", object{"patch": patch})
			if got := f.content("a"); got != "y\n" {
				t.Errorf("a is %q", got)
			}
		})
	}
}

// TestApplyPatchRefusals: a meaningless patch is refused with the place and the
// fix, and no file is touched.
func TestApplyPatchRefusals(t *testing.T) {
	for name, c := range map[string]struct{ patch, reason, want string }{
		"cut off":             {"*** Begin Patch\n*** Add File: n\n+x\n", "invalid_patch", "no *** End Patch line, so it may be cut off"},
		"no begin":            {"*** Update File: a\n@@\n-one\n+1\n*** End Patch", "invalid_patch", "first line must be *** Begin Patch"},
		"prose before":        {"Here is the patch:\n" + patchOf("*** Add File: n", "+x"), "invalid_patch", "must be *** Begin Patch"},
		"prose after":         {patchOf("*** Add File: n", "+x") + "Done.", "invalid_patch", "text after *** End Patch"},
		"a second patch":      {patchOf("*** Add File: n", "+x") + patchOf("*** Add File: m", "+x"), "invalid_patch", "put all files into one patch"},
		"empty":               {"*** Begin Patch\n*** End Patch", "invalid_patch", "changes no file"},
		"nothing":             {" ", "invalid_patch", "no *** Begin Patch"},
		"unknown header":      {patchOf("*** Rename File: a"), "invalid_patch", "there is no header *** Rename File: a"},
		"no path":             {patchOf("*** Add File:", "+x"), "invalid_patch", "names no file"},
		"unsigned line":       {patchOf("*** Update File: a", "@@", "-one", "two"), "invalid_patch", `Line 5 of the patch: each line of a hunk begins with a space, - or +, this one with "two"`},
		"unsigned added line": {patchOf("*** Add File: n", "x"), "invalid_patch", "each line of an added file begins with +"},
		"no change":           {patchOf("*** Update File: a", "@@", " one"), "invalid_patch", "changes nothing"},
		"no hunk":             {patchOf("*** Update File: a"), "invalid_patch", "has no hunk"},
		"misplaced move":      {patchOf("*** Move to: b"), "invalid_patch", "stands directly below"},
		"text in a delete":    {patchOf("*** Delete File: a", "-one"), "invalid_patch", "a header was expected"},
		"same afterwards":     {patchOf("*** Update File: a", "@@", "-one", "+one"), "no_change", "changes nothing"},

		"0 matches":             {patchOf("*** Update File: a", "@@", " one", "-2", "+x"), "no_match", `a, hunk 1 (line 3 of the patch): 0 matches for its lines; at line 2 of the file it has "two" where the patch has "2": read the file again`},
		"0 matches at all":      {patchOf("*** Update File: a", "@@", "-one", "+1", "@@", "-zwei", "+x"), "no_match", `a, hunk 2 (line 6 of the patch): 0 matches for its lines, which begin with "zwei"`},
		"indentation":           {patchOf("*** Update File: a", "@@", "-  one", "+x"), "no_match", "line 1 of the file differs from them in white space only"},
		"beyond the end":        {patchOf("*** Update File: a", "@@", " ten", "-eleven", "+x"), "no_match", "the file ends at line 10"},
		"n matches":             {patchOf("*** Update File: twice", "@@", "-x", "+y"), "no_match", "2 matches for its lines, at lines 1, 3; add lines around it"},
		"anchor":                {patchOf("*** Update File: a", "@@ func f()", "-one", "+x"), "no_match", `0 matches for its @@ line "func f()"`},
		"before its anchor":     {patchOf("*** Update File: a", "@@ five", "-one", "+x"), "no_match", "before its @@ line"},
		"two anchors":           {patchOf("*** Update File: twice", "@@ x", "+y"), "no_match", "2 matches"},
		"nowhere":               {patchOf("*** Update File: a", "@@", "+x"), "no_match", "does not say where"},
		"overlap":               {patchOf("*** Update File: a", "@@", "-one", "-two", "+x", "@@", "-two", "-three", "+y"), "no_match", "another hunk changes too"},
		"out of order":          {patchOf("*** Update File: twice", "@@", " b", "-x", "+1", "@@", "-x", "+2", " b", "@@", "-x", "+X"), "no_match", "put the hunks in the file's order"},
		"missing":               {patchOf("*** Update File: nope", "@@", "-one", "+x"), "not_found", "no such file to change"},
		"missing to delete":     {patchOf("*** Delete File: nope"), "not_found", "no such file"},
		"there already":         {patchOf("*** Add File: a", "+x"), "exists", "exists already; change it with *** Update File:"},
		"move onto another":     {patchOf("*** Update File: a", "*** Move to: twice"), "exists", "can't be moved to twice, which exists already"},
		"moved and named again": {patchOf("*** Update File: a", "*** Move to: b", "*** Update File: b", "@@", "-one", "+x"), "exists", "can't be named again"},
		"a directory":           {patchOf("*** Update File: dir", "@@", "-one", "+x"), "is_dir", "directory"},
		"a symlink to delete":   {patchOf("*** Delete File: link"), "not_regular", "is a symlink"},
		"outside":               {patchOf("*** Add File: ../x", "+x"), "workspace_escape", "outside the workspace"},
		"outside by a link":     {patchOf("*** Update File: out", "@@", "-one", "+x"), "workspace_escape", "outside the workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.file("a", tenLines)
			f.file("twice", "x\nb\nx\n")
			f.file("dir/x", "")
			f.must(os.Symlink("a", filepath.Join(f.root, "link")))
			f.must(os.Symlink(filepath.Join(f.outside, "canary"), filepath.Join(f.root, "out")))
			before := f.files()
			patch, want := c.patch, c.want
			if c.reason != "invalid_patch" && c.reason != "no_change" {
				// Another section that would fit must not be applied either.
				patch = strings.Replace(patch, "*** End Patch", "*** Add File: fits\n+x\n*** End Patch", 1)
			}
			_, err := f.call("apply_patch", object{"patch": patch})
			if err == nil {
				t.Fatal("it was applied")
			}
			if _, reason, message := f.refused(err); reason != c.reason || !strings.Contains(message, want) {
				t.Errorf("refused by %q: %q; want %q: %q", reason, message, c.reason, want)
			}
			if d := cmp.Diff(before, f.files()); d != "" {
				t.Errorf("files changed:\n%s", d)
			}
			if len(f.sandbox.ops) > 0 {
				t.Errorf("the sandbox was asked for %v", f.sandbox.ops)
			}
		})
	}
}

func TestApplyPatchDefinition(t *testing.T) {
	f := newFixture(t)
	def := f.tools["apply_patch"]().Definition()
	raw, err := json.Marshal(object{"patch": patchOf("*** Update File: a", "*** Move to: b", "*** Delete File: c", "*** Add File: d/e", "+*** Delete File: not-this")})
	f.must(err)
	if d := cmp.Diff([]string{"a", "b", "c", "d/e"}, def.Paths(raw)); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
	if got := def.Summary(raw); got != "a, b, c, d/e" {
		t.Errorf("summary %q", got)
	}
	for _, bad := range []string{`{"patch":"x"}`, `{"patch":1}`, `[]`} {
		if got := def.Paths(json.RawMessage(bad)); got != nil {
			t.Errorf("paths of %s: %v", bad, got)
		}
	}
}

// TestApplyPatchThroughTheDispatcher tests aliases, the scope of every path, and
// that the change shown is the change made.
func TestApplyPatchThroughTheDispatcher(t *testing.T) {
	f := newFixture(t)
	f.file("a", "x\n")
	d, err := dispatch.New(dispatch.Options{
		Emit: func(dispatch.Event) error { return nil }, OnPrompt: dispatch.OnPromptAllow,
		Scope: func(p string) error { return f.reader.Scope(context.Background(), p) },
	})
	f.must(err)
	f.must(d.Register(f.tools["apply_patch"]))
	run := func(patch string) tools.Result {
		raw, err := json.Marshal(object{"input": patch})
		f.must(err)
		got, err := d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: "apply_patch", Input: raw}})
		f.must(err)
		return got[0]
	}
	if r := run(patchOf("*** Update File: a", "@@", "-x", "+y")); r.IsError || f.content("a") != "y\n" {
		t.Errorf("%+v", r)
	}
	if r := run(patchOf("*** Update File: a", "*** Move to: ../out")); r.Class != tools.ErrorPermissionDenied {
		t.Errorf("%+v", r)
	}
}

func TestApplyPatchProjects(t *testing.T) {
	f := newFixture(t)
	f.file("a", "x\n")
	f.file("gone", "x\n")
	f.file("m", "1\n2\n")
	patch := patchOf("*** Update File: a", "@@", "-x", "+y", "*** Delete File: gone", "*** Add File: n", "+1", "*** Update File: m", "*** Move to: k", "@@", "-2", "+3")
	raw, err := json.Marshal(object{"patch": patch})
	f.must(err)
	project := func() tools.Projection {
		p, err := f.tools["apply_patch"]().(tools.Projector).Project(t.Context(), &tools.Call{Input: raw})
		f.must(err)
		return p
	}
	shown := project()
	want := "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+1\n" +
		"rename from m\nrename to k\n--- a/k\n+++ b/k\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n"
	if d := cmp.Diff(want, shown.Diff); d != "" {
		t.Errorf("diff (-want +got):\n%s", d)
	}
	if len(f.sandbox.ops) > 0 || project().State != shown.State {
		t.Error("looking changed something")
	}
	// A file changes after it was shown: nothing is done.
	f.file("gone", "other\n")
	before := f.files()
	if project().State == shown.State {
		t.Error("another content has the same state")
	}
	_, err = f.tools["apply_patch"]().Execute(t.Context(), &tools.Call{Input: raw, Projected: shown.State})
	if _, reason, _ := f.refused(err); reason != "conflict" {
		t.Errorf("reason %q", reason)
	}
	if d := cmp.Diff(before, f.files()); d != "" {
		t.Errorf("files changed:\n%s", d)
	}
}

// faulty fails one Apply, before or after doing it.
type faulty struct {
	sandbox *sandbox
	at      int
	done    bool // the change is made, and the answer lost
	err     error
	// stuck makes every later Apply fail too.
	stuck  bool
	before func()
	calls  int
}

func (s *faulty) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	s.calls++
	if s.calls == s.at && s.before != nil {
		s.before()
	}
	if s.calls == s.at || s.stuck && s.calls > s.at {
		if s.done && s.calls == s.at {
			if _, err := s.sandbox.Apply(ctx, op); err != nil {
				return workspace.Change{}, err
			}
		}
		if s.err != nil {
			return workspace.Change{}, s.err
		}
	}
	return s.sandbox.Apply(ctx, op)
}

const faultSteps = 6

// faultPatch has a step of each kind: write, create in a new directory, rename,
// write after it, and two deletes.
func faultPatch(f *fixture) json.RawMessage {
	f.file("a", "x\n")
	f.file("m", "1\n2\n")
	f.file("gone", "x\n")
	f.file("gone2", "y\n")
	f.must(os.Chmod(filepath.Join(f.root, "m"), 0o755))
	raw, err := json.Marshal(object{"patch": patchOf("*** Update File: a", "@@", "-x", "+y", "*** Add File: d/e/n", "+1",
		"*** Update File: m", "*** Move to: k", "@@", "-2", "+3", "*** Delete File: gone", "*** Delete File: gone2")})
	f.must(err)
	return raw
}

// TestApplyPatchRollsBack fails each step in each way: every file is as before,
// including modes, and the error says so.
func TestApplyPatchRollsBack(t *testing.T) {
	ways := map[string]func(*faulty, context.CancelCauseFunc){
		"refused": func(s *faulty, _ context.CancelCauseFunc) {
			s.err = &workspace.Error{Kind: workspace.KindNoSpace, Path: "p", Detail: "the disk is full"}
		},
		"answer lost": func(s *faulty, _ context.CancelCauseFunc) { s.err, s.done = errors.New("no answer"), true },
		"lost before": func(s *faulty, _ context.CancelCauseFunc) { s.err = errors.New("no answer") },
		"cancelled": func(s *faulty, cancel context.CancelCauseFunc) {
			s.before = func() { cancel(errors.New("user")) }
		},
	}
	for name, set := range ways {
		for at := 1; at <= faultSteps; at++ {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				f := newFixture(t)
				raw := faultPatch(f)
				before, modes := f.files(), f.modes()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := &faulty{sandbox: f.sandbox, at: at}
				set(s, cancel)
				out, err := (&patchApplier{reader: f.reader, apply: s}).Execute(ctx, &tools.Call{Input: raw})
				if err == nil {
					t.Fatal("no error")
				}
				if s.calls < at {
					t.Fatalf("%d steps, the fault is at %d", s.calls, at)
				}
				_, reason, message := f.refused(err)
				if !strings.Contains(message, fmt.Sprintf("failed at step %d of %d", at, faultSteps)) || !strings.Contains(message, "every file is as it was") {
					t.Errorf("message %q", message)
				}
				if name == "refused" && (reason != "no_space" || !strings.Contains(message, "the disk is full")) {
					t.Errorf("reason %q, message %q", reason, message)
				}
				if d := cmp.Diff(before, f.files()); d != "" {
					t.Errorf("files differ (-before +after):\n%s", d)
				}
				if d := cmp.Diff(modes, f.modes()); d != "" {
					t.Errorf("modes differ (-before +after):\n%s", d)
				}
				if len(out.FilesModified) > 0 {
					t.Errorf("files modified: %v", out.FilesModified)
				}
				if _, err := os.Stat(filepath.Join(f.root, "d")); err == nil && !strings.Contains(message, "Directories that were made for it are left: d.") {
					t.Errorf("the message does not name the directory that is left: %q", message)
				}
			})
		}
	}
}

func (f *fixture) modes() map[string]string {
	f.t.Helper()
	all := map[string]string{}
	for name := range f.files() {
		info, err := os.Lstat(filepath.Join(f.root, name))
		f.must(err)
		all[name] = info.Mode().String()
	}
	return all
}

// TestApplyPatchSaysWhatItLeft is the control of the test above: if nothing can be
// undone, files do differ, and the error and the output name exactly those.
func TestApplyPatchSaysWhatItLeft(t *testing.T) {
	for at := 2; at <= faultSteps; at++ {
		f := newFixture(t)
		raw := faultPatch(f)
		before := f.files()
		s := &faulty{sandbox: f.sandbox, at: at, stuck: true, err: fmt.Errorf("%w: gone", tools.ErrSandboxLost)}
		out, err := (&patchApplier{reader: f.reader, apply: s}).Execute(t.Context(), &tools.Call{Input: raw})
		if !errors.Is(err, tools.ErrSandboxLost) {
			t.Fatalf("at %d: %v", at, err)
		}
		after := f.files()
		var differ []string
		for _, name := range []string{"a", "d/e/n", "gone", "gone2", "k", "m"} {
			if before[name] != after[name] {
				differ = append(differ, name)
			}
		}
		if len(differ) == 0 {
			t.Fatalf("at %d: nothing differs, so the rollback's test proves nothing", at)
		}
		got := slices.Sorted(slices.Values(out.FilesModified))
		if d := cmp.Diff(differ, got); d != "" {
			t.Errorf("at %d: files that differ (-are +said):\n%s", at, d)
		}
		_, _, message := f.refused(err)
		for _, name := range differ {
			if !strings.Contains(message, name+" is ") {
				t.Errorf("at %d: %q does not speak of %s", at, message, name)
			}
		}
	}
}

// TestApplyPatchMarks: a patch of several changes is marked with its paths before
// the first, and unmarked when it is done or undone, but not if the sandbox is
// lost. A single change has no mark. If marking fails, nothing is changed.
func TestApplyPatchMarks(t *testing.T) {
	errFull := errors.New("no space")
	two := patchOf("*** Update File: a", "@@", "-x", "+y", "*** Add File: odd\tname", "+1")
	paths := []string{"a", `"odd\tname"`}
	for name, tc := range map[string]struct {
		patch         string
		fault, refuse error
		marked        []string
		left          bool
	}{
		"done":            {patch: two, marked: paths},
		"undone":          {patch: two, marked: paths, fault: &workspace.Error{Kind: workspace.KindNoSpace, Path: "n"}},
		"no sandbox":      {patch: two, marked: paths, fault: fmt.Errorf("%w: gone", tools.ErrSandboxLost), left: true},
		"a single change": {patch: patchOf("*** Add File: one", "+1")},
		"no mark":         {patch: two, marked: paths, refuse: errFull},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.file("a", "x\n")
			before := f.files()
			s := &faulty{sandbox: f.sandbox, at: 2, err: tc.fault, stuck: tc.left}
			var marked []string
			removed := false
			mark := func(paths []string) (func(), error) {
				marked = paths
				if d := cmp.Diff(before, f.files()); d != "" {
					t.Errorf("changed before the mark:\n%s", d)
				}
				return func() { removed = true }, tc.refuse
			}
			raw, err := json.Marshal(object{"patch": tc.patch})
			f.must(err)
			_, err = (&patchApplier{reader: f.reader, apply: s, mark: mark}).Execute(t.Context(), &tools.Call{Input: raw})
			if want := errors.Join(tc.fault, tc.refuse); (err == nil) != (want == nil) || tc.refuse != nil && !errors.Is(err, tc.refuse) {
				t.Errorf("error %v, want %v", err, want)
			}
			if !slices.Equal(marked, tc.marked) || removed != (marked != nil && !tc.left && tc.refuse == nil) {
				t.Errorf("marked %q, removed %v", marked, removed)
			}
			if d := cmp.Diff(before, f.files()); tc.refuse != nil && d != "" {
				t.Errorf("changed without a mark:\n%s", d)
			}
		})
	}
}

// TestApplyPatchDoesNotClobber: neither the patch nor its undoing overwrites what
// others wrote meanwhile.
func TestApplyPatchDoesNotClobber(t *testing.T) {
	f := newFixture(t)
	raw := faultPatch(f)
	s := &faulty{sandbox: f.sandbox, at: 2}
	s.before = func() {
		f.file("a", "somebody's\n")
		f.file("gone", "somebody's too\n")
	}
	out, err := (&patchApplier{reader: f.reader, apply: s}).Execute(t.Context(), &tools.Call{Input: raw})
	if _, reason, _ := f.refused(err); reason != "conflict" {
		t.Errorf("reason %q", reason)
	}
	want := map[string]string{"a": "somebody's\n", "gone": "somebody's too\n", "m": "1\n2\n", "gone2": "y\n"}
	if d := cmp.Diff(want, f.files()); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"a", "gone"}, out.FilesModified); d != "" {
		t.Errorf("files modified (-want +got):\n%s", d)
	}
}

// TestPatchGivesAfter: a patch made from the difference of any two texts turns one
// into the other.
func TestPatchGivesAfter(t *testing.T) {
	f := newFixture(t)
	rapid.Check(t, func(t *rapid.T) {
		before, after := texts(t)
		if before == after {
			t.Skip("no difference")
		}
		patch := diffPatch(t, before, after)
		f.file("a", before)
		raw, err := json.Marshal(object{"patch": patch})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.tools["apply_patch"]().Execute(context.Background(), &tools.Call{Input: raw}); err != nil {
			t.Fatalf("%v\nbefore %q\nafter %q\npatch:\n%s", err, before, after, patch)
		}
		if got := f.content("a"); got != after {
			t.Fatalf("got %q, want %q, from %q by\n%s", got, after, before, patch)
		}
	})
}

// texts draws a text and a changed one from few words, so that lines repeat.
func texts(t *rapid.T) (before, after string) {
	word := rapid.SampledFrom([]string{"", "a", "b", "}", "-x", "+y", " z", "@@", "@@ a", "*** End Patch", "***", "\\ No newline", "“q”", "\t", "a ", "é\u2028"})
	end := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end")
	lines := rapid.SliceOfN(word, 0, 12).Draw(t, "lines")
	changed := slices.Clone(lines)
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		at := rapid.IntRange(0, len(changed)).Draw(t, "at")
		if rapid.Bool().Draw(t, "insert") || at == len(changed) {
			changed = slices.Insert(changed, at, word.Draw(t, "word"))
		} else {
			changed = slices.Delete(changed, at, at+1)
		}
	}
	join := func(l []string) string {
		if len(l) == 0 {
			return ""
		}
		return strings.Join(l, end) + end
	}
	before, after = join(lines), join(changed)
	if before != "" && rapid.Bool().Draw(t, "open") {
		before = strings.TrimSuffix(before, end)
	}
	if after != "" && rapid.Bool().Draw(t, "open after") {
		after = strings.TrimSuffix(after, end)
	}
	if end == "\r\n" && (!strings.Contains(before, end) || !strings.Contains(after, "\n")) {
		// A file without a line end has no kind of it to keep.
		before, after = strings.ReplaceAll(before, end, "\n"), strings.ReplaceAll(after, end, "\n")
	}
	return before, after
}

// diffPatch makes a patch with one hunk, whose context is the whole rest, so that
// it has one place.
func diffPatch(t *rapid.T, before, after string) string {
	a, b := readDocument([]byte(before)), readDocument([]byte(after))
	same := 0
	for same < min(len(a.lines), len(b.lines)) && a.lines[same] == b.lines[same] {
		same++
	}
	tail := 0
	for tail < min(len(a.lines), len(b.lines))-same && a.lines[len(a.lines)-1-tail] == b.lines[len(b.lines)-1-tail] {
		tail++
	}
	if a.open != b.open {
		tail = 0
	}
	ends := a.open != b.open
	if ends { // both last lines are told, with their ends
		same = max(min(same, len(a.lines)-1, len(b.lines)-1), 0)
	}
	var h []string
	for _, l := range a.lines[:same] {
		h = append(h, " "+l)
	}
	for _, l := range a.lines[same : len(a.lines)-tail] {
		h = append(h, "-"+l)
	}
	if ends && a.open && same < len(a.lines) {
		h = append(h, `\ No newline at end of file`)
	}
	for _, l := range b.lines[same : len(b.lines)-tail] {
		h = append(h, "+"+l)
	}
	if ends && b.open {
		h = append(h, `\ No newline at end of file`)
	}
	for _, l := range a.lines[len(a.lines)-tail:] {
		h = append(h, " "+l)
	}
	patch := patchOf(append([]string{"*** Update File: a", "@@"}, append(h, "*** End of File")...)...)
	if rapid.Bool().Draw(t, "crlf patch") {
		patch = strings.ReplaceAll(patch, "\n", "\r\n")
	}
	return patch
}

// patchSeeds are patches of every kind.
func patchSeeds() []string {
	return []string{
		patchOf("*** Update File: a", "@@", " two", "-three", "+THREE", " four"),
		patchOf("*** Add File: b/c", "+x", "", "+y"),
		patchOf("*** Delete File: a"),
		patchOf("*** Update File: a", "*** Move to: b", "@@ one", "-two", "+2", "*** End of File"),
		"apply_patch <<'EOF'\r\n" + patchOf("*** Update File: a", "-one", `\ No newline at end of file`, "+1") + "EOF",
		patchOf("*** Update File: a", "@@", "-one", "+1", "@@", "", "-five", "*** Update File: a", "@@", "+x", "*** End of File"),
		"```\n*** Begin Patch ***\n***End Patch",
	}
}

// FuzzApplyPatch: a patch is refused with a reason for the model, or an update
// removes and adds exactly its lines.
func FuzzApplyPatch(f *testing.F) {
	seeds := patchSeeds()
	patches := 0
	for _, s := range seeds {
		f.Add(s)
		if _, err := parsePatch(s); err == nil {
			patches++
		}
	}
	if patches < 6 {
		f.Fatalf("%d of %d seeds are patches", patches, len(seeds))
	}
	told := func(t *testing.T, err error) {
		if e, ok := errors.AsType[*tools.Error](err); !ok || !e.Visible || e.Reason == "" || e.Message == "" {
			t.Errorf("error without a reason for the model: %v", err)
		}
	}
	f.Fuzz(func(t *testing.T, patch string) {
		sections, err := parsePatch(patch)
		if err != nil {
			told(t, err)
			return
		}
		if len(sections) == 0 {
			t.Error("a patch without a section")
		}
		for _, s := range sections {
			after, _, err := applyHunks(t.Context(), s.path, []byte(tenLines), s.hunks)
			if err != nil {
				told(t, err)
				continue
			}
			want := 10
			for _, h := range s.hunks {
				for _, l := range h.lines {
					switch l.op {
					case '+':
						want++
					case '-':
						want--
					}
				}
			}
			if got := len(readDocument(after).lines); got != want {
				t.Errorf("%d lines, want %d: %q", got, want, after)
			}
		}
	})
}

// TestPatchPartsAreRestricted: a rule on the tool that writes, patches or deletes a
// file binds the part of a patch that does it. The control is a patch without that
// part.
func TestPatchPartsAreRestricted(t *testing.T) {
	const add, update, remove, move, moveAndUpdate = "*** Add File: a\n+x\n", "*** Update File: b\n@@\n-x\n+y\n", "*** Delete File: c\n",
		"*** Update File: d\n*** Move to: e\n", "*** Update File: d\n*** Move to: e\n@@\n-x\n+y\n"
	def := (&patchApplier{}).Definition()
	for name, tc := range map[string]struct {
		patch string
		want  []tools.Name
	}{
		"add":             {add, []tools.Name{"write_file"}},
		"update":          {update, []tools.Name{"patch_file"}},
		"delete":          {remove, []tools.Name{"delete_file"}},
		"move":            {move, []tools.Name{"write_file", "delete_file"}},
		"move and update": {moveAndUpdate, []tools.Name{"write_file", "delete_file", "patch_file"}},
		"delete last":     {add + update + remove, []tools.Name{"write_file", "patch_file", "delete_file"}},
		"other spelling":  {"***delete file: c\n", []tools.Name{"delete_file"}},
	} {
		input, err := json.Marshal(map[string]string{"patch": "*** Begin Patch\n" + tc.patch + "*** End Patch\n"})
		if err != nil {
			t.Fatal(err)
		}
		for _, restricted := range []tools.Name{"write_file", "patch_file", "delete_file"} {
			for _, mode := range []policy.Mode{policy.ModePromptOnce, policy.ModePrompt, policy.ModeDeny} {
				own := map[string]policy.Mode{string(restricted): mode, "apply_patch": policy.ModeAuto}
				auto := policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassWrite: policy.ModeAuto}}
				direct, required := auto, auto
				direct.Tools, required.Tighten = own, []policy.Policy{{Classes: auto.Classes, Tools: own}}
				want := policy.ModeAuto
				if slices.Contains(tc.want, restricted) {
					want = mode
				}
				for _, p := range []policy.Policy{direct, required} {
					if got := p.DecideCall(policy.DangerMatcher{}, def, "", input); got.Mode != want {
						t.Errorf("%s, %s: %s: %+v, want %s", name, restricted, mode, got, want)
					}
				}
			}
		}
	}
}
