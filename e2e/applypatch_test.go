package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestApplyPatch makes a patch of every kind of change on each backend, then one
// that fails in the middle, because a part of the workspace is protected: it
// leaves every file as it was. That it would have changed files otherwise is
// shown by the same patch without its last file.
func TestApplyPatch(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "a.go", "package a\n\nvar x = 1\n")
		m.write(t, "run.sh", "#!/bin/sh\necho old\n")
		m.write(t, "gone.txt", "x\n")
		m.write(t, "dos.txt", "one\r\ntwo\r\n")
		m.write(t, ".git/HEAD", "ref: refs/heads/main\n")
		if err := os.Chmod(filepath.Join(m.workspace, "run.sh"), 0o755); err != nil {
			t.Fatal(err)
		}
		const head = "*** Begin Patch\n"
		good := head + `*** Update File: a.go
@@
-var x = 1
+var x = 2
*** Update File: run.sh
*** Move to: bin/run.sh
@@
-echo old
+echo new
*** Delete File: gone.txt
*** Add File: deep/er/new.txt
+$(touch pwned) "quoted" and \ plain
*** Update File: dos.txt
@@
 one
-two
+three
*** End Patch`
		half := head + `*** Update File: a.go
@@
-var x = 2
+var x = 3
*** Add File: made/here.txt
+x
*** Delete File: dos.txt
`
		bad := half + "*** Add File: .git/hooks/post-commit\n+touch pwned\n*** End Patch"
		patch := func(text string) []scriptCall {
			return []scriptCall{call("apply_patch", map[string]any{"patch": text})}
		}
		out := m.runTask(t, append([]string{"--backend", backend},
			m.playing(t, patch(good), patch(bad), []scriptCall{shell("cat a.go dos.txt; ls made .git/hooks; stat -c %a bin/run.sh")}, patch(half+"*** End Patch"))...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != 4 {
			t.Fatalf("%d results", len(results))
		}
		for i, wants := range [][]string{
			{"changed a.go (1 hunk", "moved run.sh to bin/run.sh", "deleted gone.txt", "created deep/er/new.txt", "changed dos.txt"},
			{"The patch failed at step 3 of 4", ".git/hooks/post-commit", "every file is as it was"},
			{"var x = 2", "three", "\n755\n"},
			{"changed a.go (1 hunk", "created made/here.txt", "deleted dos.txt"},
		} {
			for _, want := range wants {
				if !strings.Contains(results[i].text(), want) {
					t.Errorf("call %d lacks %q:\n%s", i+1, want, results[i].text())
				}
			}
		}
		want := map[string]string{
			"a.go": "-rw-r--r-- package a\n\nvar x = 3\n", "bin": "drwxr-xr-x", "bin/run.sh": "-rwxr-xr-x #!/bin/sh\necho new\n",
			"deep": "drwxr-xr-x", "deep/er": "drwxr-xr-x", "deep/er/new.txt": "-rw-r--r-- $(touch pwned) \"quoted\" and \\ plain\n",
			"made": "drwxr-xr-x", "made/here.txt": "-rw-r--r-- x\n", ".git": "drwxr-xr-x", ".git/HEAD": "-rw-r--r-- ref: refs/heads/main\n",
		}
		if diff := cmp.Diff(want, treeOf(t, m.workspace)); diff != "" {
			t.Errorf("workspace (-want +got):\n%s", diff)
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}
