package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

func TestOwnershipMatrix(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: workspaces of several owners")
	}
	for _, uid := range sandboxtest.Sampled(t, 0, 1000, sandbox.CommandUID, 5555) {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			b := newBed(t, uid)
			worktest.Furnish(t, b.workspace, uid, uid)
			sb := b.create(t, b.spec(t, newSession()))
			if a := sb.Attestation(); !a.IDMapped || a.User != "10001:10001" {
				t.Errorf("%+v", a)
			}
			worktest.Ownership(t, worktest.Cell{Sandbox: sb, Dir: b.workspace, UID: uid, GID: uid, Thirds: true})
		})
	}
}

// A member of the docker group runs commands as themselves, without a map.
// Another user's workspace is refused unless that is accepted.
func memberOwnership(t *testing.T, dir string) {
	b := newBed(t, memberID)
	b.workspace = filepath.Join(dir, "own")
	sb := b.create(t, b.spec(t, newSession()))
	if a := sb.Attestation(); a.IDMapped || a.User != fmt.Sprintf("%d:%d", memberID, memberID) {
		t.Errorf("%+v", a)
	}
	worktest.Ownership(t, worktest.Cell{Sandbox: sb, Dir: b.workspace, UID: memberID, GID: memberID, Thirds: true})
	for _, c := range []struct {
		sub     string
		allow   bool
		overlay bool
		says    string
	}{
		{"anothers", false, false, "let new files belong to the caller"},
		{"anothers", false, true, "let new files belong to the caller"},
		{"closed", false, false, "let new files belong to the caller"},
		{"closed", true, false, "can't write to it"},
	} {
		b.workspace = filepath.Join(dir, c.sub)
		spec := b.spec(t, newSession())
		spec.CallerOwnsFiles = c.allow
		if c.overlay {
			b.overlaid(t, &spec)
		}
		worktest.RefusedOwner(t, b.backend, spec, c.says)
	}
	b.workspace = filepath.Join(dir, "anothers")
	spec := b.spec(t, newSession())
	spec.CallerOwnsFiles = true
	sb = b.create(t, spec)
	if a := sb.Attestation(); !slices.ContainsFunc(a.Lost, func(l string) bool { return strings.Contains(l, "belong to uid 1000") }) {
		t.Errorf("%+v", a)
	}
	if _, exit := worktest.Shell(t, sb, "echo x >/workspace/accepted"); !exit.Status.Success() {
		t.Errorf("%v", exit.Status)
	}
	worktest.Owner(t, filepath.Join(b.workspace, "accepted"), memberID, memberID)

	must(t, os.RemoveAll(filepath.Join(b.state, "layers"))) // of what was refused
	over := b.spec(t, newSession())
	over.CallerOwnsFiles = true
	b.overlaid(t, &over)
	sb = b.create(t, over)
	if _, exit := worktest.Shell(t, sb, "echo x >/workspace/over"); !exit.Status.Success() {
		t.Errorf("%v", exit.Status)
	}
	worktest.Owner(t, filepath.Join(over.Workspace.Layers, "upper", "over"), memberID, memberID)
}
