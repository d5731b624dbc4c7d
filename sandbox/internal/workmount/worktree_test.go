package workmount

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// TestOnlyOwnRepositoryIsMounted checks that a .git file's repository is
// mounted only if it says itself that the workspace is its worktree. The
// control is one that does.
func TestOnlyOwnRepositoryIsMounted(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, f *fixture, gitdir string){
		"":                  func(*testing.T, *fixture, string) {},
		"another worktree":  func(t *testing.T, _ *fixture, d string) { write(t, filepath.Join(d, "gitdir"), "/elsewhere/.git\n") },
		"no worktree":       func(t *testing.T, _ *fixture, d string) { must(t, os.Remove(filepath.Join(d, "gitdir"))) },
		"no commondir":      func(t *testing.T, _ *fixture, d string) { must(t, os.Remove(filepath.Join(d, "commondir"))) },
		"another commondir": func(t *testing.T, _ *fixture, d string) { write(t, filepath.Join(d, "commondir"), "/etc\n") },
		"no repository":     func(t *testing.T, _ *fixture, d string) { must(t, os.Remove(filepath.Join(d, "../../HEAD"))) },
		"a FIFO": func(t *testing.T, _ *fixture, d string) {
			must(t, os.Remove(filepath.Join(d, "gitdir")))
			must(t, mkfifo(filepath.Join(d, "gitdir")))
		},
		"a directory of the host's": func(t *testing.T, f *fixture, _ string) { write(t, filepath.Join(f.dir, ".git"), "gitdir: /etc\n") },
	} {
		for _, mode := range []sandbox.WorkspaceMode{sandbox.ModeBind, sandbox.ModeOverlay} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				if mode == sandbox.ModeOverlay {
					needRoot(t)
				}
				f := newFixture(t, os.Geteuid(), os.Getegid())
				gitdir := filepath.Join(filepath.Dir(f.dir), "repository/.git/worktrees/w")
				write(t, filepath.Join(gitdir, "gitdir"), filepath.Join(f.dir, ".git")+"\n")
				write(t, filepath.Join(gitdir, "commondir"), "../..\n")
				write(t, filepath.Join(gitdir, "../../HEAD"), "ref: refs/heads/main\n")
				write(t, filepath.Join(f.dir, ".git"), "gitdir: "+gitdir+"\n")
				change(t, f, gitdir)
				if mode == sandbox.ModeOverlay {
					f.overlaid(t)
				}
				p := f.prepare(t)
				i := slices.IndexFunc(p.Binds, func(b Bind) bool { return b.Target == repositoryTarget })
				if (i >= 0) != (name == "") || i >= 0 && (!p.Binds[i].ReadOnly || p.IsInside(p.Binds[i])) {
					t.Errorf("binds %+v", p.Binds)
				}
				lost := slices.ContainsFunc(p.Lost, func(text string) bool { return strings.Contains(text, "lies elsewhere and is not mounted") })
				if lost != (name != "") {
					t.Errorf("lost %q", p.Lost)
				}
			})
		}
	}
}

func mkfifo(name string) error { return unix.Mkfifo(name, 0o644) }
