package project

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/workspace"
)

// tree makes a workspace. Entries ending in / are directories.
func tree(t *testing.T, entries ...string) (*os.File, string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		p := filepath.Join(root, e)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if e[len(e)-1] == '/' {
			err = os.MkdirAll(p, 0o755)
		} else {
			err = os.WriteFile(p, []byte("\x00 not what it seems"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := workspace.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir, root
}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct{ entries, want []string }{
		"nothing":          {[]string{"README.md", "go.mod/", "src/lib/go.mod"}, nil},
		"all at the top":   {[]string{"go.mod", "package.json", "pyproject.toml", "requirements.txt", "Cargo.toml", "pom.xml", "uv.lock"}, []string{"Rust Cargo.toml [cargo rustc]", "Go go.mod [go]", "Node.js package.json [node npm]", "Maven pom.xml [java mvn]", "Python pyproject.toml [python3]", "uv uv.lock [uv]"}},
		"one level below":  {[]string{"a/go.mod", "b/go.mod", "web/package.json", "node_modules/package.json", "vendor/go.mod", ".hidden/Cargo.toml", "testdata/pom.xml"}, []string{"Go a/go.mod [go]", "Node.js web/package.json [node npm]"}},
		"the top wins":     {[]string{"a/go.mod", "go.work"}, []string{"Go go.work [go]"}},
		"vendored":         {[]string{"go.mod", "vendor/modules.txt", "package.json", "node_modules/"}, []string{"Go go.mod [go] vendored", "Node.js package.json [node npm]"}},
		"its own programs": {[]string{"pom.xml", "mvnw", "build.gradle.kts", "gradlew"}, []string{"Gradle build.gradle.kts [java]", "Maven pom.xml [java]"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, root := tree(t, tt.entries...)
			found, partial, err := Find(t.Context(), dir, root)
			if err != nil || partial {
				t.Fatalf("%v, partial %v", err, partial)
			}
			var got []string
			for _, f := range found {
				text := fmt.Sprintf("%s %s %v", f.Name, f.File, f.Programs)
				if f.Vendored {
					text += " vendored"
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFindFollowsNoSymlink(t *testing.T) {
	_, other := tree(t, "go.mod", "sub/Cargo.toml")
	dir, root := tree(t, "package.json")
	for name, target := range map[string]string{"go.mod": other + "/go.mod", "linked": other + "/sub", "pom.xml": "package.json"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	found, _, err := Find(t.Context(), dir, root)
	if err != nil || len(found) != 1 || found[0].Name != "Node.js" {
		t.Errorf("found %v, %v", found, err)
	}
}
