package egress

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
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
	maps.Copy(files, sum.Files)
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

// run runs a program in a new directory and returns its output.
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

// internet is the hosts of a namespace.
type internet struct{ *egresstest.Internet }

// TestPrograms runs package managers, as far as this machine has them, against local
// registries through ended TLS, mirrors and the cache.
func TestPrograms(t *testing.T) {
	tests := []struct {
		name string
		run  func(t *testing.T, n *internet)
	}{
		{"go", programGo}, {"npm", programNPM}, {"pip", programPip}, {"cargo", programCargo}, {"apt", programApt}, {"git", programGit}, {"curl", programCurl}, {"maven", programMaven},
	}
	if !egresstest.InNamespace() {
		egresstest.Run(t, len(tests))
		return
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.run(t, &internet{egresstest.StartInternet(t, egresstest.Registries(t, keyValue))})
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
	return startPrograms(t, keep, func(o *Options) { o.Roots, o.Guard = poolOf(t, n.Authority), nil }, names...)
}

func openTestCache(t *testing.T) *cache.Cache {
	t.Helper()
	c, err := cache.Open(t.TempDir(), false)
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
	if got := n.Count("GET " + file); got != 1 {
		t.Errorf("%s was downloaded %d times for two sessions", file, got)
	}
	t.Run("no cache", func(t *testing.T) { install(n.startWith(t, nil, name)) })
	if got := n.Count("GET " + file); got != 2 {
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
		p.env = append(p.env, "GONOSUMDB=*", "GOFLAGS=-mod=mod -modcacherw -trimpath", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOPATH="+filepath.Join(dir, "go"), "GOCACHE="+sharedGoCache())
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
		before := n.Count("PUT")
		if out, err := p.run(filepath.Join(dir, "node_modules", "leaf"), "npm", "publish", "--//registry.npmjs.org/:_authToken=x"); err == nil || n.Count("PUT") != before {
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
		// Cargo before 1.68 has the sparse protocol with two more variables.
		p.env = append(p.env, "RUSTC_BOOTSTRAP=1", "CARGO_UNSTABLE_SPARSE_REGISTRY=true", "CARGO_HOME="+filepath.Join(dir, "cargo"), "RUSTUP_HOME="+filepath.Join(os.Getenv("HOME"), ".rustup"), "RUSTUP_TOOLCHAIN="+os.Getenv("RUSTUP_TOOLCHAIN"))
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
	if out, err := p.run(dir, "git", "-C", "a", "push", "-q", "origin", "main"); err == nil || n.Count("POST git.test/org/r.git/git-receive-pack") != 0 {
		t.Errorf("a push to a URL that may be fetched from: %v\n%s", err, out)
	}
	if out, err := p.run(dir, "git", "clone", "-q", "https://git.test/other/r.git", "c"); err == nil || n.Count("GET git.test/other") != 0 {
		t.Errorf("another repository: %v\n%s", err, out)
	}
	p.require(dir, "git", "clone", "-q", "https://git.test/mine/r.git", "d") // with the key
	p.require(dir, append([]string{"git", "-C", "d"}, append(identity, "commit", "-q", "--allow-empty", "-m", "two")...)...)
	p.require(dir, "git", "-C", "d", "push", "-q", "origin", "main")
	if n.Count("POST git.test/mine/r.git/git-receive-pack") == 0 {
		t.Error("the push didn't arrive")
	}
	for _, v := range p.env {
		if strings.Contains(v, keyValue) || strings.Contains(v, base64.StdEncoding.EncodeToString([]byte("x-access-token:"+keyValue))) {
			t.Errorf("the environment has the key: %s", v)
		}
	}
	p.requireNoKey()
}

// programMaven checks that Maven asks the mirror. The registry has no plugins, so that
// it can't do more.
func programMaven(t *testing.T, n *internet) {
	if !need(t, "mvn") {
		return
	}
	p := n.startWith(t, nil, "maven")
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"pom.xml": "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version></project>\n"})
	p.env = append(p.env, "MAVEN_OPTS=-Duser.home="+dir)
	out, err := p.run(dir, "mvn", "-B", "-s", filepath.Join(p.dir, "settings.xml"), "compile")
	if n.Count("GET repo.maven.apache.org/maven2/org/apache/maven/plugins/") == 0 {
		t.Errorf("no request arrived: %v\n%s", err, out)
	}
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
		{"https://canary.test/"},
		{"http://canary.test/"},
		{"-X", "PUT", "https://registry.npmjs.org/leaf"},
		{"--connect-to", "registry.npmjs.org:443:canary.test:443", "https://registry.npmjs.org/"},
		{"-x", "http://canary.test:80", "https://registry.npmjs.org/leaf"},
		{"-H", "Host: canary.test", "https://registry.npmjs.org/leaf"},
		{"-k", "--resolve", "canary.test:443:" + egresstest.PublicAddr, "https://canary.test/"},
	} {
		if args[0] == "-x" {
			continue // the namespace has no other network: end-to-end tests have this one
		}
		if out, err := p.run(dir, append([]string{"curl", "-sSf"}, args...)...); err == nil {
			t.Errorf("curl %v: %s", args, out)
		}
	}
	if got := n.Count("GET canary.test") + n.Count("PUT"); got != 0 {
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
