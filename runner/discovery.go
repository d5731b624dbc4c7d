package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/discovery"
	"github.com/caisson-run/caisson/tools/policy"
)

// hasServers reports whether the session has, or may get, tools of MCP servers that its
// policy lets the model call.
func (t toolset) hasServers() bool {
	o := t.opts
	if slices.ContainsFunc(o.MCP.Servers, func(s MCPServer) bool { return s.mayCall(o.Policy, o.Workspace.Path) }) {
		return true
	}
	mayCall := func(def tools.Definition) bool {
		return def.Name.Server() != "" && o.Policy.Decide(def, o.Workspace.Path).Mode != policy.ModeDeny
	}
	for _, d := range o.Declared {
		if mayCall(tools.Definition{Name: d.Name, Class: tools.ClassExecute, Runs: tools.PlaceSandbox}) {
			return true
		}
	}
	return slices.ContainsFunc(o.Tools, func(f tools.Factory) bool {
		def, err := tools.Inspect(f) // an error is reported when it is registered
		return err == nil && mayCall(def)
	})
}

func (o Options) wireName(name tools.Name) tools.LLMName {
	limit := 0
	for _, p := range o.Profiles {
		if n := p.Model.Info().ToolNameBytes; n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	wire, _ := name.LLMWithin(limit) // registered names are valid
	return wire
}

// discoveryTools returns search_tools and load_tool.
func (t toolset) discoveryTools() []tools.Factory {
	return discovery.Factories(discovery.Options{
		Enabled: t.hasServers(), Tools: func() []tools.Definition { return t.tools.Registered() }, Wire: t.opts.wireName,
		Servers: func() []discovery.Server { return t.mcp.listForSearch() },
		Wait:    func(ctx context.Context, server string) error { return t.mcp.waitSearch(ctx, server) },
		Loaded:  &t.loaded, Activated: t.events.recordActivated,
		IsUsable: func(def tools.Definition) bool { return !t.opts.deniesAll(def) && t.permits(def) },
	})
}

func (o Options) deniesAll(def tools.Definition) bool {
	// Without an input no command can be dangerous.
	return o.Policy.Decide(def, o.Workspace.Path).Mode == policy.ModeDeny
}

// searchWait bounds how long a search waits for starting servers: one that hangs must not
// hide the others' tools. A test shortens it.
var searchWait = 10 * time.Second

var errSearchWait = errors.New("the search waits no longer")

// waitSearch is [mcpServers.wait] for at most searchWait.
func (m *mcpServers) waitSearch(ctx context.Context, server string) error {
	waiting, cancel := context.WithTimeoutCause(ctx, searchWait, errSearchWait)
	defer cancel()
	_ = m.wait(waiting, server)
	return context.Cause(ctx)
}

// waitLoaded waits for the servers of tools that the session has already loaded: the model
// was told that it can call them.
func (m *mcpServers) waitLoaded(ctx context.Context) {
	for _, name := range m.s.loaded.Names() {
		if _, known := m.s.tools.Lookup(string(name)); !known {
			_ = m.waitSearch(ctx, name.Server()) // the turn sees that ctx ended
		}
	}
}

// listForSearch returns, sorted by name, the servers that the policy allows calls to and
// the ones that only other tools of the session name.
func (m *mcpServers) listForSearch() []discovery.Server {
	now, cancel := context.WithCancelCause(context.Background())
	cancel(nil)
	var list []discovery.Server
	for _, one := range m.s.servers {
		if !m.mayCall(one) {
			continue
		}
		one.mu.Lock()
		problem := one.problem
		one.mu.Unlock()
		if problem == "" && errors.Is(m.set.WaitServer(now, one.Name), context.Canceled) {
			problem = "it is starting"
		}
		list = append(list, discovery.Server{Name: one.Name, Problem: problem})
	}
	known := serverNames(m.s.opts.MCP)
	for _, def := range m.s.tools.Registered() {
		if server := def.Name.Server(); server != "" && !slices.Contains(known, server) {
			known, list = append(known, server), append(list, discovery.Server{Name: server})
		}
	}
	slices.SortFunc(list, func(a, b discovery.Server) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (j *eventRecorder) recordActivated(a discovery.Activation) error {
	return j.recordBelow(a.CallID, record.ToolActivated(a), false)
}

// refuseTool returns why the session may not use a tool, or "". A tool that the policy
// denies can't be loaded, so its refusal reads like the policy's other refusals.
func (s *Session) refuseTool(def tools.Definition) (reason, message string) {
	reason, message = s.skills.Refusal(def.Name)
	switch {
	case reason != "" || !s.permits(def):
		return reason, message
	case s.opts.deniesAll(def):
		return "mode_deny", fmt.Sprintf("The policy refuses tool %q (class %s); don't try it again in this session.", s.opts.wireName(def.Name), def.Class)
	}
	return s.loaded.Refusal(def.Name)
}

// restoreLoaded loads again the tools that the session or its parent had loaded.
func (s *Session) restoreLoaded() {
	if s.past != nil {
		s.loaded.Add(s.past.Activated...)
	}
	if s.opts.from != nil {
		s.loaded.Add(s.opts.from.loaded...)
	}
}

func serverNames(o MCPOptions) []string {
	var names []string
	for _, one := range o.Servers {
		names = append(names, one.Name)
	}
	return names
}
