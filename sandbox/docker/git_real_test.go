package docker

import (
	"os"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// gitSessions returns containers on repositories: a new bed's workspace each time.
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

// TestHostileRepositories: the host's git runs nothing of what a session left.
func TestHostileRepositories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
	t.Parallel()
	for mode := range worktest.GitModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			worktest.Hostile(t, memberID, gitSessions(mode))
		})
	}
}

// TestClosedDirectories: a repository in directories that are closed can be renamed.
func TestClosedDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
	t.Parallel()
	worktest.ClosedDirectories(t, memberID, gitSessions("ro"))
}

// TestGitWork: ordinary work in a repository where committing is allowed, and
// reading where not.
func TestGitWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
	t.Parallel()
	for mode := range worktest.GitModes {
		t.Run(mode, func(t *testing.T) { worktest.Git(t, memberID, mode, gitSessions(mode)) })
	}
}

// TestLinkedWorktree: git can read in a linked worktree, and write nothing of its
// repository.
func TestLinkedWorktree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be two users")
	}
	t.Parallel()
	for _, mode := range []string{"ro", "overlay"} {
		t.Run(mode, func(t *testing.T) { worktest.LinkedWorktree(t, memberID, gitSessions(mode)) })
	}
}
