package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRelease builds a release and starts a sandbox with nothing but its one file, as
// root and as an ordinary user: guest and runsc come out of it when they are needed.
func TestRelease(t *testing.T) {
	t.Parallel()
	needBackend(t, "gvisor")
	dir, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "release")
	build := exec.CommandContext(t.Context(), "sh", "../.ci/release.sh")
	build.Env = append(os.Environ(), "DIST="+dir, "VERSION=v0.0.0-test")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build a release: %v\n%s", err, out)
	}
	program := filepath.Join(dir, "caisson-linux-"+runtime.GOARCH)
	users := map[string]uint32{"the user who tests": uint32(os.Getuid())}
	if os.Getuid() == 0 {
		users["an ordinary user"] = ordinary
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.become(t, uid, uid)
			m.program = program
			version := m.run(t, "version")
			version.want(t, 0)
			if !strings.Contains(version.stdout, "v0.0.0-test") || !strings.Contains(version.stdout, "with caisson-guest and runsc") {
				t.Errorf("version prints %q", version.stdout)
			}
			if unpacked, _ := filepath.Glob(filepath.Join(m.home, ".cache/caisson/programs/*/*")); len(unpacked) != 0 {
				t.Errorf("version unpacked %q", unpacked)
			}
			doctor := m.run(t, "doctor", "--backend", "gvisor")
			doctor.want(t, 0)
			if !strings.Contains(doctor.stdout, "ok       sandbox start") {
				t.Errorf("the doctor started no sandbox:\n%s", doctor.stdout)
			}
			unpacked, err := filepath.Glob(filepath.Join(m.home, ".cache/caisson/programs/*/*"))
			if err != nil || len(unpacked) != 2 {
				t.Errorf("unpacked %q, %v; want caisson-guest and runsc", unpacked, err)
			}
		})
	}
}
