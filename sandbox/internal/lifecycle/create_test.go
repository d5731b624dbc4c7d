package lifecycle

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// fakeDriver is a driver whose containers fail in one method.
type fakeDriver struct {
	failing string
	calls   []string
	listed  [][]ownership.Entry // the cleanup list at each call of Remove
}

var errFake = errors.New("fake failure")

func (d *fakeDriver) call(name string) error {
	d.calls = append(d.calls, name)
	if name == d.failing {
		return errFake
	}
	return nil
}

func (d *fakeDriver) NewContainer(_ context.Context, p *Preparation) (Container, error) {
	return &fakeContainer{fakeDriver: d, prep: p}, d.call("NewContainer")
}

func (d *fakeDriver) RemoveEntry(context.Context, string, ownership.Entry) (bool, error) {
	return true, d.call("RemoveEntry")
}

func (d *fakeDriver) RemoveUnlisted(context.Context) ([]sandbox.Orphan, error) {
	return nil, d.call("RemoveUnlisted")
}

func (d *fakeDriver) Prune(context.Context) error { return d.call("Prune") }

func (d *fakeDriver) Inspect(_ context.Context, listed map[string]*Listed) error {
	for _, l := range listed {
		l.State = sandbox.ListedPaused
	}
	return d.call("Inspect")
}

type fakeContainer struct {
	*fakeDriver
	prep *Preparation
}

func (c *fakeContainer) ID() string { return c.prep.Name }

func (c *fakeContainer) FetchImage(context.Context) (bool, error) { return false, c.call("FetchImage") }

func (c *fakeContainer) Plan(context.Context) ([]ownership.Entry, error) {
	return []ownership.Entry{{Kind: ownership.KindContainer, Name: c.prep.Name}}, c.call("Plan")
}

func (c *fakeContainer) Begin(context.Context) error { return c.call("Begin") }

func (c *fakeContainer) Identity(m *workmount.Mounts) Identity {
	return Identity{CommandUID: m.CommandUID, CommandGID: m.CommandGID}
}

func (c *fakeContainer) Create(context.Context) (Connection, error) {
	return deadConnection{}, c.call("Create")
}

func (c *fakeContainer) Start(context.Context) error { return c.call("Start") }

func (c *fakeContainer) Attest(context.Context, *guest.Conn, *sandbox.Attestation) error {
	return c.call("Attest")
}

func (c *fakeContainer) ExplainFailure(_ context.Context, err error) error { return err }

func (c *fakeContainer) ExplainLoss(_ context.Context, err error) error { return err }

func (c *fakeContainer) Remove(context.Context) error {
	c.listed = append(c.listed, c.prep.Cleanup.Entries())
	return c.call("Remove")
}

// deadConnection is the connection of a guest that crashes at once.
type deadConnection struct{}

func (deadConnection) Read([]byte) (int, error)    { return 0, io.EOF }
func (deadConnection) Write(p []byte) (int, error) { return len(p), nil }
func (deadConnection) Close() error                { return nil }
func (deadConnection) Stderr() string              { return "panic: a bug\ngoroutine 1" }

func newFake(t *testing.T, d *fakeDriver) (*Backend, sandbox.Spec) {
	t.Helper()
	base := t.TempDir()
	state, work, program := filepath.Join(base, "state"), filepath.Join(base, "workspace"), filepath.Join(base, "guest")
	dir := filepath.Join(state, "sessions", "ses_1")
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.Chmod(state, 0o700))
	must(t, os.Mkdir(work, 0o755))
	must(t, os.WriteFile(program, []byte("#!/bin/false\n"), 0o755))
	semaphore := admission.New(admission.Options{StateDir: state, Group: "fake"})
	held, err := os.Open(work)
	must(t, err)
	t.Cleanup(func() { held.Close() })
	b := New(Options{BackendOptions: workmount.BackendOptions{StateDir: state}, Name: "fake", GuestPath: program, Semaphore: semaphore, GIDBase: 1 << 30, StartTime: time.Minute, Logger: zaptest.NewLogger(t)}, d)
	t.Cleanup(b.Close)
	return b, sandbox.Spec{
		Session: "ses_1", Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Dir: dir,
		Workspace: sandbox.Workspace{Path: work, Dir: held},
	}
}

// TestCreateFailures checks that a start that fails in any step leaves nothing,
// and removes the container if the cleanup list has it.
func TestCreateFailures(t *testing.T) {
	steps := []string{"NewContainer", "Plan", "Begin", "Create", "Start", "the handshake"}
	for i, failing := range steps {
		t.Run(failing, func(t *testing.T) {
			d := &fakeDriver{failing: failing}
			b, spec := newFake(t, d)
			s, err := b.Create(t.Context(), spec)
			if s != nil || err == nil {
				t.Fatalf("created %v, %v", s, err)
			}
			if i < 5 && !errors.Is(err, errFake) {
				t.Errorf("error %v, want that of the step", err)
			}
			if i == 5 && !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("error %v, want ErrUnavailable", err)
			}
			if errors.Is(err, context.Canceled) {
				t.Errorf("error %v names a cancellation that there was not", err)
			}
			want := slices.Clone(steps[:min(i+1, 5)])
			if i >= 2 {
				want = append(want, "Remove")
			}
			if diff := cmp.Diff(want, d.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			for _, l := range d.listed {
				if !slices.ContainsFunc(l, func(e ownership.Entry) bool { return e.Kind == ownership.KindContainer && e.Name == "caisson-ses_1" }) {
					t.Errorf("the container is removed, but the cleanup list has only %+v", l)
				}
			}
			nothingLeft(t, b, spec)
		})
	}
}

// TestCreateThatCannotBeUndone checks that the cleanup list keeps what can't be
// removed, for another call of Destroy and for a sweep.
func TestCreateThatCannotBeUndone(t *testing.T) {
	d := &fakeDriver{failing: "Remove"}
	b, spec := newFake(t, d)
	if _, err := b.Create(t.Context(), spec); !errors.Is(err, errFake) {
		t.Fatalf("error %v does not contain that of the removal", err)
	}
	list, err := b.List(t.Context())
	must(t, err)
	if len(list) != 1 || list[0].Session != "ses_1" || !list[0].GivenUp || list[0].State != sandbox.ListedPaused {
		t.Errorf("listed %+v", list)
	}
	orphans, err := b.Sweep(t.Context())
	must(t, err)
	var kinds []string
	for _, o := range orphans {
		kinds = append(kinds, o.Kind)
	}
	if len(kinds) == 0 || kinds[0] != "container" || !slices.Contains(kinds, "directory") {
		t.Errorf("swept %v", kinds)
	}
	nothingLeft(t, b, spec)
}

func nothingLeft(t *testing.T, b *Backend, spec sandbox.Spec) {
	t.Helper()
	list, err := b.List(t.Context())
	must(t, err)
	if len(list) > 0 {
		t.Errorf("still listed: %+v", list)
	}
	for _, dir := range []string{spec.Dir, spec.Workspace.Path} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
}
