package batch

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

func TestCachePaths(t *testing.T) {
	image := []string{"GOPATH=/go", "PYTHONPYCACHEPREFIX=/pyc", "CARGO_HOME=/usr/local/cargo", "GOCACHE=off", "UV_CACHE_DIR=/", "NUMBA_CACHE_DIR=/tmp", "RUFF_CACHE_DIR=/app", "XDG_CACHE_HOME=/x"}
	c := newToolCaches("/root", "/app", slices.Concat(image, []string{"XDG_CACHE_HOME=/xdg/"}))
	for name, want := range map[string]bool{
		"root/.cache/go-build/00/0a-d": true, "home/x/.cache/": true, "app/node_modules/.cache/babel/x": true, "app/a/__pycache__/a.pyc": true,
		".caisson-names/app/a/__pycache__/names": true, ".caisson-names/app/a/names": false,
		"xdg/go-build/x": true, "x/y": false, "pyc/app/a.pyc": true, "pyc2/app/a.pyc": false, "go/pkg/mod/m@v1/m.go": true, "go/bin/x": false,
		"usr/local/cargo/registry/src/x": true, "usr/local/cargo/bin/x": false, "app/target/debug/.fingerprint/x/y": true, "app/target/debug/app": false,
		"app/target/release/incremental/x": true, "app/incremental/x": false, "app/tsconfig.tsbuildinfo": true, "tmp/jest_dx/x": true, "app/tmp/jest_dx/x": false,
		"var/cache/apt/pkgcache.bin": true, "var/cache/nginx/x": false, "app/go.mod": false, "root/.m2/settings.xml": false, "root/.m2/repository/x": true,
	} {
		if got := c.contains(&tar.Header{Name: name, Typeflag: tar.TypeReg}); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for name, want := range map[string]bool{"root": true, "go/pkg": true, "xdg": true, "root/.m2": true, "root/gone": false, "usr/bin/go": false} {
		if got := c.contains(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: "/app/x"}); got != want {
			t.Errorf("symlink %s: %t", name, got)
		}
	}
	want := []string{
		"RUFF_CACHE_DIR=/app/.cache", "NUMBA_CACHE_DIR=/tmp/.cache", "GOCACHE=/xdg/go-build", "GOMODCACHE=/go/pkg/mod", "PIP_CACHE_DIR=/xdg/pip",
		"UV_CACHE_DIR=/.cache", "npm_config_cache=/root/.npm", "CCACHE_DIR=/xdg/ccache", "SCCACHE_DIR=/xdg/sccache",
	}
	if !slices.Equal(c.env, want) {
		t.Errorf("%q", c.env)
	}
	if isCacheBelow("var/cache/apt/x") || !isCacheBelow("x/.cache/y") || isCacheBelow(".") {
		t.Error("paths below artifacts")
	}
}

// TestHiddenFiles: a hidden file keeps its other names, within the memory bound.
func TestHiddenFiles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "state.tar"))
	must(t, err)
	defer f.Close()
	w := tar.NewWriter(f)
	for _, h := range []tar.Header{
		{Name: "a/.cache/one", Typeflag: tar.TypeReg, Size: 3},
		{Name: "a/.cache/two", Typeflag: tar.TypeReg, Size: 3},
		{Name: "a/linked", Typeflag: tar.TypeLink, Linkname: "a/.cache/one"},
		{Name: "a/again", Typeflag: tar.TypeLink, Linkname: "a/.cache/one"},
	} {
		must(t, w.WriteHeader(&h))
		_, err := w.Write([]byte("one")[:h.Size])
		must(t, err)
	}
	must(t, w.Close())
	hidden := func(h *tar.Header) bool { return isCache("/" + h.Name) }
	for most, want := range map[int][]string{2 * headerBytes: {"a/linked  one", "a/again a/linked "}, 0: {"a/linked a/.cache/one ", "a/again a/.cache/one "}} {
		_, err := f.Seek(0, io.SeekStart)
		must(t, err)
		var out bytes.Buffer
		to := archive.NewWriter(&out)
		must(t, errors.Join(copyVisible(to, f, hidden, most), to.Close()))
		var got []string
		for in := tar.NewReader(&out); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			text, err := io.ReadAll(in)
			must(t, err)
			got = append(got, fmt.Sprintf("%s %s %s", h.Name, h.Linkname, text))
		}
		if !slices.Equal(got, want) {
			t.Errorf("at most %d bytes: %q", most, got)
		}
	}
}

// TestPlacesOfArtifacts: an agent can't use /logs/artifacts to fill a declared
// artifact's place, and excluded files are excluded there too.
func TestPlacesOfArtifacts(t *testing.T) {
	list := []task.Artifact{{Source: "tree", Destination: "a/tree", Exclude: []string{"*.tmp"}}, {Source: "/logs/artifacts/own", Destination: "b", Exclude: []string{"*.tmp"}}}
	for name, want := range map[string]bool{"a/tree": true, "a/tree/x": true, "a/": false, "a/treetop": false, "a/x.tmp": false, "b": true, "own/x": false, "own/x.tmp": true, "owner/x.tmp": false} {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(name, "/") {
			kind = tar.TypeDir
		}
		if got := isOfArtifact(list, "/app", &tar.Header{Name: name, Typeflag: kind}); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !isOfArtifact(list, "/app", &tar.Header{Name: "a", Typeflag: tar.TypeSymlink}) {
		t.Error("a symlink above an artifact")
	}
}
