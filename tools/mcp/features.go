package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
)

// Names of the tools for servers' resources and prompts.
const (
	NameListResources tools.Name = "list_mcp_resources"
	NameReadResource  tools.Name = "read_mcp_resource"
	NameGetPrompt     tools.Name = "get_mcp_prompt"
)

const (
	maxListed      = 200
	maxListedField = 200
)

type featureInput struct {
	Server    string            `json:"server"`
	URI       string            `json:"uri"`
	Name      string            `json:"name"`
	Arguments map[string]string `json:"arguments"`
}

func (s *Set) registerFeatures() {
	s.features.Do(func() {
		for _, factory := range s.featureTools() {
			if err := s.opts.Register(factory); err != nil {
				s.opts.Log.Warn("register a tool for what MCP servers offer", zap.Error(err))
			}
		}
	})
}

func (s *Set) featureTools() []tools.Factory {
	serverProperty := `"server": {"type": "string", "description": "Name of the MCP server."}`
	type feature struct {
		name                tools.Name
		description, schema string
		run                 func(context.Context, *tools.Call, featureInput) (tools.Output, error)
	}
	var factories []tools.Factory
	for _, f := range []feature{
		{
			NameListResources, "List the resources, resource templates and prompts that MCP servers offer.",
			`{"type": "object", "properties": {` + serverProperty + `}}`, s.listResources,
		},
		{
			NameReadResource, "Read one resource of an MCP server, by its URI. list_mcp_resources lists them.",
			`{"type": "object", "required": ["server", "uri"], "properties": {` + serverProperty + `, "uri": {"type": "string"}}}`, s.readResource,
		},
		{
			NameGetPrompt, "Get the text of a prompt that an MCP server offers. list_mcp_resources lists them.",
			`{"type": "object", "required": ["server", "name"], "properties": {` + serverProperty + `, "name": {"type": "string"},
			"arguments": {"type": "object", "additionalProperties": true}}}`, s.getPrompt,
		},
	} {
		def := tools.Definition{
			Name: f.name, Description: f.description, InputSchema: json.RawMessage(f.schema),
			Class: tools.ClassExecute, Runs: tools.PlaceSandbox, EnabledByDefault: true,
			ActsAs: func(input json.RawMessage) []tools.Name { return s.actsAs(f.name, input) },
		}
		if slices.ContainsFunc(s.servers, func(srv *server) bool { return !srv.cfg.InSandbox() }) {
			def.Class, def.Runs = tools.ClassNetwork, tools.PlaceHost
		}
		factories = append(factories, tools.NewTool(def, f.run))
	}
	return factories
}

// actsAs returns the tools that a call counts as: one of each server that it asks,
// such as server/read_mcp_resource, so that the server's policy binds the call.
func (s *Set) actsAs(name tools.Name, input json.RawMessage) []tools.Name {
	var in featureInput
	if input == nil || json.Unmarshal(input, &in) != nil {
		return nil
	}
	var names []tools.Name
	for _, srv := range s.servers {
		if in.Server == "" || in.Server == srv.cfg.Name {
			names = append(names, tools.Name(srv.cfg.Name+"/"+string(name)))
		}
	}
	return names
}

func (s *Set) findServer(name string) (*server, error) {
	if srv := s.serverNamed(name); srv != nil {
		return srv, nil
	}
	var names []string
	for _, srv := range s.servers {
		names = append(names, srv.cfg.Name)
	}
	return nil, &tools.Error{
		Class: tools.ErrorNotFound, Visible: true,
		Message: fmt.Sprintf("no MCP server has the name %q; there are %s", oneLine(name, maxShownName), oneLine(strings.Join(names, ", "), maxLogBytes)),
	}
}

// listResources lists what one server offers, or all running ones.
func (s *Set) listResources(ctx context.Context, call *tools.Call, in featureInput) (tools.Output, error) {
	if in.Server != "" {
		srv, err := s.findServer(in.Server)
		if err != nil {
			return tools.Output{}, err
		}
		return srv.askServer(ctx, call.Delta, listFeatures)
	}
	var out tools.Output
	for _, srv := range s.servers {
		if !srv.hasFeatures() {
			continue
		}
		one, err := srv.askServer(ctx, call.Delta, listFeatures)
		switch {
		case ctx.Err() != nil:
			return out, err
		case err != nil:
			out.Content = append(out.Content, noteBlock("MCP server %s: %s", srv.cfg.Name, oneLine(err.Error(), maxLogBytes)))
			continue
		}
		out.Success = true
		out.Content = append(out.Content, one.Content...)
	}
	if len(out.Content) == 0 {
		out.Content = []tools.Block{{Text: "No MCP server runs that offers resources or prompts."}}
	}
	return out, nil
}

func (s *server) hasFeatures() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == nil {
		return false
	}
	caps := s.life.session.InitializeResult().Capabilities
	return caps != nil && (caps.Resources != nil || caps.Prompts != nil)
}

func listFeatures(ctx context.Context, l *life, _ string) (tools.Output, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "MCP server %s:\n", l.server.cfg.Name)
	listed := 0
	add := func(kind string, fields ...string) {
		if listed++; listed > maxListed {
			return
		}
		b.WriteString("- " + kind)
		for _, field := range fields {
			if field != "" {
				b.WriteString(" " + oneLine(field, maxListedField) + ";")
			}
		}
		b.WriteString("\n")
	}
	caps := l.session.InitializeResult().Capabilities
	var err error
	if caps != nil && caps.Resources != nil {
		err = l.eachResource(ctx, add)
	}
	if err == nil && caps != nil && caps.Prompts != nil {
		err = addPages(add, func(cursor string) (string, bool, error) {
			page, err := l.session.ListPrompts(ctx, &mcp.ListPromptsParams{Cursor: cursor})
			if err != nil {
				return "", false, err
			}
			for _, p := range page.Prompts {
				if p != nil {
					add("prompt", p.Name, promptArguments(p), p.Description)
				}
			}
			return page.NextCursor, listed > maxListed, nil
		})
	}
	if err != nil {
		return tools.Output{}, err
	}
	switch {
	case listed == 0:
		b.WriteString("nothing\n")
	case listed > maxListed:
		fmt.Fprintf(&b, "[… more than %d are not shown …]\n", maxListed)
	}
	return tools.Output{Success: true, Content: []tools.Block{{Text: b.String()}}}, nil
}

// addPages is [eachPage], and calls add with a note if the list was cut off.
func addPages(add func(kind string, fields ...string), list func(cursor string) (next string, full bool, err error)) error {
	cut, err := eachPage(list)
	if cut != "" {
		add("…", "the server's list has "+cut)
	}
	return err
}

func (l *life) eachResource(ctx context.Context, add func(kind string, fields ...string)) error {
	count := 0
	err := addPages(add, func(cursor string) (string, bool, error) {
		page, err := l.session.ListResources(ctx, &mcp.ListResourcesParams{Cursor: cursor})
		if err != nil {
			return "", false, err
		}
		for _, r := range page.Resources {
			if r != nil {
				count++
				add("resource", r.URI, r.Name, r.MIMEType, r.Description)
			}
		}
		return page.NextCursor, count > maxListed, nil
	})
	if err != nil {
		return err
	}
	err = addPages(add, func(cursor string) (string, bool, error) {
		page, err := l.session.ListResourceTemplates(ctx, &mcp.ListResourceTemplatesParams{Cursor: cursor})
		if err != nil {
			return "", false, err
		}
		for _, t := range page.ResourceTemplates {
			if t != nil {
				count++
				add("resource template", t.URITemplate, t.Name, t.MIMEType, t.Description)
			}
		}
		return page.NextCursor, count > maxListed, nil
	})
	if refusedHandshake(err) {
		return nil // many servers have no templates
	}
	return err
}

// promptArguments returns the arguments of a prompt: "(a, b?)".
func promptArguments(p *mcp.Prompt) string {
	var names []string
	for _, a := range p.Arguments {
		if a == nil {
			continue
		}
		name := a.Name
		if !a.Required {
			name += "?"
		}
		names = append(names, name)
	}
	return "(" + strings.Join(names, ", ") + ")"
}

func (s *Set) readResource(ctx context.Context, call *tools.Call, in featureInput) (tools.Output, error) {
	srv, err := s.findServer(in.Server)
	if err != nil {
		return tools.Output{}, err
	}
	return srv.askServer(ctx, call.Delta, func(ctx context.Context, l *life, token string) (tools.Output, error) {
		params := &mcp.ReadResourceParams{URI: in.URI}
		params.SetProgressToken(token)
		result, err := l.session.ReadResource(ctx, params)
		if err != nil {
			return tools.Output{}, err
		}
		if len(result.InputRequests) > 0 {
			return tools.Output{}, l.refuseInput(result.InputRequests)
		}
		out := tools.Output{Success: true}
		for i, contents := range result.Contents {
			if i == maxContent {
				break
			}
			out.Content = append(out.Content, resourceBlock(contents))
		}
		return out, nil
	})
}

func (s *Set) getPrompt(ctx context.Context, call *tools.Call, in featureInput) (tools.Output, error) {
	srv, err := s.findServer(in.Server)
	if err != nil {
		return tools.Output{}, err
	}
	return srv.askServer(ctx, call.Delta, func(ctx context.Context, l *life, token string) (tools.Output, error) {
		params := &mcp.GetPromptParams{Name: in.Name, Arguments: in.Arguments}
		params.SetProgressToken(token)
		result, err := l.session.GetPrompt(ctx, params)
		if err != nil {
			return tools.Output{}, err
		}
		if len(result.InputRequests) > 0 {
			return tools.Output{}, l.refuseInput(result.InputRequests)
		}
		out := tools.Output{Success: true}
		for i, m := range result.Messages {
			if i == maxContent {
				break
			}
			if m == nil {
				continue
			}
			out.Content = append(out.Content, tools.Block{Text: oneLine(string(m.Role), maxShownName) + ":"}, contentBlock(m.Content))
		}
		return out, nil
	})
}
