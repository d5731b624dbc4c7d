package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/runner/record"
)

// MCPPath is the file in which a workspace lists MCP servers. Other clients read it
// too.
const MCPPath = ".mcp.json"

// MCPRestrictions are an administrator's bounds for MCP servers.
type MCPRestrictions struct {
	Servers         []string `yaml:"servers" doc:"allowed names of servers; a name may end in *; absent means any, empty none"`
	Commands        []string `yaml:"commands" doc:"allowed programs of servers with their arguments, separated by one space; an entry may end in *; absent means any, empty none"`
	Hosts           []string `yaml:"hosts" doc:"allowed hosts of servers with url; *.example.com allows its subdomains; absent means any, empty none"`
	RefuseOnHost    bool     `yaml:"refuse_on_host" doc:"refuse on_host"`
	RefuseWorkspace bool     `yaml:"refuse_workspace" doc:"ignore the .mcp.json of workspaces"`
}

// refuses returns why a server is not allowed, or "" if it is.
func (r *MCPRestrictions) refuses(name string, s *MCPServer) string {
	switch {
	case s.project && r.RefuseWorkspace:
		return "servers of a workspace are not allowed on this machine"
	case s.OnHost && r.RefuseOnHost:
		return "on_host is not allowed on this machine"
	case !allows(r.Servers, name):
		return "a server of this name is not allowed on this machine"
	case s.Transport() == MCPStdio && !allows(r.Commands, strings.Join(append([]string{s.Command}, s.Args...), " ")):
		return "its command is not allowed on this machine"
	case s.Transport() != MCPStdio && !allowsHost(r.Hosts, s.URL):
		return "its host is not allowed on this machine"
	}
	return ""
}

// allowsHost reports whether patterns allow the host of an address. nil allows any.
func allowsHost(patterns []string, address string) bool {
	u, err := url.Parse(address)
	return patterns == nil || err == nil && slices.ContainsFunc(patterns, func(p string) bool {
		host := strings.ToLower(u.Hostname())
		if below, ok := strings.CutPrefix(p, "*."); ok {
			return strings.HasSuffix(host, "."+strings.ToLower(below))
		}
		return host == strings.ToLower(p)
	})
}

// projectServers are the servers of a workspace's .mcp.json as they are written.
type projectServers map[string]MCPBase

// parseProjectServers reads a .mcp.json. It refuses unknown keys, and keys that only
// the operator may set. References to variables stay unexpanded. Its error is an
// [Error] with the place.
func parseProjectServers(f ProjectFile) (projectServers, error) {
	if err := checkNesting(f); err != nil {
		return nil, err
	}
	if !json.Valid(f.Text) {
		return nil, jsonError(f)
	}
	var file struct {
		Servers projectServers `yaml:"mcpServers"`
	}
	// JSON has tabs only between tokens, where YAML accepts none.
	text := bytes.ReplaceAll(f.Text, []byte("\t"), []byte(" "))
	if err := parseWith(f.Path, text, func(ast.Node) error { return nil }, &file); err != nil {
		return nil, err
	}
	return file.Servers, nil
}

// jsonError returns the place of a mistake in a text that is not JSON.
func jsonError(f ProjectFile) error {
	e := &Error{Where: f.Path, Message: "it is not JSON"}
	var v any
	if at, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(f.Text, &v)); ok {
		before := f.Text[:min(int(at.Offset), len(f.Text))]
		e.Message += ": " + at.Error()
		e.Line = bytes.Count(before, []byte("\n")) + 1
		e.Column = max(1, len(before)-1-bytes.LastIndexByte(before, '\n'))
	}
	return e
}

// operatorKeys are keys for the operator's own configuration only.
var operatorKeys = []string{"on_host", "memory", "processes", "egress"}

func (s *projectServers) UnmarshalYAML(n ast.Node) error {
	*s = projectServers{}
	return eachServer(n, func(name string, at *ast.MappingValueNode) error {
		for _, key := range operatorKeys {
			if node := nodeOf(at, key); node != at.Key {
				e := errorAt(node, fmt.Errorf("a workspace can't set %q for a server", key))
				e.Hint = "list the server in your own configuration, under mcpServers; it replaces that of the workspace"
				return e
			}
		}
		var one MCPBase
		if err := decodeServer(at, &one); err != nil {
			return err
		}
		if one.OAuth.ClientSecret != "" || one.OAuth.Grant != "" {
			return errorAt(nodeOf(at, "oauth"), errors.New("a workspace can't set client_secret and grant of oauth"))
		}
		whole := MCPServer{MCPBase: one}
		if key, err := whole.check(name); err != nil && !one.hasReferences() {
			return errorAt(nodeOf(at, key), err)
		}
		(*s)[name] = one
		return nil
	})
}

// texts replaces each text of the server that may refer to variables by the result of
// f.
func (s *MCPBase) texts(f func(string) (string, error)) error {
	set := func(to *string) error {
		text, err := f(*to)
		if err == nil {
			*to = text
		}
		return err
	}
	for _, to := range []*string{&s.Command, &s.Cwd, &s.URL} {
		if err := set(to); err != nil {
			return err
		}
	}
	s.Args = slices.Clone(s.Args)
	for i := range s.Args {
		if err := set(&s.Args[i]); err != nil {
			return err
		}
	}
	for _, m := range []*map[string]Secret{&s.Env, &s.Headers} {
		out := make(map[string]Secret, len(*m))
		for _, name := range sortedKeys(*m) {
			text, err := f(string((*m)[name]))
			if err != nil {
				return err
			}
			out[name] = Secret(text)
		}
		if *m != nil {
			*m = out
		}
	}
	return nil
}

// hasReferences reports whether a text of the server refers to a variable.
func (s MCPBase) hasReferences() bool {
	found := false
	_ = s.texts(func(text string) (string, error) { // f does not fail
		found = found || strings.Contains(text, "${")
		return text, nil
	})
	return found
}

// expand replaces references to the variables of allowed. Others count as unset.
func (s MCPBase) expand(allowed []string, getenv lookup) (MCPBase, error) {
	var refused string
	err := s.texts(func(text string) (string, error) {
		return expandText(text, func(name string) (string, bool) {
			if slices.Contains(allowed, name) {
				return getenv(name)
			}
			refused = name
			return "", false
		})
	})
	if err != nil && refused != "" {
		err = fmt.Errorf("it refers to ${%s}, and mcp_env of your configuration does not have %s", refused, refused)
	}
	return s, err
}

// loadProjectServers adds a trusted workspace's servers to the operator's. The
// operator's win. It skips servers that can't be used.
func (c *Config) loadProjectServers(o Options, getenv lookup) error {
	if o.ProjectServers == nil {
		return nil
	}
	servers, err := parseProjectServers(*o.ProjectServers)
	if err != nil {
		return err
	}
	layer := File{MCP: MCPServers{}}
	skip := func(name, why string) {
		c.SkippedServers = append(c.SkippedServers, record.Ignored{Name: name, Why: why})
	}
	for _, name := range sortedKeys(servers) {
		if _, own := c.MCP[name]; own {
			skip(name, "your own configuration has a server of this name")
			continue
		}
		base, err := servers[name].expand(c.MCPEnv, getenv)
		one := MCPServer{MCPBase: base, project: true}
		if err == nil {
			_, err = one.check(name)
		}
		if err != nil {
			skip(name, err.Error())
			continue
		}
		layer.MCP[name] = one
	}
	c.addLayer(layer, record.Source{Name: "project", Path: o.ProjectServers.Path, SHA256: o.ProjectServers.SHA256()})
	return nil
}

// checkServers applies the requirements to the servers. A refused server of the
// operator is an error; a workspace's is skipped.
func (c *Config) checkServers() error {
	for _, name := range sortedKeys(c.MCP) {
		s := c.MCP[name]
		err := c.CheckServer(name)
		switch {
		case err == nil || s.Disabled:
		case s.project:
			c.SkippedServers = append(c.SkippedServers, record.Ignored{Name: name, Why: err.Message})
			c.MCP = maps.Clone(c.MCP) // it may be shared
			delete(c.MCP, name)
		default:
			return err
		}
	}
	if slices.Contains(c.MCPUse, noServers) && len(c.MCPUse) > 1 {
		return &Error{Where: "mcp_use", Message: "none goes with no other name"}
	}
	return nil
}

// CheckServer returns an error if the requirements refuse a server, even one that is disabled.
func (c *Config) CheckServer(name string) *Error {
	s := c.MCP[name]
	why := c.Requirements.MCP.refuses(name, &s)
	if why == "" {
		return nil
	}
	return &Error{Where: "mcpServers." + name, Message: why, Hint: "choose what the administrator's file allows, or set disabled: true"}
}

// UsedServers returns the names of a session's servers. It fails for an unknown name in
// mcp_use.
func (c *Config) UsedServers() ([]string, error) {
	for _, name := range c.MCPUse {
		if _, known := c.MCP[name]; !known && name != noServers {
			hint := "name servers of mcpServers, or none"
			for _, s := range c.SkippedServers {
				if s.Name == name {
					hint = "it is skipped: " + s.Why
				}
			}
			return nil, c.addPlace(&Error{Where: "mcp_use", Item: name, Message: fmt.Sprintf("there is no server %q", name), Hint: hint})
		}
	}
	var names []string
	for _, name := range sortedKeys(c.MCP) {
		if !c.MCP[name].Disabled && (len(c.MCPUse) == 0 || slices.Contains(c.MCPUse, name)) {
			names = append(names, name)
		}
	}
	return names, nil
}

// ProjectServer shows a workspace's server to the user before it is trusted: as
// written, without the values of variables.
type ProjectServer struct {
	Name    string            `json:"name"`
	Type    string            `json:"type"`
	Command []string          `json:"command,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// ClientID and Scopes are oauth's.
	ClientID string   `json:"client_id,omitempty"`
	Scopes   []string `json:"scopes,omitempty"`
	// Skipped is why it would not be used although the workspace is trusted.
	Skipped string `json:"skipped,omitempty"`
}

// Lines describes the server in lines that may contain control characters.
func (s ProjectServer) Lines() []string {
	what := s.URL
	if s.URL == "" {
		what = joinCommand(s.Command)
	}
	lines := []string{"MCP server " + s.Name + ", " + s.Type + ": " + what}
	for _, name := range sortedKeys(s.Env) {
		lines = append(lines, "  env "+name+"="+s.Env[name])
	}
	for _, name := range sortedKeys(s.Headers) {
		lines = append(lines, "  header "+name+": "+s.Headers[name])
	}
	if s.Cwd != "" {
		lines = append(lines, "  cwd "+s.Cwd)
	}
	if s.ClientID != "" || len(s.Scopes) > 0 {
		lines = append(lines, strings.TrimRight("  oauth client "+s.ClientID+" "+strings.Join(s.Scopes, " "), " "))
	}
	if s.Skipped != "" {
		lines = append(lines, "  it is left out: "+s.Skipped)
	}
	return lines
}

// joinCommand returns a program and its arguments on one line, quoted where needed.
func joinCommand(argv []string) string {
	words := slices.Clone(argv)
	for i, w := range words {
		if quoted, err := syntax.Quote(w, syntax.LangBash); err == nil {
			words[i] = quoted
		}
	}
	return strings.Join(words, " ")
}

// DescribeServers returns the servers of a workspace's .mcp.json, which must have been
// loaded.
func (c *Config) DescribeServers(f ProjectFile) ([]ProjectServer, error) {
	servers, err := parseProjectServers(f)
	if err != nil {
		return nil, err
	}
	plain := func(m map[string]Secret) map[string]string {
		out := map[string]string{}
		for name, v := range m {
			out[name] = string(v)
		}
		return out
	}
	var out []ProjectServer
	for _, name := range sortedKeys(servers) {
		s := servers[name]
		one := ProjectServer{Name: name, Type: s.Transport(), Cwd: s.Cwd, Env: plain(s.Env), URL: s.URL, Headers: plain(s.Headers), ClientID: s.OAuth.ClientID, Scopes: s.OAuth.Scopes}
		if s.URL == "" {
			one.Command = append([]string{s.Command}, s.Args...)
		}
		for _, skipped := range c.SkippedServers {
			if skipped.Name == name {
				one.Skipped = skipped.Why
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// ServerSecrets returns the values of servers' variables and headers, by the keys of their
// settings.
func (c *Config) ServerSecrets() map[string]string {
	out := map[string]string{}
	for name, s := range c.MCP {
		for kind, values := range map[string]map[string]Secret{"env": s.Env, "headers": s.Headers} {
			for key, v := range values {
				where := "mcpServers." + name + "." + kind + "." + key
				if v != "" {
					out[where] = string(v)
				}
				if _, credentials, ok := strings.Cut(string(v), " "); ok && kind == "headers" { // such as Bearer
					out[where+" without its scheme"] = credentials
				}
			}
		}
		if s.OAuth.ClientSecret != "" {
			out["mcpServers."+name+".oauth.client_secret"] = string(s.OAuth.ClientSecret)
		}
	}
	return out
}

// PlainSecrets returns the keys of a server's variables and headers that look like
// secrets and are in the user's file in plain text.
func (c *Config) PlainSecrets(name string) []string {
	var keys []string
	s := c.MCP[name]
	for kind, values := range map[string]map[string]Secret{"env": s.Env, "headers": s.Headers} {
		for key, v := range values {
			secret := strings.EqualFold(key, "Authorization") || secretName().MatchString(key)
			if secret && len(v) >= minHiddenBytes && bytes.Contains(c.user.text, []byte(v)) {
				keys = append(keys, "mcpServers."+name+"."+kind+"."+key)
			}
		}
	}
	if v := s.OAuth.ClientSecret; len(v) >= minHiddenBytes && bytes.Contains(c.user.text, []byte(v)) {
		keys = append(keys, "mcpServers."+name+".oauth.client_secret")
	}
	slices.Sort(keys)
	return keys
}

// HasAuthorization reports whether the server's headers have Authorization.
func (s *MCPBase) HasAuthorization() bool {
	for name := range s.Headers {
		if strings.EqualFold(name, "Authorization") {
			return true
		}
	}
	return false
}
