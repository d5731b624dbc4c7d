package docker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
)

func newImageEngine(t *testing.T) *ImageEngine {
	t.Helper()
	needEngine(t)
	e, err := NewImageEngine("", os.Getenv)
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// dockerfileIn returns the directory of a new Dockerfile. Its image is removed
// after the test.
func dockerfileIn(t *testing.T, e *ImageEngine, lines ...string) string {
	t.Helper()
	dir := tree(t, map[string]string{"Dockerfile": strings.Join(lines, "\n") + "\n", "file": "content\n"})
	t.Cleanup(func() {
		_, err := e.remote.removeImage(context.Background(), builtTag(dir), true)
		must(t, err)
	})
	return dir
}

func TestBuild(t *testing.T) {
	e := newImageEngine(t)
	c, base := importImage(t, shellTar(t), "CMD x")
	before := engineState(t, c)
	dir := dockerfileIn(t, e, "FROM "+base, "COPY file /file", "RUN read -r x </file; echo \"built of $x\"", "VOLUME /data", "ENV A=b")
	var said strings.Builder
	id, err := e.Build(t.Context(), dir, images.BuildOptions{Progress: &said})
	must(t, err)
	if !strings.Contains(said.String(), "built of content") || !strings.Contains(said.String(), "Step 3/") {
		t.Errorf("the builder's words: %s", said.String())
	}
	if got, err := e.ImageID(t.Context(), id); err != nil || got != id {
		t.Errorf("the image %s is %s, %v", id, got, err)
	}
	// Control: the steps are cached, so the same directory gives the same
	// image.
	if again, err := e.Build(t.Context(), dir, images.BuildOptions{}); err != nil || again != id {
		t.Errorf("built again: %s %v, want %s", again, err, id)
	}
	// Another Dockerfile takes the name, and the previous image goes.
	must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+base+"\nENV A=c\n"), 0o644))
	other, err := e.Build(t.Context(), dir, images.BuildOptions{})
	must(t, err)
	if _, err := e.ImageID(t.Context(), id); !errors.Is(err, images.ErrNotFound) || other == id {
		t.Errorf("the image before is still there: %v", err)
	}
	if diff := cmp.Diff(before, engineState(t, c)); diff != "" {
		t.Errorf("the engine (-before +now):\n%s", diff)
	}
	archive, err := e.Save(t.Context(), other)
	must(t, err)
	n, err := io.Copy(io.Discard, archive)
	if err := errors.Join(err, archive.Close()); err != nil || n < 10_000 {
		t.Errorf("the archive has %d bytes: %v", n, err)
	}
}

// RUN has no network. As the control, the same step sees an interface with the
// engine's default.
func TestBuildHasNoNetwork(t *testing.T) {
	e := newImageEngine(t)
	_, base := importImage(t, shellTar(t), "CMD x")
	dir := dockerfileIn(t, e, "FROM "+base, `RUN n=0; while read -r line; do n=$((n+1)); done </proc/net/dev; echo "interfaces: $((n-2))"`)
	var said strings.Builder
	_, err := e.Build(t.Context(), dir, images.BuildOptions{Progress: &said})
	must(t, err)
	if !strings.Contains(said.String(), "interfaces: 1\n") {
		t.Errorf("not loopback alone:\n%s", said.String())
	}
}

func TestBuildThatFails(t *testing.T) {
	e := newImageEngine(t)
	c, base := importImage(t, shellTar(t), "CMD x")
	containers := func() int {
		list, err := c.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("ancestor", base))})
		must(t, err)
		return len(list)
	}
	before := engineState(t, c)
	for name, tt := range map[string]struct {
		lines []string
		says  string
	}{
		"a command":     {[]string{"FROM " + base, "COPY file /one", "ENV A=" + newSession(), "RUN exit 7"}, "7"},
		"a syntax":      {[]string{"FROM " + base, "NONSENSE"}, "NONSENSE"},
		"a lost file":   {[]string{"FROM " + base, "COPY absent /x"}, "absent"},
		"an escape":     {[]string{"FROM " + base, "COPY ../../etc/passwd /x"}, "passwd"},
		"a lost base":   {[]string{"FROM localhost:1/caisson-test/absent:1"}, "localhost:1"},
		"an empty file": {nil, "no instructions"},
	} {
		dir := dockerfileIn(t, e, tt.lines...)
		_, err := e.Build(t.Context(), dir, images.BuildOptions{})
		if !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", name, err, tt.says)
		}
	}
	if diff := cmp.Diff(before, engineState(t, c)); diff != "" || containers() > 0 {
		t.Errorf("the engine (-before +now), with %d containers:\n%s", containers(), diff)
	}
}

// A cancelled build leaves nothing.
func TestBuildCancelled(t *testing.T) {
	e := newImageEngine(t)
	c, base := importImage(t, shellTar(t), "CMD x")
	before := engineState(t, c)
	dir := dockerfileIn(t, e, "FROM "+base, "ENV A="+newSession(), "RUN echo waiting; read -r x </dev/zero")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the user changed their mind")
	_, err := e.Build(ctx, dir, images.BuildOptions{Progress: writerFunc(func(p []byte) {
		if strings.Contains(string(p), "waiting\n") {
			cancel(stop)
		}
	})})
	cancel(nil)
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want the cause", err)
	}
	eventually(t, "the engine is as before", func() bool {
		list, err := c.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("ancestor", base))})
		must(t, err)
		return len(list) == 0 && cmp.Equal(before, engineState(t, c))
	})
}

// eventually waits for what an engine does on its own.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// Caisson's images are removed when they are old. Those that the user named
// stay.
func TestPruneImages(t *testing.T) {
	e := newImageEngine(t)
	c, base := importImage(t, shellTar(t), "CMD x")
	dir := dockerfileIn(t, e, "FROM "+base, "ENV A="+newSession())
	id, err := e.Build(t.Context(), dir, images.BuildOptions{})
	must(t, err)
	must(t, c.ImageTag(t.Context(), id, "caisson-test/kept:1"))
	t.Cleanup(func() {
		if _, err := c.ImageRemove(context.Background(), "caisson-test/kept:1", image.RemoveOptions{PruneChildren: true}); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	_, err = pruneImages(t.Context(), e.remote, loadedTime)
	must(t, err)
	if _, err := e.ImageID(t.Context(), builtTag(dir)); err != nil {
		t.Errorf("a young image is gone: %v", err)
	}
	// Only this test's: others build at the same time.
	gone, err := e.remote.removeImage(t.Context(), builtTag(dir), true)
	must(t, err)
	if _, err := e.ImageID(t.Context(), id); err != nil || !gone {
		t.Errorf("the user's image is gone: %v", err)
	}
}

func TestImageEngineWithoutImage(t *testing.T) {
	e := newImageEngine(t)
	if _, err := e.ImageID(t.Context(), "caisson-test/absent:1"); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("id: %v", err)
	}
	if _, err := e.Save(t.Context(), "sha256:"+strings.Repeat("0", 64)); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("save: %v", err)
	}
	gone, err := NewImageEngine("unix:///no/such.sock", os.Getenv)
	must(t, err)
	if err := gone.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such.sock") {
		t.Errorf("check: %v", err)
	}
}

// A missing base image is pulled, and its triggers are read before they are
// executed. Control: the same base without an ADD of a URL is built on.
func TestBuildPullsBase(t *testing.T) {
	e := newImageEngine(t)
	var added atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { added.Add(1) }))
	t.Cleanup(server.Close)
	host := httptest.NewServer(registry.New(registry.Logger(zap.NewStdLog(zap.NewNop()))))
	t.Cleanup(host.Close)
	for _, trigger := range []string{"ENV A=b", "ADD " + server.URL + "/f /f"} {
		name := strings.TrimPrefix(host.URL, "http://") + "/base:1"
		c, made := importImage(t, shellTar(t), "ONBUILD "+trigger)
		must(t, c.ImageTag(t.Context(), made, name))
		answer, err := c.ImagePush(t.Context(), name, image.PushOptions{RegistryAuth: "e30="})
		must(t, err)
		_, err = io.Copy(io.Discard, answer)
		must(t, errors.Join(err, answer.Close()))
		remove := func() {
			if _, err := c.ImageRemove(context.Background(), name, image.RemoveOptions{Force: true}); err != nil {
				t.Errorf("remove: %v", err)
			}
		}
		remove()
		var said strings.Builder
		_, err = e.Build(t.Context(), dockerfileIn(t, e, "FROM "+name), images.BuildOptions{Progress: &said})
		if refused := errors.Is(err, images.ErrUnsupported); refused != strings.HasPrefix(trigger, "ADD") || !refused && err != nil {
			t.Errorf("%s: %v", trigger, err)
		}
		if !strings.Contains(said.String(), "Pull") || added.Load() != 0 {
			t.Errorf("%s: downloaded %d times; %s", trigger, added.Load(), said.String())
		}
		remove()
	}
}
