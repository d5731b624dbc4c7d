package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

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
	if info, err := os.Stat(filepath.Join(r.dist, r.archive())); err != nil || info.Size() > 45e6 {
		t.Errorf("archive %+v, %v; want at most 45 MB", info, err)
	}
	sh(t, dir, "tar -xf "+r.dist+"/"+r.archive()+" && dpkg-deb -x "+r.dist+"/caisson_"+testVersion+"_"+runtime.GOARCH+".deb deb")
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

// TestRefused: a bad key is refused before anything is built.
func TestRefused(t *testing.T) {
	key, err := newTestKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := key.secret()
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string][]string{
		"no key":    {"CAISSON_SIGNING_KEY=none"},
		"newer key": {"CAISSON_SIGNING_KEY=" + secret, "SOURCE_DATE_EPOCH=1500000000"},
	} {
		dist := filepath.Join(t.TempDir(), "dist")
		cmd := exec.CommandContext(t.Context(), "sh", "../release.sh")
		cmd.Env = append(os.Environ(), append(env, "DIST="+dist, "IMAGE=0")...)
		out, err := cmd.CombinedOutput()
		if _, errDist := os.Stat(dist); err == nil || errDist == nil || !strings.Contains(string(out), "CAISSON_SIGNING_KEY can't sign") {
			t.Errorf("%s: %v, %v: %s", name, err, errDist, out)
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

// The same layers give the same image, whenever and wherever it is made.
func TestImage(t *testing.T) {
	date := time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)
	made := func(content string) map[string]string {
		dir := t.TempDir()
		var args []string
		for _, arch := range []string{"amd64", "arm64"} {
			args = append(args, arch)
			for _, layer := range []string{"debian.tar", "caisson.tar"} {
				path := filepath.Join(dir, arch, layer)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, oneFile(t, layer, content+arch), 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, path)
			}
		}
		oci := filepath.Join(dir, "oci")
		if err := writeImage("1.2.3", oci, args, date); err != nil {
			t.Fatal(err)
		}
		checkImage(t, oci)
		files := map[string]string{}
		err := fs.WalkDir(os.DirFS(oci), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(filepath.Join(oci, path))
			files[path] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	one, same, other := made("x"), made("x"), made("y")
	for name, content := range one {
		if same[name] != content {
			t.Errorf("%s differs", name)
		}
	}
	if len(one) != len(same) || one["index.json"] == other["index.json"] {
		t.Errorf("%d and %d files; another content has index.json %s", len(one), len(same), other["index.json"])
	}
}

func checkImage(t *testing.T, dir string) {
	t.Helper()
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3" {
		t.Fatalf("index %+v, %v", manifest, err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range inner.Manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.OS+"/"+config.Architecture != m.Platform.String() || len(config.RootFS.DiffIDs) != 2 || len(config.Config.Entrypoint) != 0 {
			t.Errorf("%s: %+v, %v", m.Platform, config, err)
		}
	}
	if strings.Join(platforms, " ") != "linux/amd64 linux/arm64" {
		t.Errorf("platforms %q", platforms)
	}
}

func oneFile(t *testing.T, name, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
