package egresstest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/egress/ca"
)

// Internet serves the hosts of a namespace at its public address.
type Internet struct {
	Authority *ca.Authority
	hosts     map[string]http.Handler
	mu        sync.Mutex
	requests  []string
}

func (n *Internet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	n.requests = append(n.requests, r.Method+" "+r.Host+r.URL.Path)
	n.mu.Unlock()
	if h := n.hosts[r.Host]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	http.NotFound(w, r)
}

// StartInternet starts the hosts, with http and https.
func StartInternet(t *testing.T, hosts map[string]http.Handler) *Internet {
	t.Helper()
	authority, err := ca.New(time.Now().Add(24 * time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	n := &Internet{Authority: authority, hosts: hosts}
	answers := map[string][]Answer{}
	for host := range hosts {
		answers[host] = []Answer{{Addrs: []string{PublicAddr}}}
	}
	StartNameServer(t, answers)
	for _, port := range []string{"80", "443"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", PublicAddr+":"+port)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: n, ReadHeaderTimeout: time.Minute, ErrorLog: zap.NewStdLog(zap.NewNop())}
		if port == "443" {
			server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return n.Authority.Leaf(h.ServerName) }}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if port == "443" {
				_ = server.ServeTLS(l, "", "")
			} else {
				_ = server.Serve(l)
			}
		}()
		t.Cleanup(func() {
			_ = server.Close()
			<-done
		})
	}
	return n
}

// Count returns the number of requests that begin with prefix.
func (n *Internet) Count(prefix string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for _, r := range n.requests {
		if strings.HasPrefix(r, prefix) {
			sum++
		}
	}
	return sum
}

// StaticFiles serves files by path.
type StaticFiles map[string][]byte

func (f StaticFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, ok := f[r.URL.Path]
	if !ok {
		text, ok = f[r.URL.EscapedPath()]
	}
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/") {
		w.Header().Set("Content-Type", "text/html")
	}
	_, _ = w.Write(text)
}

func packTar(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, text)
	}
	_, _ = w.Close(), z.Close()
	return out.Bytes()
}

func packZip(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, text := range files {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(f, text)
	}
	_ = w.Close()
	return out.Bytes()
}

// Registries returns the hosts of registries, each with version 1.0.0 of one
// package named leaf, and of git repositories. Key is the password of some
// repositories.
func Registries(t *testing.T, key string) map[string]http.Handler {
	t.Helper()
	goMod := "module example.test/leaf\n\ngo 1.20\n"
	crate := packTar(t, map[string]string{"leaf-1.0.0/Cargo.toml": "[package]\nname = \"leaf\"\nversion = \"1.0.0\"\nedition = \"2021\"\n", "leaf-1.0.0/src/lib.rs": "pub fn leaf() {}\n"})
	crateSum := sha256.Sum256(crate)
	tarball := packTar(t, map[string]string{"package/package.json": `{"name":"leaf","version":"1.0.0"}`, "package/index.js": "module.exports = 1\n"})
	tarballSum := sha512.Sum512(tarball)
	wheel := packZip(t, map[string]string{
		"leaf.py": "x = 1\n", "leaf-1.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0.0\n",
		"leaf-1.0.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "leaf-1.0.0.dist-info/RECORD": "leaf.py,,\nleaf-1.0.0.dist-info/METADATA,,\nleaf-1.0.0.dist-info/WHEEL,,\nleaf-1.0.0.dist-info/RECORD,,\n",
	})
	wheelSum := sha256.Sum256(wheel)
	deb := []byte("not really a package, which apt-get download doesn't look into")
	debSum := sha256.Sum256(deb)
	packages := fmt.Sprintf("Package: leaf\nVersion: 1.0.0\nArchitecture: all\nMaintainer: x <x@example.test>\nFilename: pool/leaf_1.0.0_all.deb\nSize: %d\nSHA256: %x\nDescription: leaf\n", len(deb), debSum)
	packagesSum := sha256.Sum256([]byte(packages))
	release := fmt.Sprintf("Suite: stable\nCodename: stable\nDate: %s\nArchitectures: all amd64 arm64\nComponents: main\nSHA256:\n %x %d main/binary-all/Packages\n %x %d main/binary-amd64/Packages\n %x %d main/binary-arm64/Packages\n",
		time.Now().UTC().Format(time.RFC1123), packagesSum, len(packages), packagesSum, len(packages), packagesSum, len(packages))
	debian := StaticFiles{
		"/debian/dists/stable/Release": []byte(release), "/debian/pool/leaf_1.0.0_all.deb": deb,
	}
	for _, arch := range []string{"all", "amd64", "arm64"} {
		debian["/debian/dists/stable/main/binary-"+arch+"/Packages"] = []byte(packages)
	}
	return map[string]http.Handler{
		"proxy.golang.org": StaticFiles{
			"/example.test/leaf/@v/list": []byte("v1.0.0\n"), "/example.test/leaf/@v/v1.0.0.info": []byte(`{"Version":"v1.0.0"}`), "/example.test/leaf/@v/v1.0.0.mod": []byte(goMod),
			"/example.test/leaf/@v/v1.0.0.zip": packZip(t, map[string]string{"example.test/leaf@v1.0.0/go.mod": goMod, "example.test/leaf@v1.0.0/leaf.go": "package leaf\n\nconst X = 1\n"}),
		},
		"registry.npmjs.org": StaticFiles{
			"/leaf":                  []byte(fmt.Sprintf(`{"name":"leaf","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"leaf","version":"1.0.0","dist":{"tarball":"https://registry.npmjs.org/leaf/-/leaf-1.0.0.tgz","integrity":"sha512-%s"}}}}`, base64.StdEncoding.EncodeToString(tarballSum[:]))),
			"/leaf/-/leaf-1.0.0.tgz": tarball,
		},
		"pypi.org": StaticFiles{
			"/simple/leaf/": []byte(fmt.Sprintf(`<!DOCTYPE html><html><body><a href="https://files.pythonhosted.org/packages/leaf-1.0.0-py3-none-any.whl#sha256=%x">leaf-1.0.0-py3-none-any.whl</a></body></html>`, wheelSum)),
		},
		"files.pythonhosted.org": StaticFiles{"/packages/leaf-1.0.0-py3-none-any.whl": wheel},
		"index.crates.io": StaticFiles{
			"/config.json": []byte(`{"dl":"https://static.crates.io/crates","api":"https://crates.io"}`),
			"/le/af/leaf":  []byte(fmt.Sprintf(`{"name":"leaf","vers":"1.0.0","deps":[],"cksum":"%s","features":{},"yanked":false}`+"\n", hex.EncodeToString(crateSum[:]))),
		},
		"static.crates.io":      StaticFiles{"/crates/leaf/1.0.0/download": crate},
		"deb.debian.org":        debian,
		"repo.maven.apache.org": StaticFiles{},
		"git.test":              gitServer(t, key),
		"canary.test":           StaticFiles{"/": []byte("x")},
	}
}

// gitServer returns a handler for the repositories org/r.git and mine/r.git. The
// latter needs the key.
func gitServer(t *testing.T, key string) http.Handler {
	t.Helper()
	root := t.TempDir()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "work"},
		{"-C", "work", "-c", "user.name=x", "-c", "user.email=x@example.test", "commit", "-q", "--allow-empty", "-m", "one"},
		{"clone", "-q", "--bare", "work", "org/r.git"},
		{"clone", "-q", "--bare", "work", "mine/r.git"},
		{"-C", "org/r.git", "config", "http.receivepack", "true"},
		{"-C", "mine/r.git", "config", "http.receivepack", "true"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir, cmd.Env = root, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + root}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	execPath, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + root}, Stderr: io.Discard}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); strings.HasPrefix(r.URL.Path, "/mine/") && password != key {
			http.Error(w, "no key", http.StatusForbidden)
			return
		}
		backend.ServeHTTP(w, r)
	})
}
