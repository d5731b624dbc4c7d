package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// The users of the test's identities, and the commands that have them.
const (
	testBase      = 50000
	agentCommand  = 3
	serverCommand = 7
)

// identityFixture is the network of an agent and of one server, identity 2.
type identityFixture struct {
	*Identities
	t             *testing.T
	agent, server *fixture
}

// newIdentityFixture returns a network in which agent and server may reach other hosts.
func newIdentityFixture(t *testing.T, edit func(identity int, o *Options), agent, server []string) *identityFixture {
	t.Helper()
	names, numbers := &Names{}, &atomic.Int64{}
	budget := newBudget(t, limits.EgressBudget{Bytes: 1 << 20, Hosts: 10})
	newOne := func(identity int, rules []string) *fixture {
		return newFixture(t, func(o *Options) {
			o.Guard, o.Names, o.Numbers, o.Budget = allowLoopback(t, "agent.test", "server.test"), names, numbers, budget
			if edit != nil {
				edit(identity, o)
			}
		}, rules...)
	}
	f := &identityFixture{t: t, agent: newOne(0, agent), server: newOne(2, server)}
	f.Identities = &Identities{Base: testBase, Servers: map[int]*Server{0: f.agent.Server, 2: f.server.Server}, Owner: func(number int) (int, bool) {
		return 2, number == serverCommand
	}}
	return f
}

// request has a program of a user send a request to the proxy of a command, and returns
// the status and the reason of a refusal.
func (f *identityFixture) request(command, uid int, known bool, head string) (status int, reason string) {
	f.t.Helper()
	local := netip.AddrPortFrom(sandbox.CommandAddr(command), sandbox.DefaultEgressPort)
	program, served := net.Pipe()
	conn := &pipeConn{Conn: served, local: local, command: command, uid: uid, known: known}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.ServeEgress(context.Background(), conn)
	}()
	go func() { _, _ = io.WriteString(program, head) }()
	res, err := http.ReadResponse(bufio.NewReader(program), &http.Request{Method: "GET"})
	if err != nil {
		f.t.Fatal(err)
	}
	_ = program.Close()
	<-done
	return res.StatusCode, detailsOf(res)
}

// pipeConn is the host's end of a connection of a program, in memory.
type pipeConn struct {
	net.Conn
	local        netip.AddrPort
	command, uid int
	known        bool
}

func (c *pipeConn) LocalAddr() netip.AddrPort { return c.local }
func (c *pipeConn) Command() int              { return c.command }
func (c *pipeConn) UID() (int, bool)          { return c.uid, c.known }
func (c *pipeConn) CloseWrite() error         { return c.Close() }

// TestIdentities checks that the user of a program decides which rules it has, and that
// the proxy of a server serves that server alone.
func TestIdentities(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	ofAgent, ofServer := fmt.Sprintf("http://localhost:%d/", canary.port), fmt.Sprintf("http://127.0.0.1:%d/", canary.port)
	f := newIdentityFixture(t, nil, []string{ofAgent}, []string{ofServer})
	get := func(url string) string {
		return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", url, url[len("http://"):len(url)-1])
	}
	for _, tt := range []struct {
		name         string
		command, uid int
		unknown      bool
		url          string
		want         string
	}{
		{"agent", agentCommand, 10001, false, ofAgent, ""},
		{"server", serverCommand, testBase + 2, false, ofServer, ""},
		{"agent, host of the server", agentCommand, 10001, false, ofServer, rule.ReasonNotAllowed},
		{"server, host of the agent", serverCommand, testBase + 2, false, ofAgent, rule.ReasonNotAllowed},
		{"agent, proxy of the server", serverCommand, 10001, false, ofServer, rule.ReasonIdentity},
		{"agent, proxy of the server, own host", serverCommand, 10001, false, ofAgent, rule.ReasonIdentity},
		{"server, proxy of the agent", agentCommand, testBase + 2, false, ofAgent, rule.ReasonNotAllowed},
		{"another identity", agentCommand, testBase + 3, false, ofServer, rule.ReasonNotAllowed},
		{"unknown user", serverCommand, 0, true, ofServer, rule.ReasonUser},
		{"unknown user, no command", 0, 0, true, ofAgent, rule.ReasonUser},
		{"root", agentCommand, 0, false, ofServer, rule.ReasonNotAllowed},
	} {
		before := canary.hits.Load()
		status, reason := f.request(tt.command, tt.uid, !tt.unknown, get(tt.url))
		if reason != tt.want && !(tt.unknown && reason != "") || (status == http.StatusOK) != (tt.want == "") {
			t.Errorf("%s: status %d, reason %q, want %q", tt.name, status, reason, tt.want)
		}
		if reached := canary.hits.Load() > before; reached != (tt.want == "") {
			t.Errorf("%s: the host was reached: %t", tt.name, reached)
		}
		denied := f.agent.takeDenied()
		if tt.uid > testBase && tt.uid != testBase+3 {
			denied = f.server.takeDenied()
		}
		if tt.want != "" && len(denied) != 1 {
			t.Errorf("%s: refusals %+v", tt.name, denied)
		}
		for _, s := range f.Servers { // or equal ones are counted
			s.denials.reportRest()
		}
		f.agent.takeDenied()
		f.server.takeDenied()
	}
	if opened := append(f.agent.opened, f.server.opened...); len(opened) != 2 || opened[0].ID == opened[1].ID {
		t.Errorf("connections %+v, want two with different numbers", opened)
	}
}

// TestIdentityNames checks that a name of one identity is found by all programs, and its
// address used by its own alone.
func TestIdentityNames(t *testing.T) {
	f := newIdentityFixture(t, nil, []string{"tcp://agent.test:80"}, []string{"tcp://server.test:80"})
	for _, name := range []string{"agent.test", "server.test"} {
		addr, ok := f.LookupName(t.Context(), name)
		if !ok {
			t.Fatalf("%s has no address", name)
		}
		for _, s := range f.Servers {
			if got, ok := s.opts.Names.nameOf(addr); !ok || got != name {
				t.Errorf("%s is %q, %t", addr, got, ok)
			}
		}
	}
	if _, ok := f.LookupName(t.Context(), "other.test"); ok {
		t.Error("a name that none may reach has an address")
	}
	if denied := f.agent.takeDenied(); len(denied) != 1 || len(f.server.takeDenied()) != 0 {
		t.Errorf("refusals %+v, want one", denied)
	}
}

// TestIdentitySecrets checks that a server's placeholder is refused to the agent,
// and the agent's to a server.
func TestIdentitySecrets(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	newSet := func(name string) (*secret.Set, string) {
		to, err := rule.ParseEgress("https://localhost/")
		if err != nil {
			t.Fatal(err)
		}
		set, err := secret.New([]secret.Secret{{Name: name, Value: "value-of-" + name, To: []rule.Rule{to}}})
		if err != nil {
			t.Fatal(err)
		}
		return set, set.Environment()[0][len(name)+1:]
	}
	ofAgent, agentPlaceholder := newSet("AGENT")
	ofServer, serverPlaceholder := newSet("SERVER")
	for _, guarded := range []bool{true, false} {
		url := fmt.Sprintf("http://localhost:%d/", canary.port)
		f := newIdentityFixture(t, func(identity int, o *Options) {
			o.Secrets = map[int]*secret.Set{0: ofAgent, 2: ofServer}[identity]
			if guarded {
				o.Secrets = map[int]*secret.Set{0: ofAgent.Guarding(ofServer), 2: ofServer.Guarding(ofAgent)}[identity]
			}
		}, []string{url}, []string{url})
		for _, tt := range []struct {
			name         string
			command, uid int
			placeholder  string
		}{
			{"agent", agentCommand, 10001, serverPlaceholder},
			{"server", serverCommand, testBase + 2, agentPlaceholder},
		} {
			_, reason := f.request(tt.command, tt.uid, true, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: localhost:%d\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", url, canary.port, tt.placeholder))
			want := rule.ReasonSecretMisplaced
			if !guarded { // control
				want = ""
			}
			if reason != want {
				t.Errorf("%s, guarded %t: reason %q, want %q", tt.name, guarded, reason, want)
			}
		}
	}
	if list := ofAgent.Guarding(ofServer).Environment(); len(list) != 1 {
		t.Errorf("variables %q of the agent", list)
	}
}
