package workmount

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/tools/workspace"
)

// overlaid makes the fixture's workspace a copy-on-write one, with layers as
// package sandbox/overlay makes them.
func (f *fixture) overlaid(t *testing.T) {
	t.Helper()
	f.Workspace.Mode, f.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(f.StateDir, "layers")
	makeLayers(t, f.Workspace.Layers, f.dir)
}

func makeLayers(t *testing.T, layers, workspace string) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(workspace, &st))
	must(t, os.Mkdir(layers, 0o700))
	for _, name := range []string{upperName, workName} {
		must(t, os.Mkdir(filepath.Join(layers, name), 0o700))
	}
	upper := filepath.Join(layers, upperName)
	must(t, os.Chown(upper, int(st.Uid), int(st.Gid)))
	must(t, unix.Chmod(upper, st.Mode&0o7777))
}

// tree is a folder with all that can be told of it: types, modes, owners,
// times, contents, attributes. Reading does not change it (times of access are
// left out).
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if rel, err := filepath.Rel(dir, path); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
			out[rel] = "whiteout" // all are links to one
			return nil
		}
		what := fmt.Sprintf("%o %d:%d ino %d links %d dev %d size %d mtime %v ctime %v", st.Mode, st.Uid, st.Gid, st.Ino, st.Nlink, st.Rdev, st.Size, st.Mtim, st.Ctim)
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " -> " + target
		case d.Type().IsRegular():
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			sum := sha256.New()
			_, err = io.Copy(sum, f)
			f.Close()
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sum.Sum(nil))
		}
		names := make([]byte, 4096)
		if n, err := unix.Llistxattr(path, names); err == nil && n > 0 {
			what += " attributes " + string(names[:n])
		}
		rel, err := filepath.Rel(dir, path)
		out[rel] = what
		return err
	}))
	return out
}

// unchanged checks at the end of the test that the folder is what it is now.
func unchanged(t *testing.T, dir string) {
	t.Helper()
	before := tree(t, dir)
	t.Cleanup(func() {
		if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
			t.Errorf("the host's folder was changed: %s", diff)
		}
	})
}

// furnish fills a workspace with what overlays have trouble with.
func furnish(t *testing.T, dir string, uid, gid int) {
	t.Helper()
	run(t, dir, fmt.Sprintf(`set -e; umask 022
		mkdir -p keep/deep gone opaque/in moved/sub; echo kept >keep/deep/f; echo x >gone/f; echo x >opaque/in/f; echo m >moved/sub/f
		echo one >linked; ln linked linked2; ln -s keep/deep/f link; ln -s /etc/passwd outside; mkfifo fifo
		printf '#!/bin/sh\necho old\n' >script; chmod 755 script; echo ro >readonly; chmod 444 readonly
		head -c 5000000 /dev/zero >big; mkdir set; chmod 2775 set; echo t >third; echo o >group
		chown -hR %[1]d:%[2]d .; chown 4242:4343 third; chmod 666 third; chgrp 777 group; chgrp 4343 set; chmod 2777 set; touch -d @1000000000 keep/deep/f`, uid, gid))
}

func run(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// change is what commands do in the overlay.
const change = `set -e; cd %s
	echo new >made; echo more >>keep/deep/f; rm -r gone; rm -r opaque; mkdir opaque; echo y >opaque/fresh
	mv moved elsewhere; echo two >>linked; echo exec >>script; printf x >>big; echo t2 >>third; echo g >set/in; ln linked hard`

func TestOverlayOfEveryOwner(t *testing.T) {
	needRoot(t)
	for _, attach := range []bool{false, true} {
		for _, id := range []int{0, 1000, sandbox.CommandUID} {
			t.Run(fmt.Sprintf("uid %d, layers attached %v", id, attach), func(t *testing.T) {
				f := newFixture(t, id, id)
				furnish(t, f.dir, id, id)
				unchanged(t, f.dir)
				f.overlaid(t)
				f.attachLayers = attach
				p := f.prepare(t)
				if !p.Staged || p.IDMapped != (id != sandbox.CommandUID) || p.Mode != sandbox.ModeOverlay || len(p.Lost) > 0 || len(p.Binds) != 1 {
					t.Errorf("%+v", p)
				}
				f.open(t)
				must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, fmt.Sprintf(change, p.Binds[0].Source)))
				f.seesChange(t, p)
				upper := filepath.Join(f.Workspace.Layers, upperName)
				for name, want := range map[string]ids{
					"made": {id, id}, "opaque/fresh": {id, id}, "elsewhere": {id, id}, "third": {4242, 4343}, "set/in": {id, 4343}, "set": {id, 4343},
				} {
					if got := ownerOf(t, filepath.Join(upper, name)); got != want {
						t.Errorf("%s belongs to %v, not %v", name, got, want)
					}
				}
				var st unix.Stat_t
				must(t, unix.Lstat(filepath.Join(upper, "gone"), &st))
				if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
					t.Errorf("no whiteout: %o %d", st.Mode, st.Rdev)
				}
				opaque := make([]byte, 8)
				if n, err := unix.Lgetxattr(filepath.Join(upper, "opaque"), "user.overlay.opaque", opaque); err != nil || string(opaque[:n]) != "y" {
					t.Errorf("opaque %q %v", opaque[:max(n, 0)], err)
				}
			})
		}
	}
}

// seesChange checks that the view of the host is what commands left, also once
// nothing is staged any more.
func (f *fixture) seesChange(t *testing.T, p *Prepared) {
	t.Helper()
	var ended error
	v, err := p.View(f.dir, func() error { return ended })
	must(t, err)
	must(t, p.Started())
	missing(t, filepath.Join(f.Dir, mountsDir))
	for name, want := range map[string]string{
		"made": "new\n", "keep/deep/f": "kept\nmore\n", "linked": "one\ntwo\n", "hard": "one\ntwo\n", "elsewhere/sub/f": "m\n", "opaque/fresh": "y\n",
		filepath.Join(f.dir, "third"): "t\nt2\n", sandbox.WorkspaceDir + "/link": "kept\nmore\n",
	} {
		got, err := v.ReadFile(t.Context(), name, 0, 0)
		if err != nil || string(got.Data) != want {
			t.Errorf("%s: %q %v", name, got.Data, err)
		}
	}
	for _, name := range []string{"gone", "gone/f", "opaque/in", "moved"} {
		if there, err := v.Exists(t.Context(), name); there || err != nil {
			t.Errorf("%s: %v %v", name, there, err)
		}
	}
	if got, err := v.ReadFile(t.Context(), "big", 0, 0); err != nil || len(got.Data) != 5000001 {
		t.Errorf("big: %d %v", len(got.Data), err)
	}
	_, err = v.ReadFile(t.Context(), "outside", 0, 0)
	if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindEscape {
		t.Errorf("outside: %v", err)
	}
	ended = sandbox.ErrLost
	if _, err := v.ReadFile(t.Context(), "made", 0, 0); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("after its end: %v", err)
	}
}

// A fresh sandbox on the same layers goes on where the old one ended, also
// where that died in the middle of a change.
func TestOverlayGoesOn(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	furnish(t, f.dir, 1000, 1000)
	unchanged(t, f.dir)
	f.overlaid(t)
	p, err := Prepare(t.Context(), f.Options)
	must(t, err)
	f.open(t)
	must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, fmt.Sprintf(change, p.Binds[0].Source)))
	must(t, p.Close(context.Background()))
	before := tree(t, filepath.Join(f.Workspace.Layers, upperName))
	half := filepath.Join(f.Workspace.Layers, workName, workName, "#1", "deep", "er", "still")
	must(t, os.MkdirAll(half, 0o700))
	must(t, os.WriteFile(filepath.Join(half, "x"), nil, 0o600))

	p = f.prepare(t)
	if left, err := os.ReadDir(filepath.Join(f.Workspace.Layers, workName, workName)); err != nil || len(left) > 0 {
		t.Errorf("work folder has %v %v", left, err)
	}
	f.seesChange(t, p)
	if diff := cmp.Diff(before, tree(t, filepath.Join(f.Workspace.Layers, upperName))); diff != "" {
		t.Error(diff)
	}
}

func TestOverlayLayersAreUsedOnce(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	f.overlaid(t)
	p := f.prepare(t)
	second := f.another(t)
	_, err := Prepare(t.Context(), second)
	if !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "uses them already") {
		t.Fatalf("error %v", err)
	}
	must(t, p.Close(context.Background()))
	again, err := Prepare(t.Context(), second)
	must(t, err)
	must(t, again.Close(context.Background()))
}

// another gives the options of a second session on the same layers.
func (f *fixture) another(t *testing.T) Options {
	t.Helper()
	o := f.Options
	const other = session + "2"
	o.Dir = filepath.Join(f.StateDir, "sessions", other)
	must(t, os.MkdirAll(o.Dir, 0o700))
	instance, err := owner.Instance(f.StateDir)
	must(t, err)
	self, err := owner.Self(instance)
	must(t, err)
	o.Journal, err = owner.OpenJournal(owner.JournalOptions{StateDir: f.StateDir, Backend: "docker", Session: other, Owner: self, Dir: o.Dir})
	must(t, err)
	t.Cleanup(func() { o.Journal.Close() })
	return o
}

// The repository is the agent's to change; .caisson is not.
func TestOverlayGuards(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	run(t, f.dir, "mkdir -p .git/hooks .caisson; echo '[core]' >.git/config; echo a >.caisson/c; chown -R 1000:1000 .")
	unchanged(t, f.dir)
	f.overlaid(t)
	p := f.prepare(t)
	f.open(t)
	if len(p.Binds) != 2 || !p.Binds[1].ReadOnly || p.Binds[1].Target != sandbox.WorkspaceDir+"/.caisson" {
		t.Fatalf("%+v", p.Binds)
	}
	must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, "cd "+p.Binds[0].Source+" && echo x >.git/hooks/pre-commit && mv .git .git2"))
	if err := as(t, sandbox.CommandUID, sandbox.CommandGID, "echo b >>"+p.Binds[1].Source+"/c"); err == nil || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("error %v", err)
	}
}

// What commands may not do in the overlay: forge its marks, own files of others.
func TestOverlayMarksAreNotForged(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	furnish(t, f.dir, 1000, 1000)
	f.overlaid(t)
	p := f.prepare(t)
	f.open(t)
	work := p.Binds[0].Source
	if err := as(t, sandbox.CommandUID, sandbox.CommandGID, "cd "+work+" && mknod whiteout c 0 0"); err == nil {
		t.Error("a whiteout was forged")
	}
	// The kernel refuses it, or keeps it under another name (Linux 6.7).
	_ = unix.Setxattr(work+"/keep", "user.overlay.opaque", []byte("y"), 0)
	_, err := unix.Lgetxattr(filepath.Join(f.Workspace.Layers, upperName, "keep"), "user.overlay.opaque", make([]byte, 8))
	if err == nil {
		t.Error("an opaque mark was forged")
	}
	if err := as(t, sandbox.CommandUID, sandbox.CommandGID, "chmod 700 "+work+"/third"); err == nil {
		t.Error("another's file was changed")
	}
}

func TestOverlayRefused(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, f *fixture)
		is    error
		says  string
	}{
		{"no layers", func(_ *testing.T, f *fixture) { f.Workspace.Layers = "" }, sandbox.ErrInvalid, "no absolute path"},
		{"layers elsewhere", func(t *testing.T, f *fixture) {
			f.Workspace.Layers = filepath.Join(filepath.Dir(f.StateDir), "layers")
			makeLayers(t, f.Workspace.Layers, f.dir)
		}, sandbox.ErrInvalid, "not below the state folder"},
		{"layers of another workspace", func(t *testing.T, f *fixture) {
			must(t, os.Chown(filepath.Join(f.Workspace.Layers, upperName), 4242, 4242))
		}, sandbox.ErrInvalid, "another workspace"},
		{"upper is a link", func(t *testing.T, f *fixture) {
			upper := filepath.Join(f.Workspace.Layers, upperName)
			must(t, os.Rename(upper, upper+"2"))
			must(t, os.Symlink(upper+"2", upper))
		}, sandbox.ErrInvalid, "no folder upper"},
		{"submount", func(t *testing.T, f *fixture) {
			at := filepath.Join(f.dir, "sub")
			must(t, os.Mkdir(at, 0o755))
			mount(t, "tmpfs", at, "")
			f.Workspace.Submounts = []string{"sub"}
		}, sandbox.ErrUnsupported, "use bind mode"},
		{"layers on an overlay", func(t *testing.T, f *fixture) {
			overlayOn(t, f.Workspace.Layers, t.TempDir())
			moreLayers(t, f.Workspace.Layers)
		}, sandbox.ErrUnsupported, "XDG_STATE_HOME"},
		{"layers without attributes", func(t *testing.T, f *fixture) {
			mount(t, "ramfs", f.Workspace.Layers, "")
			moreLayers(t, f.Workspace.Layers)
		}, sandbox.ErrUnsupported, "XDG_STATE_HOME"},
		{"workspace stacked too high", func(t *testing.T, f *fixture) {
			between := t.TempDir()
			overlayOn(t, between, t.TempDir())
			overlayOn(t, f.dir, between)
			must(t, os.Chown(f.dir, 1000, 1000))
			f.hold(t)
			f.Workspace.Mode, f.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(f.StateDir, "layers")
		}, sandbox.ErrUnsupported, "use bind mode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, 1000, 1000)
			f.overlaid(t)
			c.spoil(t, f)
			p, err := Prepare(t.Context(), f.Options)
			if err == nil {
				f.closed(t, p)
			}
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
			f.clean(t)
		})
	}
}

func mount(t *testing.T, kind, at, data string) {
	t.Helper()
	must(t, unix.Mount(kind, at, kind, 0, data))
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// overlayOn mounts an overlay whose lower layer is lower.
func overlayOn(t *testing.T, at, lower string) {
	t.Helper()
	own := t.TempDir()
	for _, name := range []string{"u", "w"} {
		must(t, os.Mkdir(filepath.Join(own, name), 0o755))
	}
	mount(t, "overlay", at, fmt.Sprintf("lowerdir=%s,upperdir=%s/u,workdir=%s/w", lower, own, own))
}

func moreLayers(t *testing.T, at string) {
	t.Helper()
	for _, name := range []string{upperName, workName} {
		must(t, os.Mkdir(filepath.Join(at, name), 0o755))
		must(t, os.Chown(filepath.Join(at, name), 1000, 1000))
	}
}
