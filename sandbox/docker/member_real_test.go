package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/volume"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// memberHelper makes the test binary run a docker group member's tests; its
// value is their directory.
const memberHelper = "CAISSON_DOCKER_MEMBER"

const memberID = 1000

// asMember runs a test of this binary as a member of the docker group. Before
// that, add puts what only root can make into the directory of that user.
func asMember(t *testing.T, test string, add func(dir string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to become another user")
	}
	needEngine(t)
	dir, err := os.MkdirTemp("", "caisson-member-") //nolint:usetesting // the directory above t.TempDir is closed to others
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chown(dir, memberID, memberID))
	for name, from := range map[string]string{"test": os.Args[0], "guest": guestPath(t), "probe": sandboxtest.BuildProbe(t)} {
		data, err := os.ReadFile(from)
		must(t, err)
		must(t, sandboxtest.WriteProgram(filepath.Join(dir, name), data))
	}
	add(dir)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.v", "-test.run=^"+test+"$")
	cmd.Dir = dir
	cmd.Env = []string{
		memberHelper + "=" + dir, "TMPDIR=" + dir, "HOME=" + dir, "PATH=" + os.Getenv("PATH"),
		"DOCKER_HOST=" + os.Getenv("DOCKER_HOST"), "REQUIRE_BACKENDS=docker", "SAMPLE=" + os.Getenv("SAMPLE"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: memberID, Gid: memberID, Groups: []uint32{socketGroup(t)}}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Errorf("as uid %d: %v", memberID, err)
	}
}

// TestMemberOfTheDockerGroup has that user's row of the overlay matrix.
func TestMemberOfTheDockerGroup(t *testing.T) {
	asMember(t, "TestMember", func(dir string) {
		for name, owner := range map[string]int{"thirds": memberID, "own": memberID, "anothers": 4242, "closed": 4242} {
			sub := filepath.Join(dir, name)
			must(t, os.Mkdir(sub, 0o755))
			must(t, os.Chown(sub, owner, owner))
			worktest.Furnish(t, sub, owner, owner)
			switch name {
			case "anothers":
				must(t, os.Chmod(sub, 0o777))
			case "own":
				must(t, os.Chmod(sub, 0o700))
			}
		}
	})
}

func TestMember(t *testing.T) {
	dir := os.Getenv(memberHelper)
	if dir == "" {
		return // nothing to do on its own
	}
	t.Run("overlay", func(t *testing.T) {
		b := newBed(t, memberID)
		worktest.Furnish(t, b.workspace, memberID, memberID)
		b.memberOverlay(t, false)
	})
	t.Run("files of others", func(t *testing.T) {
		b := newBed(t, memberID)
		b.workspace = filepath.Join(dir, "thirds")
		b.memberOverlay(t, true)
	})
	t.Run("view", func(t *testing.T) {
		b := newBed(t, memberID)
		worktest.Layout(t, b.workspace)
		spec := b.spec(t, newSession())
		b.overlaid(t, &spec)
		worktest.View(t, b.workspace, b.create(t, spec).View())
	})
	t.Run("copy", func(t *testing.T) {
		b := newBed(t, memberID)
		worktest.Run(t, b.workspace, "mkdir -p keep/deep gone opaque/in moved/sub; echo kept >keep/deep/f; echo x >gone/f; echo x >opaque/in/f; echo m >moved/sub/f; echo one >linked; ln linked linked2; ln -s a link; echo ro >readonly; chmod 444 readonly")
		spec := b.spec(t, newSession())
		layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
		sb := b.create(t, spec)
		if out, exit := worktest.Shell(t, sb, "cd /workspace; "+copyScript); !exit.Status.Success() {
			t.Fatalf("%v: %q", exit.Status, out)
		}
		must(t, sb.Collect(t.Context()))
		must(t, sb.Destroy(context.Background()))
		requireCopyChanges(t, layers, spec.Workspace.Dir, copyChanges)
	})
	t.Run("config", memberConfig)
	t.Run("ownership", func(t *testing.T) { memberOwnership(t, dir) })
	t.Run("sweep", sweepVolumeOfDead)
}

func (b *bed) memberOverlay(t *testing.T, thirds bool) {
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, newSession())
	b.overlaid(t, &spec)
	sb := b.create(t, spec)
	a := sb.Attestation()
	if want := fmt.Sprintf("%d:%d", memberID, memberID); a.WorkspaceMode != "overlay" || a.WorkspaceOwner != want || a.User != want {
		t.Errorf("%+v", a)
	}
	// The overlay has nosuid and nodev, the home doesn't, and no IDs are
	// mapped.
	if len(a.Lost) != 2 || !slices.Contains(a.Lost, workmount.LostFlags) || !slices.ContainsFunc(a.Lost, func(text string) bool { return strings.Contains(text, "another identity") }) {
		t.Errorf("lost %q", a.Lost)
	}
	cell := worktest.Cell{Sandbox: sb, Dir: b.workspace, Layers: spec.Workspace.Layers, UID: memberID, GID: memberID, Thirds: thirds}
	worktest.Overlay(t, cell)
	must(t, sb.Destroy(context.Background()))
	// The user can remove the layers, including what the engine's kernel made.
	must(t, os.Remove(filepath.Join(spec.Workspace.Layers, "work")))
	must(t, os.Mkdir(filepath.Join(spec.Workspace.Layers, "work"), 0o700))
	if _, err := sb.View().Stat(t.Context(), "made"); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("view of what is gone: %v", err)
	}
	second := b.spec(t, newSession())
	second.Workspace.Mode, second.Workspace.Layers = spec.Workspace.Mode, spec.Workspace.Layers
	cell.Sandbox = b.create(t, second)
	worktest.SeesChange(t, cell)
	must(t, cell.Sandbox.Destroy(context.Background()))
}

func memberConfig(t *testing.T) {
	b := newBed(t, memberID)
	worktest.Run(t, b.workspace, "mkdir .git .caisson; echo a >.caisson/c; echo b >.git/config")
	worktest.Unchanged(t, b.workspace)
	spec := b.spec(t, newSession())
	b.overlaid(t, &spec)
	sb := b.create(t, spec)
	if _, exit := worktest.Shell(t, sb, "echo x >/workspace/.caisson/c"); exit.Status.Success() {
		t.Error("the configuration could be written")
	}
	if _, exit := worktest.Shell(t, sb, "cd /workspace && echo x >.git/config && mv .git .git2"); !exit.Status.Success() {
		t.Errorf("the repository could not be changed: %v", exit.Status)
	}
}

func sweepVolumeOfDead(t *testing.T) {
	b := newBed(t, memberID)
	r, _, err := b.backend.connect(t.Context())
	must(t, err)
	for _, dead := range []bool{true, false} {
		session := newSession()
		id := b.backend.self
		if dead {
			id.Start++ // another process of this pid
		}
		_, err = r.createVolume(t.Context(), volume.CreateOptions{Name: volumeName(session), Driver: localDriver, Labels: id.Labels(session)})
		must(t, err)
		t.Cleanup(func() {
			_, err := removeVolume(context.Background(), r, volumeName(session), func(ownership.Identity, string) bool { return true })
			must(t, err)
		})
		_, err := b.backend.Sweep(t.Context())
		must(t, err)
		_, err = r.findVolume(t.Context(), volumeName(session))
		if gone := errors.Is(err, sandbox.ErrNotFound); gone != dead {
			t.Errorf("owner dead %v, volume gone %v: %v", dead, gone, err)
		}
	}
}
