package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/internal/hostserver"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
	"github.com/caisson-run/caisson/tools/policy"
)

// MCPOptions configures a session's MCP servers. They start with the first turn that may call
// one of their tools.
type MCPOptions struct {
	Servers []MCPServer
	// Skipped are servers that the session does not use, and why.
	Skipped []record.Ignored
	// HostEnv is the environment of servers on the host, as NAME=value: PATH, HOME, TMPDIR
	// and LANG. Each server's own variables are added.
	HostEnv []string
	// Writable returns directories that commands of other sessions can write to. A host
	// server whose program is in one is refused. Nil means none.
	Writable func() []string
	// Tokens has the tokens of servers that people have signed in to; nil for none.
	Tokens *oauth.Store
	// MachineMemory is the memory in bytes of the machine that runs sandboxes; zero is
	// unknown.
	MachineMemory int64
}

// MCPServer is an MCP server. One with a command runs in the sandbox under its own
// identity, unless OnHost is set.
type MCPServer struct {
	mcp.Server
	// Egress is the server's network, without the session's rules: its Policy, Private,
	// Presets and Secrets. CA and Upstream count if the session has none. Without a
	// Policy, a sandboxed server has no network, and a server with a URL may reach its
	// origin. The Policy of one with a URL must allow that URL. It has no effect on a host
	// server.
	Egress EgressOptions
}

// Defaults for a sandboxed server that sets no budget. A server started by npx has some 40
// threads in three processes.
const (
	DefaultMCPMemory    = 512 << 20
	DefaultMCPProcesses = 96
)

// MCPFitError reports that not all servers fit into the sandbox.
type MCPFitError struct {
	// Servers is the number of sandboxed servers, Fit how many of them fit.
	Servers, Fit int
	// Resource is identities or memory. Need and Have count identities, or bytes including
	// the session's own.
	Resource   string
	Need, Have int64
}

func (e *MCPFitError) Error() string {
	need, have := fmt.Sprint(e.Need), fmt.Sprint(e.Have)
	if e.Resource == "memory" {
		need, have = limits.FormatSize(e.Need), limits.FormatSize(e.Have)
	}
	return fmt.Sprintf("%d of %d MCP servers fit into the sandbox: %s of %s are needed, there are %s", e.Fit, e.Servers, need, e.Resource, have)
}

// MCPIdentityError reports a server that needs its own identity in a sandbox whose commands
// all share one user.
type MCPIdentityError struct{ Server string }

func (e *MCPIdentityError) Error() string {
	return fmt.Sprintf("MCP server %s has variables, secrets or rules of its own, and all commands of this sandbox share one user, which could read and use them", e.Server)
}

// mcpServers is a session's MCP servers: the set, and where each runs.
type mcpServers struct {
	s       *Session
	set     *mcp.Set
	servers map[string]*mcpServer
	once    sync.Once
	// ctx ends with close.
	ctx    context.Context //nolint:containedctx // it outlives turns
	cancel context.CancelCauseFunc
	// started is closed when all servers have started or failed for the first time.
	started chan struct{}
	// installs has what servers installed in earlier sessions; nil keeps nothing.
	installs *caches.Lease
	// refused records once which servers are not started.
	refused sync.Once
}

type mcpServer struct {
	MCPServer
	identity int // in the sandbox; 0 elsewhere
	// restored reports that its earlier installation was unpacked.
	restored bool

	mu     sync.Mutex
	shared bool // it runs as the agent's user, and that was recorded
	// problem is why its tools can't be used now, or "".
	problem string
}

func (s MCPServer) withDefaults() MCPServer {
	if s.InSandbox() {
		s.Memory = cmp.Or(s.Memory, DefaultMCPMemory)
		s.Processes = cmp.Or(s.Processes, DefaultMCPProcesses)
	}
	return s
}

// assignServers gives the servers their identities and budgets. The error is a
// *[MCPFitError].
func assignServers(o Options) ([]*mcpServer, error) {
	identity := 1
	if o.Service != nil && !o.Service.AsAgent {
		identity = sandbox.ServiceIdentity + 1
	}
	most := sandbox.MaxIdentity + 1 - identity
	fit := MCPFitError{Resource: "identities", Have: int64(most)}
	memory, fits := o.Resources.MemoryBytes, 0
	var list []*mcpServer
	for _, one := range o.MCP.Servers {
		s := &mcpServer{MCPServer: one.withDefaults()}
		if s.InSandbox() {
			s.identity = identity
			identity++
			fit.Servers++
			memory += s.Memory
			if o.MCP.MachineMemory == 0 || memory <= o.MCP.MachineMemory {
				fits++
			}
		}
		list = append(list, s)
	}
	switch {
	case fit.Servers > most:
		fit.Need, fit.Fit = int64(fit.Servers), min(most, fits)
		return nil, &fit
	case fits < fit.Servers:
		return nil, &MCPFitError{Servers: fit.Servers, Fit: fits, Resource: "memory", Need: memory, Have: o.MCP.MachineMemory}
	}
	return list, nil
}

// sandboxResources adds the budgets of the sandboxed servers to the session's limits.
func sandboxResources(r limits.Resources, servers []*mcpServer) limits.Resources {
	for _, s := range servers {
		if s.InSandbox() {
			r.MemoryBytes += s.Memory
			r.PIDs += int64(s.Processes)
		}
	}
	return r
}

// serverHomes returns the sizes of the homes of the servers' identities. Files there take
// memory, so a home gets half of the server's memory.
func serverHomes(servers []*mcpServer) []int64 {
	var homes []int64
	for _, s := range servers {
		if s.InSandbox() {
			homes = append(homes, make([]int64, s.identity-len(homes))...)
			homes[s.identity-1] = s.Memory / 2
		}
	}
	return homes
}

// networkServers returns the servers that get their own network. The list also has
// sandboxed servers without rules, which reach nothing.
func networkServers(o Options, servers []*mcpServer) ([]network.Server, error) {
	var list []network.Server
	for _, s := range servers {
		one := network.Server{Name: s.Name, Identity: s.identity, Policy: s.Egress.Policy, Secrets: s.Egress.Secrets, Private: s.Egress.Private, Presets: s.Egress.Presets}
		switch s.Place() {
		case "host":
			continue
		case "remote":
			if one.Policy == nil {
				p, err := originPolicy(o, s.URL)
				if err != nil {
					return nil, err
				}
				one.Policy = p
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// originPolicy returns a policy for the whole origin of a URL, within the limits of the
// session's policy.
func originPolicy(o Options, rawURL string) (*rule.Policy, error) {
	t, err := rule.ParseTarget(rawURL)
	if err != nil {
		return nil, err
	}
	r, err := rule.ParseEgress(t.Origin.String() + "/")
	if err == nil {
		r, err = r.WithMethods([]string{http.MethodGet, http.MethodPost, http.MethodDelete})
	}
	if err != nil {
		return nil, err
	}
	p := &rule.Policy{Allow: []rule.Rule{r}}
	if own := o.Egress.Policy; own != nil {
		p.Within, p.Deny = own.Within, own.Deny
	}
	return p, nil
}

func newMCPServers(s *Session) (*mcpServers, error) {
	m := &mcpServers{s: s, servers: map[string]*mcpServer{}, started: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	o := mcp.Options{
		Launch: m.launch, HTTPClient: m.httpClient, Tokens: s.opts.MCP.Tokens, Register: s.tools.Register, Unregister: func(name tools.Name) { s.tools.Unregister(string(name)) },
		Report: m.report, Roots: "file://" + s.opts.mountPoint(), Redact: redact.New(s.opts.Secrets).Text,
		Version: s.opts.Version, Log: s.log,
	}
	for _, one := range s.servers {
		m.servers[one.Name] = one
		o.Servers = append(o.Servers, one.Server)
	}
	var err error
	if m.set, err = mcp.NewSet(o); err != nil {
		return nil, err
	}
	m.openInstalls()
	return m, nil
}

func (s MCPServer) mayCall(p policy.Policy, workspace string) bool {
	class, runs := tools.ClassExecute, tools.PlaceSandbox
	if !s.InSandbox() {
		class, runs = tools.ClassNetwork, tools.PlaceHost
	}
	return p.AllowsServer(s.Name, class, runs, workspace)
}

func (m *mcpServers) mayCall(s *mcpServer) bool {
	return s.MCPServer.mayCall(m.s.opts.Policy, m.s.opts.Workspace.Path)
}

// start starts, once and in the background, the servers with a tool that the policy allows.
// It records the others, and reports whether any server is started.
func (m *mcpServers) start() bool {
	var used, refused []string
	for _, one := range m.s.servers {
		if m.mayCall(one) {
			used = append(used, one.Name)
		} else {
			refused = append(refused, one.Name)
		}
	}
	m.refused.Do(func() {
		for _, name := range refused {
			m.setProblem(name, "the policy refuses its tools")
			m.s.events.recordWarning(fmt.Sprintf("MCP server %s is not started, because the policy refuses all of its tools. A rule for %[1]s/* or for single tools can allow them", name))
		}
	})
	if len(used) > 0 {
		m.startServers(used)
	}
	return len(used) > 0
}

func (m *mcpServers) startServers(names []string) {
	m.once.Do(func() {
		go func() {
			defer close(m.started)
			// The time that a server may take doesn't include the sandbox's start.
			if slices.ContainsFunc(names, func(name string) bool { return m.servers[name].InSandbox() }) {
				_ = m.s.exec.WaitReady(m.ctx) // if it fails, each server's start reports it
			}
			m.set.Start(m.ctx, names...)
			m.warnUnmatchedRules()
		}()
	})
}

// warnUnmatchedRules records rules for tools that the started servers don't have.
func (m *mcpServers) warnUnmatchedRules() {
	if m.ctx.Err() != nil {
		return
	}
	var unknown []string
	for _, one := range m.s.servers {
		one.mu.Lock()
		if one.problem != "" {
			unknown = append(unknown, one.Name)
		}
		one.mu.Unlock()
	}
	reported := m.s.tools.UnmatchedRules(serverNames(m.s.opts.MCP)...) // reported when the session began
	for _, key := range m.s.tools.UnmatchedRules(unknown...) {
		_, tool := policy.SplitKey(key)
		_, reads := m.s.tools.Lookup(tool) // our own tool for resources or prompts
		if !reads && !slices.Contains(reported, key) {
			m.s.events.recordWarning(unmatchedRule(key))
		}
	}
}

func unmatchedRule(key string) string {
	return fmt.Sprintf("the policy's rule for %q matches no tool", key)
}

// StartServers starts all MCP servers, even ones that the policy refuses, and returns their
// tools when each has started or failed. The error is why ctx or the session ended. The
// records say how each start went.
func (s *Session) StartServers(ctx context.Context) ([]mcp.Tool, error) {
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("start servers: %w: %w", ErrOver, context.Cause(s.ctx))
	}
	if slices.ContainsFunc(s.servers, func(one *mcpServer) bool { return one.InSandbox() }) {
		s.sandbox.EnsureStarted()
	}
	s.startServices()
	s.mcp.startServers(serverNames(s.opts.MCP))
	select {
	case <-s.mcp.started:
		return s.mcp.set.Tools(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
}

func (m *mcpServers) waitTool(ctx context.Context, name tools.Name) {
	if len(m.servers) == 0 {
		return
	}
	one := m.servers[name.Server()]
	if one == nil && name.Server() == "" { // servers can have tools in common
		if _, known := m.s.tools.Lookup(string(name)); !known {
			_ = m.wait(ctx, "") // the call sees that ctx ended
		}
		return
	}
	if one != nil {
		_ = m.wait(ctx, one.Name)
	}
}

// wait starts the servers and waits until the first start of one, or of all for "", has
// succeeded or failed. It does not wait for a server that the policy refuses. The error is
// why ctx ended.
func (m *mcpServers) wait(ctx context.Context, server string) error {
	if server == "" {
		if m.start() {
			select {
			case <-m.started:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}
	one := m.servers[server]
	if one == nil || !m.mayCall(one) {
		return nil
	}
	m.start()
	if err := m.set.WaitServer(ctx, one.Name); err != nil {
		m.s.log.Info("wait for MCP server", zap.String("server", one.Name), zap.Error(err))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (m *mcpServers) setProblem(server, problem string) {
	one := m.servers[server]
	one.mu.Lock()
	defer one.mu.Unlock()
	one.problem, _ = tools.Display(problem)
}

func (m *mcpServers) close() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.s.opts.abandonTime(), errSlow)
	defer cancel()
	m.cancel(errClosed)
	if err := m.set.Close(ctx); err != nil {
		m.s.log.Error("close MCP servers", zap.Error(err))
	}
	m.once.Do(func() { close(m.started) })
	select {
	case <-m.started:
	case <-ctx.Done():
	}
	if m.installs != nil {
		_ = m.installs.Close()
	}
}

// launch implements [mcp.Options].Launch.
func (m *mcpServers) launch(ctx context.Context, s mcp.Server, stderr io.Writer) (mcp.Process, error) {
	one := m.servers[s.Name]
	if s.OnHost {
		// In the workspace, npx and python would load what the agent put there.
		dir := cmp.Or(s.Dir, "/")
		writable := m.s.writableDirs()
		if m.s.opts.MCP.Writable != nil {
			writable = append(writable, m.s.opts.MCP.Writable()...)
		}
		p, err := hostserver.Start(append([]string{s.Command}, s.Args...), sandbox.SetVariables(append([]string{}, m.s.opts.MCP.HostEnv...), s.Env), writable, dir, stderr)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
	m.restoreInstall(ctx, one)
	notify, ended := m.s.network.TrackServer(s.Name)
	p, err := m.s.exec.StartServer(ctx, func(a sandbox.Attestation) (sandbox.Command, error) {
		cmd, err := m.command(one, a)
		cmd.NotifyNumber = notify
		return cmd, err
	}, stderr, ended)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// command returns a server's command for a sandbox. The error is a *[MCPIdentityError].
func (m *mcpServers) command(s *mcpServer, a sandbox.Attestation) (sandbox.Command, error) {
	cmd := sandbox.Command{
		Argv: append([]string{s.Command}, s.Args...), Dir: s.Dir, Separate: true, MaxTasks: s.Processes, MaxMemory: s.Memory,
		Variables: append(m.s.network.ServerEnv(s.Name), s.Env...), Proxy: s.Egress.Policy != nil,
	}
	if s.identity < a.Identities {
		cmd.Identity = s.identity
		return cmd, nil
	}
	if len(s.Env) > 0 || s.Egress.Policy != nil || len(s.Egress.Secrets) > 0 {
		return cmd, &MCPIdentityError{s.Name}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shared {
		s.shared = true
		m.s.events.recordWarning(fmt.Sprintf("MCP server %s runs as the agent's user, since all commands of this sandbox share one: the agent's commands can read and stop it, and it may reach what they may", s.Name))
	}
	return cmd, nil
}

// httpClient implements [mcp.Options].HTTPClient.
func (m *mcpServers) httpClient(s mcp.Server) (*http.Client, error) {
	transport, ok := m.s.network.RoundTripper(s.Name)
	if !ok {
		return nil, errors.New("no network")
	}
	return &http.Client{Transport: transport}, nil
}

var _ mcp.Process = (*livesandbox.Server)(nil)
