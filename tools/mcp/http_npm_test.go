package mcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// everythingVersion is the version of the official server with one of everything.
const everythingVersion = "2026.8.31"

// installEverything installs the server from npm and returns its program.
func installEverything(t *testing.T) string {
	t.Helper()
	return filepath.Join(installPackage(t, "@modelcontextprotocol/server-everything@"+everythingVersion), "server-everything", "dist", "index.js")
}

// installPackage installs a package of the organisation from npm and returns the
// directory with its packages.
func installPackage(t *testing.T, name string) string {
	t.Helper()
	t.Helper()
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("REQUIRE_BACKENDS") != "" {
				t.Fatalf("needs %s, and REQUIRE_BACKENDS forbids skipping", program)
			}
			t.Skipf("needs %s", program)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--prefix", dir, name)
	if output, err := install.CombinedOutput(); err != nil {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			t.Fatalf("npm install: %v\n%s", err, output)
		}
		t.Skipf("needs the npm registry: %v", err)
	}
	return filepath.Join(dir, "node_modules", "@modelcontextprotocol")
}

// TestEverythingOverHTTP: the official server over both transports, the older one also
// where it is not configured.
func TestEverythingOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads a server")
	}
	program := installEverything(t)
	for mode, path := range map[string]string{"streamableHttp": "/mcp", "sse": "/sse"} {
		t.Run(mode, func(t *testing.T) {
			address := serveNode(t, program, []string{"PORT"}, mode)[0]
			for _, sse := range []bool{mode == "sse", false} {
				h := startHTTP(t, Server{Name: "e", URL: "http://" + address + path, SSE: sse})
				out, err := h.call(t.Context(), "e/get-sum", `{"a":2,"b":3}`)
				if err != nil || outputText(out) != "The sum of 2 and 3 is 5." {
					t.Fatalf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
				}
				// Progress comes before the result.
				var progress atomic.Int32
				out, err = h.callWith(t.Context(), "e/trigger-long-running-operation", `{"duration":1,"steps":2}`, func(string, string) { progress.Add(1) })
				if err != nil || !out.Success || progress.Load() == 0 {
					t.Errorf("%q, %v, progress %d", outputText(out), err, progress.Load())
				}
				if err := h.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// serveNode starts the server, whose ports are in variables of these names, and returns the
// address of each, the first of which it waits for.
func serveNode(t *testing.T, program string, variables []string, args ...string) (addresses []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", append([]string{program}, args...)...)
	cmd.Env = os.Environ()
	var listeners []net.Listener
	for _, variable := range variables {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l) // so that each port is another one
		addresses = append(addresses, l.Addr().String())
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", variable, l.Addr().(*net.TCPAddr).Port))
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 100 {
		if conn, err := net.Dial("tcp", addresses[0]); err == nil {
			_ = conn.Close()
			return addresses
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
	return nil
}

// sdkVersion is the version of the TypeScript SDK, which has an example with an authorization server.
const sdkVersion = "1.32.2"

// TestSDKExampleWithOAuth: a login at the authorization server of the TypeScript SDK's example, with discovery,
// registration and PKCE, and a session with the token. The example takes only tokens that were issued for it.
func TestSDKExampleWithOAuth(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads a server")
	}
	program := filepath.Join(installPackage(t, "@modelcontextprotocol/sdk@"+sdkVersion), "sdk", "dist", "esm", "examples", "server", "simpleStreamableHttp.js")
	addresses := serveNode(t, program, []string{"MCP_PORT", "MCP_AUTH_PORT"}, "--oauth", "--oauth-strict")
	_, port, _ := net.SplitHostPort(addresses[0])
	store, server := oauth.NewStore(t.TempDir()), Server{Name: "a", URL: "http://localhost:" + port + "/mcp"}
	if failed := eventsOf[ServerFailed](startOAuth(t, store, server)); len(failed) != 1 || !errors.Is(failed[0].Err, oauth.ErrSignIn) {
		t.Errorf("without a token: %+v", failed)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var browser sync.WaitGroup
	err := oauth.Login(t.Context(), oauth.LoginOptions{
		Server: oauth.Server{Name: server.Name, URL: server.URL, Store: store, Client: oauth.NewClient(transport)},
		Allow:  func(rule.Target, string) error { return nil },
		Show: func(address, _ string) {
			browser.Go(func() {
				if res, err := (&http.Client{Transport: transport}).Get(address); err == nil { // the example signs anyone in
					_ = res.Body.Close()
				}
			})
		},
	})
	browser.Wait()
	if err != nil {
		t.Fatal(err)
	}
	h := startOAuth(t, store, server)
	out, err := h.call(t.Context(), "a/greet", `{"name":"you"}`)
	if err != nil || outputText(out) != "Hello, you!" {
		t.Errorf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
	}
}
