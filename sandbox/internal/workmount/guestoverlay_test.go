package workmount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// describe returns a line for each bind and its layers, without the test's own
// directory.
func (f *fixture) describe(list []Bind) (out []string) {
	base := filepath.Dir(f.StateDir)
	for _, b := range list {
		line := strings.TrimSpace(b.Target + " " + b.Place + " " + strings.TrimPrefix(b.Source, base))
		for _, l := range b.Layers {
			access := " rw"
			if l.ReadOnly {
				access = " ro"
			}
			line += "; " + strings.TrimPrefix(l.Source, base) + " at " + strings.TrimPrefix(l.Target, wire.LayersDir) + access
		}
		out = append(out, line)
	}
	return out
}

// If the runtime maps owners, overlays and what is in them are left to the guest:
// nothing is mounted here, one sandbox at a time uses the layers, and the host
// sees no merged directory.
func TestGuestOverlay(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	worktest.Run(t, f.dir, "mkdir .caisson; echo a >.caisson/c; echo b >beside")
	f.overlaid(t)
	data := filepath.Join(filepath.Dir(f.dir), "data")
	worktest.Run(t, filepath.Dir(f.dir), "mkdir data state/frozen state/layers2 state/layers2/upper state/layers2/work; echo d >data/d")
	dir, err := os.Open(data)
	must(t, err)
	defer dir.Close()
	f.Identity.RuntimeMaps = true
	f.Workspace.Lowers = []string{filepath.Join(f.StateDir, "frozen")}
	f.Further = []sandbox.Mount{{Target: "/data", Type: sandbox.MountBind, Dir: dir, Path: data, Layers: filepath.Join(f.StateDir, "layers2")}}
	p := f.prepare(t)
	want := []string{
		"/workspace; /state/layers/upper at /1 rw; /state/frozen at /2 ro; /workspace at /3 ro",
		"/workspace/.caisson " + wire.LayersDir + "/6 /state/sessions/" + session + "/cover/empty",
	}
	if diff := cmp.Diff(want, f.describe(p.Binds)); diff != "" {
		t.Errorf("workspace (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/data; /state/layers2/upper at /4 rw; /data at /5 ro"}, f.describe(p.Further)); diff != "" {
		t.Errorf("further (-want +got):\n%s", diff)
	}
	var st unix.Stat_t
	must(t, unix.Stat(f.dir, &st))
	for _, l := range append(slices.Clone(p.Binds[0].Layers), p.Further[0].Layers...) {
		if len(l.Maps.UIDs) == 0 {
			t.Errorf("the owners of %s are not mapped", l.Source)
		}
	}
	if l := p.Binds[0].Layers[2]; l.Inode != st.Ino || l.Device != st.Dev {
		t.Errorf("the original is %d:%d", l.Device, l.Inode)
	}
	if slices.Contains(p.Lost, LostOwners) != (os.Geteuid() != 0) {
		t.Errorf("lost: %q", p.Lost)
	}
	if v, err := p.View(f.dir, func() error { return nil }); v != nil || err != nil {
		t.Errorf("the host's view: %v, %v", v, err)
	}
	if _, err := Prepare(t.Context(), f.another(t)); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("a second sandbox on the same layers: %v", err)
	}
}

// Nothing can be mounted in a further overlay, because the guest would cover it.
func TestGuestOverlayWithMounts(t *testing.T) {
	f := newFixture(t, os.Geteuid(), os.Getegid())
	worktest.Run(t, filepath.Dir(f.dir), "mkdir -p data/sub state/layers2 state/layers2/upper state/layers2/work")
	dir, err := os.Open(filepath.Join(filepath.Dir(f.dir), "data"))
	must(t, err)
	defer dir.Close()
	f.Identity.RuntimeMaps = true
	f.Further = []sandbox.Mount{
		{Target: "/data", Type: sandbox.MountBind, Dir: dir, Path: dir.Name(), Layers: filepath.Join(f.StateDir, "layers2")},
		{Target: "/data/sub", Type: sandbox.MountTmpfs, Bytes: 1 << 20},
	}
	if _, err := Prepare(t.Context(), f.Options); !errors.As(err, new(*sandbox.IncapableError)) {
		t.Errorf("%v", err)
	}
	f.Further[1].Target = "/data2"
	f.prepare(t)
}
