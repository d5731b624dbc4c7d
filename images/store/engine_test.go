package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// fakeEngine has images by name, exports them, and builds with a function.
type fakeEngine struct {
	images map[string]v1.Image // by name
	saves  int
	build  func(dir string, progress io.Writer) (v1.Image, error)
	ill    error
	built  images.BuildOptions // of the last build
}

func (e *fakeEngine) ImageID(_ context.Context, name string) (string, error) {
	if e.ill != nil {
		return "", e.ill
	}
	im, ok := e.images[name]
	if !ok {
		return "", fmt.Errorf("%w: %s", images.ErrNotFound, name)
	}
	id, err := im.ConfigName()
	return id.String(), err
}

func (e *fakeEngine) Save(_ context.Context, id string) (io.ReadCloser, error) {
	e.saves++
	for _, im := range e.images {
		if c, err := im.ConfigName(); err == nil && c.String() == id {
			r, w := io.Pipe()
			go func() {
				ref, err := name.NewTag("x:1")
				if err == nil {
					err = tarball.Write(ref, im, w)
				}
				w.CloseWithError(err)
			}()
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", images.ErrNotFound, id)
}

func (e *fakeEngine) Build(_ context.Context, dir string, o images.BuildOptions) (string, error) {
	e.built = o
	im, err := e.build(dir, o.Progress)
	if err != nil {
		return "", err
	}
	e.images["built"] = im
	id, err := im.ConfigName()
	return id.String(), err
}

func TestEngine(t *testing.T) {
	local, remote := simple(t, imagetest.File("which", "local")), simple(t, imagetest.File("which", "remote"))
	_, id := digests(t, local)
	reg := newRegistry(t)
	reg.push(t, "x:1", remote)
	ref := reg.ref(t, "x:1")
	e := &fakeEngine{images: map[string]v1.Image{ref.Value: local, id: local}}
	s := openStore(t, storeDir(t), func(o *Options) { o.Engine = e })

	root, release := rootfs(t, s, ref)
	release()
	if read(t, root, "which") != "local" || root.Digest != id {
		t.Errorf("the engine's image is %s with the digest %s, want %s", read(t, root, "which"), root.Digest, id)
	}
	again, release := rootfs(t, s, ref)
	release()
	byID, release := rootfs(t, s, mustParse(t, id))
	release()
	if again.Dir != root.Dir || byID.Dir != root.Dir || e.saves != 2 {
		t.Errorf("saved %d times, want once a reference", e.saves)
	}
	// The user builds it again, so that the name means the engine's image.
	newer := simple(t, imagetest.File("which", "newer"))
	e.images[ref.Value] = newer
	changed, release := rootfs(t, s, ref)
	release()
	if read(t, changed, "which") != "newer" {
		t.Error("the engine's new image was not taken")
	}
	delete(e.images, ref.Value)
	pulled, release := rootfs(t, s, ref)
	release()
	if read(t, pulled, "which") != "remote" {
		t.Error("what the engine lacks was not pulled")
	}
	if done, err := s.Remove(t.Context(), ref); err != nil || len(done.Images) != 2 {
		t.Errorf("remove: %+v, %v", done, err)
	}
	if _, _, err := s.RootFS(t.Context(), mustParse(t, "sha256:"+strings.Repeat("0", 64))); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("an unknown id: %v", err)
	}
	e.ill = errBrokenLine
	if _, _, err := s.RootFS(t.Context(), ref); !errors.Is(err, errBrokenLine) {
		t.Errorf("an engine that is ill: %v", err)
	}
	noHalves(t, s)
}

// An engine exports an image once, for whichever of its trees comes first.
func TestEngineSavesOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of other owners")
	}
	im := simple(t, imagetest.File("which", "local"))
	e := &fakeEngine{images: map[string]v1.Image{"x:1": im}}
	s := openStore(t, storeDir(t), func(o *Options) { o.Engine = e })
	ref := mustParse(t, "x:1")
	for range 3 {
		_, release, err := s.OwnedRootFS(t.Context(), ref)
		must(t, err)
		release()
	}
	if e.saves != 1 {
		t.Errorf("exported %d times for one tree", e.saves)
	}
	for range 2 {
		root, release := rootfs(t, s, ref)
		if read(t, root, "which") != "local" {
			t.Error("the other tree is not the image")
		}
		release()
	}
	if e.saves != 2 {
		t.Errorf("exported %d times for two trees", e.saves)
	}
	noHalves(t, s)
}

func TestBuildByEngine(t *testing.T) {
	dir := t.TempDir()
	var said []string
	e := &fakeEngine{images: map[string]v1.Image{}}
	e.build = func(got string, progress io.Writer) (v1.Image, error) {
		if got != dir {
			return nil, fmt.Errorf("%w: directory %s", images.ErrInvalid, got)
		}
		io.WriteString(progress, "Step 1/2 : FROM x\nSte")
		io.WriteString(progress, "p 2/2 : RUN true\n")
		data, err := os.ReadFile(filepath.Join(dir, "Dockerfile"))
		return simple(t, imagetest.File("which", string(data))), err
	}
	s := openStore(t, storeDir(t), func(o *Options) {
		o.Engine = e
		o.Progress = func(p Progress) {
			if p.Phase == PhaseBuild {
				said = append(said, p.Text)
			}
		}
	})
	ref := mustParse(t, "build:"+dir)
	for _, text := range []string{"FROM one", "FROM two"} {
		must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o600))
		root, release := rootfs(t, s, ref)
		release()
		if got := read(t, root, "which"); got != text {
			t.Errorf("built %q, want %q", got, text)
		}
	}
	if diff := cmp.Diff([]string{"Step 1/2 : FROM x", "Step 2/2 : RUN true"}, said[:2]); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if _, _, err := s.RootFS(t.Context(), mustParse(t, "build:"+dir+"/absent")); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
}

// TestBuildOutside runs programs that take real builders' arguments and write a
// docker archive.
func TestBuildOutside(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	prepared := save(t, map[string]v1.Image{"x:1": simple(t, imagetest.File("which", "built"))})
	script := func(name, text string) string {
		p := filepath.Join(bin, name)
		syscall.ForkLock.RLock() // a process that is started meanwhile would keep it open: ETXTBSY
		err := os.WriteFile(p, []byte("#!/bin/sh\nset -eu\n"+text), 0o700)
		syscall.ForkLock.RUnlock()
		must(t, err)
		return p
	}
	buildctl := script("buildctl", `echo "$*" > `+bin+`/args; env > `+bin+`/env
for a; do case $a in type=docker,dest=*) cp `+prepared+` "${a#type=docker,dest=}";; esac; done; echo done`)
	buildah := script("buildah", `echo "$*" >> `+bin+`/args
case $1 in
build) while [ "$1" != --iidfile ]; do shift; done; echo sha256:abc > "$2";;
push) [ "$2" = sha256:abc ]; cp `+prepared+` "${3#docker-archive:}";;
esac`)
	failing := script("failing", `echo 'no such instruction: FORM' >&2; exit 1`)
	write := func(text string) {
		must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o600))
	}
	write("FROM a\nADD b /c\n")
	slow := script("slow", `echo started; exec sleep 60`)
	ref := mustParse(t, "build:"+dir)
	try := func(change func(o *Options)) (string, error) {
		s := openStore(t, storeDir(t), change, func(o *Options) { o.BuilderEnv = []string{"PATH=" + os.Getenv("PATH"), "ONLY=this"} })
		root, release, err := s.RootFS(t.Context(), ref)
		noHalves(t, s)
		if err != nil {
			return "", err
		}
		defer release()
		return read(t, root, "which"), nil
	}
	for _, tt := range []struct {
		change func(o *Options)
		args   []string
	}{
		{func(o *Options) { o.Buildctl = buildctl }, []string{"context=" + dir, "dockerfile=/", "platform=linux/amd64", "force-network-mode=none"}},
		{func(o *Options) { o.Buildah = buildah }, []string{"--network none", "--platform linux/amd64", "/Dockerfile " + dir, "push sha256:abc docker-archive:"}},
	} {
		os.Remove(filepath.Join(bin, "args"))
		if got, err := try(tt.change); err != nil || got != "built" {
			t.Errorf("built %q, %v", got, err)
		}
		args, err := os.ReadFile(filepath.Join(bin, "args"))
		must(t, err)
		for _, want := range tt.args {
			if !strings.Contains(string(args), want) {
				t.Errorf("the arguments lack %s: %s", want, args)
			}
		}
	}
	for _, text := range []string{"FROM a\nADD http://h/f /f\n", "# syntax=b\nFROM a\n"} { // control: the builders above started
		write(text)
		for _, change := range []func(o *Options){func(o *Options) { o.Buildctl = buildctl }, func(o *Options) { o.Buildah = buildah }} {
			os.Remove(filepath.Join(bin, "args"))
			if _, err := try(change); !errors.Is(err, images.ErrUnsupported) {
				t.Errorf("%q: %v", text, err)
			}
			if _, err := os.Stat(filepath.Join(bin, "args")); err == nil {
				t.Errorf("%q: the builder was started", text)
			}
		}
	}
	write("FROM a\n")
	env, err := os.ReadFile(filepath.Join(bin, "env"))
	if err != nil || !strings.Contains(string(env), "ONLY=this") || strings.Contains(string(env), "HOME=") {
		t.Errorf("the builder's environment: %s, %v", env, err)
	}
	if _, err := try(func(*Options) {}); !errors.Is(err, images.ErrUnsupported) || !strings.Contains(err.Error(), "buildah") {
		t.Errorf("no builder: %v", err)
	}
	if _, err := try(func(o *Options) { o.Buildctl = failing }); !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), "no such instruction") {
		t.Errorf("a build that fails: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := openStore(t, storeDir(t), func(o *Options) {
		o.Buildctl = slow
		o.BuilderEnv = []string{"PATH=" + os.Getenv("PATH")}
		o.Progress = func(p Progress) {
			if p.Phase == PhaseBuild {
				cancel(errBrokenLine)
			}
		}
	})
	if _, _, err := s.RootFS(ctx, ref); !errors.Is(err, errBrokenLine) {
		t.Errorf("a build that is cancelled: %v", err)
	}
	noHalves(t, s)
}

// Only an engine builds with a network.
func TestBuildNetworkNeedsEngine(t *testing.T) {
	dir := t.TempDir()
	open := func(context.Context, string) (*images.BuildNetwork, error) { return nil, nil }
	s := openStore(t, storeDir(t), func(o *Options) { o.Buildah, o.BuildNetwork = "/no/such/buildah", open })
	if _, err := s.Resolve(t.Context(), mustParse(t, "build:"+dir)); !errors.Is(err, images.ErrUnsupported) {
		t.Errorf("without an engine: %v", err)
	}
	e := &fakeEngine{images: map[string]v1.Image{}, build: func(string, io.Writer) (v1.Image, error) { return simple(t), nil }}
	s = openStore(t, storeDir(t), func(o *Options) { o.Engine, o.BuildNetwork = e, open })
	if _, err := s.Resolve(t.Context(), mustParse(t, "build:"+dir)); err != nil || e.built.Network == nil {
		t.Errorf("with an engine: %v, %+v", err, e.built)
	}
}
