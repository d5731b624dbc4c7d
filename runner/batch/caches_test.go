package batch

import (
	"archive/tar"
	"slices"
	"testing"
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
