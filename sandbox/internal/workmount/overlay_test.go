package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/tools/workspace"
)

// overlaid makes the fixture's workspace copy-on-write, with layers like
// package sandbox/overlay's.
func (f *fixture) overlaid(t *testing.T) {
	t.Helper()
	f.Workspace.Mode, f.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(f.StateDir, "layers")
	worktest.MakeLayers(t, f.Workspace.Layers, f.dir)
}

// change is the commands' script in the overlay.
const change = `set -e; cd %s
	echo new >made; echo more >>keep/deep/f; rm -r gone; rm -r opaque; mkdir opaque; echo y >opaque/fresh
	mv moved elsewhere; echo two >>linked; echo exec >>script; printf x >>big; echo t2 >>third; echo g >set/in; ln linked hard`

func TestOverlayOfEveryOwner(t *testing.T) {
	needRoot(t)
	for _, attach := range []bool{false, true} {
		for _, id := range []int{0, 1000, sandbox.CommandUID} {
			t.Run(fmt.Sprintf("uid %d, layers attached %v", id, attach), func(t *testing.T) {
				f := newFixture(t, id, id)
				worktest.Furnish(t, f.dir, id, id)
				worktest.Unchanged(t, f.dir)
				f.overlaid(t)
				f.attachLayers = attach
				p := f.prepare(t)
				if !p.IDMapped || p.Mode != sandbox.ModeOverlay || len(p.Lost) > 0 || len(p.Binds) != 1 {
					t.Errorf("%+v", p)
				}
				f.open(t)
				must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, fmt.Sprintf(change, p.Binds[0].Source)))
				f.seesChange(t, p)
				upper := filepath.Join(f.Workspace.Layers, upperName)
				for name, want := range map[string]ids{
					"made": {id, id}, "opaque/fresh": {id, id}, "elsewhere": {id, id}, "third": {worktest.ThirdUID, worktest.ThirdGID},
					"set/in": {id, worktest.ThirdGID}, "set": {id, worktest.ThirdGID},
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

// seesChange checks that the host's view shows the commands' changes, even once
// nothing is staged any more.
func (f *fixture) seesChange(t *testing.T, p *Mounts) {
	t.Helper()
	var ended error
	v, err := p.View(f.dir, func() error { return ended })
	must(t, err)
	must(t, p.RemoveStaging())
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
		_, err := v.Stat(t.Context(), name)
		if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := v.ReadFile(t.Context(), "big", 0, 0); err != nil || len(got.Data) != workspace.DefaultMaxFileBytes {
		t.Errorf("big: %d %v", len(got.Data), err)
	}
	_, err = v.ReadFile(t.Context(), "outside", 0, 0)
	if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindEscape {
		t.Errorf("outside: %v", err)
	}
	worktest.SearchSeesList(t, v)
	f.searchesLayers(t, p)
	ended = sandbox.ErrLost
	if _, err := v.ReadFile(t.Context(), "made", 0, 0); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("after its end: %v", err)
	}
}

// searchesLayers is the control of SearchSeesList: a view that believes that
// nothing has changed reads the old content, so the lower layer is read.
func (f *fixture) searchesLayers(t *testing.T, p *Mounts) {
	t.Helper()
	empty, err := os.Open(t.TempDir())
	must(t, err)
	defer empty.Close()
	root, layers := p.cleanup.overlayRoot()
	layers.Upper = empty
	r, err := workspace.NewReader(root, workspace.ReaderOptions{Layers: layers})
	must(t, err)
	var got []byte
	_, err = r.Search(t.Context(), "keep/deep", workspace.SearchOptions{
		MaxFile: 100,
		Match:   func(_, name string) bool { return name == "f" },
		Examine: func(_ context.Context, _ string, file workspace.File, _ error) workspace.SearchResult {
			return workspace.SearchResult{Value: string(file.Data)}
		},
		Visit: func(_ string, found workspace.SearchResult) error {
			got = append(got, found.Value.(string)...)
			return nil
		},
	})
	if err != nil || string(got) != "kept\n" {
		t.Errorf("control: %q %v, which is not from the lower layer", got, err)
	}
}

// TestOverlayGoesOn checks that a new sandbox on the same layers continues
// where the old one ended, even if that died during a change.
func TestOverlayGoesOn(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	worktest.Furnish(t, f.dir, 1000, 1000)
	worktest.Unchanged(t, f.dir)
	f.overlaid(t)
	p, err := Prepare(t.Context(), f.Options)
	must(t, err)
	f.open(t)
	must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, fmt.Sprintf(change, p.Binds[0].Source)))
	must(t, p.Close(context.Background()))
	before := worktest.Tree(t, filepath.Join(f.Workspace.Layers, upperName))
	half := filepath.Join(f.Workspace.Layers, workName, workName, "#1", "deep", "er", "still")
	must(t, os.MkdirAll(half, 0o700))
	must(t, os.WriteFile(filepath.Join(half, "x"), nil, 0o600))

	p = f.prepare(t)
	if left, err := os.ReadDir(filepath.Join(f.Workspace.Layers, workName, workName)); err != nil || len(left) > 0 {
		t.Errorf("work directory has %v %v", left, err)
	}
	f.seesChange(t, p)
	if diff := cmp.Diff(before, worktest.Tree(t, filepath.Join(f.Workspace.Layers, upperName))); diff != "" {
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

// another returns the options of a second session on the same layers.
func (f *fixture) another(t *testing.T) Options {
	t.Helper()
	o := f.Options
	const other = session + "2"
	o.Dir = filepath.Join(f.StateDir, "sessions", other)
	must(t, os.MkdirAll(o.Dir, 0o700))
	instance, err := ownership.Instance(f.StateDir)
	must(t, err)
	self, err := ownership.Self(instance)
	must(t, err)
	o.Cleanup, err = ownership.OpenCleanupList(ownership.CleanupOptions{StateDir: f.StateDir, Backend: "docker", Session: other, Owner: self, Dir: o.Dir})
	must(t, err)
	t.Cleanup(func() { o.Cleanup.Close() })
	return o
}

// TestOverlayGuards checks that the agent may change the repository but not
// .caisson.
func TestOverlayGuards(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	worktest.Run(t, f.dir, "mkdir -p .git/hooks .caisson; echo '[core]' >.git/config; echo a >.caisson/c; chown -R 1000:1000 .")
	worktest.Unchanged(t, f.dir)
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

// TestOverlayMarksAreNotForged checks that commands can't forge the overlay's
// marks or own others' files.
func TestOverlayMarksAreNotForged(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	worktest.Furnish(t, f.dir, 1000, 1000)
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
	// The control: in the overlay they are its owner's too.
	must(t, as(t, worktest.ThirdUID, worktest.ThirdGID, "chmod 700 "+work+"/third && cat "+work+"/hidden"))
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
			worktest.MakeLayers(t, f.Workspace.Layers, f.dir)
		}, sandbox.ErrInvalid, "not below the state directory"},
		{"layers of another workspace", func(t *testing.T, f *fixture) {
			must(t, os.Chown(filepath.Join(f.Workspace.Layers, upperName), 4242, 4242))
		}, sandbox.ErrInvalid, "another workspace"},
		{"upper is a link", func(t *testing.T, f *fixture) {
			upper := filepath.Join(f.Workspace.Layers, upperName)
			must(t, os.Rename(upper, upper+"2"))
			must(t, os.Symlink(upper+"2", upper))
		}, sandbox.ErrInvalid, "no directory upper"},
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

// overlayOn mounts an overlay with this lower layer.
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

// TestVolumeCheck distinguishes an engine's overlay from every other one. The
// controls are the requested one, new and after changes.
func TestVolumeCheck(t *testing.T) {
	needRoot(t)
	f := newFixture(t, 1000, 1000)
	worktest.Furnish(t, f.dir, 1000, 1000)
	f.overlaid(t)
	p := f.prepare(t)
	asked, err := p.engineVolume()
	must(t, err)
	t.Cleanup(asked.closeLayers)
	for name, script := range map[string]string{
		"nothing else": "", "one more": "echo >more", "one less": "rm fifo", "another kind": "rm link; mkdir link", "another size": "echo >>script",
		"another time": "touch script",
	} {
		g := newFixture(t, 1000, 1000)
		worktest.Run(t, f.dir, "cp -a . "+g.dir)
		worktest.Run(t, g.dir, script)
		g.overlaid(t)
		another := g.prepare(t)
		if err := asked.Check(t.Context(), viewOf(t, another), true); (err == nil) != (script == "") {
			t.Errorf("%s, by names and times: %v", name, err)
		}
		if err := asked.Check(t.Context(), viewOf(t, another), false); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s, by inodes too: %v", name, err)
		}
	}
	f.open(t)
	for i := range 2 {
		if i == 1 {
			must(t, as(t, sandbox.CommandUID, sandbox.CommandGID, fmt.Sprintf(change, p.Binds[0].Source)))
		}
		for _, ownKernel := range []bool{false, true} {
			must(t, asked.Check(t.Context(), viewOf(t, p), ownKernel))
		}
	}
}

func viewOf(t *testing.T, p *Mounts) workspace.View {
	t.Helper()
	v, err := p.View("", func() error { return nil })
	must(t, err)
	return v
}
