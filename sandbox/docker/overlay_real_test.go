package docker

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

func (b *bed) overlaid(t testing.TB, spec *sandbox.Spec) {
	t.Helper()
	spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, filepath.Join(b.state, "layers")
	worktest.MakeLayers(t, spec.Workspace.Layers, b.workspace)
}

// TestOverlay has root's row of the overlay matrix.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: workspaces of several owners")
	}
	for _, uid := range sandboxtest.Sampled(t, 0, 1000, sandbox.CommandUID) {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			b := newBed(t, uid)
			worktest.Furnish(t, b.workspace, uid, uid)
			worktest.Unchanged(t, b.workspace)
			spec := b.spec(t, newSession())
			b.overlaid(t, &spec)
			sb := b.create(t, spec)
			a := sb.Attestation()
			if a.WorkspaceMode != "overlay" || a.WorkspaceOwner != fmt.Sprintf("%d:%d", uid, uid) || len(a.Lost) > 0 {
				t.Errorf("%+v", a)
			}
			cell := worktest.Cell{Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: uid, GID: uid, Thirds: true}
			worktest.Overlay(t, cell)

			must(t, sb.Destroy(context.Background()))
			if _, err := sb.View().Stat(t.Context(), "made"); !errors.Is(err, sandbox.ErrLost) {
				t.Errorf("view of what is gone: %v", err)
			}
			second := b.spec(t, newSession())
			second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
			cell.Sandbox = b.create(t, second)
			worktest.SeesChange(t, cell)
			if uid == 0 {
				worktest.Archives(t, cell.Sandbox)
			}
		})
	}
}

// create makes a container, and destroys it after the test, when nothing of it
// may be left.
func (b *bed) create(t testing.TB, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	s, err := b.backend.Create(t.Context(), spec)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Destroy(context.Background()); err != nil {
			t.Errorf("destroy: %v", err)
		}
		b.nothingLeft(t, spec.Session)
	})
	return s
}

// An engine on another machine isn't asked to mount an overlay of this one's
// directories.
func TestOverlayOfARemoteEngine(t *testing.T) {
	b := makeBed(t)
	b.backend = b.open(t, Options{Host: "tcp://127.0.0.1:1"})
	spec := b.spec(t, newSession())
	b.overlaid(t, &spec)
	if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "not on this machine") {
		t.Errorf("error %v", err)
	}
}

// An engine on another machine can't see the files that egress needs. A sandbox
// that needs them is refused.
func TestEgressOfARemoteEngine(t *testing.T) {
	b := makeBed(t)
	b.backend = b.open(t, Options{Host: "tcp://127.0.0.1:1"})
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, egress := range map[string]*sandbox.EgressPlan{
		"roots": {Roots: roots}, "files": {Files: map[string]string{"apt.conf": "x"}}, "control": {Names: true},
	} {
		spec := b.spec(t, newSession())
		spec.Workspace.Mode, spec.Egress = sandbox.ModeCopy, egress
		_, err := b.backend.Create(t.Context(), spec)
		if refused := errors.Is(err, sandbox.ErrUnsupported) && strings.Contains(err.Error(), "use tls:// rules"); refused != (name != "control") || err == nil {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
