package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
)

// egressPrograms are the programs of commands, each with one line of configuration. They use the
// hosts, and with where those of a [hostRegistries].
var egressPrograms = []struct{ name, config, needs, hosts, where, command, want string }{
	{"go", "presets: [go]", "go", "proxy.golang.org", `export GOPROXY=ORIGIN/proxy.golang.org`, `mkdir g && cd g && printf 'module x\n\ngo 1.20\n\nrequire example.test/leaf v1.0.0\n' >go.mod &&
printf 'package x\n\nimport "example.test/leaf"\n\nconst X = leaf.X\n' >x.go &&
export GOFLAGS=-mod=mod GONOSUMDB=example.test GOCACHE=/tmp/gocache && go mod download && go build ./... && go list -m all`, "example.test/leaf v1.0.0"},
	{"npm", "presets: [npm]", "npm", "registry.npmjs.org", `export npm_config_registry=ORIGIN/registry.npmjs.org/`, `mkdir n && cd n && printf '{"name":"x","version":"1.0.0","dependencies":{"leaf":"1.0.0"}}' >package.json &&
npm install --no-audit >/dev/null && rm -r node_modules && npm ci --no-audit && cat node_modules/leaf/index.js`, "module.exports = 1"},
	{"pip", "presets: [pip]", "pip3", "pypi.org files.pythonhosted.org", `export PIP_INDEX_URL=ORIGIN/pypi.org/simple PIP_TRUSTED_HOST=host.caisson.internal`, `pip3 install --no-cache-dir --target p leaf && cat p/leaf.py`, "x = 1"},
	// Debian's cargo is older than 1.68, which has the sparse protocol without the variables.
	{"cargo", "presets: [cargo]", "cargo", "index.crates.io static.crates.io", `mkdir -p c/.cargo && printf '[source.crates-io]\nreplace-with = "x"\n[source.x]\nregistry = "sparse+ORIGIN/index.crates.io/"\n' >c/.cargo/config.toml`, `mkdir -p c/src && cd c && printf '[package]\nname = "x"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\nleaf = "1.0.0"\n' >Cargo.toml &&
: >src/lib.rs && RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_SPARSE_REGISTRY=true cargo fetch`, "Downloaded leaf v1.0.0"},
	{"git", `git: ["https://git.test/org/"]`, "git", "git.test", "", `git clone -q https://git.test/org/r r && git -C r log --format=%s`, "one"},
	{"apt", "presets: [apt]", "apt-get", "deb.debian.org", "", `mkdir -p /tmp/a && cd /tmp/a && echo 'deb [trusted=yes] http://deb.debian.org/debian stable main' >list &&
o="-o Dir::Etc::sourcelist=/tmp/a/list -o Dir::Etc::sourceparts=/nonexistent" && apt-get $o update -q && apt-get $o download leaf && ls *.deb`, "leaf_1.0.0_all.deb"},
}

// egressCall runs a command by the tool shell.
func (m *machine) egressCall(t *testing.T, backend, command string) outcome {
	t.Helper()
	args := []string{"tools", "call", "--json", "--backend", backend, "--workspace", m.workspace, "--policy", "sandboxed"}
	input := mustJSON(t, map[string]any{"command": "PATH=$PATH:/usr/local/go/bin; " + command, "timeout_seconds": 240})
	return m.run(t, append(args, "shell", input)...)
}

// TestEgress runs package managers in fresh sandboxes, with one line of configuration
// each, against local registries in a network namespace, and tries what no line allows.
// An engine sees no mounts of the namespace: TestEgressHost has it.
func TestEgress(t *testing.T) {
	names := sandboxtest.Sampled(t, "gvisor", "runc")
	if !egresstest.InNamespace() {
		t.Parallel()
		dir := binaries(t)
		egresstest.Run(t, len(names), "E2E_BIN="+dir)
		return
	}
	hosts := egresstest.Registries(t, "not a key")
	hosts["doh.test"] = http.HandlerFunc(serveDoH)
	n := egresstest.StartInternet(t, hosts)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, ca, n.Authority.PEM(), 0o600)
	for _, backend := range names {
		t.Run(backend, func(t *testing.T) {
			if err := probeBackend(t, backend); err != nil {
				if strings.Contains(os.Getenv("REQUIRE_BACKENDS"), backend) {
					t.Fatal(err)
				}
				t.Logf("needs %s: %v", backend, err)
				return
			}
			for _, p := range egressPrograms {
				t.Run(p.name, func(t *testing.T) { runEgressProgram(t, n, backend, ca, p.config, p.needs, p.command, p.want) })
			}
			t.Run("refused", func(t *testing.T) { testEgressRefused(t, n, backend, ca) })
			for _, d := range detours {
				t.Run(d.name, func(t *testing.T) { d.test(t, n, backend, ca) })
			}
		})
	}
}

// TestEgressHost runs programs with registries of this machine, which rules and a private
// network name: all on an engine, and go and git on the other backends, where TestEgress
// has the rest.
func TestEgressHost(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		r := startHostRegistries(t)
		canary := startHostRegistries(t)
		command, failed := "", 0
		for _, p := range egressPrograms {
			if backend != "docker" && p.name != "go" && p.name != "git" || !isInUsr(t, p.needs) {
				continue
			}
			where, own := r.replaceHosts(p.where)+"\n", r.replaceHosts(p.command)
			t.Run(p.name, func(t *testing.T) {
				out := r.call(t, backend, where+own, strings.Fields(p.hosts)...)
				if !strings.Contains(out.stdout, p.want) {
					t.Errorf("status %d, without %q:\n%s\n%s", out.status, p.want, out.stdout, out.stderr)
				}
			})
			command += "(" + where + own + ") || echo without-rule " + p.name + "\n"
			failed++
		}
		// The same programs and the canary without a rule for them, and with one.
		before := r.count("")
		command += "curl -sS -m 5 " + canary.origin + "/canary.test/; curl -sS -m 5 https://example.com/; curl -sS -m 5 " + r.origin + "/canary.test/; true"
		out := r.call(t, backend, command, "canary.test")
		if got := strings.Count(out.stdout, "without-rule "); got != failed {
			t.Errorf("%d of %d programs failed without a rule", got, failed)
		}
		if got, at := r.count("")-before, r.count("canary.test"); got != 1 || at != 1 || canary.count("") != 0 {
			t.Errorf("without a rule %d requests arrived, and %d at the canary; the control %d times", got-at, canary.count(""), at)
		}
		for _, want := range []string{"example.com:443 (not_allowed)", strings.TrimPrefix(canary.origin, "http://") + " (not_allowed)"} {
			if !strings.Contains(out.stdout, want) {
				t.Errorf("the result lacks %q:\n%s\n%s", want, out.stdout, out.stderr)
			}
		}
	})
}

// egressFlood makes 1,000 connections, 100 at a time, and prints how many were answered.
const egressFlood = `
import concurrent.futures, os, socket
proxy = os.environ["HTTP_PROXY"].split("//")[1].strip("/").rsplit(":", 1)
def connect(i):
    with socket.create_connection((proxy[0], int(proxy[1])), timeout=120) as c:
        c.sendall(b"GET ORIGIN/canary.test/ HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
        answer = b""
        while block := c.recv(65536):
            answer += block
        return answer.split(b" ")[1]
with concurrent.futures.ThreadPoolExecutor(100) as pool:
    got = list(pool.map(connect, range(1000)))
print({s.decode(): got.count(s) for s in set(got)})
`

// TestEgressFlood makes 1,000 connections in one command of a sandbox, while others run
// there: each is answered, at the pace of the guest, and Caisson's memory stays bounded. It
// logs by how much the others take longer, which depends on what else the machine does.
func TestEgressFlood(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		if !isInUsr(t, "python3") {
			return
		}
		r := startHostRegistries(t)
		m := newMachine(t)
		m.env = append(m.env, "CONTROL_TOKEN="+secret())
		m.config(t, fmt.Sprintf("serve:\n  tokens: {test: {env: CONTROL_TOKEN}}\n  sandboxes: {enabled: true}\negress:\n  allow: [%s/]\n  private: {host.caisson.internal: [127.0.0.1]}\n", r.origin))
		address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		server := m.serve(t, "--backend", backend, "--listen", address)
		peak := watchMemory(server.process.Process.Pid, "VmHWM")
		api := apiClient{t: t, base: "http://" + address, token: m.token()}
		id := api.id(api.do(http.MethodPost, "/sandboxes", map[string]any{}, http.StatusCreated))
		exec := func(argv ...string) string {
			return string(api.do(http.MethodPost, "/sandboxes/"+id+"/exec", map[string]any{"argv": argv}, http.StatusOK))
		}
		// measure returns the median time of commands until done.
		measure := func(done <-chan struct{}) time.Duration {
			var all []time.Duration
			for {
				begun := time.Now()
				if out := exec("sh", "-c", "true"); !strings.Contains(out, `"status":0`) {
					t.Errorf("a command beside: %s", out)
				}
				all = append(all, time.Since(begun))
				select {
				case <-done:
					slices.Sort(all)
					return all[len(all)/2]
				default:
				}
			}
		}
		idleDone, floodDone := make(chan struct{}), make(chan struct{})
		time.AfterFunc(2*time.Second, func() { close(idleDone) })
		idle := measure(idleDone)
		script := strings.NewReplacer("ORIGIN", r.origin, "HOST", strings.TrimPrefix(r.origin, "http://")).Replace(egressFlood)
		var flood string
		begun := time.Now()
		go func() {
			defer close(floodDone)
			flood = exec("python3", "-c", script)
		}()
		beside := measure(floodDone)
		took := time.Since(begun)
		// The guest accepts no more than 100 a second for each processor, and fewer in gVisor.
		if took < time.Second*(1000-128-64)/time.Duration(100*runtime.NumCPU()) {
			t.Errorf("1,000 connections took %v: nothing held them back", took)
		}
		t.Logf("1,000 connections in %.1f s; sh -c true: idle %v, beside them %v, %.1f times", took.Seconds(), idle.Round(10*time.Microsecond), beside.Round(10*time.Microsecond), float64(beside)/float64(idle))
		if n := r.count("canary.test"); !strings.Contains(flood, "{'200': 1000}") || n != 1000 {
			t.Errorf("%d requests arrived: %s", n, flood)
		}
		if out := exec("echo", "intact"); !strings.Contains(out, "intact") {
			t.Errorf("after it: %s", out)
		}
		api.do(http.MethodDelete, "/sandboxes/"+id, nil, http.StatusOK)
		server.signal(t, syscall.SIGTERM)
		server.wait(t, deadline).want(t, 0)
		bytes := <-peak
		t.Logf("peak of caisson: %d MiB", bytes>>20)
		if bytes == 0 || bytes > 2*residentBound {
			t.Errorf("caisson held %d MiB at its peak, want at most %d", bytes>>20, 2*residentBound>>20)
		}
		m.wantNothingLeft(t, id)
	})
}

// hostRegistries is a server of this machine that has registries, each at its host as the
// first part of the path. Links name the server.
type hostRegistries struct {
	origin string // as sandboxes name it
	hosts  map[string]http.Handler
	mu     sync.Mutex
	asked  []string // the hosts of requests
}

func startHostRegistries(t *testing.T) *hostRegistries {
	t.Helper()
	r := &hostRegistries{hosts: egresstest.Registries(t, "not a key")}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.origin = strings.Replace(server.URL, "127.0.0.1", "host.caisson.internal", 1)
	for _, h := range r.hosts {
		if files, ok := h.(egresstest.StaticFiles); ok {
			for path, text := range files {
				files[path] = []byte(r.replaceHosts(string(text)))
			}
		}
	}
	return r
}

// replaceHosts returns a text with the server's addresses instead of the registries' ones.
func (r *hostRegistries) replaceHosts(text string) string {
	text = strings.ReplaceAll(text, "ORIGIN", r.origin)
	for host := range r.hosts {
		text = strings.NewReplacer("https://"+host+"/", r.origin+"/"+host+"/", "http://"+host+"/", r.origin+"/"+host+"/").Replace(text)
	}
	return text
}

// ServeHTTP implements [http.Handler].
func (r *hostRegistries) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	host, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	r.mu.Lock()
	r.asked = append(r.asked, host)
	r.mu.Unlock()
	if h := r.hosts[host]; h != nil {
		http.StripPrefix("/"+host, h).ServeHTTP(w, req)
		return
	}
	http.NotFound(w, req)
}

// count returns the number of requests to a host, or to all for "".
func (r *hostRegistries) count(host string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if host == "" {
		return len(r.asked)
	}
	return len(slices.DeleteFunc(slices.Clone(r.asked), func(s string) bool { return s != host }))
}

// call runs a command in a fresh sandbox that may reach hosts of the server. The preset
// apt is for its variables.
func (r *hostRegistries) call(t *testing.T, backend, command string, hosts ...string) outcome {
	t.Helper()
	m := newMachine(t)
	config := "egress:\n  presets: [apt]\n  private: {host.caisson.internal: [127.0.0.1]}\n  allow:\n"
	for _, host := range hosts {
		config += fmt.Sprintf("    - {url: %s/%s/, methods: [GET, HEAD, POST]}\n", r.origin, host)
	}
	m.config(t, config)
	return m.egressCall(t, backend, command)
}

// TestEgressKilled kills Caisson in the middle of a download: its connection ends, and the
// next start leaves nothing of the sandbox.
func TestEgressKilled(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		began, ended := make(chan struct{}, 1), make(chan struct{}, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began <- struct{}{}
			block := make([]byte, 64<<10)
			for r.Context().Err() == nil {
				if _, err := w.Write(block); err != nil {
					break
				}
			}
			ended <- struct{}{}
		}))
		t.Cleanup(server.Close)
		m := newMachine(t)
		origin := strings.Replace(server.URL, "127.0.0.1", "host.caisson.internal", 1)
		m.config(t, fmt.Sprintf("egress:\n  allow: [%s/]\n  private: {host.caisson.internal: [127.0.0.1]}\n  budget: {bytes: 1TiB}\n", origin))
		run := m.start(t, "tools", "call", "--backend", backend, "--workspace", m.workspace, "--policy", "sandboxed", "shell", mustJSON(t, map[string]any{"command": "curl -sS " + origin + "/ >/dev/null"}))
		select {
		case <-began:
		case <-run.ended:
			t.Fatalf("there was no download:\n%s", run.stderr)
		case <-time.After(deadline):
			t.Fatal("the download did not begin")
		}
		run.kill(t)
		select {
		case <-ended:
		case <-time.After(deadline):
			t.Fatal("the connection outlives Caisson")
		}
		out := m.run(t, "sandbox", "gc", "--json")
		if out.status != 0 || !strings.Contains(out.stdout, `"left": []`) {
			t.Errorf("status %d\n%s\n%s", out.status, out.stdout, out.stderr)
		}
		m.wantNoTraces(t)
	})
}

// runEgressProgram runs a command with a line of configuration, and checks its records.
func runEgressProgram(t *testing.T, n *egresstest.Internet, backend, ca, config, needs, command, want string) {
	if !isInUsr(t, needs) {
		return
	}
	m := newMachine(t)
	m.config(t, fmt.Sprintf("egress:\n  ca: [%s]\n  %s\n", ca, config))
	out := m.egressCall(t, backend, command)
	if !strings.Contains(out.stdout, want) {
		t.Errorf("status %d, without %q:\n%s\n%s", out.status, want, out.stdout, out.stderr)
	}
	if n.Count("") == 0 {
		t.Error("no request reached the registries")
	}
}

// testEgressRefused tries what no rule allows. The hosts that must not be reached are
// there: the same command reaches one of them by a rule.
func testEgressRefused(t *testing.T, n *egresstest.Internet, backend, ca string) {
	const command = `curl -sS -m 20 https://canary.test/; curl -sS -m 5 --noproxy '*' https://canary.test/; curl -sS -m 5 --noproxy '*' https://93.184.216.34/; curl -sS -m 5 -k -H 'Host: canary.test' https://git.test/; curl -sS -m 5 http://169.254.169.254/; true`
	call := func(config string) outcome {
		m := newMachine(t)
		m.config(t, fmt.Sprintf("egress:\n  ca: [%s]\n  %s\n", ca, config))
		return m.egressCall(t, backend, command)
	}
	before := n.Count("GET canary.test")
	control := call(`allow: ["tls://canary.test"]`)
	if got := n.Count("GET canary.test") - before; got != 2 {
		t.Errorf("control: the canary was reached %d times by a rule, want by the proxy and captured\n%s\n%s", got, control.stdout, control.stderr)
	}
	before = n.Count("GET canary.test")
	out := call(`allow: ["https://git.test/org/"]`)
	if got := n.Count("GET canary.test") - before; got != 0 {
		t.Errorf("the canary was reached %d times", got)
	}
	for _, want := range []string{"network refused: canary.test:443 (not_allowed", "network refused: 169.254.169.254:80 (not_allowed)", "network allowed: https://git.test/org/"} {
		if !strings.Contains(out.stdout, want) {
			t.Errorf("the result lacks %q:\n%s\n%s", want, out.stdout, out.stderr)
		}
	}
}

// serveDoH answers a query of DNS over HTTPS (RFC 8484) with the public address.
func serveDoH(w http.ResponseWriter, r *http.Request) {
	const header = 12
	query, err := io.ReadAll(io.LimitReader(r.Body, 512))
	end := bytes.IndexByte(query[min(header, len(query)):], 0) + header + 5
	if err != nil || len(query) < end {
		http.Error(w, "not a query", http.StatusBadRequest)
		return
	}
	answer := append(query[:2:2], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	answer = append(answer, query[header:end]...)
	if query[end-3] == 1 { // an address of IPv4
		answer[7] = 1
		answer = append(answer, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		answer = append(answer, netip.MustParseAddr(egresstest.PublicAddr).AsSlice()...)
	}
	w.Header().Set("Content-Type", "application/dns-message")
	_, _ = w.Write(answer)
}

// detour is an attack by a program or a file in the sandbox that leads connections
// elsewhere.
type detour struct {
	name, needs, command string
	allow                string // what is allowed: the command has no other way
	control              string // what is allowed so that the same command reaches the canary
	canary               string // the beginning of what arrives then
	refused              string // a line of the result
}

// localRelay is a proxy of CONNECT and GET that a command runs: it passes all bytes on to
// the proxy.
const localRelay = `python3 -c '
import os, socket, threading
proxy = os.environ["HTTP_PROXY"].split("//")[1].strip("/").rsplit(":", 1)
l = socket.create_server(("127.0.0.1", 8888))
def copy(a, b):
    while block := a.recv(65536):
        b.sendall(block)
    b.shutdown(socket.SHUT_WR)
while True:
    c = l.accept()[0]
    up = socket.create_connection((proxy[0], int(proxy[1])))
    threading.Thread(target=copy, args=(c, up), daemon=True).start()
    threading.Thread(target=copy, args=(up, c), daemon=True).start()
' & until curl -s -o /dev/null http://127.0.0.1:8888/; do sleep 0.1; done
curl -sS -k -m 20 -x http://127.0.0.1:8888 https://canary.test/; curl -sS -m 20 -x http://127.0.0.1:8888 http://canary.test/; kill %1 2>/dev/null; true`

// detours are attacks 6, 36 and 37.
var detours = []detour{
	{"relay", "python3", localRelay, `"https://git.test/"`, `"tls://canary.test", "http://canary.test/"`, "GET canary.test/", "canary.test:443 (not_allowed"},
	{
		"npmrc", "npm", `mkdir n && cd n && printf 'proxy=http://canary.test/\nhttps-proxy=http://canary.test/\nnoproxy=\nfetch-retries=0\n' >.npmrc && (unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy; timeout 60 npm view leaf); true`,
		`"https://registry.npmjs.org/"`, `"tcp://canary.test:80"`, "CONNECT registry.npmjs.org", "canary.test (not_allowed",
	},
	{
		"pip.conf", "pip3", `printf '[global]\nproxy = http://canary.test:80\nretries = 0\n' >pip.conf && (unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy; PIP_CONFIG_FILE=pip.conf timeout 60 pip3 download --no-deps leaf); true`,
		`"https://pypi.org/simple/"`, `"tcp://canary.test:80"`, "CONNECT pypi.org", "canary.test (not_allowed",
	},
	{
		"env file", "curl", `printf 'HTTP_PROXY=http://canary.test:80\nHTTPS_PROXY=http://canary.test:80\nhttp_proxy=http://canary.test:80\nhttps_proxy=http://canary.test:80\n' >.env; printf 'proxy = http://canary.test:80\n' >curlrc; (set -a; . ./.env; curl -sS -m 20 https://git.test/org/); curl -sS -m 20 -K curlrc https://git.test/org/; true`,
		`"https://git.test/"`, `"tcp://canary.test:80"`, "CONNECT git.test:443", "canary.test (not_allowed",
	},
	{
		"DNS over HTTPS", "curl", `curl -sS -k -m 20 --doh-insecure --doh-url https://doh.test/dns-query --noproxy '*' https://canary.test/; curl -sS -m 20 --noproxy '*' https://doh.test/dns-query; true`,
		`"https://git.test/"`, `"tls://doh.test"`, "POST doh.test/dns-query", "doh.test:443 (not_allowed",
	},
}

// test runs the command with a rule for its detour, and without one: then nothing reaches
// the canary, the result tells and a record has it. What the detour leads to isn't reached
// in either case.
func (d detour) test(t *testing.T, n *egresstest.Internet, backend, ca string) {
	if !isInUsr(t, d.needs) {
		return
	}
	for _, controls := range []bool{true, false} {
		allow := d.allow
		if controls {
			allow += ", " + d.control
		}
		m := newMachine(t)
		m.config(t, fmt.Sprintf("egress:\n  ca: [%s]\n  allow: [%s]\n", ca, allow))
		before, beyond := n.Count(d.canary), n.Count("GET canary.test")
		out := m.egressCall(t, backend, d.command)
		got := n.Count(d.canary) - before
		if controls {
			if got == 0 {
				t.Errorf("control: nothing arrived with a rule\n%s\n%s", out.stdout, out.stderr)
			}
			if d.name == "DNS over HTTPS" && n.Count("GET canary.test") != beyond {
				t.Error("an address of another resolver was connected to")
			}
			continue
		}
		if got != 0 {
			t.Errorf("%d requests arrived", got)
		}
		if !strings.Contains(out.stdout, "network refused: "+d.refused) {
			t.Errorf("the result lacks the refusal of %s:\n%s\n%s", d.refused, out.stdout, out.stderr)
		}
		host := d.refused[:strings.IndexAny(d.refused, ": ")]
		trace := m.run(t, "trace", "show", "--json", "last")
		if !regexp.MustCompile(`"network\.denied".*"` + regexp.QuoteMeta(host)).MatchString(trace.stdout) {
			t.Errorf("no record has the refusal of %s", host)
		}
	}
}

// isInUsr reports whether image host has a program: image host shows /usr.
func isInUsr(t *testing.T, program string) bool {
	t.Helper()
	for _, dir := range []string{"/usr/bin", "/usr/local/bin", "/usr/local/go/bin"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	if _, err := exec.LookPath(program); err != nil && os.Getenv("REQUIRE_BACKENDS") != "" {
		t.Errorf("needs %s, and REQUIRE_BACKENDS is set", program)
	}
	t.Logf("needs %s below /usr", program)
	return false
}
