// Package discovery has the tools with which a model finds servers' tools:
// search_tools and load_tool. Servers may offer thousands. A model is offered only
// the ones that it has loaded.
//
// The model sees names as it calls them ([tools.LLMName]). Reports have the
// canonical names. Servers' texts about their tools are not trusted: they are
// cleaned and bounded.
package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// MaxLoaded bounds the loaded tools of a session: providers take at most 128 tools,
// and every definition takes room in the model's context. Loading one more unloads
// the one that was loaded first.
const MaxLoaded = 80

// How a tool was activated.
const (
	BySearch = "search"
	ByLoad   = "load"
)

// Activation is a tool that was loaded.
type Activation struct {
	CallID string     `json:"tool_use_id"` // of search_tools or load_tool
	Name   tools.Name `json:"tool_name"`
	// Definition is [tools.Definition].Hash, By BySearch or ByLoad.
	Definition string `json:"definition"`
	By         string `json:"by"`
}

// Server is one server of the session.
type Server struct {
	Name string
	// Problem is why none of its tools can be used now, safe for display, or "".
	Problem string
}

// Options configure the tools.
type Options struct {
	// Enabled offers the tools. It is set if the session has servers.
	Enabled bool
	// Tools returns all tools of the session, also its own, whether loaded or not.
	Tools func() []tools.Definition
	// IsUsable reports whether the session may use a tool once it is loaded.
	IsUsable func(tools.Definition) bool
	// Servers returns the session's servers.
	Servers func() []Server
	// Wait waits until the tools of a server, or of all servers for "", are known or
	// won't be. It returns an error if ctx ends.
	Wait func(ctx context.Context, server string) error
	// Wire returns a name as the model calls it.
	Wire func(tools.Name) tools.LLMName
	// Loaded holds the loaded tools.
	Loaded *Loaded
	// Activated records an activation. If it fails, the tool is not loaded.
	Activated func(Activation) error
}

// Factories returns search_tools and load_tool.
func Factories(o Options) []tools.Factory {
	c := &catalogue{o}
	return []tools.Factory{
		tools.NewTool(c.searchDefinition(), c.executeSearch),
		tools.NewTool(c.loadDefinition(), c.executeLoad),
	}
}

// Loaded is the set of tools that a session has loaded, oldest first. It is safe
// for concurrent use. The zero value is empty, and nil has every tool.
type Loaded struct {
	mu    sync.Mutex
	names []tools.Name
}

// Has reports whether a tool can be called: it is our own, or loaded.
func (l *Loaded) Has(name tools.Name) bool {
	if l == nil || name.Server() == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.names, name)
}

// Add loads tools. Only the last [MaxLoaded] stay.
func (l *Loaded) Add(names ...tools.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if !slices.Contains(l.names, name) {
			l.names = append(l.names, name)
		}
	}
	l.names = slices.Delete(l.names, 0, max(len(l.names)-MaxLoaded, 0))
}

// Names returns the loaded tools, oldest first.
func (l *Loaded) Names() []tools.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.names)
}

// Refusal returns the reason and message for a call of a tool that is not loaded,
// or "". The model has not seen its parameters, so the call is not tried.
func (l *Loaded) Refusal(name tools.Name) (reason, message string) {
	if l.Has(name) {
		return "", ""
	}
	wire, _ := name.LLM() // it is registered
	return "not_loaded", fmt.Sprintf("Tool %q is not loaded. Load it with %s, look at its parameters, then call it.", wire, tools.NameLoadTool)
}
