package config

import (
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// EgressRule is one entry of a list of what commands may reach; see
// [rule.ParseEgress]. In files it is the URL alone, or a mapping with methods.
type EgressRule struct {
	URL     string   `yaml:"url" json:"url" doc:"the rule"`
	Methods []string `yaml:"methods" json:"methods,omitempty" doc:"the methods that it allows instead of GET and HEAD"`
}

// plainEgressRule is an EgressRule without its methods.
type plainEgressRule EgressRule

// UnmarshalYAML implements yaml.NodeUnmarshaler. The rule is checked where it stands.
func (r *EgressRule) UnmarshalYAML(n ast.Node) error {
	if _, isMapping := n.(*ast.MappingNode); isMapping {
		if err := yaml.NodeToValue(n, (*plainEgressRule)(r), yaml.Strict()); err != nil {
			return err
		}
	} else if text, ok := scalarText(n); ok {
		r.URL = text
	} else {
		return errorAt(n, errors.New("a rule is needed here, such as tls://example.com, or url: and methods:"))
	}
	if _, err := r.parse(); err != nil {
		return errorAt(n, err)
	}
	return nil
}

// MarshalJSON returns the rule as files have it.
func (r EgressRule) MarshalJSON() ([]byte, error) {
	if r.Methods == nil {
		return json.Marshal(r.URL)
	}
	return json.Marshal(plainEgressRule(r))
}

func (EgressRule) jsonSchema() map[string]any {
	text := map[string]any{"type": "string", "minLength": 1}
	return map[string]any{"anyOf": []any{text, map[string]any{
		"type": "object", "additionalProperties": false, "required": []any{"url"},
		"properties": map[string]any{"url": text, "methods": map[string]any{"type": "array", "items": text}},
	}}}
}

// parse returns the rule.
func (r EgressRule) parse() (rule.Rule, error) {
	parsed, err := rule.ParseEgress(r.URL)
	if err != nil || r.Methods == nil {
		return parsed, err
	}
	return parsed.WithMethods(r.Methods)
}

// EgressRules are what commands may reach, or may not.
type EgressRules []EgressRule

// setText parses the value of a flag, with commas between the rules.
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
			return nil, &Error{Where: where, Message: err.Error()}
		}
		out = append(out, parsed)
	}
	return out, nil
}

// narrowTo makes e no wider than the bounds of where. Its error is an [Error].
func (e *Egress) narrowTo(where string, b EgressRestrictions) error {
	if b.Allow != nil {
		within, err := b.Allow.parseAll(where + ": egress.allow")
		if err != nil {
			return err
		}
		e.within = append(slices.Clip(e.within), within)
	}
	e.Deny = slices.Concat(e.Deny, b.Deny)
	if b.RefusePrivate != nil && *b.RefusePrivate && (len(e.Private) > 0 || e.Proxy != nil) {
		return &Error{
			Where: where, Message: "egress.private and egress.proxy are not allowed on this machine",
			Hint: "take them out; only public addresses are connected to",
		}
	}
	tightenValue(reflect.ValueOf(&e.EgressBounds).Elem(), reflect.ValueOf(b.EgressBounds))
	return nil
}

// isConfigured reports whether commands have a network.
func (e *Egress) isConfigured() bool { return len(e.Allow) > 0 || *e.Unknown == unknownPrompt }

// unknownPrompt is the value of unknown that asks.
const unknownPrompt = "prompt"

// EgressOptions returns what the commands of a session may reach, and warnings about
// it. Options without a policy are for commands without a network.
func (c *Config) EgressOptions() (runner.EgressOptions, []string, error) {
	o, warnings, err := c.egressOptions()
	return o, warnings, c.addPlace(err)
}

func (c *Config) egressOptions() (runner.EgressOptions, []string, error) {
	e := &c.Egress
	deny, err := e.Deny.parseAll("egress.deny")
	if err != nil {
		return runner.EgressOptions{}, nil, err
	}
	allow, err := e.Allow.parseAll("egress.allow")
	if err != nil {
		return runner.EgressOptions{}, nil, err
	}
	private, err := parsePrivate("egress", e.Private, allow)
	if err != nil || !e.isConfigured() {
		return runner.EgressOptions{}, nil, err
	}
	var warnings []string
	for _, r := range allow {
		if w := r.Warning(); w != "" {
			warnings = append(warnings, "egress.allow: "+w)
		}
	}
	o := runner.EgressOptions{
		Policy: &rule.Policy{Allow: allow, Within: e.within, Deny: deny}, Ask: *e.Unknown == unknownPrompt,
		Private: private, Capture: *e.Capture, Budget: e.Budget.egressBudget(),
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

// parsePrivate reads the networks of hosts that need not be public. A host that no
// rule allows is a mistake: its entry would do nothing. Key is that of the settings.
func parsePrivate(key string, private map[string][]string, allow []rule.Rule) (map[string][]netip.Prefix, error) {
	out := map[string][]netip.Prefix{}
	for _, host := range sortedKeys(private) {
		where := key + ".private." + host
		if !slices.ContainsFunc(allow, func(r rule.Rule) bool { return r.IsFor(host) }) {
			return nil, &Error{Where: where, Message: "no entry of " + key + ".allow is for this host", Hint: "add one, or take this out"}
		}
		networks, err := rule.ParseNetworks(private[host])
		if err != nil {
			return nil, &Error{Where: where, Message: strings.ReplaceAll(err.Error(), "\n", ", "), Hint: "write networks as 10.1.2.0/24, or addresses"}
		}
		out[host] = networks
	}
	return out, nil
}

// parseProxy reads the address of an http or https proxy.
func parseProxy(where, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, &Error{Where: where, Message: "it is not the address of an http or https proxy", Hint: "write it like http://proxy.lan:3128"}
	}
	return u, nil
}
