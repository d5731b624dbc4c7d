package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
	"github.com/caisson-run/caisson/tools/policy"
)

// newMCPCommand returns the command that serves clients. Its subcommands are about
// servers.
func newMCPCommand(a *app) *cobra.Command {
	cmd := newMCPServeCommand(a)
	cmd.AddCommand(newMCPListCommand(a), newMCPTestCommand(a), newMCPLoginCommand(a), newMCPLogoutCommand(a), newMCPAddCommand(a))
	return cmd
}

func newMCPListCommand(a *app) *cobra.Command {
	var f struct {
		JSON           bool `flag:"json" doc:"write JSON"`
		workspaceFlags `groups:"Task"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List the MCP servers: where they run, what they may reach, the policy's mode", Args: noArgs,
		Long: `List the MCP servers of a session on the workspace, and start none. Standard error lists the servers
that are left out, and why.

The mode comes from the policy of a run without a terminal (ci, or the one in the configuration), for a
tool that policy.tools does not name.
`,
		Example: "  caisson mcp ls\n  caisson mcp ls --workspace ./project --json",
		RunE:    func(*cobra.Command, []string) error { return listServers(a, f.workspaceFlags, f.JSON) },
	}, &f, usesConfig|usesInput, nil)
}

type listedServers struct {
	Servers []listedServer   `json:"servers"`
	Ignored []record.Ignored `json:"ignored"`
}

type listedServer struct {
	Name string `json:"name"`
	// Source is the file that configures it.
	Source    string `json:"source"`
	Transport string `json:"transport"`
	Runs      string `json:"runs"`
	// Used is set if a session has it.
	Used    bool     `json:"used"`
	Command []string `json:"command,omitempty"`
	URL     string   `json:"url,omitempty"`
	// Env and Headers are names: values are never shown.
	Env     []string    `json:"env,omitempty"`
	Headers []string    `json:"headers,omitempty"`
	Mode    policy.Mode `json:"mode"`
	Rule    string      `json:"rule"`
	// Egress lists the rules for what it may reach. Empty means nothing.
	Egress  []string `json:"egress"`
	Secrets []string `json:"secrets,omitempty"`
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
}

func listServers(a *app, f workspaceFlags, asJSON bool) error {
	s, err := loadSettingsFor(a, f.Settings, f.Profile, f.Workspace, f.projectOptions)
	if err != nil {
		return err
	}
	list, err := s.describeServers()
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, listedServers{list, record.NonNil(s.ignored)})
	}
	for _, i := range s.ignored {
		a.warn("not used: " + i.Name + ": " + i.Why)
	}
	return showTable(a, false, list, table[listedServer]{
		titles: []string{"SERVER", "TRANSPORT", "RUNS", "MODE", "MAY REACH", "SOURCE", "WHAT"},
		cells: func(one listedServer) []string {
			runs, reach := one.Runs, cmp.Or(strings.Join(one.Egress, ", "), "nothing")
			if one.Runs == runsOnHost {
				reach = "anything"
			}
			if !one.Used {
				runs = "left out"
			}
			return []string{one.Name, one.Transport, runs, string(one.Mode), reach, config.ShortenHome(one.Source, a.environ.home()), cmp.Or(one.URL, strings.Join(one.Command, " "))}
		},
		none: "There are no MCP servers. mcpServers in the configuration lists them.",
	})
}

const (
	runsInSandbox = "sandbox"
	runsOnHost    = "host"
	runsElsewhere = "remote"
)

// describeServers returns all configured servers, sorted by name.
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
	for _, name := range slices.Sorted(maps.Keys(s.conf.MCP)) {
		in := s.conf.MCP[name]
		one := listedServer{
			Name: name, Source: s.conf.ServerSource(name), Transport: in.Transport(), Runs: runsInSandbox, Used: slices.Contains(used, name),
			URL: clean(in.URL), Env: slices.Sorted(maps.Keys(in.Env)), Headers: slices.Sorted(maps.Keys(in.Headers)), Secrets: slices.Sorted(maps.Keys(in.Egress.Secrets)),
			Include: in.Include, Exclude: in.Exclude, Egress: []string{},
		}
		switch {
		case in.Transport() != config.MCPStdio:
			one.Runs = runsElsewhere
		case in.OnHost:
			one.Runs = runsOnHost
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
		class, runs := in.Runs()
		v := rules.Decide(tools.Definition{Name: tools.Name(name + "/tool"), Class: class, Runs: runs}, "")
		one.Mode, one.Rule = v.Mode, v.Rule
		list = append(list, one)
	}
	return list, nil
}

// serverOptions returns the options for a session's MCP servers. of has the session's
// other options. s.serverKeys must have been read.
func (s *sessionBuilder) serverOptions(of runner.Options) (runner.MCPOptions, error) {
	o := runner.MCPOptions{Tokens: tokenStore(s.environ.stateDir())}
	names, err := s.conf.UsedServers()
	if err != nil {
		return o, err
	}
	target := cmp.Or(of.Target, sandbox.WorkspaceDir)
	for _, name := range names {
		one, err := s.conf.ServerOptions(name, target, s.workspace.Path)
		if err != nil {
			return o, err
		}
		one.Egress.Secrets = s.serverKeys[name]
		o.Servers = append(o.Servers, one)
	}
	o.Skipped = append(o.Skipped, s.conf.SkippedServers...)
	o.Writable = s.workspaces.list
	o.HostEnv = s.environ.pick("PATH", "HOME", "TMPDIR", "LANG")
	if of.Choice.Chosen != "docker" { // an engine may be on another machine
		o.MachineMemory = machineMemory()
	}
	return o, nil
}

func newMCPTestCommand(a *app) *cobra.Command {
	var f struct {
		JSON           bool `flag:"json" doc:"write JSON"`
		workspaceFlags `groups:"Task,Sandbox,Files and user"`
	}
	return newCommand(&cobra.Command{
		Use: "test [flags] [NAME]", Short: "Start the MCP servers in a fresh sandbox, and list their tools", Args: wantArgs(0, 1, "the name of one server"),
		Long: `Start the MCP servers in a fresh sandbox, as a session on the workspace would, list what each offers, and
end them. With a NAME, start only that one. No tool is called, and no model is asked anything.

NAME can also be a server that a session would not have because of mcp_use or disabled. A server starts
even if the policy denies all its tools.
`,
		Example: "  caisson mcp test\n  caisson mcp test github --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return testServers(cmd.Context(), a, f.workspaceFlags, firstArgument(args), f.JSON)
		},
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|interruptible, statuses{exitFailed: "a server did not start, or something was left behind"})
}

type testedServer struct {
	Name      string        `json:"name"`
	Transport string        `json:"transport"`
	Runs      string        `json:"runs,omitempty"`
	Started   bool          `json:"started"`
	Protocol  string        `json:"protocol,omitempty"`
	Title     string        `json:"title,omitempty"`
	Version   string        `json:"version,omitempty"`
	Tools     []testedTool  `json:"tools"`
	Skipped   []mcp.Skipped `json:"skipped"`
	Resources bool          `json:"resources"`
	Prompts   bool          `json:"prompts"`
	// Cause is why it did not start. Stderr is the end of its standard error.
	Cause  string `json:"cause,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	WallMS int64  `json:"wall_ms"`
}

type testedTool struct {
	Name   tools.Name  `json:"name"`
	Class  tools.Class `json:"class"`
	SHA256 string      `json:"sha256"`
}

// testServers starts the servers, or the named one, and shows the results.
func testServers(ctx context.Context, a *app, f workspaceFlags, name string, asJSON bool) error {
	s, err := openSessionBuilder(a, f)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.selectServer(name); err != nil {
		return err
	}
	used, err := s.conf.UsedServers()
	if err != nil {
		return err
	}
	if len(used) == 0 {
		return newFailure(exitInput, nil, "there is no MCP server to test", "caisson mcp ls lists those of the configuration.")
	}
	u := newInterface(a, false)
	ctx, force, _, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	tested, r, err := s.startServers(ctx, u, force, used)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	u.reportEnd(r)
	status := r.ExitStatus
	for _, one := range tested {
		if !one.Started {
			status = max(status, exitFailed)
		}
	}
	return cmp.Or(a.show(asJSON, tested, func(p *page) { describeTested(p, tested) }), exitWith(status))
}

// selectServer keeps only the named server. "" keeps a session's.
func (s *settings) selectServer(name string) error {
	if name == "" {
		return nil
	}
	server, known := s.conf.MCP[name]
	if !known {
		return newFailure(exitInput, nil, fmt.Sprintf("there is no MCP server %q", name), "caisson mcp ls lists those of the configuration, and why one of the workspace does not count.")
	}
	if err := s.conf.CheckServer(name); err != nil {
		return err
	}
	server.Disabled = false
	s.conf.MCP, s.conf.MCPUse = config.MCPServers{name: server}, nil
	return nil
}

// startServers starts the servers in a session without a model, and closes it. It
// returns the result of each start, in the order of names.
func (s *sessionBuilder) startServers(ctx context.Context, u *userInterface, force <-chan struct{}, names []string) ([]testedServer, runner.Report, error) {
	s.servers = true
	s.orders = slices.ContainsFunc(names, func(name string) bool {
		server := s.conf.MCP[name]
		return server.RunsInSandbox()
	})
	list := &serverList{tested: map[string]testedServer{}}
	session, err := s.openWithoutModel(ctx, u, force, "caisson mcp test", func(o *runner.Options) {
		mirror := o.Mirror
		o.Mirror = func(r record.Record, line []byte) {
			if !list.add(r) { // the result has it
				mirror(r, line)
			}
		}
	})
	if err != nil {
		return nil, runner.Report{}, err
	}
	offered, err := session.StartServers(ctx)
	r := session.Close()
	if err != nil {
		return nil, r, err
	}
	var out []testedServer
	for _, name := range names {
		one, known := list.tested[name]
		server := s.conf.MCP[name]
		if !known {
			one = testedServer{Name: name, Transport: server.Transport(), Skipped: []mcp.Skipped{}, Cause: "it was not started, and the session recorded no reason: check with caisson config show that the policy allows it"}
		}
		class, _ := server.Runs()
		one.Tools = []testedTool{}
		for _, t := range offered {
			if t.Name.Server() == name {
				one.Tools = append(one.Tools, testedTool{t.Name, class, t.Hash})
			}
		}
		out = append(out, one)
	}
	return out, r, nil
}

// serverList collects the first start of each server from records.
type serverList struct {
	mu     sync.Mutex
	tested map[string]testedServer
}

// add reports whether a record is about a server's start or stop.
func (l *serverList) add(r record.Record) bool {
	var one testedServer
	switch r.Kind {
	case record.KindMCPServerStarted:
		p := record.PayloadOf[record.MCPServerStarted](r)
		one = testedServer{
			Name: p.Server, Transport: p.Transport, Runs: p.Runs, Started: true, Protocol: p.Protocol, Title: p.Title, Version: p.Version,
			Skipped: record.NonNil(p.Skipped), Resources: p.Resources, Prompts: p.Prompts, WallMS: p.WallMS,
		}
	case record.KindMCPServerFailed:
		p := record.PayloadOf[record.MCPServerFailed](r)
		one = testedServer{Name: p.Server, Transport: p.Transport, Cause: p.Cause, Stderr: p.Stderr, WallMS: p.WallMS, Skipped: []mcp.Skipped{}}
	case record.KindMCPServerStopped:
		return true
	default:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, seen := l.tested[one.Name]; !seen {
		l.tested[one.Name] = one
	}
	return true
}

// hint returns what may help a server that did not start, or "".
func (t testedServer) hint() string {
	switch {
	case strings.Contains(t.Cause, oauth.ErrSignIn.Error()):
		return "caisson mcp login " + t.Name + " does that."
	case strings.Contains(t.Cause, "exit code 127"):
		return "Name a program of the image. With image host, host_image.toolchains in the configuration adds yours; caisson doctor prints the line."
	case strings.Contains(t.Cause, "start timed out"):
		return "Give it a longer start_timeout. The first session on a workspace installs one that npx or uvx starts: a program of the image, or of a directory under mounts, starts faster."
	case preset.NeededBy([]byte(t.Stderr)) != "":
		return "It has no network but its own: add egress: {presets: [" + preset.NeededBy([]byte(t.Stderr)) + "]} to the server."
	case strings.Contains(t.Stderr, "ENOTFOUND"), strings.Contains(t.Stderr, "EAI_AGAIN"):
		return "It has no network but its own: add egress to the server, with the hosts that it needs."
	}
	return ""
}

// hashPrefix is the shown length of a hash.
const hashPrefix = 12

func describeTested(p *page, list []testedServer) {
	for _, one := range list {
		took := (time.Duration(one.WallMS) * time.Millisecond).String()
		if !one.Started {
			p.line("%s: did not start, after %s: %s", one.Name, took, one.Cause)
			for line := range strings.Lines(one.Stderr) {
				p.line("    | %s", strings.TrimRight(line, "\n"))
			}
			if hint := one.hint(); hint != "" {
				p.line("    %s", hint)
			}
			continue
		}
		p.line("%s: %s %s, by %s in the protocol of %s, after %s: %d tools", one.Name, one.Title, one.Version, one.Transport, one.Protocol, took, len(one.Tools))
		for _, t := range one.Tools {
			p.line("    %s  %s  sha256 %.*s", t.Name, t.Class, hashPrefix, t.SHA256)
		}
		for _, i := range one.Skipped {
			p.line("    skipped: %s: %s", i.Name, i.Why)
		}
		if one.Resources {
			p.line("    It has resources.")
		}
		if one.Prompts {
			p.line("    It has prompts.")
		}
	}
}
