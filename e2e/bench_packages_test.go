package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// packageManager is a program that installs from a registry.
type packageManager struct {
	name, needs string
	// packages is the number of packages, kib the size of each, files in how many files.
	packages, kib, files int
	// config is the user's own configuration, which the preset reads: its file in the
	// home directory and its text.
	config, text string
	// install is the command that is timed, offline the same without a network after it.
	// Both run in an empty directory, with ORIGIN for the registry's address.
	install, offline string
}

var packageManagers = []packageManager{
	{
		name: "npm ci", needs: "npm", packages: 60, kib: 60, files: 12,
		config: ".npmrc", text: "registry=ORIGIN/\n",
		install: `cp ../package.json ../package-lock.json . && npm_config_registry=ORIGIN/ npm ci --no-audit --no-fund`,
		offline: `cp ../package.json ../package-lock.json . && npm_config_registry=ORIGIN/ npm ci --no-audit --no-fund --offline`,
	},
	{
		name: "pip install", needs: "pip3", packages: 12, kib: 1024, files: 60,
		config: ".config/pip/pip.conf", text: "[global]\nindex-url = ORIGIN/simple/\n",
		install: `PIP_INDEX_URL=ORIGIN/simple/ /usr/bin/pip3 install --no-cache-dir --target out -r ../requirements.txt`,
		offline: `/usr/bin/pip3 install --no-cache-dir --no-index --find-links ../wheels --target out -r ../requirements.txt`,
	},
	{
		name: "go mod download", needs: "go", packages: 40, kib: 200, files: 40,
		config: ".config/go/env", text: "GOPROXY=ORIGIN/go\n",
		install: `cp ../go.mod . && GOMODCACHE=$HOME/first go mod download`,
		offline: `cp ../go.mod . && GOPROXY=file://$HOME/first/cache/download GOMODCACHE=$HOME/second go mod download`,
	},
}

// BenchmarkPackages measures package managers in fresh sandboxes beside the same on the
// host, in turns, with a registry of this machine and TLS that ends in Caisson. The
// offline figures are of the same work without a network.
func BenchmarkPackages(b *testing.B) {
	for _, p := range packageManagers {
		b.Run(strings.ReplaceAll(p.name, " ", "-"), func(b *testing.B) { benchmarkPackages(b, p) })
	}
}

func benchmarkPackages(b *testing.B, p packageManager) {
	authority, err := ca.New(time.Now().Add(time.Hour))
	if err != nil {
		b.Fatal(err)
	}
	files := makePackages(b, p)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/") {
			w.Header().Set("Content-Type", "text/html")
		}
		_, _ = w.Write(text)
	}))
	leaf, err := authority.Leaf("127.0.0.1") // for programs that name none
	if err != nil {
		b.Fatal(err)
	}
	server.TLS = &tls.Config{
		Certificates:   []tls.Certificate{*leaf},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return authority.Leaf(h.ServerName) },
	}
	server.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	server.StartTLS()
	b.Cleanup(server.Close)
	names := []string{"host"}
	for _, name := range backendNames {
		if err := probeBackend(b, name); err != nil {
			b.Logf("needs %s: %v", name, err)
			continue
		}
		names = append(names, name)
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for _, name := range names {
			online, offline := p.run(b, name, server.URL, authority.PEM(), files)
			took[name+"-"] = append(took[name+"-"], online)
			took[name+"-offline-"] = append(took[name+"-offline-"], offline)
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2]), name+"p50-ns")
		b.ReportMetric(float64(list[0]), name+"best-ns")
	}
}

// tookPattern matches the times that a script prints, in nanoseconds.
var tookPattern = regexp.MustCompile(`(?m)TOOK (\d+) (\d+)`)

// run installs on the host or in a fresh sandbox of a backend, and returns how long it
// took with and without a network.
func (p *packageManager) run(b *testing.B, backend, url string, roots []byte, files map[string][]byte) (online, offline time.Duration) {
	b.Helper()
	m := newMachine(b)
	defer func() { _ = os.RemoveAll(filepath.Dir(m.home)) }()
	write := func(path, text string) {
		b.Helper()
		writeFile(b, path, text, 0o644)
	}
	for path, text := range files {
		if name, ok := strings.CutPrefix(path, "workspace:"); ok {
			write(filepath.Join(m.workspace, name), string(text))
		}
	}
	origin, pem := url, filepath.Join(m.home, "ca.pem")
	write(pem, string(roots))
	if backend != "host" {
		origin = strings.Replace(url, "127.0.0.1", rule.HostName, 1)
		write(filepath.Join(m.home, p.config), strings.ReplaceAll(p.text, "ORIGIN", origin))
		write(filepath.Join(m.home, ".config", "caisson", "config.yaml"), fmt.Sprintf(
			"egress:\n  ca: [%s]\n  presets: [%s]\n  private: {%s: [127.0.0.1]}\n", pem, strings.Fields(p.name)[0], rule.HostName))
	}
	script := strings.ReplaceAll(fmt.Sprintf(`set -e
export PATH=/usr/bin:/bin:/usr/local/go/bin GOFLAGS=-mod=mod GONOSUMDB=example.test GOTOOLCHAIN=local
mkdir one two
a=$(date +%%s%%N); (cd one && %s) >/dev/null; b=$(date +%%s%%N); (cd two && %s) >/dev/null; c=$(date +%%s%%N)
chmod -R u+w $HOME/first $HOME/second 2>/dev/null || true
echo TOOK $((b-a)) $((c-b))`, p.install, p.offline), "ORIGIN", origin)
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries(b), "caisson"), "tools", "call", "--json", "--backend", backend, "--workspace", m.workspace, "--policy", "sandboxed",
		"shell", string(must(json.Marshal(map[string]any{"command": script, "timeout_seconds": 240}))))
	cmd.Env = m.env
	if backend == "host" {
		cmd = exec.CommandContext(ctx, "/bin/sh", "-c", script)
		cmd.Dir = m.workspace
		cmd.Env = append(m.env, "SSL_CERT_FILE="+pem, "NODE_EXTRA_CA_CERTS="+pem, "PIP_CERT="+pem, "npm_config_cafile="+pem, "PIP_DISABLE_PIP_VERSION_CHECK=1", "npm_config_update_notifier=false", "GOPROXY="+origin+"/go")
	}
	out, err := cmd.CombinedOutput()
	times := tookPattern.FindSubmatch(out)
	if err != nil || times == nil {
		b.Fatalf("%s, %s: %v\n%s", p.name, backend, err, out)
	}
	for i, d := range []*time.Duration{&online, &offline} {
		n, err := strconv.ParseInt(string(times[i+1]), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		*d = time.Duration(n)
	}
	return online, offline
}

// must returns v. The error of packing plain values can't happen.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// makePackages returns the files of a registry by path, and those of the workspace by
// name behind "workspace:". Half of each package can be compressed.
func makePackages(b *testing.B, p packageManager) map[string][]byte {
	b.Helper()
	random := rand.NewChaCha8([32]byte{1})
	content := func() string {
		raw := make([]byte, p.kib<<10/p.files/2)
		_, _ = random.Read(raw)
		return base64.StdEncoding.EncodeToString(raw) + strings.Repeat("// the same line\n", len(raw)/17)
	}
	files := map[string][]byte{}
	lock := map[string]any{}
	dependencies := map[string]string{}
	goMod, requirements := "module x\n\ngo 1.20\n\nrequire (\n", ""
	for i := range p.packages {
		name := fmt.Sprintf("leaf%d", i)
		parts := map[string]string{}
		for j := range p.files {
			parts[fmt.Sprintf("part%d.txt", j)] = content()
		}
		switch p.needs {
		case "npm":
			parts["package.json"] = fmt.Sprintf(`{"name":%q,"version":"1.0.0"}`, name)
			tarball := packTarball(parts)
			sum := sha512.Sum512(tarball)
			files["/"+name+"/-/"+name+"-1.0.0.tgz"] = tarball
			dependencies[name] = "1.0.0"
			lock["node_modules/"+name] = map[string]any{
				"version": "1.0.0", "resolved": "https://registry.npmjs.org/" + name + "/-/" + name + "-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			}
		case "pip3":
			wheel := map[string]string{name + "-1.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0.0\n", name + "-1.0.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
			for part, text := range parts {
				wheel[name+"/"+part] = text
			}
			record := ""
			for part := range wheel {
				record += part + ",,\n"
			}
			wheel[name+"-1.0.0.dist-info/RECORD"] = record + name + "-1.0.0.dist-info/RECORD,,\n"
			file := name + "-1.0.0-py3-none-any.whl"
			packed := packArchive(wheel)
			files["/simple/files/"+file], files["workspace:wheels/"+file] = packed, packed
			files["/simple/"+name+"/"] = fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="../files/%s#sha256=%x">%s</a></body></html>`, file, sha256.Sum256(packed), file)
			requirements += name + "==1.0.0\n"
		case "go":
			module := "example.test/" + name
			mod := "module " + module + "\n\ngo 1.20\n"
			tree := map[string]string{module + "@v1.0.0/go.mod": mod}
			for part, text := range parts {
				tree[module+"@v1.0.0/"+part] = text
			}
			at := "/go/" + module + "/@v/v1.0.0"
			files[at+".info"], files[at+".mod"], files[at+".zip"] = []byte(`{"Version":"v1.0.0"}`), []byte(mod), packArchive(tree)
			goMod += "\t" + module + " v1.0.0\n"
		}
	}
	root := map[string]any{"name": "x", "version": "1.0.0", "dependencies": dependencies}
	lock[""] = root
	files["workspace:package.json"] = must(json.Marshal(root))
	files["workspace:package-lock.json"] = must(json.Marshal(map[string]any{"name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": lock}))
	files["workspace:requirements.txt"], files["workspace:go.mod"] = []byte(requirements), []byte(goMod+")\n")
	return files
}

// packTarball returns a tarball of npm.
func packTarball(files map[string]string) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, text := range files {
		_ = w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR})
		_, _ = io.WriteString(w, text)
	}
	_, _ = w.Close(), z.Close()
	return out.Bytes()
}

// packArchive returns a zip archive.
func packArchive(files map[string]string) []byte {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, text := range files {
		f, _ := w.Create(name)
		_, _ = io.WriteString(f, text)
	}
	_ = w.Close()
	return out.Bytes()
}
