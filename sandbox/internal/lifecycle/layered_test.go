package lifecycle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// The guest mounts the overlays and what is in them, and an overlay is refused if
// it isn't one, if its layers are others, or still mounted.
func TestLayered(t *testing.T) {
	dir := t.TempDir()
	layer := func(name, place string) workmount.Bind {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		device, inode, err := workmount.FileIdentity(path)
		if err != nil {
			t.Fatal(err)
		}
		return workmount.Bind{Source: path, Target: wire.LayersDir + place, Dir: true, Device: device, Inode: inode}
	}
	p := &Preparation{Files: &Files{}, Mounts: &workmount.Mounts{
		Target: sandbox.WorkspaceDir, Mode: sandbox.ModeOverlay,
		Binds: []workmount.Bind{
			{Target: sandbox.WorkspaceDir, Layers: []workmount.Bind{layer("upper", "/1"), layer("frozen", "/2"), layer("original", "/3")}},
			{Source: "/cover", Target: sandbox.WorkspaceDir + "/.caisson", Place: wire.LayersDir + "/4", ReadOnly: true, Private: true},
		},
		Further: []workmount.Bind{{Target: "/data", Layers: []workmount.Bind{layer("upper2", "/5"), layer("data", "/6")}}},
	}}
	want := []wire.Layered{
		{Target: sandbox.WorkspaceDir, Upper: wire.LayersDir + "/1", Lowers: []string{wire.LayersDir + "/2", wire.LayersDir + "/3"}},
		{Target: sandbox.WorkspaceDir + "/.caisson", Source: wire.LayersDir + "/4"},
		{Target: "/data", Upper: wire.LayersDir + "/5", Lowers: []string{wire.LayersDir + "/6"}},
	}
	if diff := cmp.Diff(want, p.layered()); diff != "" {
		t.Errorf("the guest's mounts (-want +got):\n%s", diff)
	}
	if !p.readsThroughGuest() {
		t.Error("the host reads what only the guest sees")
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, h *wire.Hello)
		want   string
	}{
		"good":            {func(t *testing.T, _ *wire.Hello) {}, ""},
		"bind":            {func(_ *testing.T, h *wire.Hello) { h.Workspace.Type = "9p" }, "no overlay is mounted at /workspace"},
		"further":         {func(_ *testing.T, h *wire.Hello) { h.Further[0].Type = "9p" }, "no overlay is mounted at /data"},
		"nothing further": {func(_ *testing.T, h *wire.Hello) { h.Further = nil }, "no overlay is mounted at /data"},
		"writable guard":  {func(_ *testing.T, h *wire.Hello) { h.Submounts[0].Options = nil }, "is writable"},
		"no guard":        {func(_ *testing.T, h *wire.Hello) { h.Submounts = nil }, "nothing is mounted"},
		"layer":           {func(_ *testing.T, h *wire.Hello) { h.Mounts = append(h.Mounts, wire.LayersDir+"/1") }, "still mounted"},
		"replaced": {func(t *testing.T, _ *wire.Hello) {
			for _, move := range [][2]string{{"frozen", "was"}, {"upper2", "frozen"}} {
				if err := os.Rename(filepath.Join(dir, move[0]), filepath.Join(dir, move[1])); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() {
				_ = os.Rename(filepath.Join(dir, "frozen"), filepath.Join(dir, "upper2"))
				_ = os.Rename(filepath.Join(dir, "was"), filepath.Join(dir, "frozen"))
			})
		}, "is not made of"},
	} {
		t.Run(name, func(t *testing.T) {
			h := wire.Hello{
				Kernel: "gVisor", Workspace: wire.Mount{Path: sandbox.WorkspaceDir, Type: "overlay"},
				Submounts: []wire.Mount{{Path: sandbox.WorkspaceDir + "/.caisson", Type: "9p", Options: []string{"ro"}}},
				Further:   []wire.Mount{{Path: "/data", Type: "overlay"}}, Mounts: []string{"/", "/run"},
			}
			tt.change(t, &h)
			err := (&observation{prep: p, hello: h}).verifyMounts()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
