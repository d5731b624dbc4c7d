package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	target := b.target()
	_, writable := importImage(t, treeTar(t, sandboxtest.WriteOpenTree))
	target.UserImage = userImages(t, "")
	target.UserImageRefused = os.Geteuid() != 0
	target.WritableImage = images.Reference{Scheme: images.SchemeName, Value: writable}
	if dir := os.Getenv(memberHelper); dir != "" {
		target.Probe, target.Brief, target.SameInside = filepath.Join(dir, "probe"), true, true
		target.Pause = nil // root's run has waited for it
	}
	sandboxtest.Run(t, target)
}

// TestConformanceCopy runs the suite on copies of the workspace.
func TestConformanceCopy(t *testing.T) {
	t.Parallel()
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	target := b.target()
	target.OnCopies, target.Brief, target.SameInside = true, true, true
	sandboxtest.Run(t, target)
}

// TestFaultsOfCopies shows that the check of copies can fail. runc's tests show
// it for the others.
func TestFaultsOfCopies(t *testing.T) {
	t.Parallel()
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	sandboxtest.RunFaults(t, b.target(), "a copy comes back as its changes")
}

// userImages returns images with a USER. An empty one gives the environment's.
func userImages(t *testing.T, host string) func(user string) images.Reference {
	users := treeTar(t, sandboxtest.WriteUserTree)
	return func(user string) images.Reference {
		var changes []string
		if user != "" {
			changes = []string{"USER " + user}
		}
		_, name := importImageInto(t, host, users, changes...)
		return images.Reference{Scheme: images.SchemeName, Value: name}
	}
}

// treeTar returns a root filesystem with this machine's shell and what write
// adds.
func treeTar(t *testing.T, write func(root string) error) []byte {
	t.Helper()
	root := t.TempDir()
	unpack(t, shellTar(t), root)
	must(t, write(root))
	var mine, buffer bytes.Buffer
	w := tar.NewWriter(&mine)
	must(t, w.AddFS(os.DirFS(root)))
	must(t, w.Close())
	w = tar.NewWriter(&buffer)
	for r := tar.NewReader(&mine); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		h.Uname, h.Gname = "", ""
		if os.Geteuid() != 0 { // as in images, whoever runs the test
			h.Uid, h.Gid = 0, 0
		}
		must(t, w.WriteHeader(h))
		_, err = io.Copy(w, r)
		must(t, err)
	}
	must(t, w.Close())
	return buffer.Bytes()
}

// TestConformanceMember runs the suite as a member of the docker group.
func TestConformanceMember(t *testing.T) {
	t.Parallel()
	asMember(t, "TestConformance", func(string) {})
}

// A hostile session must not be noticed beside it.
func TestNeighbours(t *testing.T) {
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	sandboxtest.RunNeighbours(t, b.target())
}

// TestConformanceRunsc runs the suite with gVisor as the engine's runtime.
func TestConformanceRunsc(t *testing.T) {
	t.Parallel()
	runc, err := exec.LookPath("runc")
	must(t, err)
	liar := filepath.Join(t.TempDir(), "runsc")
	must(t, sandboxtest.WriteProgram(liar, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo runsc version 1 || exec "+runc+" \"$@\"\n")))
	e := privateengine.New(t, "--add-runtime", "runsc="+findRunsc(t), "--add-runtime", "no-runsc="+runc, "--add-runtime", "liar="+liar)
	b := privateBed(t, e, Options{Runtime: "runsc", Logger: zap.NewNop()})
	target := b.target()
	_, writable := importImageInto(t, e.Host(), treeTar(t, sandboxtest.WriteOpenTree))
	target.WritableImage = images.Reference{Scheme: images.SchemeName, Value: writable}
	target.UserImage = userImages(t, e.Host())
	target.Brief, target.RootRefused, target.EgressRefused = true, false, true
	target.OwnKernel, target.SameInside = true, true
	sandboxtest.Run(t, target)
	t.Run("root needs gVisor's kernel", func(t *testing.T) {
		for name, want := range map[string]error{"runc": sandbox.ErrUnsupported, "no-runsc": sandbox.ErrUnsupported, "liar": sandbox.ErrUnavailable} {
			other := privateBed(t, e, Options{Runtime: name, Logger: zap.NewNop()})
			spec := other.spec(t, newSession())
			spec.User = sandbox.UserRoot
			s, err := other.backend.Create(t.Context(), spec)
			if err == nil {
				must(t, s.Destroy(context.Background()))
			}
			if !errors.Is(err, want) || errors.Is(want, sandbox.ErrUnavailable) && !strings.Contains(err.Error(), "would be root of the machine") {
				t.Errorf("with runtime %s: error %v, want %v", name, err, want)
			}
			other.nothingLeft(t, spec.Session)
		}
	})
}

func (b *bed) target() sandboxtest.Target {
	return sandboxtest.Target{
		RootRefused: true, NoLayeredMounts: os.Geteuid() != 0, Copies: true,
		Backend: b.backend, StateDir: b.state, Image: images.Reference{Scheme: images.SchemeHost},
		Kill: func(ctx context.Context, sb sandbox.Sandbox) error {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return err
			}
			return r.engine.ContainerRemove(ctx, sb.ID(), container.RemoveOptions{Force: true})
		},
		Pause: func(ctx context.Context, sb sandbox.Sandbox) error {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return err
			}
			return r.engine.(*client.Client).ContainerPause(ctx, sb.ID())
		},
		HostProcess: func(ctx context.Context, sb sandbox.Sandbox) (int, error) {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return 0, err
			}
			got, err := r.engine.ContainerInspect(ctx, sb.ID())
			if err != nil {
				return 0, err
			}
			return got.State.Pid, nil
		},
		Leftovers: b.leftovers,
		Programs:  []string{b.backend.options.GuestPath},
	}
}

// findRunsc looks in bin/ and on PATH.
func findRunsc(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/runsc")
	must(t, err)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if path, err = exec.LookPath("runsc"); err != nil {
		t.Skip("needs runsc: make build, or on PATH")
	}
	return path
}
