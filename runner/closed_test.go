package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// asUser runs the calling test again as an ordinary user if root runs it, whom no mode stops. It
// reports whether it did.
func asUser(t *testing.T) (done bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	tmp := t.TempDir()
	if err := os.Chmod(filepath.Dir(tmp), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(tmp, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "HOME="+tmp, "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
	return true
}

// chmods sets modes in the workspace, in order.
func (b *bench) chmods(modes ...any) {
	b.t.Helper()
	for i := 0; i < len(modes); i += 2 {
		if err := os.Chmod(filepath.Join(b.dir, modes[i].(string)), os.FileMode(modes[i+1].(int))); err != nil {
			b.t.Error(err)
		}
	}
}

// openUp makes everything readable, from the top, and returns the former modes.
func (b *bench) openUp() map[string]fs.FileMode {
	b.t.Helper()
	had := map[string]fs.FileMode{}
	var into func(dir string)
	into = func(dir string) {
		info, err := os.Lstat(dir)
		if err != nil {
			b.t.Fatal(err)
		}
		rel, _ := filepath.Rel(b.dir, dir)
		had[rel] = info.Mode() &^ fs.ModeDir
		if err := os.Chmod(dir, 0o755); err != nil {
			b.t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				into(filepath.Join(dir, e.Name()))
			}
		}
	}
	into(b.dir)
	return had
}

// ends runs the session and returns its report. Another user can't read the schema.
func (b *bench) ends() Report {
	b.t.Helper()
	s, err := Open(b.t.Context(), b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.takes(s)
}

// TestClosedDirectoriesDoNotHelp: a repository is renamed even if the modes of the directories
// above it prevent that, or hide it. The modes are restored.
func TestClosedDirectoriesDoNotHelp(t *testing.T) {
	if asUser(t) {
		return
	}
	chain := func(mode int) (string, []any) {
		p, modes := "d", []any{"d", mode}
		for range 12 {
			p += "/d"
			modes = append([]any{p, mode}, modes...) // innermost first
		}
		return p, modes
	}
	deep, deepModes := chain(0o555)
	dark, darkModes := chain(0)
	for name, c := range map[string]struct {
		dir   string
		modes []any
	}{
		"open":            {"sub", nil},
		"not writable":    {"sub", []any{"sub", 0o555}},
		"not listable":    {"sub", []any{"sub", 0o311}},
		"nothing":         {"sub", []any{"sub", 0}},
		"no search above": {"a/sub", []any{"a/sub", 0o555, "a", 0o655}},
		"read only chain": {deep, deepModes},
		"dark chain":      {dark, darkModes},
		"sticky":          {"sub", []any{"sub", 0o555 | int(fs.ModeSticky)}},
		"the workspace":   {".", []any{".", 0o555}},
		"not even that":   {".", []any{".", 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, plantTurns)
			b.file("other/f", "")
			b.chmods("other", 0o750|int(fs.ModeSetgid))
			repo := filepath.Join(c.dir, ".git")
			b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
				b.plants(repo)(ctx, box, cmd)
				b.chmods(c.modes...)
				return sandbox.ExitStatus{}
			}
			t.Cleanup(func() { b.chmods(".", 0o755) })
			r := b.ends()
			had := b.openUp()
			if len(r.Quarantined) != 1 || r.Quarantined[0].Path != repo || r.Quarantined[0].To == "" {
				t.Fatalf("quarantined %+v", r.Quarantined)
			}
			if b.exists(repo) || !b.exists(r.Quarantined[0].To) {
				t.Errorf("%s is still there", repo)
			}
			want := map[string]fs.FileMode{}
			for i := 0; i < len(c.modes); i += 2 {
				want[c.modes[i].(string)] = fs.FileMode(c.modes[i+1].(int))
			}
			for dir, mode := range want {
				if had[dir] != mode {
					t.Errorf("%s has mode %v, had %v", dir, had[dir], mode)
				}
			}
			if mode := had["other"]; mode != 0o750|fs.ModeSetgid {
				t.Errorf("a folder that has nothing to do with it has mode %v", mode)
			}
		})
	}
}

// TestManyClosedFoldersDoNotHelp: there are more unreadable directories than a walk lists, and
// some are too deep.
func TestManyClosedFoldersDoNotHelp(t *testing.T) {
	if asUser(t) {
		return
	}
	b := newBench(t, plantTurns)
	const closed = 50
	b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		for i := range 25 {
			if err := os.MkdirAll(filepath.Join(b.dir, fmt.Sprintf("a%02d", i)+strings.Repeat("/d", workspace.DefaultMaxDepth+2)), 0o755); err != nil {
				t.Error(err)
			}
		}
		for i := range closed {
			dir := fmt.Sprintf("s%02d", i)
			b.plants(dir+"/.git")(ctx, box, cmd)
			b.chmods(dir, 0o311)
		}
		return sandbox.ExitStatus{}
	}
	r := b.ends()
	b.openUp()
	for i := range closed {
		if repo := fmt.Sprintf("s%02d/.git", i); b.exists(repo) {
			t.Errorf("%s is still there", repo)
		}
	}
	if !r.Incomplete {
		t.Error("the look is said to be complete")
	}
}

// TestFoldersClosedBeforeStayClosed: a directory that may be the user's is not opened. It is
// vouched for only if commands could not enter it.
func TestFoldersClosedBeforeStayClosed(t *testing.T) {
	if asUser(t) {
		return
	}
	for mode, want := range map[int][]string{0o600: {"sub/.git"}, 0: {"sub/.git"}, 0o311: {"private", "sub/.git"}} {
		b := newBench(t, plantTurns)
		b.file("private/.git/config", "[core]\n")
		b.chmods("private", mode)
		b.backend.Scripts["plant"] = b.plants("sub/.git")
		r := b.ends()
		if diff := cmp.Diff(want, paths(r.Quarantined)); diff != "" {
			t.Errorf("quarantined (-want +got):\n%s", diff)
		}
		if status := r.ExitStatus; (status == OutcomeUnvouched) != (len(want) == 2) {
			t.Errorf("%o: status %d", mode, status)
		}
		if had := b.openUp(); had["private"] != fs.FileMode(mode) || !b.exists("private/.git/config") {
			t.Errorf("the user's folder has mode %v", had["private"])
		}
	}
}

// TestWhatStaysClosedIsNamed: a directory that can't be opened, because it is somebody else's or the
// sandbox fails, is reported as one that may hold a repository.
func TestWhatStaysClosedIsNamed(t *testing.T) {
	if asUser(t) {
		return
	}
	b := newBench(t, plantTurns)
	b.backend.Scripts["plant"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		b.plants("sub/.git")(ctx, box, cmd)
		b.chmods("sub", 0o311)
		box.Writer = workspace.NewWriter(nil, workspace.WriterOptions{}) // every change fails
		return sandbox.ExitStatus{}
	}
	r := b.ends()
	if !slices.ContainsFunc(r.Quarantined, func(q record.Quarantined) bool { return q.Path == "sub" && q.To == "" }) {
		t.Errorf("quarantined %+v", r.Quarantined)
	}
	b.openUp()
}

// TestChangesOfAReplacedSandbox: a change that meets the end of the sandbox is made in the next one.
func TestChangesOfAReplacedSandbox(t *testing.T) {
	b := newBench(t, plantTurns)
	s := b.looked()
	b.backend.Sandboxes[0].End(errors.Join(sandbox.ErrLost, &limits.ExceededError{Kind: limits.KindMemory}))
	b.file("sub/.git/config", evilConfig)
	_, err := s.exec.ApplyAnywhere(t.Context(), workspace.Op{Kind: workspace.OpRename, Path: "sub/.git", To: "sub/new"})
	if err != nil || !b.exists("sub/new") || b.exists("sub/.git") || len(b.backend.Sandboxes) != 2 {
		t.Errorf("%v, in %d sandboxes", err, len(b.backend.Sandboxes))
	}
}
