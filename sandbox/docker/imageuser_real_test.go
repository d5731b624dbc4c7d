package docker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// imageUserScript writes as the image's user where the workspace's owner may,
// and to the image. closedScript tries to use another user's file that is
// closed to others.
const (
	imageUserScript = `cd /workspace; while read -r key id rest; do case $key in Uid:|Gid:) echo $id;; esac; done </proc/self/status
	(echo more >>mine; echo new >made) || exit 6; (echo x >/marker) && exit 7; `
	closedScript = "(read x <roots) && exit 8; (echo x >>roots) && exit 9; "
)

// TestImageUserKeepsChanges runs the image's user where commands change layers
// and not the directory, with runc and with gVisor as the engine's runtime.
// That user owns the files of the workspace's owner, who owns what it makes. In
// a copy, which has no owners, all files are the commands'.
func TestImageUserKeepsChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: workspaces of several owners")
	}
	t.Parallel()
	e := privateengine.New(t, "--add-runtime", "runsc="+findRunsc(t))
	_, name := importImageInto(t, e.Host(), treeTar(t, sandboxtest.WriteUserTree), "USER member")
	for _, runtime := range sandboxtest.Sampled(t, "runsc", "runc") {
		for _, mode := range []sandbox.WorkspaceMode{sandbox.ModeOverlay, sandbox.ModeCopy} {
			for owner, uid := range map[string]int{"root's": 0, "a user's": 1000, "the image user's": 2345} {
				t.Run(runtime+" "+string(mode)+" "+owner, func(t *testing.T) {
					b := privateBed(t, e, Options{Runtime: runtime, Logger: zap.NewNop()})
					must(t, os.WriteFile(filepath.Join(b.workspace, "mine"), []byte("mine\n"), 0o644))
					must(t, os.Chown(filepath.Join(b.workspace, "mine"), uid, uid))
					must(t, os.Chown(b.workspace, uid, uid))
					roots := filepath.Join(b.workspace, "roots")
					must(t, os.WriteFile(roots, []byte("secret\n"), 0o600))
					must(t, os.Chown(roots, 4242, 4242)) // whose files are not the owner's either
					session := newSession()
					spec := b.spec(t, session)
					spec.User, spec.Image = sandbox.UserImage, images.Reference{Scheme: images.SchemeName, Value: name}
					layers := worktest.CreateLayers(t, &spec, sandbox.ModeCopy, b.state)
					spec.Workspace.Mode = mode
					sb, err := b.backend.Create(t.Context(), spec)
					must(t, err)
					if a := sb.Attestation(); a.WorkspaceMode != string(mode) || a.User != "2345:2346" || len(a.Capabilities) > 0 {
						t.Errorf("%+v", a)
					}
					script := imageUserScript
					if mode == sandbox.ModeOverlay {
						script += closedScript
					}
					out, exit := worktest.Shell(t, sb, script+"echo done")
					if !exit.Status.Success() || !strings.HasPrefix(out, "2345\n2346\n") || !strings.HasSuffix(out, "done\n") {
						t.Errorf("%v: %q", exit.Status, out)
					}
					if mode == sandbox.ModeCopy {
						must(t, sb.Collect(t.Context()))
					}
					must(t, sb.Destroy(context.Background()))
					b.nothingLeft(t, session)
					requireCopyChanges(t, layers, spec.Workspace.Dir, []string{"modified mine", "added made"})
					for _, made := range []string{"mine", "made"} {
						if mode == sandbox.ModeCopy {
							break
						}
						info, err := os.Lstat(filepath.Join(spec.Workspace.Layers, "upper", made))
						must(t, err)
						if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid {
							t.Errorf("%s belongs to %d, want %d", made, st.Uid, uid)
						}
					}
				})
			}
		}
	}
}
