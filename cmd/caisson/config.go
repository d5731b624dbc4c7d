package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/safeurl"
)

type shownConfig struct {
	Settings []config.Value   `json:"settings"`
	Sources  []record.Source  `json:"sources"`
	Ignored  []record.Ignored `json:"ignored"`
	// Notes describe settings that do less than they seem to.
	Notes []string `json:"notes"`
}

func newConfigCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "config", Short: "Show the settings in effect, or a schema of them",
	}, newConfigShowCommand(a), newConfigSchemaCommand(a))
}

type configFlags struct {
	JSON      bool   `flag:"json" doc:"write JSON"`
	Workspace string `flag:"workspace" doc:"also use the own settings of this workspace"`
	profileFlag
	Settings config.File
}

func newConfigShowCommand(a *app) *cobra.Command {
	var f configFlags
	return newCommand(&cobra.Command{
		Use: "show [flags]", Short: "Show the settings in effect, and where each came from", Args: noArgs,
		Long: `Show each setting, its value, and where it came from. Keys and other secrets are not shown. With
--workspace, a trusted workspace's own settings count too. Standard error names settings that do less
than they seem to. Without a configured preset, each run chooses one: ci without a terminal, default or
sandboxed on one.
`,
		Example: "  caisson config show\n  caisson config show --workspace . --profile careful --json",
		RunE:    func(*cobra.Command, []string) error { return showConfig(a, f) },
	}, &f, usesConfig|usesInput, nil)
}

func showConfig(a *app, f configFlags) error {
	s, err := loadSettingsFor(a, f.Settings, f.Profile, f.Workspace, projectOptions{})
	if err != nil {
		return err
	}
	policy, err := s.conf.ToolPolicy("default")
	if err != nil {
		return err
	}
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return err
	}
	var keys []string
	for _, m := range s.conf.Models {
		keys = append(keys, valueOf(m.APIKeyEnv))
	}
	shown := shownConfig{
		Settings: s.conf.Effective(config.HiddenValues(a.environ, keys...)), Sources: s.conf.Sources, Ignored: record.NonNil(s.ignored), Notes: []string{},
	}
	if note := doctor.DescribeNotBinding(policy, defs); note != "" {
		shown.Notes = append(shown.Notes, note+". "+doctor.NotBindingHint)
	}
	err = a.show(f.JSON, shown, func(p *page) { describeConfig(p, shown.Settings) })
	if f.JSON {
		return err
	}
	for _, i := range shown.Ignored {
		a.printLines("! " + makeSafe(i.Name+" is ignored: "+i.Why))
	}
	for _, note := range shown.Notes {
		a.printLines("! " + makeSafe(note))
	}
	return err
}

// describeConfig adds a table of settings to a page. Values longer than 40 don't widen
// their column.
func describeConfig(p *page, list []config.Value) {
	keys, values := 0, 0
	for _, v := range list {
		keys, values = max(keys, len(makeSafe(v.Key))), max(values, min(len(makeSafe(v.Text)), 40))
	}
	for _, v := range list {
		p.line("%-*s  %-*s  %s", keys, makeSafe(v.Key), values, makeSafe(v.Text), v.Origin)
	}
}

func newConfigSchemaCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "schema [user | project | requirements]", Short: "Write a JSON Schema of a configuration file, for editors", Args: wantArgs(0, 1, "one name"),
		Long: `Write the JSON Schema (Draft 7) of the user's configuration file, of a workspace's own
(.caisson/config.yaml), or of an administrator's requirements.
`,
		Example: "  caisson config schema > caisson.json",
		RunE: func(_ *cobra.Command, args []string) error {
			schema, err := config.Schema(cmp.Or(firstArgument(args), "user"))
			if err != nil {
				return &usageError{err}
			}
			return writeJSON(a.stdout, schema)
		},
	}, nil, 0, nil)
}

func (s *settings) checkConfig() []doctor.Finding {
	const check = "configuration"
	var names []string
	for _, src := range s.conf.Sources {
		names = append(names, src.String())
	}
	findings := []doctor.Finding{{Check: check, Result: doctor.OK, Detail: strings.Join(names, ", ")}}
	for _, host := range s.conf.Images.PlainHTTP {
		if !isLoopback(host) {
			findings = append(findings, warningFinding(check, "images.plain_http: "+host+" has no TLS: anyone on the way can change images", "Remove it, and install a certificate on the registry."))
		}
	}
	for _, key := range s.conf.UnusedPrivate() {
		findings = append(findings, warningFinding(check, key+" has no effect: no rule is for this host", "Add a rule or preset for the host, or remove the entry."))
	}
	return append(slices.Concat(findings, checkFetch(s.conf.Fetch), checkServe(s.conf.Serve, s.environ)), s.checkRequirements())
}

func checkServe(conf config.Serve, env environ) []doctor.Finding {
	const check = "serve"
	var findings []doctor.Finding
	warn := func(detail, hint string) { findings = append(findings, warningFinding(check, detail, hint)) }
	for _, label := range slices.Sorted(maps.Keys(conf.Tokens)) {
		from := conf.Tokens[label]
		if from.Env != nil && env.get(*from.Env) == "" {
			warn(fmt.Sprintf("token %s: %s is not set, so caisson serve does not start", label, *from.Env), "Set it to a token; openssl rand -hex 32 makes one.")
		}
		if from.File == nil {
			continue
		}
		info, err := os.Stat(*from.File)
		switch {
		case err != nil:
			warn(fmt.Sprintf("token %s: %v, so caisson serve does not start", label, err), "Write a token there; openssl rand -hex 32 makes one.")
		case info.Mode().Perm()&0o077 != 0:
			warn(fmt.Sprintf("token %s: other users may read %s (mode %04o)", label, *from.File, info.Mode().Perm()), "chmod 600 "+*from.File+", and make a new token.")
		}
	}
	for _, root := range conf.Roots {
		for _, doubt := range doctor.Doubts(root, env.home(), env.temporaryDirs()) {
			warn(fmt.Sprintf("root %s %s", root, doubt), "Remove it from serve.roots, or name a directory that you alone can write.")
		}
	}
	if valueOf(conf.AllowRemote) {
		warn("allow_remote: other machines may reach the server, which has no TLS of its own", "Listen on a unix socket or loopback behind a proxy with TLS.")
	}
	return findings
}

func checkFetch(f config.Fetch) []doctor.Finding {
	const check = "fetch"
	if len(f.Allow) == 0 {
		return nil
	}
	var findings []doctor.Finding
	warn := func(detail, hint string) { findings = append(findings, warningFinding(check, detail, hint)) }
	for _, rule := range f.Allow {
		if u, err := url.Parse(rule); err == nil && u.Scheme == "http" && !isLoopback(u.Host) {
			warn(rule+" is fetched without TLS: anyone on the way can change what the model reads", "Use https:// in fetch.allow.")
		}
	}
	for _, host := range slices.Sorted(maps.Keys(f.Private)) {
		for _, network := range f.Private[host] {
			if holdsMetadata(network) {
				warn(fmt.Sprintf("%s may be at %s, where clouds keep a machine's credentials", host, network), "Name the addresses that the host really has in fetch.private.")
			}
		}
	}
	if f.Proxy != nil {
		warn("a proxy makes the connections: what addresses it reaches can't be checked here", "Let the proxy refuse private addresses, or remove fetch.proxy.")
	}
	return append([]doctor.Finding{{Check: check, Result: doctor.OK, Detail: fmt.Sprintf("on, for %s", strings.Join(f.Allow, ", "))}}, findings...)
}

// holdsMetadata reports whether a network or address covers a cloud's metadata service.
func holdsMetadata(text string) bool {
	networks, err := rule.ParseNetworks([]string{text})
	return err == nil && slices.ContainsFunc(networks, rule.HoldsMetadata)
}

func (s *settings) checkRequirements() doctor.Finding {
	const check = "requirements"
	i := slices.IndexFunc(s.conf.Sources, func(src record.Source) bool { return src.Name == "requirements" })
	if i < 0 {
		return doctor.Finding{Check: check, Result: doctor.OK, Detail: "none at " + s.deps.requirements}
	}
	return doctor.Finding{Check: check, Result: doctor.OK, Detail: s.conf.Sources[i].Path + " counts: root alone can write it"}
}

// checkModel makes the models, as a run would, but asks them nothing.
func (s *settings) checkModel() doctor.Finding {
	const check = "model"
	models, err := s.conf.SelectModels(s.environ)
	if err != nil {
		f := failedFinding(check, noModel(err))
		f.Result = doctor.Warning
		return f
	}
	asked, err := s.conf.SelectWorkers(s.environ)
	if err != nil {
		return failedFinding(check, err)
	}
	own := len(models)
	models = append(models, asked...)
	var details []string
	for _, m := range models {
		name := m.Provider + "/" + m.Model
		if m.BaseURL != "" {
			name += " at " + safeurl.String(m.BaseURL)
		}
		details = append(details, name)
		if f := checkOne(s, m, check, name); f.Result != doctor.OK {
			return f
		}
	}
	detail := strings.Join(details[:own], ", then ")
	if len(asked) > 0 {
		detail += "; it may ask " + strings.Join(details[own:], ", ")
	}
	return doctor.Finding{Check: check, Result: doctor.OK, Detail: detail}
}

// checkOne makes one model, described by name. It does not run its key command.
func checkOne(s *settings, m config.SelectedModel, check, name string) doctor.Finding {
	warn := func(text, hint string) doctor.Finding { return warningFinding(check, name+": "+text, hint) }
	if m.KeyNeeded && m.APIKey == "" && m.KeyCommand == nil {
		return warn(m.KeyEnv+" is not set", "Set it to your key.")
	}
	if m.KeyCommand != nil {
		m.APIKey = "unknown"
	}
	_, closeModel, err := s.deps.model(m, modelSettings{stream: *s.conf.Stream, logger: zap.NewNop()})
	if err != nil {
		return failedFinding(check, err)
	}
	closeModel()
	base, err := url.Parse(m.BaseURL)
	switch {
	case err == nil && base.Scheme == "http" && m.APIKey != "" && !isLoopback(base.Host):
		return warn("the key and all that the model reads go over the network without TLS", "Use https:// in base_url.")
	case m.Provider != "replay" && m.Price == nil && (err != nil || !isLoopback(base.Host)):
		return warn("its price is unknown, and so is what a run costs", "Add its price under models.")
	}
	if m.Provider == "ollama" && m.ContextWindow == 0 {
		return warn("its context window is the server's default, which is often too short: a longer conversation ends the run",
			"Add its context_window under models, as many tokens as the model has and the memory allows.")
	}
	return doctor.Finding{Result: doctor.OK}
}

// isLoopback reports whether host or host:port is on this machine.
func isLoopback(host string) bool {
	if u := (&url.URL{Host: host}); u.Hostname() != "" {
		host = u.Hostname()
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.IsLoopback()
}
