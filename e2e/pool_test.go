package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/pool"
)

// newSpec is a spec of a session with a folder of its own.
func (s *bench) newSpec(t testing.TB) sandbox.Spec {
	t.Helper()
	session := "ses_" + ulid.Make().String()
	dir := filepath.Join(s.state, "sessions", session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return s.spec(session, dir)
}

// newPool is a pool in front of the bench's backend.
func (s *bench) newPool(t testing.TB, size int) *pool.Pool {
	t.Helper()
	p, err := pool.New(s.backend, pool.Options{Size: size, StateDir: s.state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// waitReady waits until the pool has started n sandboxes for spec. A start ahead
// that fails, as one may on a machine that is busy, is tried again only when
// somebody asks, which it does.
func waitReady(t testing.TB, p *pool.Pool, n int, spec sandbox.Spec) {
	t.Helper()
	began := time.Now()
	for asked := began; p.Ready() < n; time.Sleep(5 * time.Millisecond) {
		switch now := time.Now(); {
		case now.Sub(began) > 5*time.Minute:
			t.Fatalf("%d of %d sandboxes are ready", p.Ready(), n)
		case now.Sub(asked) > 5*time.Second:
			need(t, p.Prepare(spec))
			asked = now
		}
	}
}

// benchmarkWarm is a start from the pool, to the first command's result, beside
// the round trip of a command in a sandbox that runs.
func benchmarkWarm(b *testing.B, s *bench) {
	p := s.newPool(b, 2)
	box := s.start(b)
	if err := p.Prepare(s.newSpec(b)); err != nil {
		b.Fatal(err)
	}
	var given sandbox.Sandbox
	var spec sandbox.Spec
	compare(b,
		side{name: "exec-", op: func() error { return runIn(b.Context(), box, nil, "sh", "-c", "true") }},
		side{
			before: func() {
				if given != nil {
					if err := given.Destroy(context.WithoutCancel(b.Context())); err != nil {
						b.Fatal(err)
					}
				}
				spec = s.newSpec(b)
				waitReady(b, p, 2, spec)
			},
			op: func() (err error) {
				if given, err = p.Create(b.Context(), spec); err != nil {
					return err
				}
				return runIn(b.Context(), given, nil, "sh", "-c", "true")
			},
		})
	if err := given.Destroy(context.WithoutCancel(b.Context())); err != nil {
		b.Fatal(err)
	}
}

func need(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPool holds a pool to its promises on every backend: a session gets a
// sandbox that was started ahead, that works on its workspace, and that nobody
// gets again; one that was started before a repository appeared is not given out;
// nothing is left.
func TestPool(t *testing.T) {
	for _, name := range backendNames {
		t.Run(name, func(t *testing.T) {
			s := benchSandbox(t, name)
			p := s.newPool(t, 1)
			need(t, p.Prepare(s.newSpec(t)))
			seen := map[string]bool{}
			for i := range 3 {
				waitReady(t, p, 1, s.newSpec(t))
				if i == 2 {
					need(t, os.Remove(filepath.Join(s.dir.Name(), ".git"))) // the empty one that was reserved
					need(t, os.MkdirAll(filepath.Join(s.dir.Name(), ".git", "hooks"), 0o755))
				}
				spec := s.newSpec(t)
				box, err := p.Create(t.Context(), spec)
				need(t, err)
				own, err := os.ReadDir(spec.Dir) // where one that is started now keeps its files
				need(t, err)
				if warm := len(own) == 0; warm != (i < 2) {
					t.Errorf("round %d: started ahead: %v", i, warm)
				}
				if seen[box.ID()] {
					t.Error("a sandbox was given out twice")
				}
				seen[box.ID()] = true
				if a := box.Attestation(); a.Workspace != s.dir.Name() || a.Container == "" || a.Network != "none" {
					t.Errorf("attestation %+v", a)
				}
				need(t, runIn(t.Context(), box, nil, "sh", "-c", "echo x >file && ! test -e /tmp/used && touch /tmp/used && ! touch .git/x 2>/dev/null"))
				if i == 0 {
					if _, err := os.Stat(filepath.Join(s.dir.Name(), "file")); err != nil {
						t.Error("it works on another folder")
					}
				}
				need(t, box.Destroy(t.Context()))
				need(t, os.Remove(spec.Dir)) // nothing is in the session's own folder
			}
			need(t, p.Close())
			left, err := s.backend.List(t.Context())
			need(t, err)
			for _, l := range left {
				if !l.Foreign {
					t.Errorf("left: %+v", l)
				}
			}
			if folders, err := os.ReadDir(filepath.Join(s.state, "pool")); err != nil || len(folders) > 0 {
				t.Errorf("folders are left: %v, %v", folders, err)
			}
		})
	}
}
