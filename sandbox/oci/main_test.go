package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// Environment of the processes that the tests start from their own binary.
const (
	ownerHelper = "CAISSON_OCI_OWNER" // a Caisson that makes a sandbox and waits to be killed
	userHelper  = "CAISSON_OCI_USER"  // the tests, as an ordinary user; the directory with programs
	jobHelper   = "CAISSON_OCI_JOB"   // with userHelper: the tests in a container job (e2e); any text
	placeHelper = "CAISSON_OCI_PLACE" // some tests, in another cgroup; any text
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerHelper); dir != "" {
		if err := ownUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stdout, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(placeHelper) != "" {
		groups, err := processCgroups("self")
		fmt.Fprintln(os.Stdout, placeHelper, groups[""], err)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func guestPath(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(userHelper); dir != "" {
		return filepath.Join(dir, "guest")
	}
	return sandboxtest.BuildGuest(t)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runtimePath finds the runtime of `make build` or of the system. Without one
// it skips, or fails if REQUIRE_BACKENDS names it.
func runtimePath(t testing.TB, k Kind) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join("..", "..", "bin"))
	must(t, err)
	finder := programs.Finder{Executable: os.Executable, Path: built + string(filepath.ListSeparator) + os.Getenv("PATH")}
	path, err := finder.Find(nil, runtimeName(k))
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv("REQUIRE_BACKENDS"), ","), string(k)) {
		t.Fatalf("REQUIRE_BACKENDS has %s: %v", k, err)
	}
	t.Skipf("needs %s: %v", runtimeName(k), err)
	return ""
}

func runtimeName(k Kind) string {
	t, _ := traitsOf(k)
	return t.binary
}

// bed is a state directory, a workspace and a backend.
type bed struct {
	state, workspace string
	backend          *Backend
}

// newBed makes a workspace that belongs to uid. Only root can make it another
// user's.
func newBed(t testing.TB, k Kind, uid int) *bed {
	t.Helper()
	path := runtimePath(t, k)
	base := t.TempDir()
	b := &bed{state: filepath.Join(base, "state"), workspace: filepath.Join(base, "workspace")}
	must(t, os.Mkdir(b.state, 0o700))
	must(t, os.Mkdir(b.workspace, 0o755))
	if uid != os.Geteuid() {
		must(t, os.Chown(b.workspace, uid, uid))
	}
	backend, err := New(Options{
		Kind: k, RuntimePath: path, GuestPath: guestPath(t), StateDir: b.state, Probe: true, Logger: zaptest.NewLogger(t),
	})
	must(t, err)
	b.backend = backend
	return b
}

func (b *bed) spec(t testing.TB, session string) sandbox.Spec {
	t.Helper()
	session = ownName(session)
	dir := filepath.Join(b.state, "sessions", session)
	must(t, os.MkdirAll(dir, 0o700))
	held, err := os.Open(b.workspace)
	must(t, err)
	t.Cleanup(func() { held.Close() })
	return sandbox.Spec{
		Session: session, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Dir: dir,
		Workspace: sandbox.Workspace{Path: b.workspace, Dir: held},
	}
}

// start makes a sandbox, and destroys it after the test, when nothing of it may
// be left.
func (b *bed) start(t testing.TB, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	sb, err := b.backend.Create(t.Context(), spec)
	must(t, err)
	t.Cleanup(func() {
		must(t, sb.Destroy(context.Background()))
		b.nothingLeft(t, spec.Session)
	})
	return sb
}

// ownName makes a session's name one of this process: several run these tests at once, and
// one that was killed leaves its cgroups.
func ownName(session string) string {
	prefix := fmt.Sprintf("ses_%d_", os.Getpid())
	if session == orphan || strings.HasPrefix(session, prefix) {
		return session
	}
	return prefix + strings.TrimPrefix(session, "ses_")
}

func (b *bed) nothingLeft(t testing.TB, session string) {
	t.Helper()
	left, err := b.leftovers(ownName(session))
	must(t, err)
	for _, l := range left {
		t.Errorf("left over: %s", l)
	}
}

// leftovers lists what is left of a session: entries of the runtime's
// directory, cleanup lists, directories, mounts, cgroups and processes.
func (b *bed) leftovers(session string) ([]string, error) {
	var left []string
	err := filepath.WalkDir(b.state, func(p string, d os.DirEntry, err error) error {
		mine := strings.Contains(filepath.Base(p), session) || strings.Contains(p, session+"/")
		if err != nil && !mine { // another session's, which ends meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		// The caller made the session's directory, and the lock of a cleanup
		// list stays as an empty file.
		if mine && p != filepath.Join(b.state, "sessions", session) && !strings.HasSuffix(p, ".lock") {
			left = append(left, "file "+p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(b.backend.runtime.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), session) {
			left = append(left, "runtime state "+e.Name())
		}
	}
	for name, file := range map[string]string{"mount": "/proc/self/mountinfo"} {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, b.state) && strings.Contains(line, session) {
				left = append(left, name+" "+line)
			}
		}
	}
	trees, err := cgroupTrees()
	if err != nil {
		return nil, err
	}
	for _, t := range trees {
		for _, pattern := range []string{"*", "*/*", "*/*/*"} {
			found, err := filepath.Glob(filepath.Join(t.mount, pattern, cgroupPrefix+session))
			if err != nil {
				return nil, err
			}
			for _, dir := range append(found, filepath.Join(t.mount, cgroupPrefix+session)) {
				if _, err := os.Stat(dir); err == nil {
					left = append(left, "cgroup "+dir)
				}
			}
		}
	}
	processes, err := processesNaming(session)
	return append(left, processes...), err
}

// processesNaming lists processes whose command line has one of the words.
func processesNaming(words ...string) ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, f := range files {
		if f == fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			continue // ended meanwhile
		}
		line := strings.ReplaceAll(string(data), "\x00", " ")
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			found = append(found, "process "+f+" "+line)
		}
	}
	return found, nil
}

// both runs a test with each runtime or, in a sample, with one.
func both(t *testing.T, f func(t *testing.T, k Kind)) {
	t.Helper()
	kinds := []Kind{GVisor, Runc}
	if os.Getenv(userHelper) == "" { // otherwise root's run of these tests has chosen
		kinds = sandboxtest.Sampled(t, kinds...)
	}
	withRuntimes(t, kinds, f)
}

func withRuntimes(t *testing.T, kinds []Kind, f func(t *testing.T, k Kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) { f(t, k) })
	}
}

// isolations are those of both, and gVisor's without namespaces.
var isolations = []string{string(GVisor), string(Runc), string(sandbox.IsolationProcess)}

// onIsolations is like both, for some of the isolations.
func onIsolations(t *testing.T, names []string, f func(t *testing.T, k Kind, isolation sandbox.Isolation)) {
	t.Helper()
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if name == string(sandbox.IsolationProcess) {
				f(t, GVisor, sandbox.IsolationProcess)
			} else {
				f(t, Kind(name), "")
			}
		})
	}
}

// bothAtOnce is like both, for tests that mostly wait and whose sandboxes have
// IDs of their own. They run in parallel.
func bothAtOnce(t *testing.T, f func(t *testing.T, k Kind)) {
	t.Helper()
	both(t, func(t *testing.T, k Kind) {
		t.Parallel()
		f(t, k)
	})
}

func containerOf(sb sandbox.Sandbox) *container {
	return sb.(*lifecycle.Sandbox).Container().(*container)
}
