//go:build release

package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

const testVersion = "9.8.7"

// shared is a directory for all tests.
var shared string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("/var/tmp", "caisson-release-")
	if err != nil {
		panic(err)
	}
	shared = dir
	status := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(status)
}

// testRelease is a release of this machine's architecture, signed by a key of the test, and a bare Debian beside it.
type testRelease struct {
	dist, root string
	key        testKey
}

// released builds the release once.
var released = sync.OnceValues(func() (*testRelease, error) {
	key, err := newTestKey()
	if err != nil {
		return nil, err
	}
	r := &testRelease{dist: filepath.Join(shared, "dist"), root: filepath.Join(shared, "root"), key: key}
	secret, err := key.secret()
	if err != nil {
		return nil, err
	}
	build := exec.Command("sh", "../release.sh")
	build.Env = append(os.Environ(), "DIST="+r.dist, "VERSION=v"+testVersion, "CAISSON_SIGNING_KEY="+secret)
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build a release: %w\n%s", err, out)
	}
	bare := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--include=curl,wget,gpg,sqv,busybox", "bookworm", r.root)
	if out, err := bare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a bare Debian: %w\n%s", err, out)
	}
	return r, nil
})

func needRelease(t *testing.T) *testRelease {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("needs root, to make root file systems and be several users")
	}
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// archive is the name of the tar.
func (r *testRelease) archive() string {
	return fmt.Sprintf("caisson-%s-linux-%s.tar.gz", testVersion, runtime.GOARCH)
}

// deb is the name of the package.
func (r *testRelease) deb() string {
	return fmt.Sprintf("caisson_%s_%s.deb", testVersion, runtime.GOARCH)
}

// serve serves a directory and returns its address.
func serve(t *testing.T, dir string) string {
	t.Helper()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.URL
}

// TestReproducible builds the release again, in another directory and later, and compares all files but the image.
func TestReproducible(t *testing.T) {
	r := needRelease(t)
	dir := t.TempDir()
	// Compiling runsc's filters again would take a minute.
	sh(t, "../..", "mkdir -p "+dir+"/copied/.ci/bin && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "+dir+
		"/copied && cp -R .ci/bin/_filters "+dir+"/copied/.ci/bin && git log -1 --format=%ct >"+dir+"/time")
	secret, err := r.key.secret()
	if err != nil {
		t.Fatal(err)
	}
	commit, err := os.ReadFile(filepath.Join(dir, "time"))
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "sh", dir+"/copied/.ci/release.sh")
	build.Env = append(os.Environ(), "DIST="+dir+"/dist", "VERSION=v"+testVersion, "IMAGE=0", "CAISSON_SIGNING_KEY="+secret, "SOURCE_DATE_EPOCH="+strings.TrimSpace(string(commit)))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build a release: %v\n%s", err, out)
	}
	files := 0
	err = filepath.WalkDir(r.dist, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "-oci.tar") || strings.Contains(path, "SHA256SUMS") {
			return err
		}
		files++
		name, errName := filepath.Rel(r.dist, path)
		one, errOne := os.ReadFile(path)
		other, errOther := os.ReadFile(filepath.Join(dir, "dist", name))
		if errName != nil || errOne != nil || errOther != nil || !bytes.Equal(one, other) {
			t.Errorf("%s: %d bytes, and %d others the second time, %v, %v, %v", name, len(one), len(other), errName, errOne, errOther)
		}
		return nil
	})
	if err != nil || files != 9 {
		t.Errorf("compared %d files, %v; want tar, deb, rpm, SBOM, key and installer, and three of the repository", files, err)
	}
}

// TestContents checks the tar, the packages and the SBOM.
func TestContents(t *testing.T) {
	r := needRelease(t)
	dir := t.TempDir()
	name := strings.TrimSuffix(r.archive(), ".tar.gz")
	for _, pattern := range []string{r.archive(), r.deb(), "*.rpm"} {
		files, err := filepath.Glob(filepath.Join(r.dist, pattern))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		if info, err := os.Stat(files[0]); err != nil || info.Size() > 45e6 || info.Size() < 10e6 {
			t.Errorf("%s: %+v, %v; want at most 45 MB", pattern, info, err)
		}
	}
	sh(t, dir, "tar -xf "+r.dist+"/"+r.archive()+" && dpkg-deb -x "+r.dist+"/"+r.deb()+" deb")
	for _, file := range []string{"caisson", "LICENSE", "THIRD_PARTY", "man/man1/caisson-run.1", "completions/bash/caisson", "completions/zsh/_caisson", "completions/fish/caisson.fish"} {
		if info, err := os.Stat(filepath.Join(dir, name, file)); err != nil || info.Size() < 500 {
			t.Errorf("archive: %s: %v", file, err)
		}
	}
	sh(t, dir, "cmp "+name+"/caisson deb/usr/bin/caisson && gzip -t deb/usr/share/man/man1/caisson-run.1.gz && ls deb/usr/share/doc/caisson/copyright deb/usr/share/zsh/vendor-completions/_caisson")

	text, err := os.ReadFile(filepath.Join(r.dist, "caisson-"+testVersion+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, c := range bom.Components {
		listed[c.Name+"@"+c.Version] = true
	}
	// The doctor unpacks the other two programs.
	sh(t, dir, "HOME="+dir+" XDG_CACHE_HOME="+dir+"/cache "+name+"/caisson doctor --backend gvisor")
	programs, err := filepath.Glob(dir + "/cache/caisson/programs/*/*")
	if err != nil || len(programs) != 2 {
		t.Errorf("unpacked %q, %v", programs, err)
	}
	for _, program := range append(programs, filepath.Join(dir, name, "caisson")) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		modules := []string{"std@" + strings.TrimPrefix(info.GoVersion, "go")}
		for _, m := range info.Deps {
			modules = append(modules, m.Path+"@"+m.Version)
		}
		for _, m := range modules {
			if !listed[m] {
				t.Errorf("%s links %s, which the SBOM lacks", program, m)
			}
		}
		if len(modules) < 3 || listed["example.org/other@v1.0.0"] {
			t.Errorf("%s links %d modules", program, len(modules))
		}
	}
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
