package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestOwnPlaceInV2 repeats tests of removal without the runtime, by processes
// at the root of the cgroup v2 tree and below it. Hybrid hosts have both:
// dockerd in a container moves everybody into "/init", where a runtime does not
// follow.
func TestOwnPlaceInV2(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an ordinary user can make no cgroups")
	}
	runtimePath(t, Runc)
	trees, err := cgroupTrees()
	must(t, err)
	i := slices.IndexFunc(trees, tree.isV2)
	if i < 0 {
		t.Skip("needs a cgroup v2 hierarchy: this machine has mounted none")
	}
	root := trees[i].mount
	below, err := os.MkdirTemp(root, "caisson-test-") //nolint:usetesting // a cgroup
	must(t, err)
	t.Cleanup(func() { must(t, os.Remove(below)) })
	for _, tt := range []struct{ name, dir string }{{"at its root", root}, {"below", below}} {
		t.Run(tt.name, func(t *testing.T) {
			place, err := os.Open(tt.dir)
			must(t, err)
			defer place.Close()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^(TestDamagedRuntimeState|TestKilledOwner)$/^runc$")
			cmd.Env = append(os.Environ(), placeHelper+"=there")
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(place.Fd())}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, syscall.EBUSY) {
				t.Skipf("needs a cgroup that may hold processes: %s has controllers below it (%v)", tt.dir, err)
			}
			t.Logf("%s", out)
			if err != nil || strings.Count(string(out), "\n--- PASS: Test") != 2 {
				t.Errorf("there: %v", err)
			}
			group := placeHelper + " " + filepath.Join(trees[i].root, strings.TrimPrefix(tt.dir, root)) + " <nil>\n"
			if !strings.Contains(string(out), group) {
				t.Errorf("control: the tests did not run in the cgroup %s", tt.dir)
			}
		})
	}
}
