package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeSource returns one unpacked image for every name.
type fakeSource struct {
	dir string
	env []string
	// users reports whether a name ends with the image's USER, after usersName.
	users bool
	vols  []string
	err   error
	slow  time.Duration
	held  atomic.Int32
	// hurried reports whether it got a deadline, which fetching must not have.
	hurried bool
}

func (f *fakeSource) RootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	_, f.hurried = ctx.Deadline()
	select {
	case <-time.After(f.slow):
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, nil, f.err
	}
	root, err := host.Directory(ctx, f.dir)
	if err != nil {
		return nil, nil, err
	}
	root.Reference, root.Config.Env, root.Config.Volumes = ref, f.env, f.vols
	if f.users {
		root.Config.User = strings.TrimPrefix(ref.Value, usersName)
	}
	f.held.Add(1)
	return root, func() { f.held.Add(-1) }, nil
}

const usersName = "example.com/users:"

func addUserImages(t *testing.T, b *bed) {
	t.Helper()
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	must(t, sandboxtest.WriteUserTree(root))
	must(t, os.Mkdir(filepath.Join(root, "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "bin/sh"), nil, 0o755)) // which is never run
	b.backend = b.with(t, &fakeSource{dir: root, users: true})
}

func (f *fakeSource) OwnedRootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	return f.RootFS(ctx, ref)
}

func (f *fakeSource) Resolve(context.Context, images.Reference) (images.Image, error) {
	return images.Image{}, errors.ErrUnsupported
}

func (f *fakeSource) Archive(context.Context, images.Reference, io.Writer) (string, error) {
	return "", errors.ErrUnsupported
}

var builtShell = sandboxtest.BuildOnce("sandbox/oci/testdata/shell")

// shellRoot returns a root filesystem with testdata/shell as /bin/sh and a
// directory for a VOLUME.
func shellRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"bin", "data", "home/somebody"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	must(t, os.Chmod(root, 0o755))
	must(t, os.WriteFile(filepath.Join(root, "marker"), []byte("from the directory\n"), 0o644))
	if dir := os.Getenv(userHelper); dir != "" { // root built it
		must(t, copyProgram(filepath.Join(dir, shellProgram), filepath.Join(root, "bin/sh")))
		return root
	}
	program, err := builtShell()
	must(t, err)
	must(t, sandboxtest.WriteProgram(filepath.Join(root, "bin/sh"), program))
	return root
}

func (b *bed) with(t *testing.T, s images.Source) *Backend {
	t.Helper()
	o := b.backend.options
	o.Images = s
	backend, err := New(o)
	must(t, err)
	return backend
}

var someName = images.Reference{Scheme: images.SchemeName, Value: "example.com/x:1"}

// The image's environment counts, its VOLUME is a small tmpfs, and it is
// released with the sandbox.
func TestImageOfAStore(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		source := &fakeSource{dir: shellRoot(t), env: []string{"FROM_IMAGE=yes", "HOME=/evil", "PATH=/bin"}, vols: []string{"/data", "/tmp", "/workspace"}}
		spec := b.spec(t, "ses_store")
		spec.Image = someName
		sb, err := b.with(t, source).Create(t.Context(), spec)
		must(t, err)
		defer func() { _ = sb.Destroy(context.Background()) }() // done below where it counts
		if source.hurried {
			t.Error("the start's time bounds the fetching")
		}
		if n := source.held.Load(); n != 1 {
			t.Errorf("the image is held %d times while the sandbox runs", n)
		}
		got := output(t, sb, "env")
		for _, want := range []string{"FROM_IMAGE=yes\n", "HOME=/home/agent\n", "PATH=/bin\n", "SANDBOX=caisson\n", "PWD=/workspace\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("the environment lacks %q:\n%s", want, got)
			}
		}
		if got := output(t, sb, "volume"); got != fmt.Sprintf("/data: %d bytes, <nil>\n", 16<<20) {
			t.Errorf("volume: %s", got)
		}
		if a := sb.Attestation(); a.Image != someName.String() || !strings.HasPrefix(a.ImageDigest, "sha256:") {
			t.Errorf("attested %s %s", a.Image, a.ImageDigest)
		}
		must(t, sb.Destroy(t.Context()))
		must(t, sb.Destroy(t.Context()))
		if n := source.held.Load(); n != 0 {
			t.Errorf("the image is held %d times after the end", n)
		}
		if entries, err := os.ReadDir(filepath.Join(source.dir, "data")); err != nil || len(entries) > 0 {
			t.Errorf("the VOLUME was written to disk: %v %v", entries, err)
		}
		b.nothingLeft(t, spec.Session)
	})
}

// The workspace hides what the image has at its mount point. A symlink there is
// refused. The empty /etc/hosts of an exported container is replaced.
func TestTargetInImage(t *testing.T) {
	root := shellRoot(t)
	must(t, os.Mkdir(filepath.Join(root, "app"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "app", "of-the-image"), nil, 0o644))
	must(t, os.Symlink("/etc", filepath.Join(root, "link")))
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc", "hosts"), nil, 0o644))
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, 0)
		spec := b.spec(t, "ses_target")
		spec.Image, spec.Workspace.Target = images.Reference{Scheme: images.SchemeRootFS, Value: root}, "/app"
		sb, err := b.backend.Create(t.Context(), spec)
		must(t, err)
		defer func() { _ = sb.Destroy(context.Background()) }()
		if got := sb.Attestation().Localhost; !slices.Equal(got, []string{"127.0.0.1", "::1"}) {
			t.Errorf("localhost has the addresses %v", got)
		}
		if got := output(t, sb, "env"); !strings.Contains(got, "PWD=/app\n") {
			t.Errorf("the environment has no PWD=/app:\n%s", got)
		}
		if _, err := sb.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "/app/made", Content: []byte("x")}); err != nil {
			t.Error(err)
		}
		must(t, sb.Destroy(t.Context()))
		if entries, err := os.ReadDir(filepath.Join(root, "app")); err != nil || len(entries) != 1 {
			t.Errorf("the image's directory has %v, %v", entries, err)
		}
		for _, target := range []string{"/link", "/link/sub", "/data/none"} {
			refused := b.spec(t, "ses_refused")
			refused.Image, refused.Workspace.Target = spec.Image, target
			if _, err := b.backend.Create(t.Context(), refused); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", target, err)
			}
		}
		b.nothingLeft(t, spec.Session)
	})
}

// What is mounted below a directory of the image is there, read-only, in a
// container with a user namespace: the kernel refuses the directory alone.
func TestMountBelowImage(t *testing.T) {
	needRoot(t)
	both(t, func(t *testing.T, k Kind) {
		asUserWith(t, k, "TestUserMountBelow", func(dir string) {
			root := filepath.Join(dir, "image")
			must(t, os.Rename(shellRoot(t), root))
			must(t, copyProgram(filepath.Join(root, "bin/sh"), filepath.Join(dir, shellProgram)))
			mountBelow(t, root)
			if k == GVisor { // runc has no user namespace for root
				checkBelow(t, k, root)
			}
		})
	})
}

// TestUserMountBelow is run by TestMountBelowImage as another user.
func TestUserMountBelow(t *testing.T) {
	if dir := os.Getenv(userHelper); dir != "" {
		both(t, func(t *testing.T, k Kind) { checkBelow(t, k, filepath.Join(dir, "image")) })
	}
}

func mountBelow(t *testing.T, root string) {
	t.Helper()
	dir := filepath.Join(root, "opt/below")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	must(t, os.WriteFile(filepath.Join(dir, "marker"), nil, 0o666))
	must(t, os.Chmod(filepath.Join(dir, "marker"), 0o666))
}

func checkBelow(t *testing.T, k Kind, root string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(root, "opt/below/marker"), []byte("here"), 0)) // the control
	b := newBed(t, k, os.Geteuid())
	spec := b.spec(t, "ses_below")
	spec.Image = images.Reference{Scheme: images.SchemeRootFS, Value: root}
	sb := b.start(t, spec)
	if got := output(t, sb, "below"); got != "here, open /opt/below/marker: read-only file system\n" {
		t.Errorf("below the image: %q", got)
	}
	must(t, sb.Destroy(t.Context()))
}

// An error of the store keeps its class. An image that claims the sandbox's own
// paths is refused and released.
func TestImageOfAStoreFails(t *testing.T) {
	b := newBed(t, Runc, os.Geteuid())
	root := shellRoot(t)
	gone := errors.New("the user changed their mind")
	for name, tt := range map[string]struct {
		source *fakeSource
		time   time.Duration
		want   error
	}{
		"not there":             {source: &fakeSource{err: fmt.Errorf("%w: x", images.ErrNotFound)}, want: sandbox.ErrNotFound},
		"other platform":        {source: &fakeSource{err: fmt.Errorf("%w: x", images.ErrUnsupported)}, want: sandbox.ErrUnsupported},
		"no shell":              {source: &fakeSource{dir: t.TempDir()}, want: sandbox.ErrInvalid},
		"VOLUME in workspace":   {source: &fakeSource{dir: root, vols: []string{"/workspace/x"}}, want: sandbox.ErrUnsupported},
		"VOLUME over the guest": {source: &fakeSource{dir: root, vols: []string{"/.caisson/guest"}}, want: sandbox.ErrUnsupported},
		"cancelled":             {source: &fakeSource{slow: time.Minute}, time: 10 * time.Millisecond, want: gone},
	} {
		t.Run(name, func(t *testing.T) {
			spec := b.spec(t, "ses_fails")
			spec.Image = someName
			ctx := t.Context()
			if tt.time > 0 {
				limited, cancel := context.WithTimeoutCause(ctx, tt.time, gone)
				defer cancel()
				ctx = limited
			}
			if _, err := b.with(t, tt.source).Create(ctx, spec); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if n := tt.source.held.Load(); n != 0 {
				t.Errorf("the image is held %d times", n)
			}
			b.nothingLeft(t, spec.Session)
		})
	}
}
