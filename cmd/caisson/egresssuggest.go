package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

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
		case one.Server != "":
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
