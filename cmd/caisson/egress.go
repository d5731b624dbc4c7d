package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
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
