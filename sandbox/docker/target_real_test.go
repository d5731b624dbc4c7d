package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// If the workspace's target is a symlink in an engine's image, nothing starts,
// and no mount point is made in the workspace.
func TestEngineImageTarget(t *testing.T) {
	b := newBed(t, os.Geteuid())
	_, name := importImage(t, treeTar(t, func(root string) error {
		err := errors.Join(os.MkdirAll(filepath.Join(root, "srv/real"), 0o755), os.WriteFile(filepath.Join(root, "srv/real/of-the-image"), nil, 0o644))
		for link, target := range map[string]string{
			"to-etc": "/etc", "to-own": "/.caisson", "to-proc": "/proc/1/root", "to-home": "home", "up": "../../..", "srv/link": "real",
		} {
			err = errors.Join(err, os.Symlink(target, filepath.Join(root, link)))
		}
		return err
	}))
	create := func(target string) (sandbox.Sandbox, string, error) {
		spec := b.spec(t, newSession())
		spec.Image = images.Reference{Scheme: images.SchemeName, Value: name}
		spec.Workspace.Target = target
		s, err := b.backend.Create(t.Context(), spec)
		return s, spec.Session, err
	}
	for _, target := range []string{"/to-etc", "/to-own", "/to-proc", "/to-home", "/up", "/up/x", "/srv/link", "/srv/link/x", "/to-etc/sub/x", "/srv/real/of-the-image", "/srv/real/of-the-image/x"} {
		s, session, err := create(target)
		if err == nil {
			must(t, s.Destroy(t.Context()))
			t.Errorf("%s: a sandbox started", target)
			continue
		}
		if !errors.Is(err, sandbox.ErrUnsupported) && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v, want a refusal", target, err)
		}
		b.nothingLeft(t, session)
		entries, err := os.ReadDir(b.workspace)
		must(t, err)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".git") {
				t.Errorf("%s: %s was made in the workspace", target, e.Name())
			}
		}
	}
	for _, target := range []string{"/srv/real", "/srv/real/sub", "/new/one"} {
		s, _, err := create(target)
		must(t, err)
		if out, exit := worktest.Shell(t, s, "pwd; echo *"); !exit.Status.Success() || !strings.HasPrefix(out, target+"\n") || strings.Contains(out, "of-the-image") {
			t.Errorf("%s: %v: %q", target, exit.Status, out)
		}
		must(t, s.Destroy(context.Background()))
	}
}
