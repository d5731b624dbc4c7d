package workmount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestConfiguredPrograms checks that exactly the programs are reported that a
// repository's own configuration makes git run in places that commands can
// write.
func TestConfiguredPrograms(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".git", ".husky", "out"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/usr", filepath.Join(base, "away")); err != nil {
		t.Fatal(err)
	}
	workspace, err := os.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer workspace.Close()
	for name, tt := range map[string]struct {
		config string
		want   []string
	}{
		"nothing":             {config: "[core]\n\tbare = false\n"},
		"husky":               {config: "[core]\n\tbare = false\n\thooksPath = .husky/_\n", want: []string{".husky/_"}},
		"spelled otherwise":   {config: "[user]\n\tname = x\n[CORE] HOOKSPATH=\"out\" ; mine\n", want: []string{"out"}},
		"whole path":          {config: "[core]\n\thookspath = " + base + "/out # mine\n", want: []string{"out"}},
		"the last counts":     {config: "[core]\n\thooksPath = out\n\thooksPath = /usr/share/hooks\n"},
		"outside":             {config: "[core]\n\thooksPath = ../hooks\n"},
		"home":                {config: "[core]\n\thooksPath = ~/hooks\n"},
		"through a link":      {config: "[core]\n\thooksPath = away/hooks\n"},
		"in the repository":   {config: "[core]\n\thooksPath = .git/h\n\tfsmonitor = .git/hooks/fsmonitor-watchman\n"},
		"another section":     {config: "[core \"x\"]\n\thooksPath = out\n[corex]\n\thooksPath = out\n"},
		"monitor":             {config: "[core]\n\tfsmonitor = ./out/watch --fast\n", want: []string{"out/watch"}},
		"monitor as a switch": {config: "[core]\n\tfsmonitor = true\n"},
		"monitor of the PATH": {config: "[core]\n\tfsmonitor = rs-git-fsmonitor\n"},
		"the workspace":       {config: "[core]\n\thooksPath = .\n", want: []string{`in "." `}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(base, ".git/config"), []byte(tt.config), 0o600); err != nil {
				t.Fatal(err)
			}
			got := lostConfigured(workspace, base, ".git")
			if diff := cmp.Diff(len(tt.want), len(got)); diff != "" {
				t.Fatalf("%q (-want +got):\n%s", got, diff)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("%q does not name %s", got[i], want)
				}
			}
		})
	}
}
