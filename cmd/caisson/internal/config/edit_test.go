package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// edits are the additions of the tests.
var edits = []Addition{
	{Keys: []string{"env_from"}, Items: []string{"TOKEN"}, Inherited: []string{"OTHER"}, Comment: "why"},
	{Keys: []string{"env"}, Entries: [][2]string{{"GOPROXY", `"file:///x"`}}},
	{Keys: []string{"host_image", "toolchains"}, Items: []string{"/opt/a", "~/b"}},
}

// userFile writes a user's file. It returns the options with which it is read, and the
// home directory, which has the workspace ws.
func userFile(t *testing.T, text string) (o Options, home string) {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o = Options{Environ: []string{"HOME=" + home}, Path: filepath.Join(home, "config.yaml")}
	if err := os.Mkdir(filepath.Join(home, "ws"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.Path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return o, home
}

// addEdits puts the additions into the file.
func addEdits(o Options, home string) error {
	edit, err := EditWorkspace(o, home+"/ws", edits)
	if err != nil {
		return err
	}
	return edit.Write()
}

func TestEditWorkspace(t *testing.T) {
	const added = `    env_from: [OTHER, TOKEN]  # why
    env: {GOPROXY: "file:///x"}
    host_image: {toolchains: [/opt/a, ~/b]}
`
	for name, tt := range map[string]struct{ before, after string }{
		"empty":              {"", "workspaces:\n  ~/ws:\n" + added},
		"only comments":      {"# mine\n", "# mine\nworkspaces:\n  ~/ws:\n" + added},
		"no final newline":   {"git: ro # x", "git: ro # x\nworkspaces:\n  ~/ws:\n" + added},
		"other settings":     {"---\n# a\ngit: 'ro'   # b\n\nlimits: {max_rounds: 3}\n", "---\n# a\ngit: 'ro'   # b\n\nlimits: {max_rounds: 3}\nworkspaces:\n  ~/ws:\n" + added},
		"other workspaces":   {"workspaces: # w\n    # of other\n    /other: {git: ro}\ngit: ro\n", "workspaces: # w\n    ~/ws:\n      env_from: [OTHER, TOKEN]  # why\n      env: {GOPROXY: \"file:///x\"}\n      host_image: {toolchains: [/opt/a, ~/b]}\n    # of other\n    /other: {git: ro}\ngit: ro\n"},
		"no workspace":       {"workspaces:\ngit: ro\n", "workspaces:\n  ~/ws:\n" + added + "git: ro\n"},
		"flow":               {"{git: ro, workspaces: {/o: {git: ro}}}\n", "{git: ro, workspaces: {~/ws: {env_from: [OTHER, TOKEN], env: {GOPROXY: \"file:///x\"}, host_image: {toolchains: [/opt/a, ~/b]}}, /o: {git: ro}}}\n"},
		"empty flow":         {"workspaces: {}  # none\n", "workspaces: {~/ws: {env_from: [OTHER, TOKEN], env: {GOPROXY: \"file:///x\"}, host_image: {toolchains: [/opt/a, ~/b]}}}  # none\n"},
		"some are there":     {"workspaces:\n  \"~/ws\":\n    env_from: [B] # mine\n    env:\n      # e\n      A: b\n    host_image: {toolchains: [], mask: [/usr/x]}\n", "workspaces:\n  \"~/ws\":\n    env_from: [TOKEN, B] # mine\n    env:\n      GOPROXY: \"file:///x\"\n      # e\n      A: b\n    host_image: {toolchains: [/opt/a, ~/b], mask: [/usr/x]}\n"},
		"block lists":        {"workspaces:\n  ~/ws:\n    env_from:\n    - A\n    - B\n    host_image:\n      mask:\n        - /usr/x\n", "workspaces:\n  ~/ws:\n    env: {GOPROXY: \"file:///x\"}\n    env_from:\n    - TOKEN\n    - A\n    - B\n    host_image:\n      toolchains: [/opt/a, ~/b]\n      mask:\n        - /usr/x\n"},
		"not in ASCII":       {"workspaces: {\"/ö/ü\": {git: ro}, ~/ws: {git: ro}}\n", "workspaces: {\"/ö/ü\": {git: ro}, ~/ws: {env_from: [OTHER, TOKEN], env: {GOPROXY: \"file:///x\"}, host_image: {toolchains: [/opt/a, ~/b]}, git: ro}}\n"},
		"a variable's value": {"git: ${GIT:-ro}\n", "git: ${GIT:-ro}\nworkspaces:\n  ~/ws:\n" + added},
	} {
		t.Run(name, func(t *testing.T) {
			o, home := userFile(t, tt.before)
			edit, err := EditWorkspace(o, home+"/ws", edits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.after, string(edit.Text)); diff != "" {
				t.Fatalf("file (-want +got):\n%s", diff)
			}
			if err := edit.Write(); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(o.Path)
			if err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			o.Workspace = home + "/ws"
			c, err := Load(o)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(c.EnvFrom, "TOKEN") || c.Env["GOPROXY"] != "file:///x" || !slices.Equal(c.HostImage.Toolchains, []string{"/opt/a", "~/b"}) {
				t.Errorf("settings %v, %v, %v", c.EnvFrom, c.Env, c.HostImage)
			}
		})
	}
}

func TestEditIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"broken":          {"git: ro\nenv: [\n", "config.yaml:2:"},
		"unknown key":     {"git: ro\n  \nnope: 1\n", "config.yaml:3:1: unknown field"},
		"anchor":          {"workspaces: &w\n  /o: {git: ro}\n", "an anchor, a tag"},
		"alias":           {"workspaces:\n  /o: &o {git: ro}\n  ~/ws: *o\n", "an anchor, a tag"},
		"null":            {"workspaces: ~\n", "an anchor, a tag"},
		"ended document":  {"git: ro\n...\n", "can't be put in"},
		"variable's list": {"workspaces: {~/ws: {host_image: {toolchains: ~}}}\n", "an anchor, a tag"},
	} {
		t.Run(name, func(t *testing.T) {
			o, home := userFile(t, tt.text)
			_, err := EditWorkspace(o, home+"/ws", edits)
			if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if text, err := os.ReadFile(o.Path); err != nil || string(text) != tt.text {
				t.Errorf("the file became %q, %v", text, err)
			}
		})
	}
}

func TestEditFile(t *testing.T) {
	o, home := userFile(t, "git: ro\n")
	edit, err := EditWorkspace(o, home+"/ws", edits)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.Path, []byte("git: commit\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := edit.Write(); err == nil || !strings.Contains(err.Error(), "it changed while it was edited") {
		t.Errorf("a file that changed meanwhile: %v", err)
	}
	// Through a symlink the file that it leads to is replaced, and the symlink stays.
	link := filepath.Join(home, "link.yaml")
	if err := os.Symlink("config.yaml", link); err != nil {
		t.Fatal(err)
	}
	o.Path = link
	if err := addEdits(o, home); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != "config.yaml" {
		t.Errorf("the symlink is %q, %v", target, err)
	}
	if text, err := os.ReadFile(filepath.Join(home, "config.yaml")); err != nil || !strings.HasPrefix(string(text), "git: commit\nworkspaces:") {
		t.Errorf("the file is %q, %v", text, err)
	}
	if err := os.Remove(filepath.Join(home, "config.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := addEdits(o, home); err == nil || !strings.Contains(err.Error(), "a symlink to a file that does not exist") {
		t.Errorf("a dangling symlink: %v", err)
	}
	o.Path = filepath.Join(home, "new/dir/config.yaml")
	if err := addEdits(o, home); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(o.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a new file: %v, %v", info, err)
	}
}

func TestEditOfAFolderWithAnotherName(t *testing.T) {
	o, _ := userFile(t, "workspaces:\n  /tmp/../tmp: {git: ro}\n")
	edit, err := EditWorkspace(o, "/tmp", edits[1:2])
	if err != nil || !strings.Contains(string(edit.Text), `/tmp/../tmp: {env: {GOPROXY: "file:///x"}, git: ro}`) {
		t.Errorf("%v: %s", err, edit.Text)
	}
	if _, err := EditWorkspace(o, "/a/${HOME}", edits); err == nil {
		t.Error("a path with ${ was written")
	}
}
