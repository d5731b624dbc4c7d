package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/client"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// backendNames are all backends, in the order in which tests run on them. The first one starts
// fastest.
var backendNames = []string{"runc", "gvisor", "docker"}

// onEachBackend runs a test on one backend of this machine after the other, or on one of
// them in a sample.
func onEachBackend(t *testing.T, test func(t *testing.T, backend string)) {
	t.Helper()
	onBackends(t, sandboxtest.Sampled(t, backendNames...), test)
}

// onAllBackends is onEachBackend for a test that compares backends, or that no change may
// pass on one of them only.
func onAllBackends(t *testing.T, test func(t *testing.T, backend string)) {
	t.Helper()
	onBackends(t, backendNames, test)
}

// onBackends runs a test on these backends. One that is missing is skipped, or fails where
// REQUIRE_BACKENDS names it.
func onBackends(t *testing.T, names []string, test func(t *testing.T, backend string)) {
	t.Helper()
	for _, backend := range names {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			test(t, backend)
		})
	}
}

// onBackendsAtOnce is onEachBackend, on all backends at the same time and beside
// other tests: for a test that makes a machine for each backend, and compares
// neither them nor what the engine holds, of sessions that were killed either.
func onBackendsAtOnce(t *testing.T, test func(t *testing.T, backend string)) {
	t.Helper()
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		t.Parallel()
		test(t, backend)
	})
}

// anyBackend gives a backend that the machine has, for tests of what is the
// same on all.
func anyBackend(t testing.TB) string {
	t.Helper()
	for _, backend := range backendNames {
		if probeBackend(t, backend) == nil {
			return backend
		}
	}
	lacking(t, "", "needs a backend")
	return ""
}

// needBackend ends the test where the machine lacks a backend.
func needBackend(t testing.TB, backend string) {
	t.Helper()
	if err := probeBackend(t, backend); err != nil {
		lacking(t, backend, fmt.Sprintf("needs %s: %v", backend, err))
	}
}

// lacking skips the test for want of something, or fails it where
// REQUIRE_BACKENDS names the backend ("" is any).
func lacking(t testing.TB, backend, reason string) {
	t.Helper()
	required := strings.FieldsFunc(os.Getenv("REQUIRE_BACKENDS"), func(r rune) bool { return r == ',' || r == ' ' })
	if slices.Contains(required, backend) || backend == "" && len(required) > 0 {
		t.Fatalf("%s, and REQUIRE_BACKENDS asks for it", reason)
	}
	t.Skip(reason)
}

// commandUID is the uid that a machine's commands see as their own, where this
// process's user runs caisson: with docker an ordinary user's commands are the
// user; elsewhere one id stands for them.
func commandUID(backend string) string {
	if uid := os.Getuid(); backend == "docker" && uid != 0 {
		return strconv.Itoa(uid)
	}
	return strconv.Itoa(sandbox.CommandUID)
}

func probeBackend(t testing.TB, backend string) error {
	t.Helper()
	switch backend {
	case "docker":
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the engine does not answer"))
		defer cancel()
		_, err := engine(t).Ping(ctx)
		return err
	case "gvisor":
		_, err := os.Stat(filepath.Join(binaries(t), "runsc"))
		if err != nil {
			return errors.New("bin/runsc, which `make build` makes")
		}
		return nil
	case "runc":
		_, err := exec.LookPath("runc")
		if err == nil && os.Getuid() != 0 {
			return errors.New("root")
		}
		return err
	}
	return fmt.Errorf("no backend %q", backend)
}

// engine is a client of the machine's engine, closed with the test.
func engine(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatalf("docker client: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
