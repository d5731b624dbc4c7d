package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/sandbox"
)

// bridgeCalls are the calls of a turn of BenchmarkBridge, the first of which connects.
const bridgeCalls = 101

// BenchmarkBridge measures requests of 80 KB to a model on a kept connection: directly, by
// nginx, and from sandboxes by the bridge. They take turns.
func BenchmarkBridge(b *testing.B) {
	server := httptest.NewServer(new(mockmodel.Model))
	b.Cleanup(server.Close)
	client := filepath.Join(b.TempDir(), "modelclient")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", client, "./testdata/modelclient")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	onHost := func(address string) func() (string, error) {
		return func() (string, error) {
			out, err := exec.CommandContext(b.Context(), client, address+"/v1/messages", "80000", strconv.Itoa(bridgeCalls)).Output()
			return string(out), err
		}
	}
	peers := map[string]func() (string, error){"direct": onHost(server.URL)}
	if nginx, err := startNginx(b, server.Listener.Addr().String()); err != nil {
		b.Logf("the peer is missing: %v", err)
	} else {
		peers["nginx"] = onHost(nginx)
	}
	for _, name := range backendNames {
		if probeBackend(b, name) == nil {
			peers[name] = bridged(b, name, server.URL, client)
		}
	}
	times := map[string][]time.Duration{}
	for b.Loop() {
		for peer, ask := range peers {
			out, err := ask()
			if err != nil {
				b.Fatalf("%s: %v: %s", peer, err, out)
			}
			for _, line := range strings.Fields(out)[1:] {
				took, err := parseNanoseconds(line)
				if err != nil {
					b.Fatal(err)
				}
				times[peer] = append(times[peer], took)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for peer, list := range times {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/10]), peer+"-p10-ns") // the least of other work
		b.ReportMetric(float64(list[len(list)/2]), peer+"-p50-ns")
		b.ReportMetric(float64(list[len(list)*99/100]), peer+"-p99-ns")
	}
}

// bridged opens a session whose commands ask a model at an address, and returns what runs
// the client there.
func bridged(b *testing.B, backend, address, client string) func() (string, error) {
	b.Helper()
	base, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	s := openServers(b, backend, func(o *runner.Options) {
		o.Bridge = &bridge.Options{Profiles: []bridge.Profile{{Name: "m", Protocol: bridge.Anthropic, BaseURL: base, Model: "m"}}}
	})
	if err := copyIfThere(client, filepath.Join(s.workspace, "client")); err != nil {
		b.Fatal(err)
	}
	return func() (string, error) {
		var out strings.Builder
		r, err := s.Exec(b.Context(), runner.UserCommand{
			Argv:   []string{sandbox.WorkspaceDir + "/client", "http://" + bridge.Host + "/v1/messages", "80000", strconv.Itoa(bridgeCalls)},
			Stdout: &out, Stderr: &out,
		})
		if err == nil && !r.Status.Success() {
			err = errors.New(r.Status.String())
		}
		return out.String(), err
	}
}

// startNginx starts nginx as a proxy before a server, with kept connections and without
// buffers, and returns its address.
func startNginx(b *testing.B, server string) (string, error) {
	b.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		return "", err
	}
	dir, port := b.TempDir(), freePort(b)
	config := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events {}
http {
	access_log off; client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	upstream model { server %[2]s; keepalive 8; }
	server {
		listen 127.0.0.1:%[3]d; keepalive_requests 100000; client_max_body_size 64m; client_body_buffer_size 1m;
		location / { proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_request_buffering off; }
	}
}
`, dir, server, port)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", err
	}
	c := exec.Command(program, "-p", dir, "-c", file)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return "", err
	}
	b.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for range 100 {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return "http://" + address, conn.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", errors.New("nginx doesn't listen")
}
