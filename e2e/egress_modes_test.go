package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// findValues looks for values, which are its arguments backwards, in the files of the
// sandbox, and in variables, arguments and memory of all processes that it may read. It
// prints where they are, and how many processes it read.
const findValues = `
import os, re, sys
words = [w[::-1].encode() for w in sys.argv[1:]]
def look(where, block):
    for i, w in enumerate(words):
        if w in block:
            print("FOUND", i, where)
seen = 0
for p in [p for p in os.listdir("/proc") if p.isdigit()]:
    for name in "environ", "cmdline":
        try:
            block = open(f"/proc/{p}/{name}", "rb").read()
        except OSError:
            continue
        seen += 1
        look(f"{name} of a process", block)
    if int(p) == os.getpid():
        continue
    try:
        with open(f"/proc/{p}/maps") as maps, open(f"/proc/{p}/mem", "rb", 0) as mem:
            for line in maps:
                m = re.match("([0-9a-f]+)-([0-9a-f]+) rw", line)
                if m:
                    begin, end = int(m[1], 16), int(m[2], 16)
                    try:
                        mem.seek(begin)
                        look("memory of a process", mem.read(min(end - begin, 64 << 20)))
                    except (OSError, OverflowError, ValueError):
                        pass
    except OSError:
        pass
for top in "/workspace", "/tmp", "/home", "/.caisson", "/run", "/var/tmp", "/dev/shm":
    for d, _, names in os.walk(top):
        for n in names:
            path = os.path.join(d, n)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 8 << 20:
                    look("file " + path, open(path, "rb").read())
            except OSError:
                pass
print("READ", seen)
`

// TestEgressModes attacks the network of commands with each way to mount the workspace,
// and as an ordinary user: hosts without a rule are not reached, and a key arrives at its
// host alone and is in no file, record or process.
func TestEgressModes(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		if !isInUsr(t, "python3") || !isInUsr(t, "curl") {
			return
		}
		for _, mode := range []string{"bind", "overlay", "copy", "ordinary user"} {
			if mode == "ordinary user" && (backend == "docker" || os.Getuid() != 0) || mode == "copy" && backend != "docker" {
				continue
			}
			t.Run(mode, func(t *testing.T) { testEgressMode(t, backend, mode) })
		}
	})
}

func testEgressMode(t *testing.T, backend, mode string) {
	authority, err := ca.New(time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	key, plain := "sk-"+secret()+secret(), secret()+secret()
	var arrived, canary atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+key {
			arrived.Add(1)
		}
		_, _ = io.WriteString(w, "echo "+r.Header.Get("Authorization"))
	}))
	server.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	server.TLS = &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return authority.Leaf(h.ServerName) }}
	server.StartTLS()
	t.Cleanup(server.Close)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { canary.Add(1) }))
	t.Cleanup(other.Close)
	m := newMachine(t)
	args := []string{"tools", "call", "--json", "--backend", backend, "--workspace", m.workspace, "--policy", "sandboxed", "--mode", mode}
	if mode == "ordinary user" {
		args[len(args)-1] = "bind"
		m.become(t, 12345, 12345)
	}
	pem := filepath.Join(m.workspace, "..", "ca.pem")
	writeFile(t, pem, authority.PEM(), 0o644)
	origin := strings.Replace(server.URL, "127.0.0.1", rule.HostName, 1)
	closed := strings.Replace(other.URL, "127.0.0.1", rule.HostName, 1)
	m.env = append(m.env, "API_KEY="+key, "PLAIN="+plain)
	config := `env_from: [PLAIN]
egress:
  ca: [%s]
  allow: [%s%s/]
  private: {host.caisson.internal: [127.0.0.1]}
  secrets: {API_KEY: {from: "env:API_KEY", to: ["%s/"]}}
`
	m.write(t, "find.py", findValues)
	call := func(more, command string) outcome {
		m.config(t, fmt.Sprintf(config, pem, more, origin, origin))
		if m.user != nil {
			own := exec.CommandContext(t.Context(), "chown", "-R", "12345:12345", m.home, m.workspace)
			if out, err := own.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		return m.run(t, append(args, "shell", string(must(json.Marshal(map[string]any{"command": command, "timeout_seconds": 100}))))...)
	}
	attack := fmt.Sprintf("curl -sS -m 20 %s/x; curl -sS -m 5 --noproxy '*' %s/x; curl -sS -m 5 -x socks5h://${HTTP_PROXY#http://} %s/x; ", closed, closed, closed)
	out := call(closed+"/, ", attack+"true")
	if canary.Load() == 0 {
		t.Fatalf("control: nothing arrived with a rule\n%s\n%s", out.stdout, out.stderr)
	}
	canary.Store(0)
	out = call("", attack+fmt.Sprintf(`curl -sS -m 20 -H "Authorization: Bearer $API_KEY" %s/x; curl -sS -m 20 "%s/y?k=$API_KEY"; sleep 100 & echo "$PLAIN" >kept; python3 find.py %s %s`, origin, origin, reverse(key), reverse(plain)))
	if n := canary.Load(); n != 0 {
		t.Errorf("the canary was reached %d times", n)
	}
	if n := arrived.Load(); n != 1 {
		t.Errorf("the key arrived %d times", n)
	}
	for _, want := range []string{strings.TrimPrefix(closed, "http://") + " (not_allowed", "(secret_misplaced", "FOUND 1 environ", "FOUND 1 file /workspace/kept", "FOUND 1 memory"} {
		if !strings.Contains(out.stdout, want) && (want != "FOUND 1 memory" || backend != "gvisor") {
			t.Errorf("the result lacks %q:\n%s\n%s", want, out.stdout, out.stderr)
		}
	}
	if strings.Contains(out.stdout, "FOUND 0") || strings.Contains(out.stdout+out.stderr, key) {
		t.Errorf("the key is in the sandbox:\n%s\n%s", out.stdout, out.stderr)
	}
	trace := m.run(t, "trace", "show", "--json", "last")
	if !strings.Contains(trace.stdout, "network.denied") || !strings.Contains(trace.stdout, "secret_misplaced") {
		t.Errorf("no record of the refusals:\n%s\n%s", trace.stdout, trace.stderr)
	}
	read := 0
	err = filepath.WalkDir(filepath.Dir(m.home), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		read++
		if bytes.Contains(text, []byte(key)) {
			t.Errorf("the key is in %s", path)
		}
		return err
	})
	if err != nil || read < 5 {
		t.Errorf("%d files were read: %v", read, err)
	}
}

// reverse returns a text backwards.
func reverse(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
}
