package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	fake "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
	"github.com/caisson-run/caisson/images/layer"
)

type fakeRegistry struct {
	*httptest.Server
	host     string
	requests atomic.Int64
	blobs    atomic.Int64 // GETs of blobs
	// meddle answers instead of the registry if it returns true.
	meddle atomic.Pointer[meddler]
}

type meddler func(w http.ResponseWriter, r *http.Request) bool

func quiet() *log.Logger { //nolint:forbidigo // the servers of tests take no other
	return log.New(io.Discard, "", 0) //nolint:forbidigo // as above
}

func newRegistry(t testing.TB) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{}
	inner := fake.New(fake.Logger(quiet()))
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.requests.Add(1)
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			f.blobs.Add(1)
		}
		if m := f.meddle.Load(); m == nil || *m == nil || !(*m)(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	f.Config.ErrorLog = quiet()
	t.Cleanup(f.Close)
	u, err := url.Parse(f.URL)
	must(t, err)
	f.host = u.Host
	return f
}

type imageSpec struct {
	layers [][]byte
	config v1.Config
	arch   string
}

var errBrokenLine = errors.New("the line is broken")

var lowLimits = layer.Limits{
	Bytes: 1 << 20, FileBytes: 256 << 10, Entries: 400, Ratio: 100, RatioFloor: 64 << 10, PathBytes: 1024, Depth: 20, Layers: 8, Top: 20, MetadataBytes: 64 << 10,
}

func makeImage(t testing.TB, s imageSpec) v1.Image {
	t.Helper()
	im := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	im = mutate.ConfigMediaType(im, types.OCIConfigJSON)
	for _, data := range s.layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }, tarball.WithMediaType(types.OCILayer))
		must(t, err)
		if im, err = mutate.AppendLayers(im, l); err != nil {
			t.Fatal(err)
		}
	}
	c, err := im.ConfigFile()
	must(t, err)
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config = "linux", "amd64", s.config
	if s.arch != "" {
		c.Architecture = s.arch
	}
	c.Created = v1.Time{Time: time.Unix(1_500_000_000, 0).UTC()}
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

func simple(t testing.TB, more ...imagetest.Item) v1.Image {
	t.Helper()
	return makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t, imagetest.WithShell()...), imagetest.Archive(t, more...)}})
}

func (f *fakeRegistry) push(t testing.TB, where string, im v1.Image) (digest string) {
	t.Helper()
	ref, err := name.ParseReference(f.host + "/" + where)
	must(t, err)
	must(t, remote.Write(ref, im))
	h, err := im.Digest()
	must(t, err)
	return h.String()
}

func (f *fakeRegistry) ref(t testing.TB, where string) images.Reference {
	t.Helper()
	return mustParse(t, f.host+"/"+where)
}

func mustParse(t testing.TB, text string) images.Reference {
	t.Helper()
	ref, err := images.ParseReference(text)
	must(t, err)
	return ref
}

func openStore(t testing.TB, dir string, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{Dir: dir, Platform: "linux/amd64", Keychain: anonymous{}}
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	must(t, err)
	return s
}

type anonymous struct{}

func (anonymous) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

func storeDir(t testing.TB) string { t.Helper(); return filepath.Join(t.TempDir(), "store") }

// rootfs takes an image and checks what every root has in common.
func rootfs(t testing.TB, s *Store, ref images.Reference) (*images.RootFS, func()) {
	t.Helper()
	root, release, err := s.RootFS(context.Background(), ref)
	must(t, err)
	if root.Reference != ref || !digest.Valid(root.Digest) {
		t.Errorf("root of %s with the digest %s", root.Reference, root.Digest)
	}
	if err := host.WriteSkeleton(root, t.TempDir()); err != nil {
		t.Errorf("skeleton of %s: %v", ref, err)
	}
	return root, release
}

func read(t testing.TB, root *images.RootFS, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root.Dir, name))
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
