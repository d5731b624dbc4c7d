package sandboxtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// Target is a backend under test and what the suite must know about it.
type Target struct {
	// Backend makes the suite's sandboxes.
	Backend sandbox.Backend
	// Image is the sandboxes' image, which needs no programs.
	Image images.Reference
	// WritableImage is an image with the tree of [WriteOpenTree], for a
	// writable root. Without it those checks are left out.
	WritableImage images.Reference
	// ImageDigest returns a digest of WritableImage's files on the host. It is nil
	// if they can't be read.
	ImageDigest func() (string, error)
	// UserImage returns an image with the tree of [WriteUserTree] and this
	// USER. If it is nil, the checks of an image's user are left out.
	UserImage func(user string) images.Reference
	// UserImageRefused reports that this backend can't run commands as that
	// user, and must refuse it with a hint.
	UserImageRefused bool
	// StateDir is the backend's state directory. The suite makes the directories of
	// sessions, and layers, below it. Required.
	StateDir string
	// FloodBytes is the size of the large-output check; zero means 1 GiB.
	FloodBytes int64
	// OwnKernel reports whether the container has the runtime's kernel, not the
	// host's. Then no seccomp profile is attested, the memory limit ends the whole
	// sandbox instead of one process, and the pids limit is that kernel's.
	OwnKernel bool
	// Remapped reports whether an engine gives containers user namespaces.
	Remapped bool
	// LimitsUnenforced reports that this host can't limit memory and pids for
	// this backend (rootless); the attestation must list it in Lost.
	LimitsUnenforced bool
	// SingleUID reports that guest and commands share one uid; the attestation
	// must list it in Lost.
	SingleUID bool
	// Kill ends the container from outside, like an operator or a crash.
	// Required.
	Kill func(ctx context.Context, sb sandbox.Sandbox) error
	// Leftovers lists what is left of a session: containers, mounts, cgroups,
	// processes, directories. It must be empty after Destroy. Required.
	Leftovers func(session string) ([]string, error)
	// Pause freezes the container from outside; nil if that can't be done.
	// Destroy must end a frozen one.
	Pause func(ctx context.Context, sb sandbox.Sandbox) error
	// HostProcess returns the container's first process on the host. Required.
	HostProcess func(ctx context.Context, sb sandbox.Sandbox) (pid int, err error)
	// Contained reports that this process is as restricted as commands, in a
	// container without capabilities. Positive controls then run in its own
	// namespaces, and a check is skipped if only its control fails.
	Contained bool
	// Brief reduces repetitions, for a second run of a backend with another
	// user or runtime.
	Brief bool
	// SameInside leaves out the checks of streams, commands, cancellation and
	// load, for a second run of a backend that only makes its sandboxes in
	// another way.
	SameInside bool
	// Copies reports whether this backend has copy mode. Otherwise it must
	// refuse it.
	Copies bool
	// OnCopies runs the suite on copies of the workspace, without the checks in
	// which host and sandbox share its files.
	OnCopies bool
	// NoLayeredMounts reports that this backend can't mount further directories
	// copy-on-write here, and must refuse it.
	NoLayeredMounts bool
	// EgressRefused reports that the containers have no loopback, so that a
	// plan of listeners must be refused.
	EgressRefused bool
	// RootRefused reports that this backend can't run commands as root inside
	// here, and must refuse it with a hint.
	RootRefused bool
	// NoPrograms leaves out the checks that run programs of the image.
	NoPrograms bool
	// Programs are host files that no command may change: runtime and guest.
	Programs []string
	// Probe is the path of the probe; "" builds it.
	Probe string
}

// repeatCount returns how often a check repeats something that must never fail.
func (t Target) repeatCount(n int) int {
	if t.OwnKernel || t.Brief {
		return max(n/10, 1) // a start costs ten times as much in gVisor
	}
	return n
}

// countsForks reports whether the host's kernel counts refused forks, so that
// results report the pids limit.
func (t Target) countsForks() bool { return !t.OwnKernel && !t.LimitsUnenforced }

// check is one promise of the contract.
type check struct {
	name string
	// fresh gives the check its own sandbox; the others share one.
	fresh bool
	// waits marks a fresh check that mostly waits, and so runs beside the
	// others.
	waits bool
	// writable marks checks that need Target.WritableImage.
	writable bool
	// memory marks checks that measure this process's memory or make it grow:
	// they run one at a time, whichever suite they belong to.
	memory bool
	// user marks checks that need Target.UserImage.
	user bool
	// shared marks checks that need a workspace shared by host and sandbox.
	shared bool
	// programs marks checks that run programs of the image, such as tar.
	programs  bool
	egress    *sandbox.EgressPlan
	resources func(*limits.Resources)
	plant     func(e *env) error
	run       func(ctx context.Context, e *env) error
}

func allChecks() []check {
	return slices.Concat(streamChecks(), terminalChecks(), commandChecks(), cancelChecks(), fileChecks(), mountChecks(), isolationChecks(), identityChecks(), kernelChecks(), hostChecks(),
		setIDChecks(), egressChecks(), userChecks(), imageUserChecks(), sessionChecks(), rootChecks(), limitChecks(), loadChecks(), lifeChecks())
}

func insideChecks() []check {
	return slices.Concat(streamChecks(), terminalChecks(), commandChecks(), cancelChecks(), loadChecks())
}

func (t Target) checks() []check {
	return slices.DeleteFunc(allChecks(), func(c check) bool {
		return c.programs && t.NoPrograms || c.writable && t.WritableImage.Scheme == "" || c.user && t.UserImage == nil || c.shared && t.OnCopies ||
			t.SameInside && slices.ContainsFunc(insideChecks(), func(other check) bool { return other.name == c.name })
	})
}

// checkTime bounds one check, including starts.
const checkTime = 3 * time.Minute

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, target Target) {
	t.Helper()
	if target.Kill == nil || target.Leftovers == nil || target.HostProcess == nil {
		t.Fatal("target needs Kill, Leftovers and HostProcess: without them its checks can't fail")
	}
	if target.Probe == "" {
		target.Probe = BuildProbe(t)
	}
	shared := newEnv(target, t.TempDir())
	if err := shared.start(t.Context(), nil); err != nil {
		t.Fatalf("start shared sandbox: %v", err)
	}
	checks, inside := target.checks(), insideChecks()
	checks = slices.DeleteFunc(checks, func(c check) bool {
		if target.SameInside || target.Contained { // the backend's first run has them all
			return !isSampled(t.Name()+c.name, 8)
		}
		// The guest does these alike on all backends.
		row := slices.IndexFunc(inside, func(other check) bool { return other.name == c.name })
		return row >= 0 && !RunsAt(row, target.Backend.Name(), "docker", "gvisor", "runc")
	})
	waiting, ended := startWaiting(t, shared, checks)
	defer ended()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			var err error
			if result, ok := waiting[c.name]; ok {
				err = <-result
			} else {
				err = runCheck(t.Context(), c, shared, t.TempDir)
			}
			if errors.Is(err, errSkip) {
				t.Skip(err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := shared.close(t.Context()); err != nil {
		t.Errorf("destroy shared sandbox: %v", err)
	}
}

// startWaiting starts the checks that wait, unless single checks are selected,
// and returns a channel for the result of each. ended waits for all of them.
func startWaiting(t *testing.T, shared *env, checks []check) (results map[string]chan error, ended func()) {
	results = map[string]chan error{}
	var all sync.WaitGroup
	if f := flag.Lookup("test.run"); f == nil || strings.Count(f.Value.String(), "/") <= strings.Count(t.Name(), "/") {
		for _, c := range checks {
			if !c.waits {
				continue
			}
			result, dir := make(chan error, 1), t.TempDir()
			results[c.name] = result
			all.Go(func() { result <- runCheck(t.Context(), c, shared, func() string { return dir }) })
		}
	}
	return results, all.Wait
}

// memoryChecks is held by a check with the field memory set.
var memoryChecks sync.Mutex

func runCheck(ctx context.Context, c check, shared *env, tempDir func() string) (err error) {
	if c.memory {
		memoryChecks.Lock()
		defer memoryChecks.Unlock()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkTime, fmt.Errorf("check took over %s", checkTime))
	defer cancel()
	if !c.fresh {
		return c.run(ctx, shared)
	}
	e := newEnv(shared.target, tempDir())
	e.plant, e.egress = c.plant, c.egress
	err = e.start(ctx, c.resources)
	if e.egress != nil && shared.target.EgressRefused {
		return e.expectRefused(ctx, err, sandbox.ErrUnavailable, "") // without loopback
	}
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	defer func() {
		if closeErr := e.close(ctx); closeErr != nil && err == nil {
			err = fmt.Errorf("destroy sandbox: %w", closeErr)
		}
	}()
	return c.run(ctx, e)
}

// BuildProbe returns the path of the static probe, in a directory of t.
func BuildProbe(t testing.TB) string { return writeBuilt(t, "probe", builtProbe) }

// BuildGuest returns the path of the guest, in a directory of t that every user
// may enter.
func BuildGuest(t testing.TB) string { return writeBuilt(t, "caisson-guest", builtGuest) }

var (
	builtProbe = BuildOnce("sandbox/sandboxtest/probe")
	builtGuest = BuildOnce("cmd/caisson-guest")
)

// BuildOnce returns a function that builds a program of this module once per
// process, and returns its content.
func BuildOnce(dir string) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		temp, err := os.MkdirTemp("", "caisson-build-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(temp)
		path := filepath.Join(temp, "program")
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/caisson-run/caisson/"+dir)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", dir, err, out)
		}
		return os.ReadFile(path)
	})
}

func writeBuilt(t testing.TB, name string, build func() ([]byte, error)) string {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), WriteProgram(path, program)); err != nil {
		t.Fatal(err)
	}
	return path
}

const probeName = "probe"

func copyProbe(target Target, workspace string) error {
	path := filepath.Join(workspace, probeName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	data, err := os.ReadFile(target.Probe)
	if err != nil {
		return err
	}
	if err := WriteProgram(path, data); err != nil {
		return err
	}
	return os.Chmod(path, 0o555)
}

// WriteProgram writes a file to be executed at once. No process may be started
// meanwhile: until its exec it would hold the open file, and a file open for
// writing can't be executed (ETXTBSY, go.dev/issue/22315).
func WriteProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}
