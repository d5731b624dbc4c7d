package changes

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
)

func TestHostExecuted(t *testing.T) {
	for path, want := range map[string]string{
		"Makefile": "make", "sub/rules.mk": "make", ".github/workflows/ci.yml": "CI", ".ci/run": "CI",
		"a/b/package.json": "node, bun, deno or their tools", ".vscode/tasks.json": "an editor", ".envrc": "a shell",
		"AGENTS.md": "an agent", ".caisson/config.yaml": "an agent", "sub/.git/config": "git", ".husky/pre-commit": "git",
		"conftest.py": "Python", "x/build.gradle.kts": "gradle, maven or sbt", "go.mod": "go", "Dockerfile": "a container engine",
		".hg/hgrc": "Mercurial", "sub/.hg/hgrc": "Mercurial", ".jj/repo/config.toml": "Jujutsu", ".gdbinit": "a debugger", ".lldbinit": "a debugger", "a/.venv/bin/activate": "Python",
		"activate": "a shell", "x/node_modules/.bin/tsc": "node, bun, deno or their tools", "opencode.json": "an agent", "bunfig.toml": "node, bun, deno or their tools",
		"infra/main.tf": "Terraform or another deployment tool", "Pipfile": "Python", "eslint.config.mjs": "node, bun, deno or their tools", "lefthook.yaml": "git",
		".bsp/sbt.json": "an editor", ".git": "git", "lib-gdb.py": "a debugger", "a.desktop": "a desktop",
		// In any case, and as other file systems read them.
		".VSCODE/tasks.json": "an editor", "makeFile": "make", "PACKAGE.json": "node, bun, deno or their tools", "Claude.MD": "an agent", ".Claude/settings.json": "an agent",
		"BUILD.Bazel": "a build tool", ".g\u200cit/hooks/x": "git", ".HG/hgrc": "Mercurial", "Ma\u212aefile": "make", "\u017fetup.py": "Python", "Makefile. ": "make", "Rules.MK": "make",
		"/.git/config": "git", "a//.git/config": "git", "x/node_modules/.hooks/install": "node, bun, deno or their tools", "": "", "a.git/x": "", "x.claude/x": "", "x/a.git/x": "",
		"node_modules/x/index.js": "", "bin/x": "", "venv.md": "", ".git2/x": "", "xactivate": "",
		"main.go": "", "README.md": "", "docs/makefile.txt": "", "github/workflows/x.yml": "", "env": "", "Makefile.d/x": "",
	} {
		if h, ok := hostExecuted(record.Changed{Path: path, Change: "modified"}, ""); h.By != want || ok != (want != "") {
			t.Errorf("%s: %q, %t, want %q", path, h.By, ok, want)
		}
	}
	// The characters that HFS+ ignores, and their neighbours.
	for _, r := range []rune{0x200c, 0x200d, 0x200f, 0x202a, 0x202e, 0x206a, 0x206f, 0xfeff} {
		if !isHostExecuted(".g" + string(r) + "it/config") {
			t.Errorf("%U makes .git another name", r)
		}
	}
	for _, r := range []rune{0x80, 0x200b, 0x2010, 0x2029, 0x202f, 0x2069, 0x2070, 0xfefe, 0xff00} {
		if isHostExecuted(".g" + string(r) + "it/config") {
			t.Errorf("%U is ignored", r)
		}
	}
	for change, want := range map[string]record.HostExecuted{
		"added": {Path: "Makefile", By: "make", Added: true}, "modified": {Path: "Makefile", By: "make"},
	} {
		if got, ok := hostExecuted(record.Changed{Path: "Makefile", Change: change}, ""); !ok || got != want {
			t.Errorf("%s: %+v", change, got)
		}
	}
	var gone []record.HostExecuted
	for _, path := range []string{"child/.caisson/config.yaml", ".caisson/more/x", "a/.mcp.json", ".claude/settings.json", "caisson/config.yaml", ".github/x.yml", "Makefile"} {
		if h, ok := hostExecuted(record.Changed{Path: path, Change: "deleted"}, ""); ok {
			gone = append(gone, h)
		}
	}
	want := []record.HostExecuted{
		{Path: "child/.caisson/config.yaml", By: "an agent", Deleted: true},
		{Path: ".caisson/more/x", By: "an agent", Deleted: true},
		{Path: "a/.mcp.json", By: "an agent", Deleted: true},
	}
	if diff := cmp.Diff(want, gone); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

// TestRulesAreFolded: a rule that isn't in folded form would never match.
func TestRulesAreFolded(t *testing.T) {
	for _, r := range hostRules {
		for _, text := range []string{r.names, r.starts, r.ends, r.dirs} {
			if text != foldName(text) {
				t.Errorf("%s: %q", r.by, text)
			}
		}
	}
}
