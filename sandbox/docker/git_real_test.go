package docker

import (
	"os"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// gitSessions makes each container on a new bed's workspace.
func gitSessions(mode string) func(t *testing.T, dir string) sandbox.Sandbox {
	return func(t *testing.T, dir string) sandbox.Sandbox {
		b := newBed(t, os.Geteuid())
		b.workspace = dir
		spec := b.spec(t, newSession())
		worktest.GitModes[mode](&spec)
		if spec.Workspace.Mode == sandbox.ModeOverlay {
			b.overlaid(t, &spec)
		}
		return b.create(t, spec)
	}
}

// The host's git runs nothing that a session left.
func TestHostileRepositories(t *testing.T) {
	t.Parallel()
	for _, mode := range sandboxtest.Sampled(t, "ro", "commit", "overlay") {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			worktest.Hostile(t, memberID, gitSessions(mode))
		})
	}
}

// A repository in closed directories can be renamed.
func TestClosedDirectories(t *testing.T) {
	t.Parallel()
	worktest.ClosedDirectories(t, memberID, gitSessions("ro"))
}

func TestGitWork(t *testing.T) {
	t.Parallel()
	for _, mode := range sandboxtest.Sampled(t, "ro", "commit", "overlay") {
		t.Run(mode, func(t *testing.T) { worktest.Git(t, memberID, mode, gitSessions(mode)) })
	}
}

// In a linked worktree git can read, but not write the repository.
func TestLinkedWorktree(t *testing.T) {
	t.Parallel()
	for _, mode := range sandboxtest.Sampled(t, "ro", "overlay") {
		t.Run(mode, func(t *testing.T) { worktest.LinkedWorktree(t, memberID, gitSessions(mode)) })
	}
}
