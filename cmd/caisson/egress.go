package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

func newEgressCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "egress", Short: "Check which hosts commands may reach, and suggest rules for refused ones",
		Long: "Check what the egress settings let commands reach. Without a rule, commands have no network,\nunless egress.unknown is prompt.",
	}, newEgressCheckCommand(a), newEgressSuggestCommand(a))
}

type egressCheckFlags struct {
	Method    string `flag:"method" default:"GET" doc:"METHOD of the request, if Caisson can read requests"`
	Workspace string `flag:"workspace" doc:"directory whose settings are used (default: the working directory)"`
	profileFlag
	JSON     bool        `flag:"json" doc:"write a JSON object"`
	settings config.File // of the egress settings alone
}

func newEgressCheckCommand(a *app) *cobra.Command {
	var f egressCheckFlags
	cmd := newCommand(&cobra.Command{
		Use: "check [flags] URL", Short: "Print the decision about a connection, and its rule", Args: wantArgs(1, 1, "one URL"),
		Long: `Print what the settings decide about a connection of a command, and the rule that decides. URL is an
http or https URL, tls://HOST, tcp://HOST:PORT, or HOST:PORT, which means tls at port 443.

The command makes no connection and resolves no name. If a host has an address that is not public, a
connection is refused when it is made, unless egress.private names the network.
`,
		Example: "  caisson egress check https://registry.npmjs.org/left-pad\n" +
			"  caisson egress check --egress-allow tls://example.com example.com:443",
		RunE: func(_ *cobra.Command, args []string) error { return checkEgress(a, f, args[0]) },
	}, &f, usesConfig|usesInput, statuses{exitFailed: "it is refused, or asked about"})
	for _, s := range config.Settings() {
		if strings.HasPrefix(s.Key, "egress.") {
			cmd.Flags().Var(&settingFlag{setting: s, file: &f.settings}, s.Flag, s.Usage)
		}
	}
	return cmd
}

type egressDecision struct {
	URL      string `json:"url"`
	Decision string `json:"decision"`
	Reason   string `json:"reason,omitempty"`
	// Rule allows or denies. It is absent if no rule is about the host.
	Rule string `json:"rule,omitempty"`
	// Sees names what Caisson sees of an allowed connection: requests, or names and
	// bytes.
	Sees string `json:"sees,omitempty"`
}

func checkEgress(a *app, f egressCheckFlags, raw string) error {
	s, err := loadSettingsFor(a, f.settings, f.Profile, cmp.Or(f.Workspace, "."), projectOptions{})
	if f.Workspace == "" && as[*runner.WorkspaceError](err) { // such as the home directory
		s, err = loadSettingsFor(a, f.settings, f.Profile, "", projectOptions{})
	}
	if err != nil {
		return err
	}
	o, _, err := s.conf.EgressOptions()
	if err != nil {
		return err
	}
	target, err := parseEgressTarget(raw)
	if err != nil {
		return newFailure(exitInput, err, fmt.Sprintf("%s is not what a command can connect to: %v", raw, err), "Write https://example.com/path, or example.com:443.")
	}
	d := decideEgress(o, target, strings.ToUpper(f.Method))
	d.URL = raw
	err = a.show(f.JSON, d, func(p *page) { p.line("%s", d.describe()) })
	if err == nil && d.Decision != "allow" {
		return exitWith(exitFailed)
	}
	return err
}

func (d egressDecision) describe() string {
	text := fmt.Sprintf("%-5s  %s", d.Decision, d.URL)
	switch {
	case d.Reason == reasonNoNetwork:
		return text + "  commands have no network: egress has no rules"
	case d.Decision == "allow":
		return text + fmt.Sprintf("  by %s; Caisson sees %s", d.Rule, d.Sees)
	case d.Rule != "":
		return text + fmt.Sprintf("  by %s (%s)", d.Rule, d.Reason)
	case d.Decision == "ask":
		return text + "  no rule is about it, and egress.unknown is prompt"
	}
	return text + "  " + map[string]string{
		rule.ReasonNotAllowed: "no rule allows it", rule.ReasonMethod: "no rule allows the method",
		rule.ReasonPath: "no rule allows the path", rule.ReasonAddress: "the address is not public, and egress.private does not name it",
	}[d.Reason] + " (" + d.Reason + ")"
}

// reasonNoNetwork is the reason if egress is not configured.
const reasonNoNetwork = "no_network"

// parseEgressTarget returns the destination of a connection. Its scheme is http, https,
// tls or tcp.
func parseEgressTarget(raw string) (rule.Target, error) {
	scheme, _, hasScheme := strings.Cut(raw, "://")
	switch {
	case hasScheme && (scheme == "http" || scheme == "https"):
		return rule.ParseTarget(raw)
	case !hasScheme:
		scheme, raw = "tls", "tls://"+raw
	case scheme != "tls" && scheme != "tcp":
		return rule.Target{}, fmt.Errorf("scheme %q is none of https, http, tls and tcp", scheme)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return rule.Target{}, errors.Unwrap(err)
	}
	if u.Path != "" || u.RawQuery != "" || u.User != nil {
		return rule.Target{}, errors.New("only a host and a port are needed")
	}
	host, err := rule.CanonicalHost(u.Hostname())
	if err != nil {
		return rule.Target{}, err
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	if err != nil || port == 0 {
		return rule.Target{}, fmt.Errorf("port %q is not one of 1 to 65535", u.Port())
	}
	return rule.Target{Origin: rule.Origin{Scheme: scheme, Host: host, Port: uint16(port)}}, nil
}

// decideEgress decides about a target. It uses the method if Caisson can read the
// requests.
func decideEgress(o runner.EgressOptions, t rule.Target, method string) egressDecision {
	if o.Policy == nil {
		return egressDecision{Decision: "deny", Reason: reasonNoNetwork}
	}
	d, sees := o.Policy.DecideHost(t.Host, t.Port), "names and bytes"
	switch {
	case !d.Allowed():
	case t.Scheme == "http", t.Scheme == "https" && d.Ways&rule.WayHTTPS != 0:
		d, sees = o.Policy.DecideRequest(t, method), "requests"
	case t.Scheme == "https" && d.Ways&(rule.WayTLS|rule.WayAny) == 0,
		t.Scheme == "tcp" && d.Ways&rule.WayAny == 0:
		d = rule.Decision{Reason: rule.ReasonNotAllowed}
	case d.Ways&(rule.WayTLS|rule.WayAny) == 0:
		sees = "requests"
	}
	out := egressDecision{Decision: "allow", Rule: d.Rule.String(), Sees: sees}
	if !d.Allowed() {
		out.Decision, out.Reason, out.Sees = "deny", d.Reason, ""
		_, err := netip.ParseAddr(t.Host)
		if isName := err != nil; isName && o.Ask && d.Reason == rule.ReasonNotAllowed && d.Rule == (rule.Rule{}) {
			out.Decision = "ask"
		}
		return out
	}
	guard, err := rule.NewGuard(o.Private)
	if err == nil {
		err = (&rule.Dialer{Guard: guard, PublicOnly: d.PublicOnly}).CheckLiteral(t.Host, t.Port)
	}
	if err != nil {
		return egressDecision{Decision: "deny", Reason: rule.ReasonAddress}
	}
	return out
}

func newEgressSuggestCommand(a *app) *cobra.Command {
	var f struct {
		Apply bool `flag:"apply" doc:"write the rules for commands to your configuration file, for the session's workspace"`
		JSON  bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "suggest [flags] SESSION", Short: "Print rules for what a session was refused", Args: oneSession,
		Long: `Print the rules that would have allowed the refused connections of a session's commands and MCP servers,
as a part of the configuration. SESSION is as for caisson trace show.

Programs chose these hosts, and the code they run may be anyone's: add only rules that you expect. A
rule for a path, https://HOST/PATH, allows less than a rule for a host. A public registry is suggested
as its preset, and a host at an address that is not public as an entry of egress.private.

With --apply, the rules for commands are written, after they are shown, below workspaces in your
configuration file; on a terminal, the command asks first. Everything else in the file stays as it is.
Rules of MCP servers belong to the servers' own settings: add these by hand.
`,
		Example: "  caisson egress suggest last\n  caisson egress suggest --apply last",
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := traceSession(a.environ, args[0])
			if err != nil {
				return err
			}
			list, workspace, err := suggestEgress(a, s, f.JSON)
			if err != nil || !f.Apply {
				return err
			}
			return applyEgress(a, workspace, list)
		},
	}, &f, usesConfig|usesInput, nil)
}

type egressSuggestion struct {
	// Server is the MCP server that was refused, or "" for the agent's commands.
	Server string `json:"server,omitempty"`
	// Rule is "" if no rule of allow would help. Preset is the registry's preset.
	// Private is the address that egress.private lacks, as an entry on one line.
	Rule    string `json:"rule,omitempty"`
	Preset  string `json:"preset,omitempty"`
	Private string `json:"private,omitempty"`
	// Registry is the preset in which the user's own registry replaces the refused
	// public one.
	Registry string `json:"registry,omitempty"`
	// Methods are the refused ones, for a rule of http or https.
	Methods []string `json:"methods,omitempty"`
	Host    string   `json:"host"`
	Reason  string   `json:"reason"`
	Count   int64    `json:"count"`
}

// suggestEgress shows what a session lacked, and returns it with the session's workspace.
func suggestEgress(a *app, s trace.Session, asJSON bool) (list []egressSuggestion, workspace string, err error) {
	list = []egressSuggestion{}
	var reach *record.Egress
	var unresolved []string
	overview, err := trace.Read(s, func(r record.Record) {
		switch r.Kind {
		case record.KindSessionCreated, record.KindSessionResumed: // their payloads begin alike
			p := record.PayloadOf[record.SessionCreated](r)
			reach, workspace = p.Egress, cmp.Or(p.Workspace, workspace)
		case record.KindNetworkDenied:
			if p := record.PayloadOf[record.NetworkDenied](r); p.Way != "" {
				list = addSuggestion(list, p, reach)
			}
		case record.KindNetworkClosed:
			if w := record.PayloadOf[record.NetworkClosed](r).Warning(); w != "" && !slices.Contains(unresolved, w) {
				unresolved = append(unresolved, w)
			}
		}
	})
	if err != nil {
		return nil, "", err
	}
	if overview.Damage != "" {
		reportDamage(a, overview)
	}
	slices.SortStableFunc(list, func(a, b egressSuggestion) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host))
	})
	for _, w := range unresolved {
		a.warn(makeSafe(w))
	}
	if len(list) == 0 && !asJSON {
		a.warn("no connection of the session's commands or MCP servers was refused")
		return list, workspace, nil
	}
	return list, workspace, a.show(asJSON, list, func(p *page) { describeSuggestions(p, list) })
}

// applyEgress writes the suggestions for commands to the user's file. On a terminal it asks
// first.
func applyEgress(a *app, workspace string, list []egressSuggestion) error {
	if workspace == "" {
		return newFailure(exitInput, nil, "the session's records don't name its workspace", "Add the rules by hand.")
	}
	w, err := workspaceFor(a.environ, workspace)
	if err != nil {
		return newFailure(exitInput, err, "the session's workspace can't be opened: "+err.Error(), "Add the rules by hand.")
	}
	defer func() { _ = w.Close() }()
	needed, err := loadMissing(a, w)
	if err != nil {
		return err
	}
	additions := needed.egressAdditions(list)
	if len(additions) == 0 {
		a.warn("nothing was written: there is no rule for commands that your settings lack")
		return nil
	}
	edit, err := needed.editFor(w, additions)
	if err != nil {
		return err
	}
	if a.terminal(a.stdin) && !askYes(a, bufio.NewReader(a.stdin), "Write these rules for commands in "+w.Path+" to "+edit.Path+"?") {
		return nil
	}
	if err := edit.Write(); err != nil {
		return writeProblem(edit.Path, err)
	}
	a.warn("written to " + edit.Path + ", for commands in " + w.Path)
	return nil
}

// egressAdditions returns the suggestions for commands that the settings lack.
func (s missingSettings) egressAdditions(list []egressSuggestion) []config.Addition {
	have := s.conf.Egress
	presets := config.Addition{Keys: []string{"egress", "presets"}, Inherited: flowScalars(have.Presets)}
	allow := config.Addition{Keys: []string{"egress", "allow"}}
	for _, r := range have.Allow {
		allow.Inherited = append(allow.Inherited, flowRule(r))
	}
	add := func(to *config.Addition, item string) {
		if !slices.Contains(slices.Concat(to.Inherited, to.Items), item) {
			to.Items = append(to.Items, item)
		}
	}
	private := map[string][]string{} // by host, as YAML
	for _, one := range list {
		switch {
		case one.Server != "", strings.Contains(one.Rule+one.Private, "${"): // the file would expand ${…} as a variable
		case one.Preset != "":
			add(&presets, config.FlowScalar(one.Preset))
		case one.Private != "":
			host, addr, _ := strings.Cut(one.Private, ": ")
			private[host] = append(private[host], strings.Trim(addr, "[]"))
		case one.Rule != "":
			add(&allow, flowRule(config.EgressRule{URL: one.Rule, Methods: one.Methods}))
		}
	}
	networks := config.Addition{Keys: []string{"egress", "private"}, Entries: [][2]string{}}
	for host, known := range have.Private {
		key, had := config.FlowScalar(host), flowScalars(known)
		added := slices.DeleteFunc(private[key], func(addr string) bool { return slices.Contains(had, addr) })
		if delete(private, key); len(added) > 0 {
			private[key] = slices.Concat(had, added)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(private)) {
		networks.Entries = append(networks.Entries, [2]string{host, "[" + strings.Join(private[host], ", ") + "]"})
	}
	return slices.DeleteFunc([]config.Addition{presets, networks, allow}, func(a config.Addition) bool {
		return len(a.Items) == 0 && len(a.Entries) == 0
	})
}

// flowRule returns a rule as YAML on one line.
func flowRule(r config.EgressRule) string {
	text, _ := json.Marshal(r) // it has only strings
	return string(text)
}

// addSuggestion adds a refusal to a list. reach is what commands may reach.
func addSuggestion(list []egressSuggestion, p record.NetworkDenied, reach *record.Egress) []egressSuggestion {
	s := egressSuggestion{Server: p.Server, Host: p.Host, Reason: p.Reason, Count: max(p.Count, 1)}
	switch key, item := config.Lacking(p, reach); key {
	case "presets":
		s.Preset = item
	case "private":
		s.Private = item
	case config.ReplacedRegistry:
		s.Registry = item
	default:
		s.Rule = suggestRule(p)
	}
	if p.Method != "" && s.Rule != "" && p.Method != http.MethodGet && p.Method != http.MethodHead {
		s.Methods = []string{p.Method}
	}
	same := func(o egressSuggestion) bool {
		return o.Server == s.Server && o.Rule == s.Rule && o.Preset == s.Preset && o.Private == s.Private && slices.Equal(o.Methods, s.Methods) &&
			(s.Rule+s.Preset+s.Private != "" || o.Host == s.Host && o.Reason == s.Reason)
	}
	if at := slices.IndexFunc(list, same); at >= 0 {
		list[at].Count += s.Count
		return list
	}
	return append(list, s)
}

// suggestRule returns the rule that would have allowed a connection, or "" if no rule
// of allow would help.
func suggestRule(p record.NetworkDenied) string {
	if p.Rule != "" { // denied by a rule
		return ""
	}
	text := ""
	switch host, port, err := net.SplitHostPort(p.Host); {
	case !slices.Contains([]string{rule.ReasonNotAllowed, rule.ReasonMethod, rule.ReasonPath, rule.ReasonAskedDenied}, p.Reason):
		return ""
	case p.URL != "":
		u, err := url.Parse(p.URL)
		if err != nil {
			return ""
		}
		u.RawQuery, u.Fragment = "", ""
		text = u.String()
	case err != nil: // a name lookup
		text = "tls://" + p.Host
	case port == "443":
		text = "tls://" + host
	case port == "80":
		text = "http://" + host + "/"
	default:
		text = "tcp://" + p.Host
	}
	r, err := rule.ParseEgress(text)
	if err != nil {
		return ""
	}
	return r.String()
}

// describeSuggestions adds a part of a configuration to a page. Commands and each MCP
// server have their own egress.
func describeSuggestions(p *page, list []egressSuggestion) {
	byServer := map[string][]egressSuggestion{}
	for _, s := range list {
		byServer[s.Server] = append(byServer[s.Server], s)
	}
	servers := slices.Sorted(maps.Keys(byServer))
	begun := false // the section mcpServers
	for _, name := range servers {
		section, indent := formatEgress(byServer[name]), ""
		if name != "" && section != "" {
			if !begun {
				p.line("mcpServers:")
			}
			begun, indent = true, "    "
			p.line("  %s:", config.FlowScalar(name))
		}
		for line := range strings.Lines(section) {
			p.WriteString(indent + line)
		}
	}
	for _, s := range list {
		if s.Rule+s.Preset+s.Private != "" {
			continue
		}
		of := ""
		if s.Server != "" {
			of = " of the MCP server " + s.Server
		}
		why := "no rule of allow changes that"
		if s.Registry != "" {
			why = config.ReplacedAdvice(s.Registry)
		}
		p.line("# %s%s: refused (%s); %s", s.Host, of, s.times(), why)
	}
}

func (s *egressSuggestion) times() string { return fmt.Sprintf("%s, %d times", s.Reason, s.Count) }

// formatEgress returns a section egress with the suggestions, or "" if there are only
// refusals.
func formatEgress(list []egressSuggestion) string {
	var presets []string
	var private, allow, section page
	for _, s := range list {
		switch {
		case s.Preset != "":
			presets = append(presets, s.Preset)
		case s.Private != "":
			private.line("    %s  # %s", s.Private, s.times())
		case s.Methods != nil:
			allow.line("    - {url: %s, methods: [%s]}  # %s", strconv.Quote(makeSafe(s.Rule)), strings.Join(s.Methods, ", "), s.times())
		case s.Rule != "":
			allow.line("    - %s  # %s", s.Rule, s.times())
		}
	}
	if len(presets)+private.Len()+allow.Len() > 0 {
		section.line("egress:")
	}
	if len(presets) > 0 {
		section.line("  presets: [%s]", strings.Join(presets, ", "))
	}
	if private.Len() > 0 {
		section.WriteString("  private:\n" + private.String())
	}
	if allow.Len() > 0 {
		section.WriteString("  allow:\n" + allow.String())
	}
	return section.String()
}
