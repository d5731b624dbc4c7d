package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostExecuted(t *testing.T) {
	for path, want := range map[string]string{
		"Makefile": "make", "sub/rules.mk": "make", ".github/workflows/ci.yml": "CI", ".ci/run": "CI",
		"a/b/package.json": "npm, yarn or pnpm", ".vscode/tasks.json": "an editor", ".envrc": "a shell",
		"AGENTS.md": "an agent", ".caisson/config.yaml": "an agent", "sub/.git/config": "git", ".husky/pre-commit": "git",
		"conftest.py": "Python", "x/build.gradle.kts": "gradle or maven", "go.mod": "go", "Dockerfile": "a container engine",
		"main.go": "", "README.md": "", "docs/makefile.txt": "", "github/workflows/x.yml": "", "env": "", "Makefile.d/x": "",
	} {
		got := ""
		for _, h := range hostExecuted([]Changed{{Path: path, Change: "modified"}}) {
			got = h.By
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := hostExecuted([]Changed{{Path: "Makefile", Change: "deleted"}}); len(got) != 0 {
		t.Errorf("a file that is gone runs nothing: %v", got)
	}
	gone := []Changed{
		{Path: "child/.caisson/config.yaml", Change: "deleted"},
		{Path: ".caisson/more/x", Change: "deleted"},
		{Path: "a/.mcp.json", Change: "deleted"},
		{Path: ".claude/settings.json", Change: "deleted"},
		{Path: "caisson/config.yaml", Change: "deleted"},
		{Path: ".github/x.yml", Change: "deleted"},
	}
	want := []HostExecuted{
		{Path: "child/.caisson/config.yaml", By: "an agent", Deleted: true},
		{Path: ".caisson/more/x", By: "an agent", Deleted: true},
		{Path: "a/.mcp.json", By: "an agent", Deleted: true},
	}
	if diff := cmp.Diff(want, hostExecuted(gone)); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}
