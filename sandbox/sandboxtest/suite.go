package sandboxtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
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

// Target is one backend under test and what has to be known about it.
type Target struct {
	// Backend is the backend; the suite makes and destroys its sandboxes.
	Backend sandbox.Backend
	// Image is the image of the sandboxes. It needs no program of its own.
	Image images.Reference
	// WritableImage is an image with the tree of [WriteOpenTree], for sandboxes
	// with a writable root. Without one those checks are left out.
	WritableImage images.Reference
	// ImageDigest returns a digest of its files on the host; nil if they can't
	// be read.
	ImageDigest func() (string, error)
	// UserImage returns an image with the tree of [WriteUserTree] and this USER. If it
	// is nil, the checks of an image's user are left out.
	UserImage func(user string) images.Reference
	// UserImageRefused reports whether this backend can't run commands as that user
	// here, and must refuse it with a hint.
	UserImageRefused bool
	// StateDir is the backend's state directory; a session's directory is made
	// below it, named after the session. Empty means one beside the workspace.
	StateDir string
	// FloodBytes is the size of the large-output check; zero means 1 GiB.
	FloodBytes int64
	// LimitsKillSandbox reports whether a memory or pids limit ends the whole
	// sandbox, as it does in gVisor, instead of one process.
	LimitsKillSandbox bool
	// PIDsSpareSandbox reports whether of the two only memory does: the pids
	// limit is an error of fork, as the commands' own kernel counts them.
	PIDsSpareSandbox bool
	// OwnKernel reports whether the container's kernel is the runtime's, so
	// that no seccomp profile of the host's kernel is attested.
	OwnKernel bool
	// Remapped reports whether the containers have user namespaces that an engine
	// made.
	Remapped bool
	// LimitsUnenforced reports whether this host can't limit memory and pids
	// for this backend (rootless); the attestation must list it in Lost.
	LimitsUnenforced bool
	// SingleUID reports whether guest and commands share one uid here; the
	// attestation must list it in Lost.
	SingleUID bool
	// Kill ends the container from outside, as an operator or a crash would.
	// Required.
	Kill func(ctx context.Context, sb sandbox.Sandbox) error
	// Leftovers lists what is still there of a session: containers, mounts,
	// cgroups, processes, directories. It must be empty after Destroy. Required.
	Leftovers func(session string) ([]string, error)
	// Pause freezes the container from outside, as an operator could; nil
	// if that can't be done. Destroy must end a frozen one.
	Pause func(ctx context.Context, sb sandbox.Sandbox) error
	// HostProcess is the container's first process, as the host counts. Required.
	HostProcess func(ctx context.Context, sb sandbox.Sandbox) (pid int, err error)
	// Brief makes repetitions fewer, for a second run of a backend that differs
	// in its user or in its runtime.
	Brief bool
	// SameInside leaves out the checks of streams, commands, cancellation and load: for
	// a second run of a backend that only makes its sandboxes in another way.
	SameInside bool
	// NoOverlay reports whether this backend has no overlay mode here, and must
	// refuse it.
	NoOverlay bool
	// Copies reports whether this backend has copy mode; otherwise it must refuse it.
	Copies bool
	// OnCopies runs the suite on copies of the workspace, without the checks in which
	// host and sandbox share its files.
	OnCopies bool
	// NoLayeredMounts reports whether this backend can't mount further
	// directories copy-on-write here, and must refuse it.
	NoLayeredMounts bool
	// EgressRefused reports whether the containers have no loopback, so that a plan
	// of listeners must be refused.
	EgressRefused bool
	// RootRefused reports whether this backend can't run commands as root inside
	// here, and must refuse it with a hint.
	RootRefused bool
	// CountsForks reports whether the kernel counts refused forks, so that a
	// result shows that the pids limit was hit.
	CountsForks bool
	// NoPrograms is set if the sandboxes run nothing but the probe. It leaves out
	// the checks that run programs of the image.
	NoPrograms bool
	// Programs are the files of the host that no command may change: runtime
	// and guest.
	Programs []string
	// Probe overrides the path of the probe binary; "" builds it.
	Probe string
}

// repeatCount returns how often a check repeats something that must never fail.
func (t Target) repeatCount(n int) int {
	if t.OwnKernel || t.Brief {
		return max(n/5, 1) // a start costs ten times as much in gVisor
	}
	return n
}

// check is one promise of the contract.
type check struct {
	name string
	// fresh reports whether the check has a sandbox of its own; the others
	// share one.
	fresh bool
	// waits reports whether the check, with a sandbox of its own, only waits
	// for most of its time: it runs beside the others.
	waits bool
	// writable is set for checks that need Target.WritableImage.
	writable bool
	// memory is set for checks that measure this process's memory or make it
	// grow: they run one at a time, whichever suite they belong to.
	memory bool
	// user is set for checks that need Target.UserImage.
	user bool
	// shared is set for checks that need a workspace which host and sandbox share.
	shared bool
	// programs is set for checks that run programs of the image, such as tar.
	programs bool
	// egress is the plan of a fresh sandbox.
	egress *sandbox.EgressPlan
	// resources changes the limits of a fresh sandbox.
	resources func(*limits.Resources)
	// plant puts things into a fresh workspace before the sandbox starts.
	plant func(e *env) error
	run   func(ctx context.Context, e *env) error
}

// allChecks returns the whole suite, in the order in which it runs.
func allChecks() []check {
	return slices.Concat(streamChecks(), commandChecks(), cancelChecks(), fileChecks(), mountChecks(), isolationChecks(), identityChecks(), kernelChecks(), hostChecks(),
		setIDChecks(), egressChecks(), userChecks(), imageUserChecks(), sessionChecks(), rootChecks(), limitChecks(), loadChecks(), lifeChecks())
}

// insideChecks returns the checks that don't depend on how the sandbox was made.
func insideChecks() []check {
	return slices.Concat(streamChecks(), commandChecks(), cancelChecks(), loadChecks())
}

// checks returns the checks that the target is held to.
func (t Target) checks() []check {
	return slices.DeleteFunc(allChecks(), func(c check) bool {
		return c.programs && t.NoPrograms || c.writable && t.WritableImage.Scheme == "" || c.user && t.UserImage == nil || c.shared && t.OnCopies ||
			t.SameInside && slices.ContainsFunc(insideChecks(), func(other check) bool { return other.name == c.name })
	})
}

// checkTime bounds one check, starts of sandboxes included.
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
	waiting, ended := startWaiting(t, shared)
	defer ended()
	for _, c := range target.checks() {
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
	if err := shared.close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("destroy shared sandbox: %v", err)
	}
}

// startWaiting starts the checks that wait, unless single checks are selected,
// and returns a channel for the result of each. The function ended waits for
// all of them.
func startWaiting(t *testing.T, shared *env) (results map[string]chan error, ended func()) {
	results = map[string]chan error{}
	var all sync.WaitGroup
	if f := flag.Lookup("test.run"); f == nil || !strings.Contains(f.Value.String(), "/") {
		for _, c := range shared.target.checks() {
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

// memoryChecks is held by the check of this process that measures its memory or
// makes it grow.
var memoryChecks sync.Mutex

// runCheck runs one check in the shared environment or in one of its own.
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
		return expectNoEgress(ctx, e, err)
	}
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	defer func() {
		if closeErr := e.close(context.WithoutCancel(ctx)); closeErr != nil && err == nil {
			err = fmt.Errorf("destroy sandbox: %w", closeErr)
		}
	}()
	return c.run(ctx, e)
}

// BuildProbe writes the static probe, which it builds once per process, to a
// directory of t and returns its path.
func BuildProbe(t testing.TB) string {
	t.Helper()
	program, err := builtProbe()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "probe")
	if err := writeProgram(path, program); err != nil {
		t.Fatal(err)
	}
	return path
}

var builtProbe = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "caisson-probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "probe")
	if out, err := goBuild(context.Background(), path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build probe: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// probeName is the probe's name in the workspace. Its mode is 0555.
const probeName = "probe"

// copyProbe puts the probe into a workspace.
func copyProbe(target Target, workspace string) error {
	path := filepath.Join(workspace, probeName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	data, err := os.ReadFile(target.Probe)
	if err != nil {
		return err
	}
	if err := writeProgram(path, data); err != nil {
		return err
	}
	return os.Chmod(path, 0o555)
}

// writeProgram writes a file that is executed at once. No process is started
// meanwhile: it would hold the open file until it has executed its own program,
// and what is open for writing can't be executed (ETXTBSY, go.dev/issue/22315).
func writeProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}

// gate is a writer that blocks from its first write until it is opened.
type gate struct {
	enter, leave sync.Once
	entered      chan struct{}
	release      chan struct{}
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}), release: make(chan struct{})}
}

// open lets the writer go on, now and later.
func (g *gate) open() { g.leave.Do(func() { close(g.release) }) }

func (g *gate) Write(p []byte) (int, error) {
	g.enter.Do(func() { close(g.entered) })
	<-g.release
	return len(p), nil
}

func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.entered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nothing was written: %w", context.Cause(ctx))
	}
}
