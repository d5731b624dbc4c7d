package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// overlaid makes a spec's workspace a copy-on-write one.
func (b *bed) overlaid(t testing.TB, spec *sandbox.Spec) {
	t.Helper()
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, spec.Workspace.Layers, b.workspace)
}

// TestOverlay is root's column of the overlay matrix.
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
				if _, err := sb.View().Exists(t.Context(), "made"); !errors.Is(err, sandbox.ErrLost) {
					t.Errorf("view of what is gone: %v", err)
				}
				second := b.spec(t, "ses_overlay2")
				second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
				cell.Sandbox = b.start(t, second)
				worktest.SeesChange(t, cell)
			})
		}
	})
}
