package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

func (b *bed) overlaid(t testing.TB, spec *sandbox.Spec) {
	t.Helper()
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, spec.Workspace.Layers, b.workspace)
}

// TestOverlay has root's cases of the overlay matrix.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: workspaces of several owners")
	}
	both(t, func(t *testing.T, k Kind) {
		for _, uid := range []int{0, 1000, sandbox.CommandUID} {
			t.Run(fmt.Sprint(uid), func(t *testing.T) {
				b := newBed(t, k, uid)
				worktest.Furnish(t, b.workspace, uid, uid)
				worktest.Unchanged(t, b.workspace)
				spec := b.spec(t, "ses_overlay1")
				b.overlaid(t, &spec)
				sb := b.start(t, spec)
				a := sb.Attestation()
				if a.WorkspaceMode != "overlay" || a.WorkspaceOwner != fmt.Sprintf("%d:%d", uid, uid) || len(a.Lost) > 0 {
					t.Errorf("%+v", a)
				}
				cell := worktest.Cell{Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: uid, GID: uid, Thirds: true, OwnKernel: k == GVisor}
				worktest.Overlay(t, cell)

				// A fresh sandbox on the same layers goes on.
				must(t, sb.Destroy(context.Background()))
				if _, err := sb.View().Stat(t.Context(), "made"); !errors.Is(err, sandbox.ErrLost) {
					t.Errorf("view of what is gone: %v", err)
				}
				second := b.spec(t, "ses_overlay2")
				second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
				cell.Sandbox = b.start(t, second)
				worktest.SeesChange(t, cell)
				if uid == 0 {
					worktest.Archives(t, cell.Sandbox)
				}
			})
		}
	})
}

func TestOverlayOfAUser(t *testing.T) {
	t.Parallel()
	asUser(t, "TestUserOverlay", func(dir string) {
		thirds := filepath.Join(dir, "thirds")
		must(t, os.Mkdir(thirds, 0o755))
		must(t, os.Chown(thirds, userID, userID))
		worktest.Furnish(t, thirds, userID, userID)
	})
}

// TestUserOverlay is run by TestOverlayOfAUser as another user.
func TestUserOverlay(t *testing.T) {
	if os.Getenv(userHelper) == "" {
		return // nothing to do on its own
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		worktest.Furnish(t, b.workspace, os.Geteuid(), os.Getegid())
		worktest.Run(t, b.workspace, "mkdir .caisson; echo a >.caisson/c")
		worktest.Unchanged(t, b.workspace)
		spec := b.spec(t, "ses_overlay1")
		b.overlaid(t, &spec)
		sb := b.start(t, spec)
		if a := sb.Attestation(); a.WorkspaceMode != "overlay" || a.WorkspaceOwner != fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()) {
			t.Errorf("%+v", a)
		}
		if _, exit := worktest.Shell(t, sb, "echo x >/workspace/.caisson/c"); exit.Status.Success() {
			t.Error("the configuration could be written")
		}
		cell := worktest.Cell{
			Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: os.Geteuid(), GID: os.Getegid(), OwnKernel: k == GVisor,
		}
		worktest.Overlay(t, cell)
		must(t, sb.Destroy(context.Background()))
		must(t, os.Remove(filepath.Join(spec.Workspace.Layers, "work")))
		must(t, os.Mkdir(filepath.Join(spec.Workspace.Layers, "work"), 0o700))
		second := b.spec(t, "ses_overlay2")
		second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
		cell.Sandbox = b.start(t, second)
		worktest.SeesChange(t, cell)
		worktest.OutOfReach(t, cell.Sandbox)
		userThirds(t, k)
		overlayCancelled(t, k)
	})
}

// Files of users that the overlay doesn't know can be read and removed as far
// as their modes allow, but not changed. Nothing is lost.
func userThirds(t *testing.T, k Kind) {
	b := newBed(t, k, os.Geteuid())
	b.workspace = filepath.Join(os.Getenv(userHelper), "thirds")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, "ses_thirds")
	b.overlaid(t, &spec)
	sb := b.start(t, spec)
	if !slices.Contains(sb.Attestation().Lost, workmount.LostOthers) {
		t.Errorf("not attested: %q", sb.Attestation().Lost)
	}
	out, exit := worktest.Shell(t, sb, "cd /workspace; cat third; echo x >>third && echo changed; cat hidden && echo read; rm -f third; echo own >third; cat third; echo g >set/in && echo made")
	if out != "t\nown\n" {
		t.Errorf("%v: %q", exit.Status, out)
	}
	if got, err := sb.View().ReadFile(t.Context(), "third", 0, 0); err != nil || string(got.Data) != "own\n" {
		t.Errorf("view: %q %v", got.Data, err)
	}
}

// The host's view returns the same as a Reader of the directory.
func TestOverlayView(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		worktest.Layout(t, b.workspace)
		worktest.Control(t, b.workspace)
		spec := b.spec(t, "ses_view")
		b.overlaid(t, &spec)
		worktest.View(t, b.workspace, b.start(t, spec).View())
	})
}

// Wherever a start is cancelled, nothing of its overlay is left.
func TestOverlayCancelled(t *testing.T) { both(t, overlayCancelled) }

func overlayCancelled(t *testing.T, k Kind) {
	b := newBed(t, k, os.Geteuid())
	layers := filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, layers, b.workspace)
	for i := range 12 {
		spec := b.spec(t, fmt.Sprintf("ses_given%dup", i))
		spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
		sb, err := b.backend.Create(ctx, spec)
		cancel()
		if err == nil {
			must(t, sb.Destroy(context.Background()))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up after %d ms: %v", i*i, err)
		}
		b.nothingLeft(t, spec.Session)
	}
	spec := b.spec(t, "ses_after")
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
	if got := output(t, b.start(t, spec), "echo x >made; cat made"); got != "x\n" {
		t.Errorf("afterwards: %q", got)
	}
}
