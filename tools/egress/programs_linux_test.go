package egress

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
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// programSession is a session whose proxy listens, for programs of this machine.
type programSession struct {
	*session
	env []string
	dir string
}

// startPrograms returns a session with presets, of which git may fetch from
// https://git.test/org/ and push to https://git.test/mine/.
func startPrograms(t *testing.T, keep *cache.Cache, edit func(*Options), names ...string) *programSession {
	t.Helper()
	p := &programSession{dir: t.TempDir()}
	to, err := rule.ParseEgress("https://git.test/mine/")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := secret.New([]secret.Secret{{Name: "GIT_KEY", Value: keyValue, To: []rule.Rule{to}}})
	if err != nil {
		t.Fatal(err)
	}
	git, err := preset.NewGit(preset.Options{Fetch: []string{"https://git.test/org/"}, Push: []string{"https://git.test/mine/"}, GitHeader: keys.GitHeader})
	if err != nil {
		t.Fatal(err)
	}
	all := []*preset.Preset{git}
	for _, name := range names {
		one, err := preset.New(name, preset.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	sum := preset.Merge(all...)
	p.session = newSession(t, nil, func(o *Options) {
		o.Policy, o.Mirrors, o.Secrets = &rule.Policy{Allow: sum.Rules}, sum.Mirrors, keys
		if keep != nil {
			o.Registries = &Registries{Preset: sum, Cache: keep}
		}
		if edit != nil {
			edit(o)
		}
	})
	files := map[string]string{"ca.pem": string(p.authority.PEM()), "bundle.pem": string(p.authority.PEM())}
	for name, text := range sum.Files {
		files[name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plan := &sandbox.EgressPlan{Roots: p.authority.PEM(), Env: sum.Environment(sandbox.EgressDir)}
	p.env = plan.CommandEnv([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "LANG=C.UTF-8"}, nil, 7)
	for i, v := range p.env {
		p.env[i] = strings.ReplaceAll(v, sandbox.EgressDir, p.dir)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", proxyAddr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			at := netip.MustParseAddrPort(conn.LocalAddr().String())
			wg.Go(func() {
				p.ServeEgress(context.Background(), &testConn{TCPConn: conn.(*net.TCPConn), local: at, command: sandbox.CommandNumber(at.Addr()), uid: 10001})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.Close()
		wg.Wait()
	})
	return p
}

// run runs a program in a directory of its own, and returns its output.
func (p *programSession) run(dir string, args ...string) (string, error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, p.env, time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// require runs a program that must succeed.
func (p *programSession) require(dir string, args ...string) string {
	p.t.Helper()
	out, err := p.run(dir, args...)
	if err != nil {
		p.t.Errorf("%s: %v\n%s%+v", strings.Join(args, " "), err, out, p.takeDenied())
	}
	return out
}

// internet is the hosts of a namespace, at its public address.
type internet struct {
	authority *ca.Authority
	hosts     map[string]http.Handler
	mu        sync.Mutex
	requests  []string
	sent      atomic.Int64 // bytes of bodies
}

// ServeHTTP implements [http.Handler].
func (n *internet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	n.requests = append(n.requests, r.Method+" "+r.Host+r.URL.Path)
	n.mu.Unlock()
	if h := n.hosts[r.Host]; h != nil {
		h.ServeHTTP(sentWriter{w, &n.sent}, r)
		return
	}
	http.NotFound(w, r)
}

// sentWriter counts the bytes of bodies.
type sentWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w sentWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(int64(n))
	return n, err
}

func (w sentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// startInternet starts the hosts, with http and https.
func startInternet(t *testing.T, hosts map[string]http.Handler) *internet {
	t.Helper()
	n := &internet{authority: newAuthority(t), hosts: hosts}
	answers := map[string][]egresstest.Answer{}
	for host := range hosts {
		answers[host] = []egresstest.Answer{{Addrs: []string{egresstest.PublicAddr}}}
	}
	egresstest.StartNameServer(t, answers)
	for _, port := range []string{"80", "443"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", egresstest.PublicAddr+":"+port)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: n, ReadHeaderTimeout: time.Minute, ErrorLog: discardLog}
		if port == "443" {
			server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return n.authority.Leaf(h.ServerName) }}
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

// count returns the number of requests with a beginning.
func (n *internet) count(prefix string) int {
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

// staticFiles serves files by path.
type staticFiles map[string][]byte

// ServeHTTP implements [http.Handler].
func (f staticFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// packTar returns a compressed archive of files.
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

// packZip returns an archive of files.
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

// registries returns the hosts of registries, each with one package of version 1.0.0
// named leaf, and the repositories of git.
func registries(t *testing.T) map[string]http.Handler {
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
	debian := staticFiles{
		"/debian/dists/stable/Release": []byte(release), "/debian/pool/leaf_1.0.0_all.deb": deb,
	}
	for _, arch := range []string{"all", "amd64", "arm64"} {
		debian["/debian/dists/stable/main/binary-"+arch+"/Packages"] = []byte(packages)
	}
	return map[string]http.Handler{
		"proxy.golang.org": staticFiles{
			"/example.test/leaf/@v/list": []byte("v1.0.0\n"), "/example.test/leaf/@v/v1.0.0.info": []byte(`{"Version":"v1.0.0"}`), "/example.test/leaf/@v/v1.0.0.mod": []byte(goMod),
			"/example.test/leaf/@v/v1.0.0.zip": packZip(t, map[string]string{"example.test/leaf@v1.0.0/go.mod": goMod, "example.test/leaf@v1.0.0/leaf.go": "package leaf\n\nconst X = 1\n"}),
		},
		"registry.npmjs.org": staticFiles{
			"/leaf":                  []byte(fmt.Sprintf(`{"name":"leaf","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"leaf","version":"1.0.0","dist":{"tarball":"https://registry.npmjs.org/leaf/-/leaf-1.0.0.tgz","integrity":"sha512-%s"}}}}`, base64.StdEncoding.EncodeToString(tarballSum[:]))),
			"/leaf/-/leaf-1.0.0.tgz": tarball,
		},
		"pypi.org": staticFiles{
			"/simple/leaf/": []byte(fmt.Sprintf(`<!DOCTYPE html><html><body><a href="https://files.pythonhosted.org/packages/leaf-1.0.0-py3-none-any.whl#sha256=%x">leaf-1.0.0-py3-none-any.whl</a></body></html>`, wheelSum)),
		},
		"files.pythonhosted.org": staticFiles{"/packages/leaf-1.0.0-py3-none-any.whl": wheel},
		"index.crates.io": staticFiles{
			"/config.json": []byte(`{"dl":"https://static.crates.io/crates","api":"https://crates.io"}`),
			"/le/af/leaf":  []byte(fmt.Sprintf(`{"name":"leaf","vers":"1.0.0","deps":[],"cksum":"%s","features":{},"yanked":false}`+"\n", hex.EncodeToString(crateSum[:]))),
		},
		"static.crates.io": staticFiles{"/crates/leaf/1.0.0/download": crate},
		"deb.debian.org":   debian,
		"git.test":         gitServer(t),
		"canary.test":      staticFiles{"/": []byte("x")},
	}
}

// gitServer returns a handler with the repositories org/r.git, and mine/r.git, which
// needs the key.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	root := t.TempDir()
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "work"}, {"-C", "work", "-c", "user.name=x", "-c", "user.email=x@example.test", "commit", "-q", "--allow-empty", "-m", "one"},
		{"clone", "-q", "--bare", "work", "org/r.git"}, {"clone", "-q", "--bare", "work", "mine/r.git"},
		{"-C", "org/r.git", "config", "http.receivepack", "true"}, {"-C", "mine/r.git", "config", "http.receivepack", "true"},
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
		if _, password, _ := r.BasicAuth(); strings.HasPrefix(r.URL.Path, "/mine/") && password != keyValue {
			http.Error(w, "no key", http.StatusForbidden)
			return
		}
		backend.ServeHTTP(w, r)
	})
}

// TestPrograms runs package managers, as far as this machine has them, against local
// registries through ended TLS, mirrors and the cache.
func TestPrograms(t *testing.T) {
	tests := []struct {
		name string
		run  func(t *testing.T, n *internet)
	}{
		{"go", programGo}, {"npm", programNPM}, {"pip", programPip}, {"cargo", programCargo}, {"apt", programApt}, {"git", programGit}, {"curl", programCurl},
	}
	if !egresstest.InNamespace() {
		egresstest.Run(t, len(tests))
		return
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.run(t, startInternet(t, registries(t)))
		})
	}
}

// need skips a program that this machine doesn't have; the test passes then.
func need(t *testing.T, program string) bool {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Logf("needs %s", program)
		return false
	}
	return true
}

// startWith returns a session that trusts the hosts.
func (n *internet) startWith(t *testing.T, keep *cache.Cache, names ...string) *programSession {
	t.Helper()
	return startPrograms(t, keep, func(o *Options) { o.Roots, o.Guard = poolOf(t, n.authority), nil }, names...)
}

func openTestCache(t *testing.T) *cache.Cache {
	t.Helper()
	c, err := cache.Open(t.TempDir(), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// requireOnce checks that a second session with the same cache downloads nothing
// again, and that the program works without a cache too. Install runs the program in
// a new directory.
func requireOnce(t *testing.T, n *internet, name, file string, install func(p *programSession)) {
	t.Helper()
	keep := openTestCache(t)
	for range 2 {
		t.Run("session", func(t *testing.T) { install(n.startWith(t, keep, name)) })
	}
	if got := n.count("GET " + file); got != 1 {
		t.Errorf("%s was downloaded %d times for two sessions", file, got)
	}
	t.Run("no cache", func(t *testing.T) { install(n.startWith(t, nil, name)) })
	if got := n.count("GET " + file); got != 2 {
		t.Errorf("%s was downloaded %d times with a third session without a cache", file, got)
	}
}

func programGo(t *testing.T, n *internet) {
	if !need(t, "go") {
		return
	}
	requireOnce(t, n, "go", "proxy.golang.org/example.test/leaf/@v/v1.0.0.zip", func(p *programSession) {
		dir := p.t.TempDir()
		writeFiles(p.t, dir, map[string]string{"go.mod": "module x\n\ngo 1.20\n\nrequire example.test/leaf v1.0.0\n", "x.go": "package x\n\nimport \"example.test/leaf\"\n\nconst Y = leaf.X\n", "x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) {\n\tif Y != 1 {\n\t\tt.Fatal(Y)\n\t}\n}\n"})
		// The local registry has no checksum database.
		p.env = append(p.env, "GONOSUMDB=*", "GOFLAGS=-mod=mod -modcacherw", "GOTOOLCHAIN=local", "GOPATH="+filepath.Join(dir, "go"), "GOCACHE="+sharedGoCache())
		p.require(dir, "go", "mod", "download")
		p.require(dir, "go", "test", "./...")
	})
}

// sharedGoCache returns the build cache of this test run, which holds the standard
// library.
func sharedGoCache() string {
	out, err := exec.CommandContext(context.Background(), "go", "env", "GOCACHE").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func programNPM(t *testing.T, n *internet) {
	if !need(t, "npm") {
		return
	}
	requireOnce(t, n, "npm", "registry.npmjs.org/leaf/-/leaf-1.0.0.tgz", func(p *programSession) {
		dir := p.t.TempDir()
		writeFiles(p.t, dir, map[string]string{"package.json": `{"name":"x","version":"1.0.0","dependencies":{"leaf":"1.0.0"}}`})
		p.require(dir, "npm", "install", "--no-audit")
		p.require(dir, "npm", "ci", "--no-audit")
		if lock, err := os.ReadFile(filepath.Join(dir, "package-lock.json")); err != nil || !strings.Contains(string(lock), "https://registry.npmjs.org/leaf/-/leaf-1.0.0.tgz") {
			p.t.Errorf("the lock file is %s, %v", lock, err)
		}
		before := n.count("PUT")
		if out, err := p.run(filepath.Join(dir, "node_modules", "leaf"), "npm", "publish", "--//registry.npmjs.org/:_authToken=x"); err == nil || n.count("PUT") != before {
			p.t.Errorf("npm publish: %v\n%s", err, out)
		}
	})
}

func programPip(t *testing.T, n *internet) {
	if !need(t, "pip") {
		return
	}
	requireOnce(t, n, "pip", "files.pythonhosted.org/packages/leaf-1.0.0-py3-none-any.whl", func(p *programSession) {
		dir := p.t.TempDir()
		p.require(dir, "pip", "install", "--no-cache-dir", "--target", "out", "leaf")
		if _, err := os.Stat(filepath.Join(dir, "out", "leaf.py")); err != nil {
			p.t.Error(err)
		}
	})
}

func programCargo(t *testing.T, n *internet) {
	if !need(t, "cargo") {
		return
	}
	requireOnce(t, n, "cargo", "static.crates.io/crates/leaf/1.0.0/download", func(p *programSession) {
		dir := p.t.TempDir()
		writeFiles(p.t, dir, map[string]string{"Cargo.toml": "[package]\nname = \"x\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[dependencies]\nleaf = \"1.0.0\"\n", "src/lib.rs": "\n"})
		// The toolchain is the user's, the state is not.
		p.env = append(p.env, "CARGO_HOME="+filepath.Join(dir, "cargo"), "RUSTUP_HOME="+filepath.Join(os.Getenv("HOME"), ".rustup"), "RUSTUP_TOOLCHAIN="+os.Getenv("RUSTUP_TOOLCHAIN"))
		p.env = slices.DeleteFunc(p.env, func(v string) bool { return v == "RUSTUP_TOOLCHAIN=" })
		p.require(dir, "cargo", "fetch")
	})
}

func programApt(t *testing.T, n *internet) {
	if !need(t, "apt-get") {
		return
	}
	requireOnce(t, n, "apt", "deb.debian.org/debian/pool/leaf_1.0.0_all.deb", func(p *programSession) {
		dir := p.t.TempDir()
		writeFiles(p.t, dir, map[string]string{"sources.list": "deb [trusted=yes] http://deb.debian.org/debian stable main\n", "state/x": "", "status": ""})
		config, err := os.ReadFile(filepath.Join(p.dir, "apt.conf"))
		if err != nil {
			p.t.Fatal(err)
		}
		// The preset's directory is for all programs of a sandbox.
		text := strings.ReplaceAll(strings.ReplaceAll(string(config), "/tmp/apt/", dir+"/state/apt/"), "/var/lib/dpkg/status", dir+"/status")
		text += fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"-\";\n", dir+"/sources.list")
		writeFiles(p.t, p.dir, map[string]string{"apt.conf": text})
		p.require(dir, "apt-get", "update")
		p.require(dir, "apt-get", "download", "leaf")
		if _, err := os.Stat(filepath.Join(dir, "leaf_1.0.0_all.deb")); err != nil {
			p.t.Error(err)
		}
	})
}

func programGit(t *testing.T, n *internet) {
	p := n.startWith(t, nil)
	dir := t.TempDir()
	p.require(dir, "git", "clone", "-q", "https://git.test/org/r.git", "a")
	p.require(dir, "git", "clone", "-q", "git@git.test:org/r", "b") // rewritten to https
	identity := []string{"-c", "user.name=x", "-c", "user.email=x@example.test"}
	p.require(dir, append([]string{"git", "-C", "a"}, append(identity, "commit", "-q", "--allow-empty", "-m", "two")...)...)
	if out, err := p.run(dir, "git", "-C", "a", "push", "-q", "origin", "main"); err == nil || n.count("POST git.test/org/r.git/git-receive-pack") != 0 {
		t.Errorf("a push to a URL that may be fetched from: %v\n%s", err, out)
	}
	if out, err := p.run(dir, "git", "clone", "-q", "https://git.test/other/r.git", "c"); err == nil || n.count("GET git.test/other") != 0 {
		t.Errorf("another repository: %v\n%s", err, out)
	}
	p.require(dir, "git", "clone", "-q", "https://git.test/mine/r.git", "d") // with the key
	p.require(dir, append([]string{"git", "-C", "d"}, append(identity, "commit", "-q", "--allow-empty", "-m", "two")...)...)
	p.require(dir, "git", "-C", "d", "push", "-q", "origin", "main")
	if n.count("POST git.test/mine/r.git/git-receive-pack") == 0 {
		t.Error("the push didn't arrive")
	}
	for _, v := range p.env {
		if strings.Contains(v, keyValue) || strings.Contains(v, base64.StdEncoding.EncodeToString([]byte("x-access-token:"+keyValue))) {
			t.Errorf("the environment has the key: %s", v)
		}
	}
	p.requireNoKey()
}

// programCurl is attack 36 beside the control: a file of the workspace that names
// another proxy leads nowhere, and hosts without a rule are refused.
func programCurl(t *testing.T, n *internet) {
	if !need(t, "curl") {
		return
	}
	p := n.startWith(t, nil, "npm")
	dir := t.TempDir()
	if out := p.require(dir, "curl", "-sS", "https://registry.npmjs.org/leaf"); !strings.Contains(out, "dist-tags") {
		t.Errorf("curl printed %s", out)
	}
	for _, args := range [][]string{
		{"https://canary.test/"}, {"http://canary.test/"}, {"-X", "PUT", "https://registry.npmjs.org/leaf"}, {"--connect-to", "registry.npmjs.org:443:canary.test:443", "https://registry.npmjs.org/"},
		{"-x", "http://canary.test:80", "https://registry.npmjs.org/leaf"}, {"-H", "Host: canary.test", "https://registry.npmjs.org/leaf"}, {"-k", "--resolve", "canary.test:443:" + egresstest.PublicAddr, "https://canary.test/"},
	} {
		if args[0] == "-x" {
			continue // the namespace has no other network: end-to-end tests have this one
		}
		if out, err := p.run(dir, append([]string{"curl", "-sSf"}, args...)...); err == nil {
			t.Errorf("curl %v: %s", args, out)
		}
	}
	if got := n.count("GET canary.test") + n.count("PUT"); got != 0 {
		t.Errorf("%d requests arrived that are refused", got)
	}
}

func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
