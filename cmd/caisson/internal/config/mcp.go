package config

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"golang.org/x/net/http/httpguts"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// Secret is a value that must not be in outputs, records or logs.
type Secret string

// String hides the value.
func (Secret) String() string { return "[hidden]" }

// MarshalJSON hides the value.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"[hidden]"`), nil }

func (Secret) jsonSchema() map[string]any { return map[string]any{"type": "string"} }

// Values of the key type of MCP servers.
const (
	MCPStdio = "stdio"
	MCPHTTP  = "http"
	MCPSSE   = "sse"
)

// mcpStreamable is the specification's word for [MCPHTTP].
const mcpStreamable = "streamable-http"

// MCPBase has the keys of an MCP server that other clients have too, and those that
// only narrow. A trusted workspace's .mcp.json can have them.
type MCPBase struct {
	Type         string            `yaml:"type" words:"stdio http streamable-http sse" doc:"transport: stdio, http (or streamable-http) or sse, the older one; the default is stdio with command, and http with url"`
	Command      string            `yaml:"command" doc:"program of a stdio server, which runs in the session's sandbox"`
	Args         []string          `yaml:"args" doc:"arguments of the program"`
	Env          map[string]Secret `yaml:"env" doc:"variables of the program, by name; the values are kept out of all output and records" each:"value of a variable"`
	Cwd          string            `yaml:"cwd" doc:"working directory in the sandbox, absolute or relative to the workspace; the default is a separate home for the server, and / with on_host"`
	URL          string            `yaml:"url" doc:"address of a server that is reached over HTTP"`
	Headers      map[string]Secret `yaml:"headers" doc:"headers of each request to url, by name; the values are kept out of all output and records" each:"value of a header"`
	OAuth        MCPOAuth          `yaml:"oauth" doc:"how Caisson signs in to a server with url, unless headers has Authorization"`
	Timeout      *Count            `yaml:"timeout" doc:"time of one call in milliseconds; other clients write call_timeout this way"`
	Include      []string          `yaml:"include" doc:"tools to offer, by their names at the server; a name may end in *; the default is all"`
	Exclude      []string          `yaml:"exclude" doc:"tools not to offer, written like include"`
	StartTimeout *Duration         `yaml:"start_timeout" doc:"longest time until the server lists its tools"`
	CallTimeout  *Duration         `yaml:"call_timeout" doc:"longest time of one call"`
	Disabled     bool              `yaml:"disabled" doc:"leave the server out"`
}

// MCPServer is one MCP server. It has either Command or URL.
type MCPServer struct {
	MCPBase   `yaml:",inline"`
	OnHost    bool      `yaml:"on_host" doc:"run the program on this machine, as you and outside the sandbox; it can do whatever you can"`
	Memory    *Size     `yaml:"memory" doc:"memory of the program, in addition to the sandbox's; half of it is the size of its home"`
	Processes *Count    `yaml:"processes" doc:"processes and threads of the program, in addition to the sandbox's"`
	Egress    MCPEgress `yaml:"egress" doc:"hosts that this program may reach, independent of other servers and commands; without a rule it has no network; for a url, hosts that it names for signing in"`

	// project is set if the server is from the workspace's file.
	project bool
}

// MCPOAuth configures Caisson as a client of an MCP server's authorization server.
type MCPOAuth struct {
	ClientID     string   `yaml:"client_id" doc:"identifier of a registered client; by default, signing in registers one"`
	ClientSecret Secret   `yaml:"client_secret" doc:"secret of the client; it is kept out of all output and records, and goes to the authorization server that the server names"`
	Scopes       []string `yaml:"scopes" doc:"scopes to ask for, instead of the ones that the server names"`
	Grant        string   `yaml:"grant" words:"authorization_code client_credentials" doc:"authorization_code (the default), with caisson mcp login, or client_credentials, which needs client_id and client_secret"`
}

func (o MCPOAuth) check() error {
	switch {
	case o.Grant != "" && o.Grant != string(oauth.GrantCode) && o.Grant != string(oauth.GrantClient):
		return fmt.Errorf("grant %q is none of authorization_code, client_credentials", o.Grant)
	case o.ClientSecret != "" && o.ClientID == "":
		return errors.New("client_secret needs client_id")
	case o.Grant == string(oauth.GrantClient) && o.ClientSecret == "":
		return errors.New("client_credentials needs client_id and client_secret")
	}
	for _, scope := range o.Scopes {
		if !scopeToken().MatchString(scope) {
			return fmt.Errorf("invalid scope %q: want visible characters without quotes and backslashes", scope)
		}
	}
	return nil
}

// scopeToken matches a scope of RFC 6749, section 3.3.
var scopeToken = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[!#-\[\]-~]+$`) })

// MCPEgress bounds what a server may reach.
type MCPEgress struct {
	Presets Names                   `yaml:"presets" words:"apt cargo go maven npm pip" doc:"package managers whose public registries the server may read, such as npm for npx"`
	Allow   EgressRules             `yaml:"allow" doc:"hosts that the server may reach, written like egress.allow"`
	Deny    EgressRules             `yaml:"deny" doc:"hosts that the server may not reach, in addition to egress.deny"`
	Private map[string][]string     `yaml:"private" doc:"private networks that a host of allow or url may be in, by host" each:"networks or addresses, such as 10.1.2.0/24"`
	Secrets map[string]EgressSecret `yaml:"secrets" doc:"keys that the server can use but not see, written like egress.secrets" each:"one key"`
}

// noServers is the value of mcp_use for no servers.
const noServers = "none"

// MCPServers are servers by name.
type MCPServers map[string]MCPServer

// UnmarshalYAML also checks each server, to report its place.
func (s *MCPServers) UnmarshalYAML(n ast.Node) error {
	*s = MCPServers{}
	return eachServer(n, func(name string, at *ast.MappingValueNode) error {
		var one MCPServer
		if err := decodeServer(at, &one); err != nil {
			return err
		}
		if key, err := one.check(name); err != nil {
			return errorAt(nodeOf(at, key), err)
		}
		(*s)[name] = one
		return nil
	})
}

func eachServer(n ast.Node, f func(name string, at *ast.MappingValueNode) error) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		if _, isNull := n.(*ast.NullNode); isNull {
			return nil
		}
		return errorAt(n, errors.New("servers are listed by their names: NAME, then the keys of the server"))
	}
	seen := map[string]bool{}
	for _, v := range m.Values {
		name := keyText(v.Key)
		if seen[name] {
			return errorAt(v.Key, fmt.Errorf("the server %s is listed twice", name))
		}
		seen[name] = true
		if err := f(name, v); err != nil {
			return err
		}
	}
	return nil
}

// keyText returns a key without quotes.
func keyText(n ast.MapKeyNode) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	return n.GetToken().Value
}

func decodeServer(at *ast.MappingValueNode, dst any) error {
	if _, ok := at.Value.(*ast.MappingNode); !ok {
		return errorAt(at.Key, errors.New("the keys of a server are needed here, such as command or url"))
	}
	err := yaml.NodeToValue(at.Value, dst, yaml.Strict())
	if y, ok := errors.AsType[yaml.Error](err); ok {
		return explainServerKey(y)
	}
	return err
}

// foreignKeys are other clients' keys, with hints.
var foreignKeys = map[string]string{
	"httpUrl":              "write url, and type: http",
	"serverUrl":            "write url",
	"environment":          "write env",
	"includeTools":         "write include",
	"excludeTools":         "write exclude",
	"disabledTools":        "write exclude",
	"tools":                "write include",
	"trust":                "calls are asked about unless policy.tools names them, such as NAME/*: auto",
	"autoApprove":          "write policy.tools with NAME/TOOL: auto",
	"alwaysAllow":          "write policy.tools with NAME/TOOL: auto",
	"enabled":              "write disabled: true for a server that is left out",
	"bearer_token_env_var": `write headers with Authorization: "Bearer ${NAME}"`,
	"http_headers":         "write headers",
	"startup_timeout_sec":  "write start_timeout, such as 30s",
	"tool_timeout_sec":     "write call_timeout, such as 60s",
	"envFile":              "write env, with values such as ${NAME}",
	"clientId":             "write client_id",
	"clientSecret":         "write client_secret",
}

// explainServerKey adds Caisson's name for the key to the error about an unknown one.
func explainServerKey(y yaml.Error) error {
	e := &Error{Message: describeYAML(y)}
	if t := y.GetToken(); t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	if m := unknownField().FindStringSubmatch(e.Message); m != nil {
		e.Hint = foreignKeys[m[1]]
	}
	return e
}

// Transport returns [MCPStdio], [MCPHTTP] or [MCPSSE].
func (s *MCPBase) Transport() string {
	switch {
	case s.Type == mcpStreamable, s.Type == "" && s.URL != "":
		return MCPHTTP
	case s.Type == "":
		return MCPStdio
	}
	return s.Type
}

// RunsInSandbox reports whether the server is a program in its session's sandbox.
func (s *MCPServer) RunsInSandbox() bool { return s.Command != "" && !s.OnHost }

// Runs returns the class of the server's tools and where they run.
func (s *MCPServer) Runs() (tools.Class, tools.Place) {
	if s.RunsInSandbox() {
		return tools.ClassExecute, tools.PlaceSandbox
	}
	return tools.ClassNetwork, tools.PlaceHost
}

// ServerSource returns the file that configures a server.
func (c *Config) ServerSource(name string) string {
	if c.MCP[name].project {
		return MCPPath
	}
	return c.user.path
}

// ServerEgress returns what a server may reach. It ignores the rules for commands except
// denials. Options without a policy mean no network. The policy of a server with url
// allows its host.
func (c *Config) ServerEgress(name string) (runner.EgressOptions, error) {
	s, where := c.MCP[name], "mcpServers."+name+".egress"
	e := Egress{
		Presets: s.Egress.Presets, Allow: s.Egress.Allow, Deny: slices.Concat(s.Egress.Deny, c.Egress.Deny), Private: s.Egress.Private,
		Proxy: c.Egress.Proxy, CA: c.Egress.CA, Cache: c.Egress.Cache, Capture: c.Egress.Capture, EgressBounds: c.Egress.EgressBounds, within: c.Egress.within, publicOnly: c.Egress.publicOnly,
	}
	if e.publicOnly && len(e.Private) > 0 {
		return runner.EgressOptions{}, c.addPlace(&Error{Where: where + ".private", Message: "non-public addresses are not allowed on this machine", Hint: "take them out; only public addresses are connected to"})
	}
	e.Unknown = new(unknownDeny)
	if s.URL != "" {
		u, err := parseServerURL(s.URL)
		if err != nil {
			return runner.EgressOptions{}, &Error{Where: "mcpServers." + name + ".url", Message: err.Error()}
		}
		e.Allow = append(EgressRules{{URL: u.Scheme + "://" + u.Host + "/", Methods: serverMethods}}, e.Allow...)
		if near := nearbyNetworks(u.Hostname()); near != nil && !e.publicOnly && !s.project && e.Private[u.Hostname()] == nil {
			e.Private = map[string][]string{u.Hostname(): near}
			maps.Copy(e.Private, s.Egress.Private)
		}
	}
	o, _, err := e.parseOptions(c.places(c.workspace))
	if at, ok := errors.AsType[*Error](err); ok {
		at.Where = where + strings.TrimPrefix(at.Where, "egress")
	}
	return o, c.addPlace(err)
}

// serverMethods are the methods of the HTTP transports.
var serverMethods = []string{http.MethodGet, http.MethodPost, http.MethodDelete}

// ServerKeys returns the keys that a server uses without seeing them, without values.
func (c *Config) ServerKeys(name string) ([]EgressKey, error) {
	s := c.MCP[name]
	keys, err := s.parseKeys()
	if at, ok := errors.AsType[*Error](err); ok {
		at.Where = "mcpServers." + name + "." + at.Where
	}
	return keys, c.addPlace(err)
}

// callTimeout returns the longest time of a call. Zero means the default.
func (s *MCPBase) callTimeout() time.Duration {
	if s.Timeout != nil {
		return time.Duration(*s.Timeout) * time.Millisecond
	}
	return time.Duration(valueOr(s.CallTimeout, 0))
}

const maxMCPTimeout = 24 * time.Hour

// check returns an error about a server, and the key that it is about.
func (s *MCPServer) check(name string) (key string, err error) {
	if _, err := tools.ParseName(name + "/tool"); err != nil || strings.Contains(name, "/") || name == noServers {
		return "", fmt.Errorf("%q can't be the name of a server: want letters, digits, - and single _, and not %s", name, noServers)
	}
	if key, err := s.MCPBase.check(); err != nil {
		return key, err
	}
	if s.Transport() == MCPStdio {
		if s.OnHost && !reflect.ValueOf(s.Egress).IsZero() {
			return "egress", errors.New("rules of egress don't bind a program on this machine")
		}
		if s.OnHost && (s.Memory != nil || s.Processes != nil) {
			return "on_host", errors.New("memory and processes don't bind a program on this machine")
		}
	} else {
		set := map[string]bool{"on_host": s.OnHost, "memory": s.Memory != nil, "processes": s.Processes != nil, "egress": len(s.Egress.Presets)+len(s.Egress.Secrets) > 0}
		for _, key := range sortedKeys(set) {
			if set[key] {
				return key, errors.New("a server with url is no program of Caisson's: presets, secrets, memory, processes and on_host are for one with command")
			}
		}
	}
	_, err = s.parseKeys()
	return "egress", err
}

// parseKeys returns the keys of egress.secrets without values.
func (s *MCPServer) parseKeys() ([]EgressKey, error) {
	e := Egress{Secrets: s.Egress.Secrets}
	return e.parseKeys(func(name string) bool {
		_, ok := s.Env[name]
		return ok
	})
}

// check returns an error about the keys that all clients have, and the key.
func (s *MCPBase) check() (key string, err error) {
	transport := s.Transport()
	stdio := transport == MCPStdio
	switch {
	case !slices.Contains([]string{MCPStdio, MCPHTTP, MCPSSE}, transport):
		return "type", fmt.Errorf("%q is none of stdio, http, streamable-http, sse", s.Type)
	case s.Command != "" && s.URL != "":
		return "url", errors.New("a server has command or url, not both")
	case stdio && s.Command == "":
		return "type", errors.New("a server needs command, or url for one that is reached over HTTP")
	case !stdio && s.URL == "":
		return "type", fmt.Errorf("a server of type %s needs url", s.Type)
	case stdio && s.Headers != nil:
		return "headers", errors.New("headers are for a server with url")
	case !stdio && (s.Args != nil || s.Env != nil || s.Cwd != ""):
		return "type", errors.New("args, env and cwd are for a server with command")
	case s.Timeout != nil && s.CallTimeout != nil:
		return "timeout", errors.New("timeout, in milliseconds, and call_timeout mean the same; keep one of them")
	case s.callTimeout() > maxMCPTimeout || time.Duration(valueOr(s.StartTimeout, 0)) > maxMCPTimeout:
		return "call_timeout", fmt.Errorf("a time is longer than %v", maxMCPTimeout)
	}
	if (stdio || transport == MCPSSE || s.HasAuthorization()) && !reflect.ValueOf(s.OAuth).IsZero() {
		return "oauth", errors.New("oauth is for a server of type http without Authorization in headers")
	}
	if stdio {
		return s.checkProgram()
	}
	if err := s.OAuth.check(); err != nil {
		return "oauth", err
	}
	if _, err := parseServerURL(s.URL); err != nil {
		return "url", err
	}
	for _, name := range sortedKeys(s.Headers) {
		if err := checkServerHeader(name, string(s.Headers[name])); err != nil {
			return "headers", err
		}
	}
	return s.checkFilters()
}

func (s *MCPBase) checkProgram() (key string, err error) {
	if s.Args == nil && strings.Contains(s.Command, " ") && !strings.Contains(s.Command, "/") {
		return "command", fmt.Errorf("%q is a program with its arguments: write the program in command, and the others in args", s.Command)
	}
	if strings.ContainsRune(s.Command+strings.Join(s.Args, ""), 0) {
		return "command", errors.New("a program and its arguments have no NUL")
	}
	for _, name := range sortedKeys(s.Env) {
		if !validName(name) {
			return "env", fmt.Errorf("%q is not the name of a variable; write letters, digits and _", name)
		}
		if err := sandbox.CheckVariables([]string{name + "=" + string(s.Env[name])}); err != nil {
			return "env", errors.New(name + ": " + strings.TrimPrefix(err.Error(), sandbox.ErrInvalid.Error()+": "))
		}
	}
	if s.Cwd != "" && !path.IsAbs(s.Cwd) && !filepath.IsLocal(s.Cwd) {
		return "cwd", fmt.Errorf("%q leaves the workspace", s.Cwd)
	}
	return s.checkFilters()
}

func (s *MCPBase) checkFilters() (key string, err error) {
	lists := map[string][]string{"include": s.Include, "exclude": s.Exclude}
	for _, key := range sortedKeys(lists) {
		for _, pattern := range lists[key] {
			if strings.Contains(strings.TrimSuffix(pattern, "*"), "*") || pattern == "" {
				return key, fmt.Errorf("invalid tool %q: want its name at the server, with * only at the end", pattern)
			}
		}
	}
	return "", nil
}

func parseServerURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, errors.New("the address of a server is http:// or https://, a host and a path")
	case u.User != nil:
		return nil, errors.New("credentials in the address end up in logs of servers; write headers with Authorization")
	case u.Fragment != "":
		return nil, errors.New("the address has a fragment, which is never sent")
	}
	return u, nil
}

// reservedHeaders belong to the transport.
var reservedHeaders = []string{
	"accept", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "last-event-id", "mcp-protocol-version", "mcp-session-id",
	"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
}

func checkServerHeader(name, value string) error {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return fmt.Errorf("%q can't be the name of a header", name)
	case slices.Contains(reservedHeaders, strings.ToLower(name)):
		return fmt.Errorf("%s belongs to the transport", name)
	case !httpguts.ValidHeaderFieldValue(value):
		return fmt.Errorf("the value of %s can't be that of a header", name)
	}
	return nil
}

// nearbyNetworks returns the networks of a host if it is localhost, or a loopback or
// private address: the operator clearly wants to reach it. It returns nil for others.
func nearbyNetworks(host string) []string {
	if host == "localhost" {
		return []string{"127.0.0.0/8", "::1"}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" || !ip.IsLoopback() && !ip.IsPrivate() {
		return nil
	}
	return []string{ip.String()}
}

// ServerOptions returns a server for a session, without its keys. target is the workspace's
// path in the sandbox, workspace the one on this machine.
func (c *Config) ServerOptions(name, target, workspace string) (runner.MCPServer, error) {
	s := c.MCP[name]
	out := runner.MCPServer{Server: mcp.Server{
		Name: name, Command: s.Command, Args: s.Args, OnHost: s.OnHost, Memory: int64(valueOr(s.Memory, 0)), Processes: int(valueOr(s.Processes, 0)),
		URL: s.URL, SSE: s.Transport() == MCPSSE, Include: s.Include, Exclude: s.Exclude,
		OAuth:        oauth.Config{Grant: oauth.Grant(s.OAuth.Grant), ClientID: s.OAuth.ClientID, ClientSecret: string(s.OAuth.ClientSecret), Scopes: s.OAuth.Scopes},
		StartTimeout: time.Duration(valueOr(s.StartTimeout, 0)), CallTimeout: s.callTimeout(), Source: c.ServerSource(name),
	}}
	for _, variable := range sortedKeys(s.Env) {
		out.Env = append(out.Env, variable+"="+string(s.Env[variable]))
	}
	if len(s.Headers) > 0 {
		out.Headers = map[string]string{}
	}
	for header, value := range s.Headers {
		out.Headers[header] = string(value)
	}
	if out.Dir = s.Cwd; s.Cwd != "" && !path.IsAbs(s.Cwd) {
		if s.OnHost {
			target = workspace
		}
		out.Dir = path.Join(target, s.Cwd)
	}
	var err error
	out.Egress, err = c.ServerEgress(name)
	return out, err
}
