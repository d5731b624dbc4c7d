package workmount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// What changes the guards changes the layout; what doesn't, doesn't.
func TestLayout(t *testing.T) {
	for _, tt := range []struct {
		name    string
		git     sandbox.GitMode
		change  func(t *testing.T, dir string)
		differs bool
	}{
		{"nothing", "", func(*testing.T, string) {}, false},
		{"files", "", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "a/b"), "x") }, false},
		{"a repository appears", "", func(t *testing.T, dir string) { must(t, os.Mkdir(filepath.Join(dir, ".git"), 0o755)) }, true},
		{"a configuration appears", "", func(t *testing.T, dir string) { write(t, filepath.Join(dir, ownConfig), "x") }, true},
		{"the owner changes", "", func(t *testing.T, dir string) { needRoot(t); must(t, os.Chown(dir, 4711, 4711)) }, true},
		{"the directory is moved", "", func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+"2")) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, os.Geteuid(), os.Getegid())
			compareLayouts(t, f, tt.git, tt.change, tt.differs)
		})
	}
}

// The same for a workspace with a repository.
func TestLayoutOfRepository(t *testing.T) {
	for _, tt := range []struct {
		name    string
		git     sandbox.GitMode
		change  func(t *testing.T, dir string)
		differs bool
	}{
		{"a commit", "", func(t *testing.T, dir string) { write(t, filepath.Join(dir, ".git/HEAD"), "x") }, false},
		{"a commit, writable", sandbox.GitCommit, func(t *testing.T, dir string) { write(t, filepath.Join(dir, ".git/HEAD"), "x") }, false},
		{"hooks appear", sandbox.GitCommit, func(t *testing.T, dir string) { must(t, os.Mkdir(filepath.Join(dir, ".git/hooks"), 0o755)) }, true},
		{"it is replaced by one with its number", "", func(t *testing.T, dir string) {
			name := filepath.Join(dir, ".git")
			must(t, os.RemoveAll(name)) // ext4 reuses the number for the next directory
			must(t, os.Mkdir(name, 0o755))
		}, true},
		{"it is replaced", "", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "old")))
			write(t, filepath.Join(dir, ".git/config"), "")
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, os.Geteuid(), os.Getegid())
			write(t, filepath.Join(f.dir, ".git/config"), "")
			compareLayouts(t, f, tt.git, tt.change, tt.differs)
		})
	}
}

func compareLayouts(t *testing.T, f *fixture, git sandbox.GitMode, change func(*testing.T, string), differs bool) {
	t.Helper()
	before, err := LayoutOf(f.Workspace, git)
	must(t, err)
	change(t, f.dir)
	after, err := LayoutOf(f.Workspace, git)
	must(t, err)
	if before.Equal(after) == differs {
		t.Errorf("before:\n%+v\nafter:\n%+v", before, after)
	}
}

// What a sandbox reserves itself is no change; everything else is.
func TestLayoutReserves(t *testing.T) {
	mkdir := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
			}
		}
	}
	for _, tt := range []struct {
		name          string
		git           sandbox.GitMode
		before, after func(t *testing.T, dir string)
		reserves      bool
	}{
		{"nothing", "", mkdir(), mkdir(), true},
		{"its placeholder", "", mkdir(), mkdir(".git"), true},
		{"its placeholder, writable", sandbox.GitCommit, mkdir(), mkdir(".git"), true},
		{"a repository", "", mkdir(), mkdir(".git/objects"), false},
		{"a repository, writable", sandbox.GitCommit, mkdir(), mkdir(".git/hooks"), false},
		{"a configuration", "", mkdir(), mkdir(".caisson"), false},
		{"a configuration goes", "", mkdir(".caisson"), func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, ".caisson"))) }, false},
		{"its placeholders in a repository", sandbox.GitCommit, mkdir(".git/objects"), func(t *testing.T, dir string) {
			mkdir(".git/hooks", ".git/info")(t, dir)
			write(t, filepath.Join(dir, ".git/config"), "")
			write(t, filepath.Join(dir, ".git/commondir"), ".\n")
		}, true},
		{"hooks in a repository", sandbox.GitCommit, mkdir(".git/objects"), mkdir(".git/hooks/x"), false},
		{"settings in a repository", sandbox.GitCommit, mkdir(".git/objects"), func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, ".git/config"), "[core]")
		}, false},
		{"a repository is replaced", "", mkdir(".git"), func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, ".git")))
			mkdir(".git")(t, dir)
		}, false},
		{"the owner's rights change", "", mkdir(), func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o700)) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, os.Geteuid(), os.Getegid())
			tt.before(t, f.dir)
			before, err := LayoutOf(f.Workspace, tt.git)
			must(t, err)
			tt.after(t, f.dir)
			after, err := LayoutOf(f.Workspace, tt.git)
			must(t, err)
			if before.AllowsFrom(after) != tt.reserves {
				t.Errorf("before:\n%+v\nafter:\n%+v", before, after)
			}
		})
	}
}
