//go:build linux

package sandboxtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fakeTarget(f *Fake) Target {
	return Target{
		Backend: f, Image: images.Reference{Scheme: images.SchemeHost}, Probe: "none",
		FloodBytes: 4 << 20, LimitsKillSandbox: true, Kill: f.Kill, Leftovers: f.Leftovers,
	}
}

func TestFakePasses(t *testing.T) {
	target := fakeTarget(&Fake{})
	target.Probe = BuildProbe(t)
	Run(t, target)
}

// TestFaultyFakesFail shows that the checks can fail: each fault is found by
// the check that is there for it.
func TestFaultyFakesFail(t *testing.T) {
	probe := BuildProbe(t)
	for fault, name := range map[Fault]string{
		FaultMergedStreams:   "streams are separate",
		FaultShellCodes:      "exit codes are exact",
		FaultNoDaemons:       "daemons are found and killed",
		FaultKillAtOnce:      "SIGTERM comes first",
		FaultHostEnvironment: "environment is what was given",
		FaultLostBytes:       "a flood is counted, hashed and cut",
		FaultOverlappingTail: "a flood is counted, hashed and cut",
		FaultRootOwner:       "files belong to the workspace's owner",
		FaultPrivileged:      "commands have no privilege",
		FaultLies:            "the attestation is complete and true",
		FaultLossIsExit:      "a killed container is lost, never a result",
		FaultLeaks:           "destroy during commands",
		FaultAnyDir:          "working folder",
		FaultNoPartial:       "cancel while it runs",
		FaultDeadlock:        "a stalled reader delays nobody else",
	} {
		t.Run(string(fault), func(t *testing.T) {
			all := checks()
			i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
			if i < 0 {
				t.Fatalf("no check %q", name)
			}
			if fault == FaultRootOwner && !isRoot() {
				t.Skip("needs root: only root makes files of another owner")
			}
			target := fakeTarget(&Fake{Fault: fault})
			target.Probe = probe
			if err := one(t, target, all[i]); err == nil {
				t.Errorf("check %q passes", name)
			} else {
				t.Logf("found: %v", err)
			}
			sound := fakeTarget(&Fake{})
			sound.Probe = probe
			if err := one(t, sound, all[i]); err != nil {
				t.Errorf("control without the fault fails: %v", err)
			}
		})
	}
}

// one runs one check against one target, a deadlock being a failure of it.
func one(t *testing.T, target Target, c check) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	shared := newEnv(target, t.TempDir())
	if err := shared.start(ctx, nil); err != nil {
		t.Fatal(err)
	}
	defer shared.sb.Destroy(context.WithoutCancel(ctx))
	return runCheck(ctx, c, shared, t.TempDir)
}

func TestCheckNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks() {
		if seen[c.name] || c.name != strings.TrimSpace(c.name) {
			t.Errorf("name %q", c.name)
		}
		seen[c.name] = true
	}
	if len(seen) < 40 {
		t.Errorf("%d checks, want the whole suite", len(seen))
	}
}
