package runner

import "testing"

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
}
