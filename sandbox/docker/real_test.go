package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// ownerHelper makes the test binary a Caisson that starts a container and waits
// to be killed.
const ownerHelper = "CAISSON_DOCKER_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerHelper); dir != "" {
		if err := ownUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stdout, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.loop")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func guestPath(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(memberHelper); dir != "" {
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

// needEngine skips without an engine, or fails if REQUIRE_BACKENDS demands one.
func needEngine(t testing.TB) {
	t.Helper()
	e, err := resolveEndpoint("", os.Getenv)
	if err == nil {
		r, dialErr := dialEngine(context.Background(), e, defaultDeadlines())
		if err = dialErr; err == nil {
			r.engine.Close()
			return
		}
	}
	if slices.Contains(strings.Split(os.Getenv("REQUIRE_BACKENDS"), ","), Name) {
		t.Fatalf("REQUIRE_BACKENDS has docker: %v", err)
	}
	t.Skipf("needs a Docker engine: %v", err)
}

// bed is a state directory, a workspace and a backend.
type bed struct {
	state, workspace string
	backend          *Backend
}

// makeBed makes a bed without a backend.
func makeBed(t testing.TB) *bed {
	t.Helper()
	base := t.TempDir()
	b := &bed{state: filepath.Join(base, "state"), workspace: filepath.Join(base, "workspace")}
	must(t, os.MkdirAll(b.state, 0o700))
	must(t, os.Mkdir(b.workspace, 0o755))
	return b
}

func newBed(t testing.TB, uid int) *bed {
	t.Helper()
	needEngine(t)
	b := makeBed(t)
	if uid != os.Geteuid() {
		must(t, os.Chown(b.workspace, uid, uid))
	}
	b.backend = b.open(t, Options{})
	return b
}

// privateBed makes a bed with an engine of the test.
func privateBed(t *testing.T, e *privateengine.Engine, o Options) *bed {
	t.Helper()
	b := makeBed(t)
	o.Host = e.Host()
	b.backend = b.open(t, o)
	return b
}

func (b *bed) open(t testing.TB, o Options) *Backend {
	t.Helper()
	o.GuestPath, o.StateDir, o.Getenv = guestPath(t), b.state, os.Getenv
	if o.Logger == nil {
		o.Logger = zaptest.NewLogger(t)
	}
	backend, err := New(o)
	must(t, err)
	t.Cleanup(func() { backend.Close() })
	return backend
}

func (b *bed) spec(t testing.TB, session string) sandbox.Spec {
	t.Helper()
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

func newSession() string { return "ses_" + ulid.Make().String() }

func (b *bed) start(t testing.TB) (sandbox.Sandbox, string) {
	t.Helper()
	session := newSession()
	return b.create(t, b.spec(t, session)), session
}

func (b *bed) nothingLeft(t testing.TB, session string) {
	t.Helper()
	left, err := b.leftovers(session)
	// Docker 20.10 still lists a container for a moment after it has forgotten
	// it.
	for deadline := time.Now().Add(30 * time.Second); len(left) > 0 && err == nil && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		left, err = b.leftovers(session)
	}
	if len(left) > 0 || err != nil {
		t.Errorf("left of %s: %q %v", session, left, err)
	}
}

// leftovers lists what is left of a session.
func (b *bed) leftovers(session string) ([]string, error) {
	ctx := context.Background()
	r, _, err := b.backend.connect(ctx)
	if err != nil {
		return nil, err
	}
	var left []string
	list, err := r.listContainers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		if c.Labels[ownership.LabelSession] == session {
			left = append(left, "container "+c.ID+" "+c.Status)
		}
	}
	volumes, err := r.listVolumes(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if v.Labels[ownership.LabelSession] == session {
			left = append(left, "volume "+v.Name)
		}
	}
	for _, pattern := range []string{"sessions/" + session + "/*", "cleanup/*" + session + "*"} {
		files, err := filepath.Glob(filepath.Join(b.state, pattern))
		if err != nil {
			return nil, err
		}
		left = append(left, files...)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(b.state, "sessions", session)))
	for _, m := range mounts {
		left = append(left, "mount "+m.Mountpoint)
	}
	return left, err
}

func TestMissingImage(t *testing.T) {
	b := newBed(t, os.Geteuid())
	session := newSession()
	spec := b.spec(t, session)
	spec.Image = images.Reference{Scheme: images.SchemeName, Value: "caisson-test/not-there:1"}
	_, err := b.backend.Create(t.Context(), spec)
	if !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "docker pull caisson-test/not-there:1") {
		t.Errorf("error %v", err)
	}
	b.nothingLeft(t, session)
}

func TestMissingRuntime(t *testing.T) {
	b := newBed(t, os.Geteuid())
	backend := b.open(t, Options{Runtime: "no-such-runtime"})
	for name, call := range map[string]func() error{
		"check":  func() error { _, err := backend.Check(t.Context()); return err },
		"create": func() error { _, err := backend.Create(t.Context(), b.spec(t, newSession())); return err },
	} {
		if err := call(); !errors.Is(err, sandbox.ErrNotFound) || !strings.Contains(err.Error(), "runc") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	b := newBed(t, os.Geteuid())
	info, err := b.backend.Check(t.Context())
	must(t, err)
	if info.Backend != Name || info.Runtime == "" || info.EngineVersion == "" {
		t.Errorf("info %+v", info)
	}
}

func TestOneSessionAtATime(t *testing.T) {
	b := newBed(t, os.Geteuid())
	s, session := b.start(t)
	if _, err := b.backend.Create(t.Context(), b.spec(t, session)); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a second container of the session: %v", err)
	}
	if out, exit := worktest.Shell(t, s, "echo alive"); out != "alive\n" || !exit.Status.Success() {
		t.Errorf("the first one was hurt: %v %s", exit.Status, out)
	}
}

// Wherever Create is cancelled, it leaves nothing.
func TestCreateCancelled(t *testing.T) {
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	stop := errors.New("the user changed their mind")
	for _, after := range []time.Duration{0, 5, 10, 20, 30, 45, 60, 80, 100, 130} {
		session := newSession()
		ctx, cancel := context.WithTimeoutCause(t.Context(), after*time.Millisecond, stop)
		s, err := b.backend.Create(ctx, b.spec(t, session))
		cancel()
		if err == nil {
			must(t, s.Destroy(t.Context()))
		} else if !errors.Is(err, stop) {
			t.Errorf("after %d ms: %v", after, err)
		}
		b.nothingLeft(t, session)
	}
}
