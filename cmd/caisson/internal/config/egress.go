package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// EgressRule is one rule for what commands may reach. See [rule.ParseEgress]. In files
// it is only the URL, or a mapping with methods.
type EgressRule struct {
	URL     string   `yaml:"url" json:"url" doc:"the rule"`
	Methods []string `yaml:"methods" json:"methods,omitempty" doc:"the methods that it allows instead of GET and HEAD"`
}

// plainEgressRule is an EgressRule without its methods.
type plainEgressRule EgressRule

// UnmarshalYAML also checks the rule, to report its place.
func (r *EgressRule) UnmarshalYAML(n ast.Node) error {
	if err := unmarshalURL(n, &r.URL, (*plainEgressRule)(r), "a rule is needed here, such as tls://example.com, or url: with methods: beside it"); err != nil {
		return err
	}
	if _, err := r.parse(); err != nil {
		return errorAt(n, err)
	}
	return nil
}

// unmarshalURL decodes a node that is only a URL, or else a mapping into dst. wanted is
// the error for any other node.
func unmarshalURL(n ast.Node, to *string, dst any, wanted string) error {
	if _, isMapping := n.(*ast.MappingNode); isMapping {
		return yaml.NodeToValue(n, dst, yaml.Strict())
	}
	text, ok := scalarText(n)
	if !ok {
		return errorAt(n, errors.New(wanted))
	}
	*to = text
	return nil
}

// MarshalJSON returns the rule in the form of files.
func (r EgressRule) MarshalJSON() ([]byte, error) {
	if r.Methods == nil {
		return json.Marshal(r.URL)
	}
	return json.Marshal(plainEgressRule(r))
}

func (EgressRule) jsonSchema() map[string]any {
	return urlSchema("methods", map[string]any{"type": "array", "items": textSchema})
}

var textSchema = map[string]any{"type": "string", "minLength": 1}

// urlSchema is the schema of a URL, or of an object with url and another key.
func urlSchema(key string, value map[string]any) map[string]any {
	return map[string]any{"anyOf": []any{textSchema, map[string]any{
		"type": "object", "additionalProperties": false, "required": []any{"url"},
		"properties": map[string]any{"url": textSchema, key: value},
	}}}
}

func (r EgressRule) parse() (rule.Rule, error) {
	parsed, err := rule.ParseEgress(r.URL)
	if err != nil || r.Methods == nil {
		return parsed, err
	}
	return parsed.WithMethods(r.Methods)
}

// EgressRules are rules for what commands may or may not reach.
type EgressRules []EgressRule

// setText parses the value of a flag: rules separated by commas.
func (r *EgressRules) setText(text string) error {
	out := EgressRules{}
	for s := range strings.SplitSeq(text, ",") {
		one := EgressRule{URL: strings.TrimSpace(s)}
		if _, err := one.parse(); err != nil {
			return err
		}
		out = append(out, one)
	}
	*r = out
	return nil
}

// parseAll returns the rules. Its error is an [Error] at where.
func (r EgressRules) parseAll(where string) ([]rule.Rule, error) {
	out := make([]rule.Rule, 0, len(r))
	for _, one := range r {
		parsed, err := one.parse()
		if err != nil {
			return nil, &Error{Where: where, Item: one.URL, Message: err.Error()}
		}
		out = append(out, parsed)
	}
	return out, nil
}

// EgressGit is a URL of git repositories. In files it is only the URL, or a mapping
// with push.
type EgressGit struct {
	URL  string `yaml:"url" json:"url"`
	Push bool   `yaml:"push" json:"push,omitempty"`
}

// plainEgressGit is an EgressGit without its methods.
type plainEgressGit EgressGit

// UnmarshalYAML also checks the URL, to report its place.
func (g *EgressGit) UnmarshalYAML(n ast.Node) error {
	if err := unmarshalURL(n, &g.URL, (*plainEgressGit)(g), "a URL is needed here, such as https://github.com/org/, or url: with push: beside it"); err != nil {
		return err
	}
	if _, err := rule.ParseGit(g.URL, g.Push); err != nil {
		return errorAt(n, err)
	}
	return nil
}

// MarshalJSON returns the URL in the form of files.
func (g EgressGit) MarshalJSON() ([]byte, error) {
	if !g.Push {
		return json.Marshal(g.URL)
	}
	return json.Marshal(plainEgressGit(g))
}

func (EgressGit) jsonSchema() map[string]any {
	return urlSchema("push", map[string]any{"type": "boolean"})
}

// parsePresets adds the presets and git URLs to o. Presets are for the registries in
// the user's configuration of package managers. ignored are files of that configuration
// that don't count.
func (e *Egress) parsePresets(at preset.Places, o *runner.EgressOptions) (ignored []string, err error) {
	var registries map[string][]preset.Registry
	if len(e.Presets) > 0 && at.Home != "" {
		registries, ignored, err = preset.ReadRegistries(at)
		if err != nil {
			return nil, &Error{Where: "egress.presets", Message: "a configuration of a package manager can't be used: " + err.Error(), Hint: "fix that file, or write rules in egress.allow instead of the preset"}
		}
	}
	for _, name := range e.Presets {
		p, err := preset.New(name, preset.Options{Registries: registries})
		if err != nil {
			return nil, &Error{Where: "egress.presets", Item: name, Message: err.Error()}
		}
		o.Presets = append(o.Presets, p)
		o.Policy.Allow = append(o.Policy.Allow, p.Rules...)
	}
	for _, g := range e.Git {
		r, err := rule.ParseGit(g.URL, g.Push)
		if err != nil {
			return nil, &Error{Where: "egress.git", Item: g.URL, Message: err.Error()}
		}
		o.Policy.Allow = append(o.Policy.Allow, r)
		if g.Push {
			o.GitPush = append(o.GitPush, g.URL)
		} else {
			o.GitFetch = append(o.GitFetch, g.URL)
		}
	}
	return ignored, nil
}

// EgressKey is a key that commands use without seeing it. Its value comes from this
// process's variable Env, or from the program of Command.
type EgressKey struct {
	secret.Secret
	Env     string
	Command []string
}

// EgressKeys returns the keys, sorted by name, without values.
func (c *Config) EgressKeys() ([]EgressKey, error) {
	keys, err := c.Egress.parseKeys(c.hasVariable)
	return keys, c.addPlace(err)
}

// hasVariable reports whether env or env_from gives commands a variable.
func (c *Config) hasVariable(name string) bool {
	_, ok := c.Env[name]
	return ok || slices.Contains(c.EnvFrom, name)
}

// parseKeys returns the keys without values. taken reports whether a name is another
// variable.
func (e *Egress) parseKeys(taken func(name string) bool) ([]EgressKey, error) {
	var out []EgressKey
	for _, name := range sortedKeys(e.Secrets) {
		in, where := e.Secrets[name], "egress.secrets."+name
		to, err := in.To.parseAll(where + ".to")
		if err != nil {
			return nil, err
		}
		k := EgressKey{Secret: secret.Secret{Name: name, To: to, Header: valueOr(in.Header, "")}, Command: in.Command}
		from, isEnv := strings.CutPrefix(valueOr(in.From, ""), "env:")
		switch {
		case !validName(name):
			return nil, &Error{Where: where, Message: name + " is not the name of a variable", Hint: "write letters, digits and _"}
		case (in.From == nil) == (in.Command == nil):
			return nil, &Error{Where: where, Message: "a key comes from one place", Hint: "write from: env:NAME, or command: with a program and its arguments"}
		case in.From != nil && (!isEnv || !validName(from)):
			return nil, &Error{Where: where + ".from", Message: "it is not env: and the name of a variable", Hint: "write it like env:" + name + "; the key itself does not belong here"}
		case in.Command != nil && (len(in.Command) == 0 || in.Command[0] == ""):
			return nil, &Error{Where: where + ".command", Message: "it names no program", Hint: "write the program and its arguments as a list, such as [pass, show, api]"}
		case len(to) == 0:
			return nil, &Error{Where: where + ".to", Message: "the key is for no URL", Hint: "list the https URLs that it is sent to, such as https://api.example.com/v1/"}
		case slices.ContainsFunc(to, func(r rule.Rule) bool { return !r.EndsTLS() }):
			return nil, &Error{Where: where + ".to", Message: "a key is only sent by rules of https://", Hint: "write https://HOST/PATH: in other connections Caisson can't put it into the request"}
		}
		if taken(name) {
			return nil, &Error{Where: where, Message: name + " is in env or env_from too, which would give commands another value", Hint: "keep one of them"}
		}
		k.Env = from
		out = append(out, k)
	}
	return out, nil
}

// readFiles reads the files that the settings name.
func (e *Egress) readFiles(home string, o *runner.EgressOptions) error {
	for _, name := range e.CA {
		path, err := expandHome(name, home)
		if err != nil {
			return &Error{Where: "egress.ca", Item: name, Message: err.Error(), Hint: "write it from / or ~/ on"}
		}
		text, err := os.ReadFile(path)
		if err == nil {
			_, err = ca.ReadRoots(text)
		}
		if err != nil {
			return &Error{Where: "egress.ca", Item: name, Message: path + ": " + err.Error(), Hint: "name a file of certificates in PEM, without keys"}
		}
		o.CA = append(append(o.CA, bytes.TrimSpace(text)...), '\n')
	}
	o.KeepFiles = runner.FileCache(*e.Cache)
	if e.Lock == nil {
		return nil
	}
	path, err := expandHome(*e.Lock, home)
	switch {
	case err != nil:
		return &Error{Where: "egress.lock", Message: err.Error(), Hint: "write it from / or ~/ on"}
	case o.KeepFiles == runner.CacheOff:
		return &Error{Where: "egress.lock", Message: "files are pinned by the cache, which is off", Hint: "set cache to session or shared"}
	}
	o.LockFile = path
	return nil
}

// narrowTo bounds e by b, which is from where. Its error is an [Error].
func (e *Egress) narrowTo(where string, b EgressRestrictions) error {
	if b.Allow != nil {
		within, err := b.Allow.parseAll(where + ": egress.allow")
		if err != nil {
			return err
		}
		e.within = append(slices.Clip(e.within), within)
	}
	e.Deny = slices.Concat(e.Deny, b.Deny)
	refuse := valueOr(b.RefusePrivate, false)
	if refuse && (len(e.Private) > 0 || e.Proxy != nil) {
		return &Error{Where: where, Message: "egress.private and egress.proxy are not allowed on this machine", Hint: "take them out; only public addresses are connected to"}
	}
	e.publicOnly = e.publicOnly || refuse
	tightenValue(reflect.ValueOf(&e.EgressBounds).Elem(), reflect.ValueOf(b.EgressBounds))
	return nil
}

// isConfigured reports whether commands have a network.
func (e *Egress) isConfigured() bool {
	return len(e.Allow)+len(e.Presets)+len(e.Git) > 0 || *e.Unknown == unknownPrompt
}

const (
	unknownDeny   = "deny"
	unknownPrompt = "prompt"
)

// EgressOptions returns what a session's commands may reach, with warnings. Options
// without a policy mean no network.
func (c *Config) EgressOptions() (runner.EgressOptions, []string, error) {
	o, warnings, err := c.Egress.parseOptions(c.places(c.workspace))
	if err == nil && o.Policy != nil {
		_, err = c.Egress.parseKeys(c.hasVariable)
	}
	if err != nil {
		return runner.EgressOptions{}, nil, c.addPlace(err)
	}
	return o, warnings, nil
}

// TaskEgress returns the bounds of tasks that name their own hosts: denials, the lists
// of requirements, the proxy, certificates and the budget. Its policy allows nothing.
func (c *Config) TaskEgress() (runner.EgressOptions, error) {
	e := c.Egress
	e.Allow, e.Presets, e.Git, e.Private, e.Lock, e.Unknown = nil, nil, nil, nil, nil, new(unknownPrompt)
	o, _, err := e.parseOptions(c.places(""))
	o.Ask = false
	return o, c.addPlace(err)
}

// BuildNetwork returns what the commands of Dockerfiles may reach: public addresses,
// and what the rules for commands allow without ending TLS, within the same bounds. It
// returns nil for nothing.
func (c *Config) BuildNetwork() (*runner.EgressOptions, error) {
	if *c.Images.BuildNetwork == buildNone {
		return nil, nil
	}
	e := c.Egress
	e.CA, e.Lock = nil, nil
	e.Allow = append(EgressRules{{URL: "public"}}, e.Allow...)
	o, _, err := e.parseOptions(c.places(""))
	if err != nil {
		return nil, c.addPlace(err)
	}
	o.Policy.Allow = slices.DeleteFunc(o.Policy.Allow, rule.Rule.EndsTLS)
	return &o, nil
}

const buildNone = "none"

// places returns the places of package managers' configuration for a workspace.
func (c *Config) places(workspace string) preset.Places {
	return preset.Places{Home: c.home, Config: c.configHome, Workspace: workspace}
}

// parseOptions returns the options without keys, and warnings. Places without a Home
// have no configuration of package managers.
func (e *Egress) parseOptions(at preset.Places) (runner.EgressOptions, []string, error) {
	deny, err := e.Deny.parseAll("egress.deny")
	if err != nil {
		return runner.EgressOptions{}, nil, err
	}
	allow, err := e.Allow.parseAll("egress.allow")
	if err != nil {
		return runner.EgressOptions{}, nil, err
	}
	var warnings []string
	for _, r := range allow {
		if w := r.Warning(); w != "" {
			warnings = append(warnings, "egress.allow: "+w)
		}
	}
	o := runner.EgressOptions{
		Policy: &rule.Policy{Allow: allow, Within: e.within, Deny: deny}, Ask: *e.Unknown == unknownPrompt, AskAddress: !e.publicOnly,
		Capture: *e.Capture, Budget: e.Budget.egressBudget(),
	}
	ignored, err := e.parsePresets(at, &o)
	if err := cmp.Or(err, e.readFiles(at.Home, &o)); err != nil {
		return runner.EgressOptions{}, nil, err
	}
	for _, path := range ignored {
		warnings = append(warnings, "egress.presets: "+path+" does not count: it is in the workspace, where commands can change it")
	}
	o.Private, err = parsePrivate("egress", e.Private)
	if err != nil || !e.isConfigured() {
		return runner.EgressOptions{}, nil, err
	}
	if e.Proxy != nil {
		if o.Upstream, err = parseProxy("egress.proxy", *e.Proxy); err != nil {
			return runner.EgressOptions{}, nil, err
		}
	}
	return o, warnings, nil
}

func (b EgressLimits) egressBudget() limits.EgressBudget {
	return limits.EgressBudget{
		Bytes: int64(*b.Bytes), Upload: int64(*b.Upload), Connections: int64(*b.Connections), Hosts: int64(*b.Hosts),
	}
}

// parsePrivate reads the networks of hosts that need not be public. key is the
// settings' key.
func parsePrivate(key string, private map[string][]string) (map[string][]netip.Prefix, error) {
	out := map[string][]netip.Prefix{}
	for _, host := range sortedKeys(private) {
		networks, err := rule.ParseNetworks(private[host])
		if err != nil {
			return nil, &Error{Where: key + ".private." + host, Message: strings.ReplaceAll(err.Error(), "\n", ", "), Hint: "write networks as 10.1.2.0/24, or addresses"}
		}
		out[host] = networks
	}
	return out, nil
}

// UnusedPrivate returns the entries of egress.private and fetch.private without effect:
// no rule is for their host.
func (c *Config) UnusedPrivate() []string {
	var out []string
	add := func(key string, private map[string][]netip.Prefix, allow []rule.Rule) {
		for _, host := range sortedKeys(private) {
			if !slices.ContainsFunc(allow, func(r rule.Rule) bool { return r.IsFor(host) }) {
				out = append(out, key+".private."+host)
			}
		}
	}
	if o, _, err := c.EgressOptions(); err == nil && o.Policy != nil && !o.Ask { // otherwise a user may allow the host
		add("egress", o.Private, o.Policy.Allow)
	}
	if o, err := c.FetchOptions(); err == nil {
		add("fetch", o.Private, o.Allow)
	}
	return out
}

// ReplacedRegistry is the key from [Lacking] for a public registry that the user's own
// replaces in the preset. No setting should allow it, because anybody can publish
// there.
const ReplacedRegistry = "registry"

// Lacking returns the setting below egress that would allow a refused connection to a
// public registry or a non-public address: its key, and the item or entry on one line.
// The key is "" for any other connection: a name that leads to this machine or a
// metadata service may be an attack, and so may the address of one. e describes what
// the session's commands may reach.
func Lacking(p record.NetworkDenied, e *record.Egress) (key, item string) {
	host, _, err := net.SplitHostPort(p.Host)
	if err != nil {
		host = p.Host
	}
	addr, _ := netip.ParseAddr(p.Addr)
	name := preset.For(host)
	registry := preset.PublicRegistry(name)
	switch {
	case p.Rule != "": // no setting overrides egress.deny
	case p.Way != "" && name != "" && (p.Reason == rule.ReasonNotAllowed || p.Reason == rule.ReasonPath && strings.HasPrefix(p.URL, registry)):
		switch {
		case e == nil || p.Server != "" || !slices.Contains(e.Presets, name):
			return "presets", name
		case !slices.Contains(e.Allow, registry): // otherwise a bound of the rules refuses it
			return ReplacedRegistry, name
		}
	case p.Reason == rule.ReasonAddress && addr.IsValid() && (host == rule.HostName || !rule.IsOfMachine(addr) || host == p.Addr && isOwnLiteral(addr)):
		return "private", FlowScalar(host) + ": [" + FlowScalar(p.Addr) + "]"
	}
	return "", ""
}

// isOwnLiteral reports whether an address that a rule allows can be this machine's in a
// network, and nothing worse.
func isOwnLiteral(addr netip.Addr) bool {
	return addr.IsGlobalUnicast() && !addr.Is4In6() && !rule.HoldsMetadata(netip.PrefixFrom(addr, addr.BitLen()))
}

// ReplacedAdvice returns why a preset's public registry was refused.
func ReplacedAdvice(name string) string {
	return "the preset " + name + " allows your own registry in its place"
}

// LineToAllow returns the result of [Lacking] as a line of a configuration, or "".
func LineToAllow(p record.NetworkDenied, e *record.Egress) string {
	key, item := Lacking(p, e)
	line := map[string]string{"presets": "presets: [" + item + "]", "private": "private: {" + item + "}"}[key]
	switch {
	case line == "":
		return ""
	case p.Server != "":
		return "mcpServers: {" + FlowScalar(p.Server) + ": {egress: {" + line + "}}}"
	case p.Way == "":
		return "fetch: {" + line + "}"
	}
	return "egress: {" + line + "}"
}

func parseProxy(where, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, &Error{Where: where, Message: "it is not the address of an http or https proxy", Hint: "write it like http://proxy.lan:3128"}
	}
	return u, nil
}
