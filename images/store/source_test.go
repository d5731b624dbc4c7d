package store

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// writeLayout writes an OCI layout of images with their tags.
func writeLayout(t testing.TB, images map[string]v1.Image) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	must(t, err)
	for tag, im := range images {
		must(t, l.AppendImage(im, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})))
	}
	return dir
}

func digests(t testing.TB, im v1.Image) (manifest, config string) {
	t.Helper()
	m, err := im.Digest()
	must(t, err)
	c, err := im.ConfigName()
	must(t, err)
	return m.String(), c.String()
}

func TestLayout(t *testing.T) {
	one, two := simple(t, imagetest.File("which", "one")), simple(t, imagetest.File("which", "two"))
	oneDigest, _ := digests(t, one)
	single, double := writeLayout(t, map[string]v1.Image{"": one}), writeLayout(t, map[string]v1.Image{"v1": one, "v2": two})
	s := openStore(t, storeDir(t))
	for text, want := range map[string]string{
		"oci-layout:" + single:                      "one",
		"oci-layout:" + double + ":v1":              "one",
		"oci-layout:" + double + ":v2":              "two",
		"oci-layout:" + double + "@" + oneDigest:    "one",
		"oci-layout:" + double + ":v1@" + oneDigest: "one",
	} {
		root, release := rootfs(t, s, mustParse(t, text))
		if got := read(t, root, "which"); got != want {
			t.Errorf("%s is %s", text, got)
		}
		release()
	}
	root, release := rootfs(t, s, mustParse(t, "oci-layout:"+single))
	release()
	if root.Digest != oneDigest {
		t.Errorf("digest %s, want the manifest's, %s", root.Digest, oneDigest)
	}
	for text, is := range map[string]error{
		"oci-layout:" + double:                                        images.ErrInvalid, // which one?
		"oci-layout:" + double + ":v3":                                images.ErrNotFound,
		"oci-layout:" + double + ":v2@" + oneDigest:                   images.ErrNotFound,
		"oci-layout:" + double + "@sha256:" + strings.Repeat("0", 64): images.ErrNotFound,
		"oci-layout:" + t.TempDir():                                   images.ErrInvalid,
		"oci-layout:" + t.TempDir() + "/absent":                       images.ErrNotFound,
	} {
		if _, _, err := s.RootFS(t.Context(), mustParse(t, text)); !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", text, err, is)
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 5 {
		t.Errorf("%d images are known, %v", len(list), err)
	}
	noHalves(t, s)
}

// Each changed file of a layout is refused without delay.
func TestHostileLayout(t *testing.T) {
	im := simple(t, imagetest.File("which", "one"))
	manifest, config := digests(t, im)
	layers, err := im.Layers()
	must(t, err)
	hash, err := layers[1].Digest()
	must(t, err)
	blob := func(dir, dgst string) string { return filepath.Join(dir, "blobs", "sha256", digest.Hex(dgst)) }
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("x"), 0o600))
	for what, tt := range map[string]struct {
		change func(dir string) error
		is     error
	}{
		"an index that is no JSON": {func(dir string) error { return os.WriteFile(dir+"/index.json", []byte("{"), 0o600) }, images.ErrInvalid},
		"an index of 1 MiB": {func(dir string) error {
			return os.WriteFile(dir+"/index.json", bytes.Repeat([]byte(" "), 1<<20), 0o600)
		}, images.ErrRefused},
		"an index that is a pipe": {func(dir string) error {
			return replaced(dir+"/index.json", func(p string) error { return syscall.Mkfifo(p, 0o600) })
		}, images.ErrInvalid},
		"another manifest":      {func(dir string) error { return os.WriteFile(blob(dir, manifest), []byte("{}"), 0o600) }, images.ErrDigest},
		"another configuration": {func(dir string) error { return os.WriteFile(blob(dir, config), []byte("{}"), 0o600) }, images.ErrDigest},
		"another layer": {func(dir string) error {
			return os.WriteFile(blob(dir, hash.String()), imagetest.Archive(t, imagetest.File("a", "b")), 0o600)
		}, images.ErrDigest},
		"a layer that is cut":     {func(dir string) error { return os.Truncate(blob(dir, hash.String()), 20) }, images.ErrDigest},
		"a layer that is missing": {func(dir string) error { return os.Remove(blob(dir, hash.String())) }, images.ErrNotFound},
		"a layer that is a pipe": {func(dir string) error {
			return replaced(blob(dir, hash.String()), func(p string) error { return syscall.Mkfifo(p, 0o600) })
		}, images.ErrInvalid},
		"a layer that is a link": {func(dir string) error {
			return replaced(blob(dir, hash.String()), func(p string) error { return os.Symlink(outside, p) })
		}, nil},
		"a layer that is a directory": {func(dir string) error {
			return replaced(blob(dir, hash.String()), func(p string) error { return os.Mkdir(p, 0o700) })
		}, images.ErrInvalid},
		"blobs that are a link out": {func(dir string) error {
			return errors.Join(os.Rename(dir+"/blobs", dir+"2"), os.Symlink(dir+"2", dir+"/blobs"))
		}, nil},
	} {
		dir := writeLayout(t, map[string]v1.Image{"": im})
		must(t, tt.change(dir))
		s := openStore(t, storeDir(t), func(o *Options) { o.Limits = lowLimits; o.Limits.Bytes = 1 << 20 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, _, err := s.RootFS(ctx, mustParse(t, "oci-layout:"+dir))
		cancel()
		if err == nil || !errors.Is(err, tt.is) && tt.is != nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want %v", what, err, tt.is)
		}
		noHalves(t, s)
	}
}

func replaced(p string, by func(p string) error) error {
	if err := os.Remove(p); err != nil {
		return err
	}
	return by(p)
}

// save writes images as docker save does.
func save(t testing.TB, images map[string]v1.Image) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "image.tar")
	refs := map[name.Tag]v1.Image{}
	for tag, im := range images {
		n, err := name.NewTag(tag)
		must(t, err)
		refs[n] = im
	}
	must(t, tarball.MultiWriteToFile(path, refs))
	return path
}

func TestDockerArchive(t *testing.T) {
	one, two := simple(t, imagetest.File("which", "one")), simple(t, imagetest.File("which", "two"))
	_, oneID := digests(t, one)
	_, twoID := digests(t, two)
	single, double := save(t, map[string]v1.Image{"x:1": one}), save(t, map[string]v1.Image{"x:1": one, "x:2": two})
	s := openStore(t, storeDir(t))
	for text, want := range map[string][2]string{
		"docker-archive:" + single:               {"one", oneID},
		"docker-archive:" + single + "@" + oneID: {"one", oneID},
		"docker-archive:" + double + "@" + twoID: {"two", twoID},
	} {
		root, release := rootfs(t, s, mustParse(t, text))
		if got := [2]string{read(t, root, "which"), root.Digest}; got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
		release()
	}
	if _, _, err := s.RootFS(t.Context(), mustParse(t, "docker-archive:"+double)); !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), twoID) {
		t.Errorf("two images: %v", err)
	}
	if _, _, err := s.RootFS(t.Context(), mustParse(t, "docker-archive:"+single+"@"+twoID)); !errors.Is(err, images.ErrDigest) {
		t.Errorf("another digest: %v", err)
	}
	if _, _, err := s.RootFS(t.Context(), mustParse(t, "docker-archive:"+single+"2")); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
	noHalves(t, s)
}

func TestHostileArchive(t *testing.T) {
	sh := string(imagetest.Archive(t, imagetest.WithShell()...))
	good := fmt.Sprintf(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[%q]}}`, digest.Of([]byte(sh)))
	manifest := imagetest.File("manifest.json", `[{"Config":"c.json","Layers":["a/layer.tar"]}]`)
	many := []imagetest.Item{}
	for range 1<<14 + 1 {
		many = append(many, imagetest.Directory("d"))
	}
	for what, tt := range map[string]struct {
		data []byte
		is   error
	}{
		"a plain one":                     {imagetest.DockerArchive(t, ""), nil},
		"a layer behind links":            {imagetest.DockerArchive(t, "", manifest, imagetest.File("c.json", good), imagetest.Symlink("a/layer.tar", "../b/layer.tar"), imagetest.Hardlink("b/layer.tar", "real"), imagetest.File("real", sh)), nil},
		"a loop of links":                 {imagetest.DockerArchive(t, "", manifest, imagetest.File("c.json", good), imagetest.Symlink("a/layer.tar", "../b"), imagetest.Symlink("b", "a/layer.tar")), images.ErrInvalid},
		"a link to the machine":           {imagetest.DockerArchive(t, "", manifest, imagetest.File("c.json", good), imagetest.Symlink("a/layer.tar", "/etc/passwd")), images.ErrInvalid},
		"a name of the machine":           {imagetest.DockerArchive(t, "", imagetest.File("manifest.json", `[{"Config":"/etc/passwd","Layers":[]}]`)), images.ErrInvalid},
		"no manifest":                     {imagetest.DockerArchive(t, "", imagetest.File("c.json", good)), images.ErrInvalid},
		"a manifest that is no JSON":      {imagetest.DockerArchive(t, "", imagetest.File("manifest.json", `[`)), images.ErrInvalid},
		"no images":                       {imagetest.DockerArchive(t, "", imagetest.File("manifest.json", `[]`)), images.ErrInvalid},
		"a manifest that is a device":     {imagetest.DockerArchive(t, "", imagetest.Special(tar.TypeChar, "manifest.json")), images.ErrInvalid},
		"a manifest of 1 MiB":             {imagetest.DockerArchive(t, "", imagetest.File("manifest.json", strings.Repeat(" ", 1<<20))), images.ErrRefused},
		"a configuration that is no JSON": {imagetest.DockerArchive(t, "nothing"), images.ErrInvalid},
		"fewer layers than it says":       {imagetest.DockerArchive(t, `{"os":"linux","architecture":"amd64"}`), images.ErrInvalid},
		"another layer than it says":      {imagetest.DockerArchive(t, strings.Replace(good, digest.Of([]byte(sh)), digest.Of(nil), 1)), images.ErrDigest},
		"for another machine":             {imagetest.DockerArchive(t, strings.Replace(good, "amd64", "mips", 1)), images.ErrUnsupported},
		"for another system":              {imagetest.DockerArchive(t, strings.Replace(good, "linux", "windows", 1)), images.ErrUnsupported},
		"digests of another kind":         {imagetest.DockerArchive(t, strings.Replace(good, digest.Of([]byte(sh)), "sha512:"+strings.Repeat("0", 128), 1)), images.ErrUnsupported},
		"digests that are none":           {imagetest.DockerArchive(t, strings.Replace(good, digest.Of([]byte(sh)), "../../x", 1)), images.ErrInvalid},
		"too many entries":                {imagetest.Archive(t, many...), images.ErrRefused},
		"no archive":                      {[]byte(strings.Repeat("no archive", 100)), images.ErrInvalid},
		"compressed":                      {imagetest.Gzip(t, imagetest.DockerArchive(t, "")), images.ErrUnsupported},
		"empty":                           {nil, images.ErrInvalid},
	} {
		path := filepath.Join(t.TempDir(), "image.tar")
		must(t, os.WriteFile(path, tt.data, 0o600))
		s := openStore(t, storeDir(t), func(o *Options) { o.Limits.MetadataBytes = 64 << 10 })
		_, release, err := s.RootFS(t.Context(), mustParse(t, "docker-archive:"+path))
		if err == nil {
			release()
		}
		if !errors.Is(err, tt.is) || (err == nil) != (tt.is == nil) {
			t.Errorf("%s: %v, want %v", what, err, tt.is)
		}
		noHalves(t, s)
	}
}

// TestImageFaults has images that commands can't run on, and settings of an
// image that are ignored.
func TestImageFaults(t *testing.T) {
	noShell := makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t, imagetest.File("app", "x"), imagetest.File("etc/passwd", ""))}})
	dangling := makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t, imagetest.Symlink("bin", "usr/bin"), imagetest.Symlink("usr/bin/sh", "dash"))}})
	loop := makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t, imagetest.Symlink("bin", "bin"))}})
	var tops []imagetest.Item
	for i := range 200 {
		tops = append(tops, imagetest.Directory(fmt.Sprint("d", i)))
	}
	wide, odd := simple(t, tops...), simple(t, imagetest.Directory("a\nb"))
	for what, tt := range map[string]struct {
		image v1.Image
		is    error
		says  string
	}{
		"no shell":                  {noShell, images.ErrInvalid, "/bin/sh"},
		"a shell that leads away":   {dangling, images.ErrInvalid, "/bin/sh"},
		"a shell that is a loop":    {loop, images.ErrInvalid, "/bin/sh"},
		"no layers":                 {makeImage(t, imageSpec{}), images.ErrInvalid, "/bin/sh"},
		"a root of 200 directories": {wide, images.ErrRefused, "root directory"},
		"a line break in its root":  {odd, images.ErrRefused, "root directory"},
	} {
		s := openStore(t, storeDir(t))
		_, _, err := s.RootFS(t.Context(), mustParse(t, "oci-layout:"+writeLayout(t, map[string]v1.Image{"": tt.image})))
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", what, err)
		}
		noHalves(t, s)
	}
	merged := makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t,
		imagetest.Symlink("bin", "/usr/bin"), imagetest.Symlink("usr/bin/sh", "../../busybox"), imagetest.Item{Header: tar.Header{Typeflag: tar.TypeReg, Name: "busybox", Mode: 0o555}, Content: "x"},
		imagetest.Symlink("etc", "usr/etc"), imagetest.Directory("usr/etc"), imagetest.Symlink("var", "/nowhere"), imagetest.Symlink("usr/etc/passwd", "/etc/shadow"),
	)}})
	s := openStore(t, storeDir(t))
	root, release := rootfs(t, s, mustParse(t, "oci-layout:"+writeLayout(t, map[string]v1.Image{"": merged})))
	defer release()
	if got := read(t, root, "usr/etc/passwd"); !strings.HasPrefix(got, "agent:x:10001:") {
		t.Errorf("passwd %q", got)
	}
	if pathExists("/nowhere") {
		t.Error("a link was followed out of the tree")
	}
}

func TestArchive(t *testing.T) {
	reg := newRegistry(t)
	plain := simple(t, imagetest.File("which", "one"))
	_, id := digests(t, plain)
	reg.push(t, "x:1", plain)
	path := save(t, map[string]v1.Image{"x:1": plain})
	s := openStore(t, storeDir(t))
	for _, ref := range []images.Reference{
		reg.ref(t, "x:1"), mustParse(t, "docker-archive:"+path), mustParse(t, "oci-layout:"+writeLayout(t, map[string]v1.Image{"": plain})),
	} {
		var b bytes.Buffer
		got, err := s.Archive(t.Context(), ref, &b)
		if err != nil || got != id {
			t.Errorf("%s: id %s, %v, want %s", ref, got, err, id)
			continue
		}
		// The library and our own reader can read it back. It has no tag.
		im, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, nil)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if _, back := digests(t, im); back != id {
			t.Errorf("%s: reads back as %s", ref, back)
		}
		file := filepath.Join(t.TempDir(), "back.tar")
		must(t, os.WriteFile(file, b.Bytes(), 0o600))
		root, release := rootfs(t, openStore(t, storeDir(t)), mustParse(t, "docker-archive:"+file))
		if read(t, root, "which") != "one" {
			t.Errorf("%s: the archive holds something else", ref)
		}
		release()
		m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err != nil || len(m) != 1 || len(m[0].RepoTags) != 0 {
			t.Errorf("%s: manifest %+v, %v", ref, m, err)
		}
	}
	if _, err := s.Archive(t.Context(), reg.ref(t, "x:1"), brokenWriter{}); !errors.Is(err, errBrokenLine) {
		t.Errorf("to a broken writer: %v", err)
	}
	dir := writeLayout(t, map[string]v1.Image{"": plain})
	layers, err := plain.Layers()
	must(t, err)
	hash, err := layers[0].Digest()
	must(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", hash.Hex))
	must(t, err)
	data[len(data)/2] ^= 1
	must(t, os.WriteFile(filepath.Join(dir, "blobs/sha256", hash.Hex), data, 0o600))
	if _, err := s.Archive(t.Context(), mustParse(t, "oci-layout:"+dir), io.Discard); !errors.Is(err, images.ErrDigest) {
		t.Errorf("a damaged layer on its way out: %v", err)
	}
	noHalves(t, s)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBrokenLine }
