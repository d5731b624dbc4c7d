package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakeBackend makes sandboxes that run nothing. It counts those that are alive,
// and can fail on request.
type fakeBackend struct {
	sandbox.Backend // nil: the pool needs nothing else of it
	mu              sync.Mutex
	made            []string // session IDs, in order
	alive           map[string]bool
	fail            error
	ignoresPing     map[string]bool // by session ID
	refuseDestroy   bool            // makes Destroy fail
	// maxAlive is the number of sandboxes at which a start waits; 0 means no
	// limit.
	maxAlive int
	// onCreate is called in each start, after its guards were made.
	onCreate func(spec sandbox.Spec)
}

func (b *fakeBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b.mu.Lock()
	fail, during := b.fail, b.onCreate
	b.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	if err := b.waitForRoom(ctx, spec); err != nil {
		return nil, err
	}
	if during != nil {
		during(spec)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, spec.Session)
	b.alive[spec.Session] = true
	return &fakeSandbox{backend: b, session: spec.Session, done: make(chan struct{})}, nil
}

func (b *fakeBackend) Sweep(context.Context) ([]sandbox.Orphan, error) { return nil, nil }

// waitForRoom waits until there is room, as an admission semaphore does.
func (b *fakeBackend) waitForRoom(ctx context.Context, spec sandbox.Spec) error {
	notified := 0
	for {
		b.mu.Lock()
		room, alive := b.maxAlive, len(b.alive)
		b.mu.Unlock()
		if room == 0 || alive < room {
			return nil
		}
		if alive != notified && spec.Notify != nil {
			spec.Notify(fmt.Sprintf("waiting for memory: %d run", alive))
		}
		notified = alive
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *fakeBackend) countAlive() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.alive)
}

func (b *fakeBackend) update(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

type fakeSandbox struct {
	sandbox.Sandbox // nil: the pool needs nothing else of it
	backend         *fakeBackend
	session         string
	end             sync.Once
	done            chan struct{}
}

func (s *fakeSandbox) ID() string            { return "fake-" + s.session }
func (s *fakeSandbox) Done() <-chan struct{} { return s.done }
func (s *fakeSandbox) stop()                 { s.end.Do(func() { close(s.done) }) }

func (s *fakeSandbox) Ping(context.Context) error {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	if s.backend.ignoresPing[s.session] {
		return sandbox.ErrLost
	}
	return nil
}

func (s *fakeSandbox) Destroy(context.Context) error {
	s.backend.mu.Lock()
	defer s.backend.mu.Unlock()
	if s.backend.refuseDestroy {
		return errors.New("it stays")
	}
	s.stop()
	delete(s.backend.alive, s.session)
	return nil
}

// env is a pool in front of a fake backend, and a workspace.
type env struct {
	backend *fakeBackend
	pool    *Pool
	state   string
	dir     string
	n       int
}

func newEnv(t testing.TB, o Options) *env {
	t.Helper()
	base := t.TempDir()
	b := &env{
		backend: &fakeBackend{alive: map[string]bool{}, ignoresPing: map[string]bool{}},
		state:   filepath.Join(base, "state"), dir: filepath.Join(base, "workspace"),
	}
	must(t, os.Mkdir(b.state, 0o700))
	must(t, os.Mkdir(b.dir, 0o755))
	o.StateDir, o.Logger = b.state, zaptest.NewLogger(t)
	if o.Size == 0 {
		o.Size = 1
	}
	var err error
	b.pool, err = New(b.backend, o)
	must(t, err)
	t.Cleanup(func() {
		b.backend.update(func() { b.backend.refuseDestroy = false })
		if err := b.pool.Close(); err != nil {
			t.Error(err)
		}
		if n := b.backend.countAlive(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		if left, err := os.ReadDir(filepath.Join(b.state, dirName)); len(left) > 0 || err != nil && !os.IsNotExist(err) {
			t.Errorf("directories are left: %v, %v", left, err)
		}
	})
	return b
}

func (b *env) spec(t testing.TB) sandbox.Spec {
	t.Helper()
	dir, err := os.Open(b.dir)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	b.n++
	session := fmt.Sprintf("ses_%d", b.n)
	own := filepath.Join(b.state, "sessions", session)
	must(t, os.MkdirAll(own, 0o700))
	return sandbox.Spec{
		Session: session, Dir: own, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()},
		Workspace: sandbox.Workspace{Path: b.dir, Dir: dir},
	}
}

// create creates a sandbox and reports whether it was started ahead of time.
func (b *env) create(t testing.TB, spec sandbox.Spec) (sb sandbox.Sandbox, warm bool) {
	t.Helper()
	sb, err := b.pool.Create(t.Context(), spec)
	must(t, err)
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	_, warm = sb.(*pooledSandbox)
	return sb, warm
}

// waitUntilIdle waits until the background work is done.
func waitUntilIdle(t *testing.T) {
	t.Helper()
	time.Sleep(refillDelay)
	synctest.Wait()
}

// runWithFakeClock runs a test with a fake clock, so that waitUntilIdle can
// wait for the background work.
func runWithFakeClock(t *testing.T, o Options, f func(t *testing.T, b *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newEnv(t, o)) })
}

// TestReadyIsGivenOut checks that the second session gets the sandbox that was
// started after the first one, and that none is used twice.
func TestReadyIsGivenOut(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		first, warm := b.create(t, b.spec(t))
		if warm {
			t.Error("the first was ready before the first Create")
		}
		waitUntilIdle(t)
		second, warm := b.create(t, b.spec(t))
		if !warm {
			t.Error("the second was not ready")
		}
		waitUntilIdle(t)
		third, warm := b.create(t, b.spec(t))
		if !warm || first.ID() == second.ID() || second.ID() == third.ID() {
			t.Errorf("%s, %s, %s", first.ID(), second.ID(), third.ID())
		}
		must(t, second.Destroy(t.Context()))
		must(t, second.Destroy(t.Context()))
		select {
		case <-second.Done():
		default:
			t.Error("it is not destroyed")
		}
	})
}

func TestPrepare(t *testing.T) {
	runWithFakeClock(t, Options{Size: 3}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		if n := b.backend.countAlive(); n != 3 {
			t.Errorf("%d are ready, not 3", n)
		}
		if _, warm := b.create(t, b.spec(t)); !warm {
			t.Error("not ready")
		}
	})
}

// TestOnlyForTheSameSpec checks that a sandbox is returned for an equal spec
// only, whichever field differs.
func TestOnlyForTheSameSpec(t *testing.T) {
	other := t.TempDir()
	for name, change := range map[string]func(*sandbox.Spec){
		"image":         func(s *sandbox.Spec) { s.Image = images.Reference{Scheme: images.SchemeRootFS, Value: other} },
		"git":           func(s *sandbox.Spec) { s.Git = sandbox.GitCommit },
		"memory":        func(s *sandbox.Spec) { s.Resources.MemoryBytes++ },
		"time":          func(s *sandbox.Spec) { s.Resources.CommandTime++ },
		"grace":         func(s *sandbox.Spec) { s.Grace = time.Minute },
		"owner":         func(s *sandbox.Spec) { s.CallerOwnsFiles = true },
		"path":          func(s *sandbox.Spec) { s.Workspace.Path += "/" },
		"submounts":     func(s *sandbox.Spec) { s.Workspace.Submounts = []string{"x"} },
		"mode":          func(s *sandbox.Spec) { s.Workspace.Mode = sandbox.ModeBind },
		"egress":        func(s *sandbox.Spec) { s.Egress = &sandbox.EgressPlan{} },
		"names":         func(s *sandbox.Spec) { s.Egress = &sandbox.EgressPlan{Names: true, Capture: []int{80}} },
		"the directory": func(s *sandbox.Spec) { s.Workspace.Dir, _ = os.Open(other) },
	} {
		t.Run(name, func(t *testing.T) {
			runWithFakeClock(t, Options{Size: 2}, func(t *testing.T, b *env) {
				must(t, b.pool.Prepare(b.spec(t)))
				waitUntilIdle(t)
				spec := b.spec(t)
				change(&spec)
				t.Cleanup(func() { spec.Workspace.Dir.Close() })
				if _, warm := b.create(t, spec); warm {
					t.Error("a sandbox of another spec was returned")
				}
				// The control: the spec itself.
				waitUntilIdle(t)
				if _, warm := b.create(t, b.spec(t)); !warm {
					t.Error("the other one was not kept")
				}
			})
		})
	}
}

// TestKeyHasEverything checks that a field which is added to Spec is part of
// the key. Fields must be printed by value for that.
func TestKeyHasEverything(t *testing.T) {
	plain := map[reflect.Kind]bool{reflect.String: true, reflect.Bool: true, reflect.Int64: true, reflect.Int: true}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch {
		case path == ".Egress" && of.Kind() == reflect.Pointer: // compared by value
			walk(path, of.Elem())
		case path == ".Workspace.Dir" || path == ".Mounts.Dir" || path == ".Setup.Service" || path == ".Notify" || path == ".Egress.Roots" || path == ".Egress.Files": // compared by device and inode; not pooled; not pooled; not part of the key; not pooled; not pooled
		case of.Kind() == reflect.Struct:
			for field := range of.Fields() {
				walk(path+"."+field.Name, field.Type)
			}
		case of.Kind() == reflect.Slice:
			walk(path, of.Elem())
		case !plain[of.Kind()]:
			t.Errorf("Spec%s is a %s: specKey has to compare it by value", path, of)
		}
	}
	walk("", reflect.TypeFor[sandbox.Spec]())
}

// TestSameEgress checks that equal plans are one, wherever they are in memory.
func TestSameEgress(t *testing.T) {
	runWithFakeClock(t, Options{Size: 1}, func(t *testing.T, b *env) {
		spec := b.spec(t)
		spec.Egress = &sandbox.EgressPlan{Names: true, Capture: []int{80, 443}, Env: []string{"A=1"}}
		must(t, b.pool.Prepare(spec))
		waitUntilIdle(t)
		spec = b.spec(t)
		spec.Egress = &sandbox.EgressPlan{Port: sandbox.DefaultEgressPort, Names: true, Capture: []int{80, 443}, Env: []string{"A=1"}}
		if _, warm := b.create(t, spec); !warm {
			t.Error("a sandbox with an equal plan was not returned")
		}
	})
}

func TestNotPooled(t *testing.T) {
	for name, change := range map[string]func(*sandbox.Spec){
		"bind":   func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Target: "/x", Path: "/x", Dir: s.Workspace.Dir}} },
		"layers": func(s *sandbox.Spec) { s.Workspace.Layers = "/x" },
		"roots":  func(s *sandbox.Spec) { s.Egress = &sandbox.EgressPlan{Roots: []byte("x")} },
		"build":  func(s *sandbox.Spec) { s.Image = images.Reference{Scheme: images.SchemeBuild, Value: "/x"} },
		"layout": func(s *sandbox.Spec) { s.Image = images.Reference{Scheme: images.SchemeLayout, Value: "/x"} },
	} {
		t.Run(name, func(t *testing.T) {
			runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
				spec := b.spec(t)
				change(&spec)
				must(t, b.pool.Prepare(spec))
				waitUntilIdle(t)
				if n := b.backend.countAlive(); n != 0 {
					t.Errorf("%d were started ahead", n)
				}
			})
		})
	}
}

// TestUnusableIsReplaced checks that a ready sandbox which became unusable is
// destroyed and replaced.
func TestUnusableIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, b *env){
		"a repository appeared":    func(t *testing.T, b *env) { must(t, os.Mkdir(filepath.Join(b.dir, ".git"), 0o755)) },
		"a configuration appeared": func(t *testing.T, b *env) { must(t, os.Mkdir(filepath.Join(b.dir, ".caisson"), 0o755)) },
		"it is deaf": func(_ *testing.T, b *env) {
			b.backend.update(func() { b.backend.ignoresPing[b.backend.made[0]] = true })
		},
		"it was lost": func(t *testing.T, b *env) {
			for _, k := range b.pool.buckets {
				k.ready[0].sandbox.(*fakeSandbox).stop()
			}
			waitUntilIdle(t)
			if n := b.backend.countAlive(); n != 0 {
				t.Errorf("%d are alive: the lost one was not destroyed", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
				must(t, b.pool.Prepare(b.spec(t)))
				waitUntilIdle(t)
				spoil(t, b)
				if _, warm := b.create(t, b.spec(t)); warm {
					t.Error("it was returned")
				}
				waitUntilIdle(t)
				if _, warm := b.create(t, b.spec(t)); !warm {
					t.Error("it was not replaced")
				}
			})
		})
	}
}

// TestOldSandboxesAreReplaced checks that old sandboxes are replaced, and that
// unused ones are removed.
func TestOldSandboxesAreReplaced(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		time.Sleep(forgetTime * 3 / 4)
		waitUntilIdle(t)
		b.backend.update(func() {
			if len(b.backend.made) < 3 || len(b.backend.alive) != 1 || b.backend.alive[b.backend.made[0]] {
				t.Errorf("made %v, alive %v", b.backend.made, b.backend.alive)
			}
		})
		if sb, warm := b.create(t, b.spec(t)); !warm || time.Since(sb.(*pooledSandbox).ready.started) > maxAge {
			t.Error("no young one")
		}
		time.Sleep(2 * forgetTime)
		waitUntilIdle(t)
		if n := b.backend.countAlive(); n != 1 { // the one that Create returned
			t.Errorf("%d are alive long after the last Create", n)
		}
		if len(b.pool.buckets) != 0 {
			t.Errorf("%d specs are remembered", len(b.pool.buckets))
		}
	})
}

// TestSizeBoundsAllSpecs checks that Size bounds all specs together, and that
// the least recently used one makes room.
func TestSizeBoundsAllSpecs(t *testing.T) {
	runWithFakeClock(t, Options{Size: 2}, func(t *testing.T, b *env) {
		var specs []sandbox.Spec
		for i := range 5 {
			spec := b.spec(t)
			spec.Resources.PIDs += int64(i)
			specs = append(specs, spec)
			must(t, b.pool.Prepare(spec))
			waitUntilIdle(t)
			time.Sleep(time.Second)
			if n := b.backend.countAlive(); n > 2 {
				t.Fatalf("%d are ready", n)
			}
		}
		last := specs[4]
		if _, warm := b.create(t, last); !warm {
			t.Error("the spec that was used last has none")
		}
	})
}

func TestForgetsManySpecs(t *testing.T) {
	runWithFakeClock(t, Options{Size: 1}, func(t *testing.T, b *env) {
		for i := range 3 * spareBuckets {
			spec := b.spec(t)
			spec.Resources.PIDs += int64(i)
			must(t, b.pool.Prepare(spec))
			waitUntilIdle(t)
		}
		if n := len(b.pool.buckets); n > spareBuckets+1 {
			t.Errorf("%d specs are remembered", n)
		}
	})
}

// TestFailedStart checks that a failed background start returns no error and is
// not repeated forever. The session's own start returns the error.
func TestFailedStart(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		b.backend.update(func() { b.backend.fail = sandbox.ErrUnavailable })
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		if _, err := b.pool.Create(t.Context(), b.spec(t)); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
		waitUntilIdle(t)
		b.backend.update(func() { b.backend.fail = nil })
		b.create(t, b.spec(t))
		waitUntilIdle(t)
		if _, warm := b.create(t, b.spec(t)); !warm {
			t.Error("not ready after the failure is over")
		}
	})
}

func TestCancelledCreate(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		cause := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, err := b.pool.Create(ctx, b.spec(t)); !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
		if n := b.backend.countAlive(); n != 1 {
			t.Errorf("%d are ready: a cancelled call took one", n)
		}
	})
}

// TestDestroyFails checks that Destroy returns an error, and can be called
// again.
func TestDestroyFails(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		sb, warm := b.create(t, b.spec(t))
		if !warm {
			t.Fatal("not ready")
		}
		b.backend.update(func() { b.backend.refuseDestroy = true })
		if err := sb.Destroy(t.Context()); err == nil {
			t.Error("no error for a failed Destroy")
		}
		b.backend.update(func() { b.backend.refuseDestroy = false })
		must(t, sb.Destroy(t.Context()))
	})
}

// TestChangeDuringStart checks that a sandbox is discarded if a guarded name
// appears in the workspace during its start. Names that the sandbox reserves
// itself are fine.
func TestChangeDuringStart(t *testing.T) {
	for name, tt := range map[string]struct {
		appears string
		fits    bool
	}{
		"a configuration": {".caisson", false},
		"a repository":    {".git/objects", false},
		"its placeholder": {".git", true},
		"a directory":     {"src", true},
	} {
		t.Run(name, func(t *testing.T) {
			runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
				b.backend.update(func() {
					b.backend.onCreate = func(sandbox.Spec) {
						if err := os.MkdirAll(filepath.Join(b.dir, tt.appears), 0o755); err != nil {
							t.Error(err)
						}
					}
				})
				must(t, b.pool.Prepare(b.spec(t)))
				waitUntilIdle(t)
				if n := b.backend.countAlive(); (n == 1) != tt.fits {
					t.Errorf("%d are alive", n)
				}
				if _, warm := b.create(t, b.spec(t)); warm != tt.fits {
					t.Errorf("returned: %v", warm)
				}
			})
		})
	}
}

// TestWaitingStartEvictsReady checks that a session's start which waits for
// memory gets it from ready sandboxes. They are evicted one by one, and no more
// than needed.
func TestWaitingStartEvictsReady(t *testing.T) {
	for name, change := range map[string]func(*sandbox.Spec){
		"another spec": func(s *sandbox.Spec) { s.Resources.PIDs++ },
		"not pooled":   func(s *sandbox.Spec) { s.Image = images.Reference{Scheme: images.SchemeBuild, Value: "/x"} },
	} {
		t.Run(name, func(t *testing.T) {
			runWithFakeClock(t, Options{Size: 4}, func(t *testing.T, b *env) {
				must(t, b.pool.Prepare(b.spec(t)))
				waitUntilIdle(t)
				if n := b.pool.Ready(); n != 4 {
					t.Fatalf("%d are ready", n)
				}
				b.backend.update(func() { b.backend.maxAlive = 3 })
				spec := b.spec(t)
				change(&spec)
				var notified []string
				spec.Notify = func(text string) { notified = append(notified, text) }
				began := time.Now()
				if _, warm := b.create(t, spec); warm || time.Since(began) > time.Second || len(notified) == 0 {
					t.Errorf("warm %v after %s, said %q", warm, time.Since(began), notified)
				}
				if n := b.pool.Ready(); n < 1 || n > 2 {
					t.Errorf("%d are ready", n)
				}
			})
		})
	}
}

// TestStartAheadDoesNotWait checks that a background start never waits for
// resources that a session may need.
func TestStartAheadDoesNotWait(t *testing.T) {
	runWithFakeClock(t, Options{Size: 4}, func(t *testing.T, b *env) {
		b.backend.update(func() { b.backend.maxAlive = 1 })
		sb, _ := b.create(t, b.spec(t))
		waitUntilIdle(t)
		waitUntilIdle(t) // starts run in groups of as many as there are processors
		b.pool.mu.Lock()
		starting := b.pool.starting
		b.pool.mu.Unlock()
		if n := b.backend.countAlive(); n != 1 || starting != 0 {
			t.Errorf("%d are alive, %d wait", n, starting)
		}
		// The control: there is room, and all are started.
		b.backend.update(func() { b.backend.maxAlive = 0 })
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		if n := b.backend.countAlive(); n != 5 {
			t.Errorf("%d are alive", n)
		}
		must(t, sb.Destroy(t.Context()))
	})
}

// TestStuckSandboxIsRetried checks that a sandbox which can't be destroyed is
// tried again until it can.
func TestStuckSandboxIsRetried(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		b.backend.update(func() { b.backend.refuseDestroy = true })
		time.Sleep(2 * forgetTime) // it becomes old and is replaced, and the spec is forgotten
		waitUntilIdle(t)
		stuck := b.backend.countAlive()
		if stuck == 0 {
			t.Error("none is left: the control")
		}
		b.pool.mu.Lock()
		if len(b.pool.stuck) != stuck {
			t.Errorf("%d are noted of %d", len(b.pool.stuck), stuck)
		}
		b.pool.mu.Unlock()
		b.backend.update(func() { b.backend.refuseDestroy = false })
		time.Sleep(maxAge)
		waitUntilIdle(t)
		if n := b.backend.countAlive(); n != 0 {
			t.Errorf("%d are alive", n)
		}
	})
}

// TestCloseRetries checks that Close returns an error for sandboxes that are
// left, and tries them again when it is called again.
func TestCloseRetries(t *testing.T) {
	runWithFakeClock(t, Options{}, func(t *testing.T, b *env) {
		must(t, b.pool.Prepare(b.spec(t)))
		waitUntilIdle(t)
		b.backend.update(func() { b.backend.refuseDestroy = true })
		if err := b.pool.Close(); err == nil {
			t.Error("no error for a sandbox that is left")
		}
		b.backend.update(func() { b.backend.refuseDestroy = false })
		must(t, b.pool.Close())
	})
}

// TestBucketInUseIsNotForgotten checks that the bucket of a slow start is kept,
// however many other specs are used meanwhile.
func TestBucketInUseIsNotForgotten(t *testing.T) {
	runWithFakeClock(t, Options{Size: 1}, func(t *testing.T, b *env) {
		// The start ends between two rounds of the maintenance. At the same
		// moment, either could come first.
		start := forgetTime + time.Second
		b.backend.update(func() { b.backend.onCreate = func(sandbox.Spec) { time.Sleep(start) } })
		slow := b.spec(t)
		var sb sandbox.Sandbox
		var all sync.WaitGroup
		all.Go(func() {
			var err error
			sb, err = b.pool.Create(t.Context(), slow)
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		b.backend.update(func() { b.backend.onCreate = nil })
		for i := range 2 * spareBuckets {
			spec := b.spec(t)
			spec.Resources.PIDs += int64(i) + 1
			must(t, b.pool.Prepare(spec))
			waitUntilIdle(t)
		}
		all.Wait()
		waitUntilIdle(t)
		if _, warm := b.create(t, slow); !warm {
			t.Error("nothing was started ahead after it")
		}
		must(t, sb.Destroy(t.Context()))
	})
}

func TestClosed(t *testing.T) {
	b := newEnv(t, Options{})
	spec := b.spec(t)
	must(t, b.pool.Prepare(spec)) // the start overlaps with Close
	must(t, b.pool.Close())
	must(t, b.pool.Close())
	if _, err := b.pool.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrState) {
		t.Errorf("error %v", err)
	}
}

// TestConcurrent checks that each of many concurrent sessions gets a sandbox of
// its own.
func TestConcurrent(t *testing.T) {
	b := newEnv(t, Options{Size: 4})
	var mu sync.Mutex
	seen := map[string]bool{}
	var all sync.WaitGroup
	for range 8 {
		spec := b.spec(t)
		all.Go(func() {
			for i := range 10 {
				s := spec
				s.Session = fmt.Sprintf("%s_%d", spec.Session, i)
				sb, err := b.pool.Create(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[sb.ID()] {
					t.Errorf("%s was returned twice", sb.ID())
				}
				seen[sb.ID()] = true
				mu.Unlock()
				if err := sb.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestSweepRemovesEmptyDirectories(t *testing.T) {
	b := newEnv(t, Options{})
	old := filepath.Join(b.state, dirName, "ses_old")
	young := filepath.Join(b.state, dirName, "ses_young")
	used := filepath.Join(b.state, dirName, "ses_used")
	for _, dir := range []string{old, young, filepath.Join(used, "bundle")} {
		must(t, os.MkdirAll(dir, 0o700))
	}
	long := time.Now().Add(-2 * forgetTime)
	must(t, os.Chtimes(old, long, long))
	must(t, os.Chtimes(used, long, long))
	_, err := b.pool.Sweep(t.Context())
	must(t, err)
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("%s is there", old)
	}
	for _, dir := range []string{young, used} {
		_, err := os.Stat(dir)
		must(t, err)
	}
	must(t, os.RemoveAll(filepath.Join(b.state, dirName)))
}

func TestInvalid(t *testing.T) {
	for _, o := range []Options{{StateDir: "/x"}, {Size: 1}, {Size: 1, StateDir: "x"}} {
		if _, err := New(&fakeBackend{}, o); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
