package network

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// userConn is a connection of a user's program.
type userConn struct {
	programConn
	uid int
}

func (c *userConn) UID() (int, bool) { return c.uid, true }

// connectAs returns a sandbox handler's answer to a user's CONNECT to a command's proxy.
func connectAs(t *testing.T, h sandbox.EgressHandler, uid, command int, authority string) string {
	t.Helper()
	c := &userConn{programConn: programConn{Reader: strings.NewReader("CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n"), command: command}, uid: uid}
	h.ServeEgress(t.Context(), c)
	return c.answer.String()
}

// allow returns a policy of one rule.
func allow(t *testing.T, text string, methods ...string) *rule.Policy {
	t.Helper()
	r, err := rule.ParseEgress(text)
	if err == nil && len(methods) > 0 {
		r, err = r.WithMethods(methods)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &rule.Policy{Allow: []rule.Rule{r}}
}

// TestServers checks that a server has only its own rules and proxy, and that records name it.
func TestServers(t *testing.T) {
	for _, reserved := range []bool{false, true} {
		n, records := newTestNetwork(t, func(o *Options) {
			if reserved {
				o.Policy = nil
			}
			o.Servers = []Server{
				{Name: "one", Identity: 1, Policy: allow(t, "tls://one.invalid")},
				{Name: "none", Identity: 2},
				{Name: "remote", Policy: allow(t, "https://remote.invalid/", "POST")},
			}
		}, "tls://agent.invalid")
		if p := n.Plan(); p == nil || p.Reserved != reserved || len(p.Capture) == 0 || len(p.Roots) > 0 {
			t.Fatalf("plan %+v", p)
		}
		h, err := n.newHandler(sandbox.Attestation{User: "10001:10001"})
		if err != nil {
			t.Fatal(err)
		}
		notify, ended := n.TrackServer("one")
		notify(7)
		called, refused := n.TrackCommand("tu_1", "npm ci")
		called(8)
		const agent, one, none = 10001, 61001, 61002
		agentWant := "502" // the name is resolved, which fails
		if reserved {
			agentWant = "403"
		}
		for _, tt := range []struct {
			uid, command int
			host, want   string
		}{
			{agent, 8, "agent.invalid:443", agentWant},
			{agent, 8, "one.invalid:443", "403"},
			{agent, 7, "one.invalid:443", "403"},
			{agent, 7, "agent.invalid:443", "403"},
			{one, 7, "one.invalid:443", "502"},
			{one, 7, "agent.invalid:443", "403"},
			{none, 9, "one.invalid:443", "403"},
			{none, 9, "agent.invalid:443", "403"},
		} {
			if got := connectAs(t, h, tt.uid, tt.command, tt.host); !strings.HasPrefix(got, "HTTP/1.1 "+tt.want) {
				t.Errorf("reserved %t: user %d by the proxy of command %d to %s: %.40q, want %s", reserved, tt.uid, tt.command, tt.host, got, tt.want)
			}
		}
		list, _ := refused(true)
		if len(list) < 2 {
			t.Errorf("refused to the agent's command: %+v", list)
		}
		servers := map[string]int{}
		for _, p := range *records {
			switch p := p.(type) {
			case record.NetworkOpened:
				servers["opened "+p.Server]++
			case record.NetworkDenied:
				servers["denied "+p.Server]++
				if p.Reason == rule.ReasonIdentity && (p.CallID != "tu_1" || p.Server != "") {
					t.Errorf("the refused use of another's proxy is recorded as %+v", p)
				}
			}
		}
		if servers["opened one"] != 1 || servers["denied one"] != 1 || servers["denied none"] != 2 || servers["denied "] < 3 || servers["opened "] != map[bool]int{false: 1}[reserved] {
			t.Errorf("reserved %t: %v", reserved, servers)
		}
		ended()
		if _, ok := n.ownerOf(7); ok {
			t.Error("the proxy of a server that is over is its own")
		}
		transport, ok := n.RoundTripper("remote")
		if !ok {
			t.Fatal("no transport")
		}
		for url, want := range map[string]string{"https://remote.invalid/mcp": "resolve", "https://one.invalid/": "not allowed"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := transport.RoundTrip(req); err == nil || !strings.Contains(err.Error(), want) { //nolint:bodyclose // it fails
				t.Errorf("%s: %v, want %q", url, err, want)
			}
		}
		if !slices.ContainsFunc(*records, func(p record.Payload) bool {
			c, ok := p.(record.NetworkClosed)
			return ok && c.Warning() == "MCP server remote could not resolve remote.invalid"
		}) {
			t.Errorf("nobody is warned of the name without an address: %+v", *records)
		}
	}
}

// TestServerSecrets checks that each server has its own placeholders, and that there is a plan only if
// programs in the sandbox have a network.
func TestServerSecrets(t *testing.T) {
	to := allow(t, "https://one.invalid/")
	n, _ := newTestNetwork(t, func(o *Options) {
		o.Policy = nil
		o.Servers = []Server{{Name: "one", Identity: 1, Policy: to, Secrets: []secret.Secret{{Name: "TOKEN", Value: "0123456789", To: to.Allow}}}}
	})
	if env := n.ServerEnv("one"); len(env) != 1 || !strings.HasPrefix(env[0], "TOKEN=") || strings.Contains(env[0], "0123456789") {
		t.Errorf("variables %q", env)
	}
	if p := n.Plan(); len(p.Roots) == 0 || len(p.Env) > 0 {
		t.Errorf("plan %+v", p)
	}
	remote, _ := newTestNetwork(t, func(o *Options) {
		o.Policy = nil
		o.Servers = []Server{{Name: "remote", Policy: to}}
	})
	if p := remote.Plan(); p != nil {
		t.Errorf("plan %+v of programs that have no network", p)
	}
}
