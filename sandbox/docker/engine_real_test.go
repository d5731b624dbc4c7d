package docker

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// An engine that is killed during a command is a lost sandbox, never the
// command's exit. When it is back, the rest is removed.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	e := privateengine.New(t)
	b := privateBed(t, e, Options{})
	b.backend.times.loss, b.backend.times.remove = shortDeadlines().loss, shortDeadlines().remove
	session := newSession()
	s, err := b.backend.Create(t.Context(), b.spec(t, session))
	must(t, err)
	p, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"sleep", "1000"}})
	must(t, err)
	e.Kill(t)
	wantLost(t, p)
	await(t, s.Done(), "the sandbox's loss")
	if !errors.Is(s.Err(), sandbox.ErrLost) {
		t.Errorf("lost with %v", s.Err())
	}
	t.Log(s.Err())
	if err := s.Destroy(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("destroy without an engine: %v", err)
	}
	e.Start(t)
	b.backend.times = defaultDeadlines()
	next := b.open(t, Options{Host: e.Host()})
	left, err := next.Sweep(t.Context())
	must(t, err)
	t.Logf("swept %+v", left)
	b.backend = next
	b.nothingLeft(t, session)
	if _, err := os.Lstat(filepath.Join(b.workspace, ".git")); err == nil {
		t.Error("the placeholder is left")
	}
}

// An engine that hangs is an error in bounded time.
func TestEngineStopped(t *testing.T) {
	t.Parallel()
	e := privateengine.New(t)
	b := privateBed(t, e, Options{})
	_, err := b.backend.Check(t.Context())
	must(t, err)
	e.Freeze(t)
	b.backend.remote.deadlines = shortDeadlines()
	session := newSession()
	_, err = b.backend.Create(t.Context(), b.spec(t, session))
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "may hang") {
		t.Errorf("error %v", err)
	}
	e.Thaw(t)
	b.backend.remote.deadlines = defaultDeadlines()
	if _, err := b.backend.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	b.nothingLeft(t, session)
	s, err := b.backend.Create(t.Context(), b.spec(t, newSession()))
	must(t, err)
	must(t, s.Destroy(t.Context()))
}

// findRunsc looks in bin/ and on PATH.
func findRunsc(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/runsc")
	must(t, err)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if path, err = exec.LookPath("runsc"); err != nil {
		t.Skip("needs runsc: make build, or on PATH")
	}
	return path
}

func TestRunscRuntime(t *testing.T) {
	t.Parallel()
	e := privateengine.New(t, "--add-runtime", "runsc="+findRunsc(t))
	b := privateBed(t, e, Options{Runtime: "runsc"})
	s, session := b.start(t)
	out, exit := shell(t, s, "echo x >made; mv .git .git2 || echo pinned; cat /proc/version")
	if !exit.Status.Success() || !strings.Contains(out, "pinned") || !strings.Contains(strings.ToLower(out), "gvisor") {
		t.Errorf("%v: %q", exit.Status, out)
	}
	t.Logf("%+v", s.Attestation())
	must(t, s.Destroy(t.Context()))
	b.nothingLeft(t, session)
}
