package oci

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
	t.Parallel()
	both(t, func(t *testing.T, k Kind) {
		for _, uid := range sandboxtest.Sampled(t, 0, 1000, sandbox.CommandUID, 5555) {
			t.Run(fmt.Sprint(uid), func(t *testing.T) {
				b := newBed(t, k, uid)
				worktest.Furnish(t, b.workspace, uid, uid)
				sb := b.start(t, b.spec(t, "ses_matrix"))
				if a := sb.Attestation(); !a.IDMapped || a.User != "10001:10001" {
					t.Errorf("%+v", a)
				}
				worktest.Ownership(t, worktest.Cell{Sandbox: sb, Dir: b.workspace, UID: uid, GID: uid, Thirds: true, OwnKernel: k == GVisor})
			})
		}
	})
}

func TestOwnershipOfAUser(t *testing.T) {
	t.Parallel()
	asUser(t, "TestUserOwnership", func(dir string) {
		for name, owner := range map[string]int{"own": userID, "anothers": 4242, "closed": 4242} {
			sub := filepath.Join(dir, name)
			must(t, os.Mkdir(sub, 0o755))
			must(t, os.Chown(sub, owner, owner))
			worktest.Furnish(t, sub, owner, owner)
			if name == "anothers" {
				must(t, os.Chmod(sub, 0o777))
			}
		}
	})
}

// TestUserOwnership is run by TestOwnershipOfAUser as another user.
func TestUserOwnership(t *testing.T) {
	dir := os.Getenv(userHelper)
	if dir == "" {
		return // nothing to do on its own
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		b.workspace = filepath.Join(dir, "own")
		sb := b.start(t, b.spec(t, "ses_own"))
		if a := sb.Attestation(); a.IDMapped || k == Runc && !slices.ContainsFunc(a.Lost, func(l string) bool { return strings.Contains(l, "share one user") }) {
			t.Errorf("%+v", a)
		}
		worktest.Ownership(t, worktest.Cell{Sandbox: sb, Dir: b.workspace, UID: os.Geteuid(), GID: os.Getegid(), Thirds: true, NoSetgid: k == GVisor})
		for _, c := range []struct {
			sub   string
			allow bool
			says  string
		}{
			{"anothers", false, "let new files belong to the caller"},
			{"closed", false, "let new files belong to the caller"},
			{"closed", true, "can't write to it"},
		} {
			b.workspace = filepath.Join(dir, c.sub)
			spec := b.spec(t, "ses_refused")
			spec.CallerOwnsFiles = c.allow
			worktest.RefusedOwner(t, b.backend, spec, c.says)
		}
		b.workspace = filepath.Join(dir, "anothers")
		spec := b.spec(t, "ses_accepted")
		spec.CallerOwnsFiles = true
		sb = b.start(t, spec)
		if a := sb.Attestation(); !slices.ContainsFunc(a.Lost, func(l string) bool { return strings.Contains(l, "belong to uid 1000") }) {
			t.Errorf("%+v", a)
		}
		if _, exit := worktest.Shell(t, sb, "echo x >/workspace/accepted"); !exit.Status.Success() {
			t.Errorf("%v", exit.Status)
		}
		worktest.Owner(t, filepath.Join(b.workspace, "accepted"), os.Geteuid(), os.Getegid())
	})
}
