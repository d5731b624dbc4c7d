package runner

import (
	"slices"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/discovery"
	"github.com/caisson-run/caisson/tools/policy"
)

// hasServers reports whether the session has tools of servers, now or later.
func (o ToolOptions) hasServers() bool {
	if len(o.MCP.Servers) > 0 {
		return true
	}
	for _, d := range o.Declared {
		if d.Name.Server() != "" {
			return true
		}
	}
	return slices.ContainsFunc(o.Tools, func(f tools.Factory) bool {
		def, err := tools.Inspect(f) // an error is reported when it is registered
		return err == nil && def.Name.Server() != ""
	})
}

// wireName returns a name as the models of the session call it.
func (o Options) wireName(name tools.Name) tools.LLMName {
	limit := 0
	for _, p := range o.Profiles {
		if n := p.Model.Info().ToolNameBytes; n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	wire, _ := name.LLMWithin(limit) // it is registered
	return wire
}

// discoveryTools returns search_tools and load_tool.
func (t toolset) discoveryTools() []tools.Factory {
	return discovery.Factories(discovery.Options{
		Enabled: t.opts.hasServers(), Tools: t.registered, Servers: t.servers, Wait: t.waitServer, Wire: t.opts.wireName, Loaded: t.loaded, Activated: t.activated,
		IsUsable: func(def tools.Definition) bool {
			// Without an input no command can be dangerous.
			v := t.opts.Policy.DecideCallWith(policy.DangerMatcher{}, def, t.hostRoot, nil)
			return v.Mode != policy.ModeDeny && t.permits(def)
		},
	})
}

// recordActivated records a tool that a call has loaded.
func (j *eventRecorder) recordActivated(a discovery.Activation) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.putRecord(nil, j.parentRecord(a.CallID), record.ActorTool, record.ToolActivated{CallID: a.CallID, Name: a.Name, Definition: a.Definition, By: a.By})
}

// refuseTool returns the reason and the message of a call of a tool that the session may
// not use, "" for none.
func refuseTool(s *Session, def tools.Definition) (reason, message string) {
	if reason, message = s.skills.Refusal(def.Name); reason == "" && s.permits(def) {
		return s.loaded.Refusal(def.Name)
	}
	return reason, message
}

// restoreLoaded loads the tools of servers that the session, or the one that it is a fork
// of, has loaded before.
func restoreLoaded(s *Session) {
	if s.past != nil {
		s.loaded.Add(s.past.Activated...)
	}
	if s.opts.from != nil {
		s.loaded.Add(s.opts.from.loaded...)
	}
}
