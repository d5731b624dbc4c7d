package workmount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// targets are the paths in the workspace of prepared mounts' guards.
func targets(p *Mounts) (readOnly, writable []string) {
	for _, b := range p.Binds[1:] {
		name := strings.TrimPrefix(b.Target, sandbox.WorkspaceDir+"/")
		if b.ReadOnly {
			readOnly = append(readOnly, name)
		} else {
			writable = append(writable, name)
		}
	}
	return readOnly, writable
}

// gitIn makes what git takes for a repository.
func gitIn(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "objects"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "refs"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "hooks"), 0o755))
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/main\n")
	write(t, filepath.Join(dir, "config"), "[core]\n")
}

// TestNestedRepositoriesAreGuarded checks that nested repositories have their
// own mounts, which no hard link leads out of, as long as there are mounts, and
// that others are reported as lost.
func TestNestedRepositoriesAreGuarded(t *testing.T) {
	needRoot(t)
	for mode, want := range map[sandbox.GitMode]struct{ readOnly, writable []string }{
		sandbox.GitReadOnly: {[]string{".git", "a/.git", "b.git", "c/.hg", "d/.git"}, nil},
		sandbox.GitCommit:   {[]string{".git", "a/.git/config", "a/.git/hooks", "b.git", "c/.hg", "d/.git"}, []string{"a/.git"}},
	} {
		f := newFixture(t, os.Geteuid(), os.Getegid())
		f.Git = mode
		gitIn(t, filepath.Join(f.dir, "a/.git"))
		gitIn(t, filepath.Join(f.dir, "b.git"))
		must(t, os.MkdirAll(filepath.Join(f.dir, "c/.hg"), 0o755))
		must(t, os.MkdirAll(filepath.Join(f.dir, "src/objects"), 0o755))
		write(t, filepath.Join(f.dir, "src/HEAD"), "the user's\n")
		must(t, os.MkdirAll(filepath.Join(f.dir, "d"), 0o755))
		must(t, os.MkdirAll(filepath.Join(f.dir, "e"), 0o755))
		write(t, filepath.Join(f.dir, "d/.git"), "gitdir: ../a/.git\n")
		must(t, os.Symlink("../a/.git", filepath.Join(f.dir, "e/.git")))
		f.Workspace.Repositories = []string{"a/.git", "b.git", "c/.hg", "d/.git", "e/.git", "src", "gone/.git", "odd\xff/.git"}
		p := f.prepare(t)
		readOnly, writable := targets(p)
		if !slices.Equal(readOnly, want.readOnly) || !slices.Equal(writable, want.writable) {
			t.Errorf("%s: guarded %q and %q, want %+v", mode, readOnly, writable, want)
		}
		if lost := strings.Join(p.Lost, "\n"); !strings.Contains(lost, `"e/.git"`) || !strings.Contains(lost, `"src"`) {
			t.Errorf("%s: lost %q", mode, lost)
		}
		for _, b := range p.Binds[1:] {
			if strings.HasSuffix(b.Target, "/a/.git") {
				if err := os.Link(filepath.Join(b.Source, "config"), filepath.Join(p.Binds[0].Source, "second")); err == nil {
					t.Error("a hard link leads out of a guarded repository")
				}
			}
		}
		if err := os.Link(filepath.Join(f.dir, "a/.git/config"), filepath.Join(f.dir, "second")); err != nil {
			t.Errorf("control: without the mount there is no link either: %v", err)
		}
	}
}

// TestNestedGuardsAreBounded checks that repositories beyond the bound are
// lost, with a count.
func TestNestedGuardsAreBounded(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	var names []string
	for i := range maxNested + 10 {
		name := fmt.Sprintf("r%03d/.git", i)
		must(t, os.MkdirAll(filepath.Join(f.dir, name), 0o755))
		names = append(names, name)
	}
	list, lost := nestedGuards(f.Workspace.Dir, f.dir, sandbox.GitReadOnly, names)
	if len(list) != maxNested || len(lost) != 1 || !strings.Contains(lost[0], `"r064/.git"`) || !strings.Contains(lost[0], "and 5 more") {
		t.Errorf("%d guards, lost %q", len(list), lost)
	}
}

// TestPrivilegedFilesAreGuarded checks that each has a read-only mount, which
// no hard link leads out of, and that others are reported as lost.
func TestPrivilegedFilesAreGuarded(t *testing.T) {
	needRoot(t)
	f := newFixture(t, os.Geteuid(), os.Getegid())
	must(t, os.MkdirAll(filepath.Join(f.dir, ".caisson"), 0o755))
	must(t, os.MkdirAll(filepath.Join(f.dir, "dir"), 0o755))
	for _, name := range []string{"dir/su", "a:b", ".caisson/su"} {
		write(t, filepath.Join(f.dir, name), "")
	}
	must(t, os.Symlink("dir/su", filepath.Join(f.dir, "link")))
	f.Workspace.Privileged = []string{".caisson/su", "a:b", "dir/su", "gone", "link"}
	p := f.prepare(t)
	if readOnly, _ := targets(p); !slices.Equal(readOnly, []string{".git", ".caisson", "dir/su"}) {
		t.Errorf("guarded %q", readOnly)
	}
	if lost := strings.Join(p.Lost, "\n"); !strings.Contains(lost, `privileged files ("a:b", "link") can't be protected`) {
		t.Errorf("lost %q", lost)
	}
	names := slices.Repeat([]string{"dir/su"}, maxNested+7)
	if list, lost := fileGuards(f.Workspace.Dir, names); len(list) != maxNested || len(lost) != 1 || !strings.Contains(lost[0], "and 2 more") {
		t.Errorf("%d guards, lost %q", len(list), lost)
	}
}

// TestSecondNamesAreRefused checks files that git obeys at the top, which
// commands could change by another name. Nested ones are lost, and objects,
// which local clones share, are free.
func TestSecondNamesAreRefused(t *testing.T) {
	for name, refused := range map[string]bool{
		".git/config": true, ".git/hooks/pre-commit": true, ".git/info/attributes": true, ".git/modules/a/config": true, ".git/modules/a/b/hooks/x": true,
		".hg/hgrc": true, ".git/objects/aa/bb": false, ".git/modules/a/objects/aa/bb": false, ".git/logs/HEAD": false, "src/main.c": false,
	} {
		f := newFixture(t, os.Geteuid(), os.Getegid())
		gitIn(t, filepath.Join(f.dir, ".git"))
		must(t, os.MkdirAll(filepath.Join(f.dir, path.Dir(name)), 0o755))
		write(t, filepath.Join(f.dir, name), "")
		if _, _, err := listGuards(f.Workspace, f.dir, sandbox.GitReadOnly); err != nil {
			t.Errorf("control: %s with one name: %v", name, err)
		}
		must(t, os.Link(filepath.Join(f.dir, name), filepath.Join(f.dir, "second")))
		_, _, err := listGuards(f.Workspace, f.dir, sandbox.GitReadOnly)
		if (err != nil) != refused || refused && (!errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := newFixture(t, os.Geteuid(), os.Getegid())
	gitIn(t, filepath.Join(f.dir, "r/.git"))
	must(t, os.Link(filepath.Join(f.dir, "r/.git/config"), filepath.Join(f.dir, "second")))
	if _, lost := nestedGuards(f.Workspace.Dir, f.dir, sandbox.GitReadOnly, []string{"r/.git"}); len(lost) != 1 || !strings.Contains(lost[0], "hard links") {
		t.Errorf("lost %q", lost)
	}
}

// TestMercurialIsGuarded checks that an existing .hg is guarded, or refused if
// it can't be.
func TestMercurialIsGuarded(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	names := func() (names []string) {
		list, _, err := listGuards(f.Workspace, f.dir, sandbox.GitReadOnly)
		must(t, err)
		for _, g := range list {
			if !g.readOnly {
				t.Errorf("%s is writable", g.name)
			}
			names = append(names, g.name)
		}
		return names
	}
	if got := names(); slices.Contains(got, ".hg") {
		t.Errorf("control: guarded %q", got)
	}
	must(t, os.Mkdir(filepath.Join(f.dir, ".hg"), 0o755))
	if got := names(); !slices.Contains(got, ".hg") {
		t.Errorf("guarded %q", got)
	}
	must(t, os.Rename(filepath.Join(f.dir, ".hg"), filepath.Join(f.dir, "elsewhere")))
	must(t, os.Symlink("elsewhere", filepath.Join(f.dir, ".hg")))
	if _, _, err := listGuards(f.Workspace, f.dir, sandbox.GitReadOnly); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a symlink: %v", err)
	}
}

// TestUnguarded is for a session's end, which renames files that are otherwise
// guarded.
func TestUnguarded(t *testing.T) {
	needRoot(t)
	f := newFixture(t, os.Geteuid(), os.Getegid())
	gitIn(t, filepath.Join(f.dir, "a/.git"))
	must(t, os.Symlink("/nowhere", filepath.Join(f.dir, ".caisson")))
	f.Workspace.Repositories, f.Workspace.Unguarded = []string{"a/.git"}, true
	if p := f.prepare(t); len(p.Binds) != 1 {
		t.Errorf("mounted %+v", p.Binds)
	}
	missing(t, filepath.Join(f.dir, ".git")) // nothing is reserved either
}
