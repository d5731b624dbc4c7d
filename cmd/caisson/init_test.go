package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/project"
)

func TestSuggestToolchains(t *testing.T) {
	s := &settings{environ: environ{"HOME=/home/me"}}
	s.conf.HostImage.Toolchains = []string{"/opt/mine"}
	got := (missingSettings{s}).suggestSettings(nil, []initProgram{
		{Name: "cargo", Toolchains: []string{"/home/me/.cargo/bin", "/home/me/.rustup"}},
		{Name: "rustc", Toolchains: []string{"/home/me/.cargo/bin", "/home/me/.rustup"}},
		{Name: "go"},
	})
	const want = "workspaces:\n  ~/src/app:\n    host_image: {toolchains: [/opt/mine, ~/.cargo/bin, ~/.rustup]}  # shown read-only in the sandbox, with all that is in them\n"
	if text := config.LinesFor("~/src/app", got); text != want {
		t.Errorf("settings:\n%s\nwant:\n%s", text, want)
	}
	if got := (missingSettings{s}).suggestSettings(nil, []initProgram{{Name: "go", Path: "/usr/bin/go"}}); len(got) != 0 {
		t.Errorf("settings for programs that are there: %v", got)
	}
}

func TestSuggest(t *testing.T) {
	home := t.TempDir()
	modules := filepath.Join(home, "mod/cache/download")
	must(t, os.MkdirAll(modules, 0o755))
	golang := project.Found{Tool: project.Tool{Name: "Go", Cache: "go"}}
	found := []project.Found{golang, {Tool: project.Tool{Name: "Gradle", Cache: "~/.gradle"}}, {Tool: project.Tool{Name: "Rust"}}}
	s := &settings{environ: environ{"HOME=" + home, "GOMODCACHE=" + home + "/mod"}}
	s.conf.Caches = []string{"npm"}
	const want = `workspaces:
  ~/app:
    caches: [npm, go, ~/.gradle]  # kept between the sessions of this workspace
    mounts: [{from: ~/mod/cache/download, to: /home/agent/.goproxy, read_only: true}]  # what this machine has downloaded, other projects' too
    env: {GOPROXY: "file:///home/agent/.goproxy"}  # modules come from there; go.sum verifies them
`
	additions := (missingSettings{s}).suggestSettings(found, nil)
	if text := config.LinesFor("~/app", additions); text != want {
		t.Fatalf("settings:\n%s\nwant:\n%s", text, want)
	}
	// They are settings, and nothing is missing once they are there.
	must(t, os.Mkdir(filepath.Join(home, "app"), 0o755))
	file := filepath.Join(home, "config.yaml")
	must(t, os.WriteFile(file, []byte(want), 0o600))
	var err error
	if s.conf, err = config.Load(config.Options{Environ: s.environ, Path: file, Workspace: resolvePath(filepath.Join(home, "app"))}); err != nil {
		t.Fatal(err)
	}
	if got := (missingSettings{s}).suggestSettings(found, nil); len(got) != 0 {
		t.Errorf("settings that are there are suggested: %v", got)
	}
	// Vendored modules, or a proxy of the user's, need no mount.
	s.conf = config.Config{}
	golang.Vendored = true
	if got := (missingSettings{s}).suggestSettings([]project.Found{golang}, nil); len(got) != 1 || got[0].Key() != "caches" {
		t.Errorf("settings for vendored modules: %v", got)
	}
	s.conf.Env, golang.Vendored = map[string]string{"GOPROXY": "direct"}, false
	if got := (missingSettings{s}).suggestSettings([]project.Found{golang}, nil); len(got) != 1 || got[0].Key() != "caches" {
		t.Errorf("settings with a proxy: %v", got)
	}
}

// TestSuggestPresets: each ecosystem's preset is suggested once, together with the
// configured ones.
func TestSuggestPresets(t *testing.T) {
	found := []project.Found{
		{Tool: project.Tool{Preset: "npm"}},
		{Tool: project.Tool{Preset: "npm"}},
		{Tool: project.Tool{Preset: "go"}, Vendored: true},
		{Tool: project.Tool{Preset: "pip"}},
		{Tool: project.Tool{Preset: "cargo"}},
		{},
	}
	s := &settings{}
	s.conf.Egress.Presets = []string{"cargo"}
	got := (missingSettings{s}).suggestPresets(found)
	const want = "workspaces:\n  ~/app:\n    egress: {presets: [cargo, npm, pip]}  # registries that commands may download from\n"
	if text := config.LinesFor("~/app", []config.Addition{got}); text != want {
		t.Errorf("settings:\n%s\nwant:\n%s", text, want)
	}
}

func TestAskYes(t *testing.T) {
	for _, tt := range []struct {
		typed          string
		terminal, want bool
	}{{"y\n", true, true}, {" YES \n", true, true}, {"\n", true, false}, {"y", true, false}, {"no\n", true, false}, {"y\n", false, false}} {
		var out bytes.Buffer
		a := &app{stderr: &out, terminal: func(any) bool { return tt.terminal }}
		if got := askYes(a, bufio.NewReader(strings.NewReader(tt.typed)), "Write them to /x\x1b[2J?"); got != tt.want {
			t.Errorf("%q on a terminal %v: %v", tt.typed, tt.terminal, got)
		}
		if strings.Contains(out.String(), "\x1b") || tt.terminal != strings.Contains(out.String(), "Write them to /x") {
			t.Errorf("question %q", out.String())
		}
	}
}
