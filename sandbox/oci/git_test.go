package oci

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

var gitCount atomic.Int32

// gitSessions makes each sandbox on a new bed's workspace.
func gitSessions(k Kind, mode string) func(t *testing.T, dir string) sandbox.Sandbox {
	return func(t *testing.T, dir string) sandbox.Sandbox {
		b := newBed(t, k, os.Geteuid())
		b.workspace = dir
		spec := b.spec(t, fmt.Sprintf("ses_git%d%s%s", gitCount.Add(1), mode, k))
		worktest.GitModes[mode](&spec)
		if spec.Workspace.Mode == sandbox.ModeOverlay {
			b.overlaid(t, &spec)
		}
		return b.start(t, spec)
	}
}

// The host's git runs nothing that a session left.
func TestHostileRepositories(t *testing.T) {
	t.Parallel()
	bothAtOnce(t, func(t *testing.T, k Kind) {
		for _, mode := range sandboxtest.Sampled(t, "ro", "commit", "overlay") {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				worktest.Hostile(t, userID, gitSessions(k, mode))
			})
		}
	})
}

// A repository in closed directories can be renamed.
func TestClosedDirectories(t *testing.T) {
	t.Parallel()
	bothAtOnce(t, func(t *testing.T, k Kind) { worktest.ClosedDirectories(t, userID, gitSessions(k, "ro")) })
}

func TestGitWork(t *testing.T) {
	t.Parallel()
	bothAtOnce(t, func(t *testing.T, k Kind) {
		for _, mode := range sandboxtest.Sampled(t, "ro", "commit", "overlay") {
			t.Run(mode, func(t *testing.T) { worktest.Git(t, userID, mode, gitSessions(k, mode)) })
		}
	})
}

// In a linked worktree git can read, but not write the repository.
func TestLinkedWorktree(t *testing.T) {
	t.Parallel()
	bothAtOnce(t, func(t *testing.T, k Kind) {
		for _, mode := range sandboxtest.Sampled(t, "ro", "overlay") {
			t.Run(mode, func(t *testing.T) { worktest.LinkedWorktree(t, userID, gitSessions(k, mode)) })
		}
	})
}
