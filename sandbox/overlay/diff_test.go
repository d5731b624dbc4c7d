package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readDiff returns the whole diff of the environment.
func (w *testEnv) readDiff(o DiffOptions) (string, *Stats, *Changes) {
	w.t.Helper()
	c, err := w.layers.Changes(w.t.Context(), w.dir, ReadOptions{})
	must(w.t, err)
	var text strings.Builder
	s, err := w.layers.Diff(w.t.Context(), w.dir, c, &text, o)
	must(w.t, err)
	return text.String(), s, c
}

// TestDiffIsAPatch applies the diff to a copy of the directory with git and
// patch, and compares the result with what commands saw.
func TestDiffIsAPatch(t *testing.T) {
	const before = `
		seq 1 200 > long; printf 'no end' > noend; printf 'a\r\nb\r\n' > crlf; echo x > 'with space'; echo q > 'qu"ote'; printf 'ü\n' > 'ü.txt'
		echo run > tool; echo gone > gone; : > empty; : > goneempty; ln -s long link; ln -s long oldlink; mkdir d; echo in > d/in; echo only > d/only; echo typed > typed; printf 'last' > nonl`
	const work = `
		sed -i '5s/.*/five/; 100d; 190a more' long; printf 'no end either' > noend; printf 'a\r\nc\r\n' > crlf; echo y >> 'with space'; echo r >> 'qu"ote'; printf 'ä\n' > 'ü.txt'
		chmod +x tool; rm gone; echo full > empty; rm -r d; echo new > new; : > newempty; mkdir -p e/f; echo deep > e/f/deep
		echo prog > prog; chmod 755 prog; ln -s nowhere newlink; echo tab > $'ta\tb'; printf 'last\n' > nonl; printf -- '--- a/x\n+++ b/x\n@@ -1 +1 @@\n' > looks`
	for name, tc := range map[string]struct{ apply, more string }{
		"git apply": {`git apply --whitespace=nowarn -`, `rm goneempty; ln -sfn tool link; rm oldlink; rm typed; ln -s long typed; rm long; ln -s typed long`},
		// Patch changes no existing symlink and deletes no empty file.
		"patch": {`patch -p1 -s --no-backup-if-mismatch`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(strings.Fields(tc.apply)[0]); err != nil {
				t.Skipf("needs %s: %v", strings.Fields(tc.apply)[0], err)
			}
			w := newTestEnv(t, func(dir string) { runScript(t, dir, before) })
			runScript(t, w.merged, work+"\n"+tc.more)
			target := t.TempDir()
			runScript(t, target, before)
			text, stats, _ := w.readDiff(DiffOptions{})
			if strings.Contains(text, "\n# ") {
				t.Errorf("something is left out:\n%s", text)
			}
			for i, s := range stats.Files {
				if !s.HasDiff && s.Why != "directory" {
					t.Errorf("file %d has no diff: %+v", i, s)
				}
			}
			cmd := exec.Command("bash", "-ec", tc.apply)
			cmd.Dir, cmd.Stdin = target, strings.NewReader(text)
			cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(target))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, text)
			}
			want := strings.ReplaceAll(describeTree(t, w.merged), `"." 40755`, `"." 40700`)
			got := strings.ReplaceAll(describeTree(t, target), `"." 40755`, `"." 40700`)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-merged +patched):\n%s", diff)
			}
		})
	}
}

func TestWhatADiffCantHold(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `printf 'a\0b' > bin; seq 1 400000 > large; echo text > text; mkdir empty; git init -q .; git config user.email a@b; git config user.name n; git add text; git commit -qm one; echo m > mode`)
	})
	runScript(t, w.merged, `printf 'a\0c' > bin; echo more >> large; printf 'x\0' > newbin; mkfifo fifo; rmdir empty; mkdir $'odd\ndir'; echo two >> text; git commit -qam two
		git config core.pager evil; chmod 600 mode; ln -sf /dev/null bin2; mkdir bare; cd bare; git init -q --bare .; git config core.fsmonitor 'echo x'`)
	text, _, c := w.readDiff(DiffOptions{})
	for _, want := range []string{
		"# bin: modified, binary, 3 bytes: not shown here\n",
		"# newbin: added, binary, 2 bytes: not shown here\n",
		"# large: modified, 2688", // bytes
		"# left out by an apply: fifo: ",
		"# empty directory empty: deleted\n",
		"# empty directory \"odd\\ndir\": added\n",
		"# .git: the repository changed",
		"# | +\tpager = evil\n",
		"# | +\tfsmonitor = echo x\n",
		"# mode: mode 0600, was 0644\n",
		"+two\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the diff lacks %q", want)
		}
	}
	// The patch must not contain what is left out.
	target := t.TempDir()
	runScript(t, target, `echo text > text`)
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = target, strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("git apply: %v\n%s", err, out)
	}
	runScript(t, target, `grep -q two text; test ! -L bin2; test ! -e bare/config; test ! -e .git`)
	if t.Failed() {
		t.Log(text)
	}
	short, stats, _ := w.readDiff(DiffOptions{TotalBytes: 300})
	if stats.Omitted == 0 || !strings.Contains(short, "more changes are left out: the diff would be too long") || len(short) > 600 {
		t.Errorf("%d omitted, %d bytes:\n%s", stats.Omitted, len(short), short)
	}
	if len(stats.Files) != len(c.List) {
		t.Errorf("%d counts for %d changes", len(stats.Files), len(c.List))
	}
}

// TestPromptsAreNoConflict checks that the index of git may be rewritten, as
// every "git status" does.
func TestPromptsAreNoConflict(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `git init -q .; git config user.email a@b; git config user.name n; echo 1 > f; echo 2 > g; git add .; git commit -qm one`)
	})
	runScript(t, w.merged, `touch f; git status`)
	w.requireChanges()
	runScript(t, w.merged, `echo more >> f; git commit -qam two`)
	w.unmount()
	runScript(t, w.original, `touch g; git status; git diff --quiet || :`)
	if lines := strings.Join(w.listChanges(), "\n"); !strings.Contains(lines, "modified .git/index\n") {
		t.Errorf("changes:\n%s", lines)
	}
	// Staging by the user is a conflict.
	runScript(t, w.original, `echo mine > h; git add h`)
	if lines := strings.Join(w.listChanges(), "\n"); !strings.Contains(lines, "modified .git/index CONFLICT\n") {
		t.Errorf("changes:\n%s", lines)
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"plain":       "plain",
		"with space":  "with space",
		"ü":           "ü",
		"a\nb":        `"a\nb"`,
		"a\tb":        `"a\tb"`,
		`q"`:          `"q\""`,
		`b\`:          `"b\\"`,
		"\x1b[1m":     `"\033[1m"`,
		"\xff\xfe":    `"\377\376"`,
		"a\u202ecod":  `"a\342\200\256cod"`,
		"--- a\n+++ ": `"--- a\n+++ "`,
	} {
		if got := quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func FuzzIndexContent(f *testing.F) {
	dir := f.TempDir()
	runScript(f, dir, `git init -q .; echo a > a; mkdir d; echo b > d/b; git add .`)
	seed, err := os.ReadFile(filepath.Join(dir, ".git", "index"))
	if err != nil {
		f.Fatal(err)
	}
	if hashIndex(seed) == "" {
		f.Fatal("a real index is not known")
	}
	f.Add(seed)
	f.Add([]byte("DIRC"))
	f.Fuzz(func(_ *testing.T, data []byte) { hashIndex(data) })
}
