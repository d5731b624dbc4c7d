package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// newMCPCommand returns the command that serves clients, with those about servers below it.
func newMCPCommand(a *app) *cobra.Command {
	cmd := newMCPServeCommand(a)
	cmd.AddCommand(newMCPListCommand(a))
	return cmd
}

// mcpFlags are the flags of the commands about servers.
type mcpFlags struct {
	workspaceFlags

	json bool
}

func newMCPListCommand(a *app) *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the MCP servers: where they run, what they may reach, the policy's mode",
		Long: `List the MCP servers of a session on the workspace, and start none. A server that is left out, and why,
is on standard error.

The mode is that of the policy of a run without a terminal (ci, or the configuration's own) for a tool
that policy.tools does not name.
` + exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson mcp ls\n  caisson mcp ls --workspace ./project --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			return listServers(a, f)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&f.json, "json", false, "write JSON")
	f.addTo(cmd, "Task")
	return cmd
}

// listedServers is the output of caisson mcp ls --json.
type listedServers struct {
	Servers []listedServer   `json:"servers"`
	Ignored []record.Ignored `json:"ignored"`
}

// listedServer is a server as caisson mcp ls tells it.
type listedServer struct {
	Name string `json:"name"`
	// Source is the file that has it.
	Source    string `json:"source"`
	Transport string `json:"transport"`
	// Runs is sandbox, host or remote.
	Runs string `json:"runs"`
	// Used is set if a session has it.
	Used    bool     `json:"used"`
	Command []string `json:"command,omitempty"`
	URL     string   `json:"url,omitempty"`
	// Env and Headers are names: values are never shown.
	Env     []string    `json:"env,omitempty"`
	Headers []string    `json:"headers,omitempty"`
	Mode    policy.Mode `json:"mode"`
	Rule    string      `json:"rule"`
	// Egress lists rules for what it may reach, empty for nothing.
	Egress  []string `json:"egress"`
	Secrets []string `json:"secrets,omitempty"`
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

func listServers(a *app, f mcpFlags) error {
	s, done, err := loadWorkspaceSettings(a, f.workspaceFlags)
	if err != nil {
		return err
	}
	defer done()
	list, err := s.describeServers()
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(a.stdout, listedServers{list, record.NonNil(s.ignored)})
	}
	for _, i := range s.ignored {
		line, _ := tools.Display(i.Name + ": " + i.Why)
		a.printLines("caisson: not used: " + line)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.stdout, "There are no MCP servers. mcpServers in the configuration lists them.")
		return err
	}
	rows := [][]string{{"SERVER", "TRANSPORT", "RUNS", "MODE", "MAY REACH", "SOURCE", "WHAT"}}
	for _, one := range list {
		name, runs := one.Name, one.Runs
		if !one.Used {
			runs = "left out"
		}
		what := cmp.Or(one.URL, strings.Join(one.Command, " "))
		reach := cmp.Or(strings.Join(one.Egress, ", "), "nothing")
		if one.Runs == runsOnHost {
			reach = "anything"
		}
		row := []string{name, one.Transport, runs, string(one.Mode), reach, config.ShortenHome(one.Source, a.environ.home()), what}
		for i := range row {
			row[i], _ = tools.Display(row[i])
		}
		rows = append(rows, row)
	}
	return a.writeTable(rows)
}

// loadWorkspaceSettings loads the settings for a workspace, with its own where they
// count. The function that comes with them closes the workspace.
func loadWorkspaceSettings(a *app, f workspaceFlags) (*settings, func(), error) {
	s, err := loadSettings(a, f.settings, f.profile)
	if err != nil {
		return nil, nil, err
	}
	w, err := workspaceFor(a.environ, f.workspace)
	if err != nil {
		return nil, nil, err
	}
	if err := s.loadFor(w.Path); err == nil {
		err = s.useProject(w, f.project)
	}
	if err != nil {
		return nil, nil, cmp.Or(err, w.Close())
	}
	return s, func() { _ = w.Close() }, nil // only read
}

// Where servers run.
const (
	runsInSandbox = "sandbox"
	runsOnHost    = "host"
	runsElsewhere = "remote"
)

// describeServers returns all servers of the configuration, in the order of their names.
func (s *settings) describeServers() ([]listedServer, error) {
	used, err := s.conf.UsedServers()
	if err != nil {
		return nil, err
	}
	rules, err := s.conf.ToolPolicy("ci")
	if err != nil {
		return nil, err
	}
	redactor := redact.New(s.knownSecrets())
	clean := func(text string) string { return string(redactor.Bytes([]byte(text))) }
	list := []listedServer{}
	for _, name := range sortedNames(s.conf.MCP) {
		in := s.conf.MCP[name]
		one := listedServer{
			Name: name, Source: s.conf.ServerSource(name), Transport: in.Transport(), Runs: runsInSandbox, Used: slices.Contains(used, name),
			URL: clean(in.URL), Env: sortedNames(in.Env), Headers: sortedNames(in.Headers), Secrets: sortedNames(in.Egress.Secrets),
			Include: in.Include, Exclude: in.Exclude, Egress: []string{},
		}
		def := tools.Definition{Name: tools.Name(name + "/tool"), Class: tools.ClassExecute, Runs: tools.PlaceSandbox}
		switch {
		case in.Transport() != config.MCPStdio:
			one.Runs, def.Class, def.Runs = runsElsewhere, tools.ClassNetwork, tools.PlaceHost
		case in.OnHost:
			one.Runs, def.Class, def.Runs = runsOnHost, tools.ClassNetwork, tools.PlaceHost
		}
		if in.Command != "" {
			for _, word := range append([]string{in.Command}, in.Args...) {
				one.Command = append(one.Command, clean(word))
			}
		}
		egress, err := s.conf.ServerEgress(name)
		if err != nil {
			return nil, err
		}
		if egress.Policy != nil {
			for _, r := range egress.Policy.Allow {
				one.Egress = append(one.Egress, r.String())
			}
		}
		v := rules.Decide(def, "")
		one.Mode, one.Rule = v.Mode, v.Rule
		list = append(list, one)
	}
	return list, nil
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
