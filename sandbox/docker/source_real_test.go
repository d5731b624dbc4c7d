package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// shellSource is a store with one image, of this machine's shell.
type shellSource struct {
	dir   string // unpacked
	image v1.Image
	held  int
	sent  int // how often the whole image was written
	err   error
}

// newShellSource makes an image with a VOLUME, /data. It differs each time, so
// that no engine has it already.
func newShellSource(t *testing.T) *shellSource {
	t.Helper()
	s := &shellSource{dir: t.TempDir()}
	must(t, os.Chmod(s.dir, 0o755))
	content := shellTar(t)
	unpack(t, content, s.dir)
	must(t, os.Mkdir(filepath.Join(s.dir, "data"), 0o755))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	must(t, err)
	s.image, err = mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	s.image, err = mutate.ConfigFile(s.image, configured(t, s.image, newSession()))
	must(t, err)
	return s
}

func configured(t *testing.T, i v1.Image, unique string) *v1.ConfigFile {
	t.Helper()
	config, err := i.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Author = "linux", "amd64", unique
	config.Config = v1.Config{
		Env: []string{"TOOL=of-the-image"}, Volumes: map[string]struct{}{"/data": {}}, User: "nobody",
		Entrypoint: []string{"/bin/false"}, Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/false"}, Interval: time.Second},
	}
	return config
}

func (s *shellSource) id(t testing.TB) string {
	t.Helper()
	hash, err := s.image.ConfigName()
	must(t, err)
	return hash.String()
}

func (s *shellSource) Resolve(_ context.Context, ref images.Reference) (images.Image, error) {
	hash, err := s.image.ConfigName()
	return images.Image{Reference: ref, ID: hash.String(), Digest: "sha256:" + strings.Repeat("d", 64)}, errors.Join(s.err, err)
}

func (s *shellSource) OwnedRootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	return s.RootFS(ctx, ref)
}

func (s *shellSource) RootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	if s.err != nil {
		return nil, nil, s.err
	}
	root, err := host.Directory(ctx, s.dir)
	if err != nil {
		return nil, nil, err
	}
	root.Reference, root.Digest = ref, "sha256:"+strings.Repeat("d", 64)
	root.Config = images.Config{Env: []string{"TOOL=of-the-image"}, Volumes: []string{"/data"}}
	s.held++
	return root, func() { s.held-- }, nil
}

func (s *shellSource) Archive(_ context.Context, _ images.Reference, w io.Writer) (string, error) {
	if s.err != nil {
		return "", s.err
	}
	hash, err := s.image.ConfigName()
	if err != nil {
		return "", err
	}
	ref, err := name.NewDigest("caisson-test/none@" + hash.String())
	if err != nil {
		return "", err
	}
	s.sent++
	return hash.String(), tarball.Write(ref, s.image, w)
}

func unpack(t *testing.T, content []byte, dir string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(content))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path := filepath.Join(dir, h.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		data, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o755))
	}
}

// overTCP returns an address at which the engine counts as another machine's.
func overTCP(t *testing.T) string {
	t.Helper()
	e, err := resolveEndpoint("", os.Getenv)
	must(t, err)
	if !e.isLocal() {
		t.Skip("needs an engine on this machine")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(conn, strings.TrimPrefix(e.host, "unix://"))
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return "tcp://" + listener.Addr().String()
}

func relay(conn net.Conn, socket string) {
	defer conn.Close()
	engine, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer engine.Close()
	up := make(chan struct{})
	go func() {
		io.Copy(engine, conn)
		engine.(*net.UnixConn).CloseWrite()
		close(up)
	}()
	io.Copy(conn, engine)
	conn.(*net.TCPConn).CloseWrite()
	conn.Close()
	<-up
}

// engineState returns what must be the same before and after: volumes, images
// without a name, and the number of images.
func engineState(t *testing.T, c *client.Client) []string {
	t.Helper()
	state := []string{fmt.Sprintf("%d volumes", volumes(t, c))}
	list, err := c.ImageList(t.Context(), image.ListOptions{Filters: filters.NewArgs(filters.Arg("dangling", "true"))})
	must(t, err)
	for _, i := range list {
		if _, ok := i.Labels["io.caisson.skeleton"]; ok {
			continue // of a test beside this one, which had to make it at the same moment
		}
		state = append(state, "dangling "+i.ID)
	}
	slices.Sort(state)
	return state
}

func testClient(t *testing.T) *client.Client {
	t.Helper()
	needEngine(t)
	e, err := resolveEndpoint("", os.Getenv)
	must(t, err)
	r, err := dialEngine(t.Context(), e, defaultDeadlines())
	must(t, err)
	t.Cleanup(func() { r.engine.Close() })
	return r.engine.(*client.Client)
}

// A store's image is bound from its directories if the engine shares them, and
// loaded into the engine otherwise. It runs the same.
func TestImageOfAStore(t *testing.T) {
	c := testClient(t)
	for name, host := range map[string]string{"here": "", "elsewhere": overTCP(t)} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, os.Geteuid())
			source := newShellSource(t)
			backend := b.open(t, Options{Host: host, Images: source})
			spec := b.spec(t, newSession())
			spec.Image = images.Reference{Scheme: images.SchemeName, Value: "caisson-test/not-on-the-engine:1"}
			before := engineState(t, c)
			s, err := backend.Create(t.Context(), spec)
			must(t, err)
			defer s.Destroy(context.Background())
			out, exit := worktest.Shell(t, s, `echo "$TOOL"; echo x >/data/file && echo volume; echo x >/bin/x || echo read-only; echo x >file && echo workspace`)
			if want := "of-the-image\nvolume\nread-only\nworkspace\n"; out != want || !exit.Status.Success() {
				t.Errorf("%v: %q, want %q", exit.Status, out, want)
			}
			a := s.Attestation()
			if a.Image != spec.Image.Value || a.ImageDigest != "sha256:"+strings.Repeat("d", 64) {
				t.Errorf("attested %s %s", a.Image, a.ImageDigest)
			}
			if diff := cmp.Diff(before, engineState(t, c)); diff != "" {
				t.Errorf("the engine while it runs (-before +now):\n%s", diff)
			}
			if want := map[string]int{"here": 1, "elsewhere": 0}[name]; source.held != want {
				t.Errorf("the image is held %d times, want %d", source.held, want)
			}
			must(t, s.Destroy(t.Context()))
			b.nothingLeft(t, spec.Session)
			if source.held != 0 {
				t.Errorf("the image is held %d times after the end", source.held)
			}
			if diff := cmp.Diff(before, engineState(t, c)); diff != "" {
				t.Errorf("the engine afterwards (-before +now):\n%s", diff)
			}
			if name == "elsewhere" {
				again := b.spec(t, newSession())
				again.Image = spec.Image
				s, err := backend.Create(t.Context(), again)
				must(t, err)
				must(t, s.Destroy(t.Context()))
				if source.sent != 1 {
					t.Errorf("two starts sent the image %d times", source.sent)
				}
				loadedIsTracked(t, c, backend, source.id(t))
				if diff := cmp.Diff(before, engineState(t, c)); diff != "" {
					t.Errorf("the engine at the end (-before +now):\n%s", diff)
				}
			}
		})
	}
}

// loadedIsTracked checks that a loaded image has a name, is kept while it is
// young, and is removed when it is old.
func loadedIsTracked(t *testing.T, c *client.Client, b *Backend, id string) {
	t.Helper()
	tag := loadedTag(id)
	found, err := c.ImageInspect(t.Context(), tag)
	must(t, err)
	if diff := cmp.Diff([]string{tag}, found.RepoTags); diff != "" {
		t.Errorf("the loaded image's names (-want +got):\n%s", diff)
	}
	_, err = pruneImages(t.Context(), b.remote, time.Hour)
	must(t, err)
	if _, err := c.ImageInspect(t.Context(), tag); err != nil {
		t.Errorf("a young image is gone: %v", err)
	}
	gone, err := b.remote.removeImage(t.Context(), tag, true)
	must(t, err)
	if _, err := c.ImageInspect(t.Context(), found.ID); err == nil || !gone {
		t.Errorf("the image is left: %v", gone)
	}
}

func TestImageOfAStoreFails(t *testing.T) {
	for name, host := range map[string]string{"here": "", "elsewhere": overTCP(t)} {
		for _, tt := range []struct{ give, want error }{
			{images.ErrNotFound, sandbox.ErrNotFound}, {images.ErrUnreachable, sandbox.ErrUnavailable}, {images.ErrRefused, sandbox.ErrInvalid},
		} {
			b := newBed(t, os.Geteuid())
			source := newShellSource(t)
			source.err = tt.give
			spec := b.spec(t, newSession())
			spec.Image = images.Reference{Scheme: images.SchemeArchive, Value: "/srv/x.tar"}
			if _, err := b.open(t, Options{Host: host, Images: source}).Create(t.Context(), spec); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
			b.nothingLeft(t, spec.Session)
		}
	}
}

// A sandbox refuses images that commands can't run on.
func TestEngineImageThatCannotRun(t *testing.T) {
	b := newBed(t, os.Geteuid())
	var empty bytes.Buffer
	w := tar.NewWriter(&empty)
	must(t, w.WriteHeader(&tar.Header{Name: "only", Mode: 0o644, Typeflag: tar.TypeReg}))
	must(t, w.Close())
	for _, tt := range []struct {
		name    string
		content []byte
		change  string
		says    string
	}{
		{"no shell", empty.Bytes(), "CMD x", "/bin/sh"},
		{"a VOLUME in the workspace", shellTar(t), "VOLUME /workspace/x", "/workspace/x"},
		{"a VOLUME over the guest", shellTar(t), "VOLUME /.caisson/guest", "/.caisson/guest"},
	} {
		c, name := importImage(t, tt.content, tt.change)
		before := engineState(t, c)
		spec := b.spec(t, newSession())
		spec.Image = images.Reference{Scheme: images.SchemeName, Value: name}
		if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want one that says %q", tt.name, err, tt.says)
		}
		b.nothingLeft(t, spec.Session)
		if diff := cmp.Diff(before, engineState(t, c)); diff != "" {
			t.Errorf("%s: the engine (-before +now):\n%s", tt.name, diff)
		}
		if entries, err := os.ReadDir(b.workspace); err != nil || len(entries) > 0 {
			t.Errorf("%s: in the workspace: %v %v", tt.name, entries, err)
		}
	}
}

// Users who import the same skeleton at once leave one. One that lost its name
// while a container ran on it goes with the next import.
func TestSkeletonsThatMeet(t *testing.T) {
	c := testClient(t)
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	unpack(t, shellTar(t), root)
	must(t, os.Symlink("bin", filepath.Join(root, strings.ToLower(newSession())))) // a skeleton of its own
	source, err := host.Directory(t.Context(), root)
	must(t, err)
	var group errgroup.Group
	for range 4 {
		b := newBed(t, os.Geteuid()) // each has its own lock
		group.Go(func() error {
			r, _, err := b.backend.connect(t.Context())
			if err != nil {
				return err
			}
			made, err := b.backend.skeletonImage(t.Context(), r, source)
			if err != nil {
				return err
			}
			_, err = r.findImage(t.Context(), made.id)
			return err
		})
	}
	// A start notices if another import has replaced its skeleton.
	if err := group.Wait(); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		t.Fatal(err)
	}
	b := newBed(t, os.Geteuid())
	r, _, err := b.backend.connect(t.Context())
	must(t, err)
	made, err := b.backend.skeletonImage(t.Context(), r, source)
	must(t, err)
	found, err := r.findImage(t.Context(), made.id)
	must(t, err)
	hash := found.Config.Labels[labelSkeleton]
	_, err = pruneSkeletons(t.Context(), r, skeletonTime)
	must(t, err)
	list, err := c.ImageList(t.Context(), image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelSkeleton+"="+hash))})
	must(t, err)
	if len(list) != 1 || list[0].ID != made.id {
		t.Errorf("%d images of one skeleton", len(list))
	}
	_, err = r.removeImage(t.Context(), skeletonName+":"+hash, true)
	must(t, err)
}
