package agents

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
)

func find(t *testing.T, name string) Agent {
	t.Helper()
	a, err := New(new(config.Config), name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPlaceholders(t *testing.T) {
	a := Agent{Name: "mine", Agent: config.Agent{
		Command:     []string{"mine", "{{instruction}}", "-m={{model}}", "{{base_url}}/v1", "{{workspace}}:{{home}}", "{{ model }}"},
		Interactive: []string{"mine", "--chat", "{{model}}"},
		Stdin:       new("> {{instruction}}"),
		Env:         map[string]string{"B": "{{base_url}}", "A": "{{instruction}}", "W": "{{workspace}}", "H": "{{home}}", "M": "{{model}}"},
		Files:       map[string]string{"x/b.txt": "{{instruction}}", "a.json": `{"{{workspace}}":"{{instruction}}"}`},
	}}
	// A value with the words of another placeholder, quotes and the shell's characters.
	const hostile = "--flag \"$(id)\" '{{model}}' \\ \x7f {{home}}\n"
	got, err := a.Launch(Program{Path: "/opt/agents/mine/mine"}, Run{Instruction: hostile, Model: "m", BaseURL: "http://b", Workspace: `/w "q`, Home: "/h"})
	if err != nil {
		t.Fatal(err)
	}
	want := Launch{
		Argv:  []string{"/opt/agents/mine/mine", hostile, "-m=m", "http://b/v1", `/w "q:/h`, "{{ model }}"},
		Stdin: "> " + hostile,
		Env:   []string{"A=" + hostile, "B=http://b", "H=/h", "M=m", `W=/w "q`},
		Files: []File{{"a.json", got.Files[0].Content}, {"x/b.txt", hostile}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var file map[string]string
	if err := json.Unmarshal([]byte(got.Files[0].Content), &file); err != nil || file[`/w "q`] != hostile {
		t.Errorf("JSON file: %v, %q", err, file)
	}

	got, err = a.Launch(Program{Path: "mine", Node: ImageNode}, Run{Instruction: "no", Interactive: true, Model: "m"})
	if err != nil || !cmp.Equal(got.Argv, []string{"node", "mine", "--chat", "m"}) || got.Env[0] != "A=" || got.Stdin != "" {
		t.Errorf("interactive: %v, %+v", err, got)
	}
	a.Interactive = nil
	if _, err := a.Launch(Program{Path: "mine"}, Run{Interactive: true}); err == nil || !strings.Contains(err.Error(), "no interactive command") {
		t.Errorf("without an interactive command: %v", err)
	}
	for _, bad := range []string{strings.Repeat("x", maxArgument), "a\x00b"} {
		if _, err := a.Launch(Program{Path: "mine"}, Run{Instruction: bad}); err == nil {
			t.Errorf("%.3q of %d bytes was accepted", bad, len(bad))
		}
	}
	if _, err := a.Launch(Program{Path: "mine"}, Run{Instruction: strings.Repeat("x", maxArgument-1)}); err != nil {
		t.Errorf("control: %v", err)
	}
}

// TestBuiltinFiles reads the built-in agents' files with awkward values.
func TestBuiltinFiles(t *testing.T) {
	const workspace, model = "/work \"it\\\x7f\n", "m\"1"
	for _, name := range new(config.Config).AgentNames() {
		a := find(t, name)
		l, err := a.Launch(Program{Path: name}, Run{Instruction: "-h", Model: model, BaseURL: "http://b", Workspace: workspace, Home: "/h"})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Files) == 0 || strings.Contains(strings.Join(l.Argv, " ")+strings.Join(l.Env, " "), "{{") {
			t.Errorf("%s: %+v", name, l)
		}
		for _, f := range l.Files {
			var v map[string]any
			var err error
			if strings.HasSuffix(f.Path, ".toml") {
				err = toml.Unmarshal([]byte(f.Content), &v)
			} else {
				err = json.Unmarshal([]byte(f.Content), &v)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", name, f.Path, err)
			}
			if p, ok := v["projects"].(map[string]any); ok && p[workspace] == nil {
				t.Errorf("%s: projects %v", name, p)
			}
			if name == "codex" && v["model"] != model {
				t.Errorf("codex: model %v", v["model"])
			}
		}
	}
}

func FuzzLaunch(f *testing.F) {
	f.Add("x", "m", "/w")
	f.Add(`"{{home}}`, "\x7f\u2028", "\\")
	f.Fuzz(func(t *testing.T, instruction, model, workspace string) {
		a := Agent{Name: "mine", Agent: config.Agent{
			Command: []string{"mine", "{{instruction}}"}, Files: map[string]string{"a.json": `["{{instruction}}"]`, "a.toml": `a = "{{instruction}}"`},
		}}
		l, err := a.Launch(Program{Path: "mine"}, Run{Instruction: instruction, Model: model, Workspace: workspace})
		if err != nil {
			return
		}
		want := strings.ToValidUTF8(instruction, "\ufffd") // JSON and TOML are Unicode
		var list []string
		var table struct{ A string }
		if err := json.Unmarshal([]byte(l.Files[0].Content), &list); err != nil || l.Argv[1] != instruction {
			t.Errorf("%v, %q", err, l)
		}
		if err := toml.Unmarshal([]byte(l.Files[1].Content), &table); err != nil || table.A != list[0] {
			t.Errorf("%v, %q, %q", err, table.A, list[0])
		}
		if len(want) == len(instruction) && list[0] != instruction {
			t.Errorf("%q became %q", instruction, list[0])
		}
	})
}

func TestArchive(t *testing.T) {
	text, err := Archive([]File{{".a/b/c.json", "{}"}, {".a/b/d", ""}, {"e", "x"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+string(content))
	}
	want := []string{"drwx------ .a/ ", "drwx------ .a/b/ ", "-rw------- .a/b/c.json {}", "-rw------- .a/b/d ", "-rw------- e x"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPinnedPrograms compares the definitions with the packages that the end-to-end tests
// install.
func TestPinnedPrograms(t *testing.T) {
	text, err := os.ReadFile("../../../../e2e/testdata/agents/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var pinned struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &pinned); err != nil {
		t.Fatal(err)
	}
	names := new(config.Config).AgentNames()
	for _, name := range names {
		a := find(t, name)
		if pkg := packageName(*a.NPM); *a.NPM != pkg+"@"+pinned.Dependencies[pkg] {
			t.Errorf("%s is %s, the tests install %s", name, *a.NPM, pinned.Dependencies[pkg])
		}
	}
	if len(pinned.Dependencies) != len(names) {
		t.Errorf("%d packages for %d agents", len(pinned.Dependencies), len(names))
	}
}
