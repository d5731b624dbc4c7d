package network

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// Server is an MCP server with its own network: its rules and secrets are separate from the
// agent's.
type Server struct {
	Name string
	// Identity is the identity of its programs in the sandbox, or 0 if this process connects to
	// it; see [Network.RoundTripper].
	Identity int
	// Policy decides; nil allows nothing.
	Policy  *rule.Policy
	Secrets []secret.Secret
	// Private and Presets are as in [Options].
	Private map[string][]netip.Prefix
	Presets []*preset.Preset
}

// member is an MCP server in a network or, without a name, the agent's commands.
type member struct {
	Server
	n       *Network
	server  *egress.Server
	secrets *secret.Set
	preset  *preset.Preset
}

// addServers adds the servers of the options, without starting them.
func (n *Network) addServers() error {
	for _, one := range n.opts.Servers {
		m := &member{Server: one, n: n, preset: preset.Merge(one.Presets...)}
		if m.Policy == nil {
			m.Policy = &rule.Policy{}
		}
		var err error
		if m.secrets, err = secret.New(one.Secrets); err != nil {
			return fmt.Errorf("server %s: %w", one.Name, err)
		}
		n.servers[one.Name] = m
	}
	return nil
}

func (m *member) report(o *egress.Options) {
	o.Opened = func(x egress.Opened) error { return m.n.recordOpened(m.Name, x) }
	o.Closed = func(x egress.Closed) { m.n.recordClosed(m.Name, x) }
	o.Denied = func(x egress.Denied) { m.n.recordDenied(m.Name, x) }
	o.Requested = func(x egress.Requested) { m.n.logFailure("request", m.n.logRequest(m.Name, x)) }
}

// start makes the member's server, from the options for the agent's commands.
func (m *member) start(o egress.Options) (err error) {
	o.Policy, o.Secrets = m.Policy, m.n.guardedSecrets(m.Name)
	o.Ask, o.Mirrors, o.Registries, o.Local = nil, m.preset.Mirrors, nil, nil
	if o.Guard, err = rule.NewGuard(m.Private); err != nil {
		return err
	}
	m.report(&o)
	m.server, err = egress.New(o)
	return err
}

// guardedSecrets returns the secrets of a server or, for "", of the agent's commands. They refuse
// the placeholders of everybody else.
func (n *Network) guardedSecrets(name string) *secret.Set {
	own, others := n.setup.secrets, []*secret.Set{}
	if name != "" {
		own, others = n.servers[name].secrets, append(others, n.setup.secrets)
	}
	for _, m := range n.servers {
		if m.Name != name {
			others = append(others, m.secrets)
		}
	}
	return own.Guarding(others...)
}

// policies returns the policies of the sandbox's programs that have a network.
func (n *Network) policies() []*rule.Policy {
	var list []*rule.Policy
	if !n.reserved {
		list = append(list, n.opts.Policy)
	}
	for _, one := range n.opts.Servers {
		if one.Identity > 0 && one.Policy != nil {
			list = append(list, one.Policy)
		}
	}
	return list
}

func (n *Network) newHandler(a sandbox.Attestation) (sandbox.EgressHandler, error) {
	servers := map[int]*egress.Server{}
	for _, m := range n.servers {
		if m.Identity > 0 {
			servers[m.Identity] = m.server
		}
	}
	if len(servers)+len(n.opts.Local) == 0 {
		return n.server, nil
	}
	servers[0] = n.server
	user, group, _ := strings.Cut(a.User, ":")
	uid, err := strconv.Atoi(user)
	if err != nil {
		return nil, fmt.Errorf("bind network: the attested user is %q", a.User)
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		return nil, fmt.Errorf("bind network: the attested user is %q", a.User)
	}
	return &egress.Identities{Base: sandbox.IdentityBase(uid, gid), Servers: servers, Owner: n.ownerOf}, nil
}

func (n *Network) ownerOf(number int) (int, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	identity, ok := n.owners[number]
	return identity, ok
}

// TrackServer makes the network know a sandboxed server's command: notify takes its number, and
// ended is called when it is over. Both do nothing for a nil Network.
func (n *Network) TrackServer(name string) (notify func(number int), ended func()) {
	if n == nil || n.servers[name] == nil {
		return func(int) {}, func() {}
	}
	identity, own := n.servers[name].Identity, 0
	notify = func(number int) {
		n.mu.Lock()
		defer n.mu.Unlock()
		own, n.owners[number] = number, identity
	}
	return notify, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.owners[own] == identity {
			delete(n.owners, own)
		}
	}
}

// ServerEnv returns the variables of a server's presets, which still contain
// [sandbox.ProxyPlaceholder], and of its secrets' placeholders. A nil Network has none.
func (n *Network) ServerEnv(name string) []string {
	if n == nil || n.servers[name] == nil {
		return nil
	}
	m := n.servers[name]
	return append(m.preset.Environment(sandbox.EgressDir), m.secrets.Environment()...)
}

// ServerSources returns where a server installs packages from: the variables and files of its
// presets.
func (n *Network) ServerSources(name string) []string {
	if n == nil || n.servers[name] == nil {
		return nil
	}
	p := n.servers[name].preset
	out := p.Environment(sandbox.EgressDir)
	for _, file := range slices.Sorted(maps.Keys(p.Files)) {
		out = append(out, file, p.Files[file])
	}
	return out
}

// RoundTripper returns the transport for requests to a server, or false if the network has no
// such server.
func (n *Network) RoundTripper(name string) (http.RoundTripper, bool) {
	if n == nil || n.servers[name] == nil {
		return nil, false
	}
	return n.servers[name].server.RoundTripper(), true
}
