package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/policy"
)

func newToolsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "tools", Short: "List the tools, and call one without a model",
		Long: "Show the tools that a model is offered: their class, the place where they run, and the policy's mode.\n" +
			"A call runs one as a session would, under the same policy, with records.",
	}, newToolsListCommand(a), newToolsCallCommand(a))
}

func newToolsListCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"as JSON, with descriptions and schemas"`
		profileFlag
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags] [NAME...]", Short: "List the tools: class, place, mode of the policy",
		Long: `List the tools of a session: Caisson's own and those that the configuration declares. With names, show
the definition that a model gets: the description and the schema of the arguments.

The mode comes from the policy of a run without a terminal (ci, or the one in the configuration), for a
workspace that is not trusted. A tool that is off is not offered; the configuration can turn it on.
`,
		Example: "  caisson tools ls\n  caisson tools ls shell apply_patch\n  caisson tools ls --json",
		RunE:    func(_ *cobra.Command, args []string) error { return listTools(a, f.Profile, args, f.JSON) },
	}, &f, usesConfig|usesInput, nil)
}

type listedTool struct {
	Name        tools.Name        `json:"name"`
	Class       tools.Class       `json:"class"`
	Runs        tools.Place       `json:"runs"`
	Enabled     bool              `json:"enabled"`
	Admin       bool              `json:"requires_admin,omitempty"`
	Mode        policy.Mode       `json:"mode"`
	Rule        string            `json:"rule"`
	Declared    bool              `json:"declared"`
	Description string            `json:"description"`
	InputSchema json.RawMessage   `json:"input_schema"`
	Aliases     map[string]string `json:"aliases,omitempty"`
	TimeoutS    float64           `json:"timeout_seconds"`
	ResultBytes int               `json:"result_bytes"`
}

func listTools(a *app, profile string, names []string, asJSON bool) error {
	conf, err := loadConfig(a, profile)
	if err != nil {
		return err
	}
	all, err := toolsOf(&conf)
	if err != nil {
		return err
	}
	policy, err := conf.ToolPolicy("ci")
	if err != nil {
		return err
	}
	list := make([]listedTool, 0, len(all))
	for _, def := range all {
		v := policy.Decide(def, "")
		_, declared := conf.Tools[string(def.Name)]
		list = append(list, listedTool{
			Name: def.Name, Class: def.Class, Runs: def.Runs, Enabled: localUser(&conf).MayUse(def), Admin: def.RequiresAdmin,
			Mode: v.Mode, Rule: v.Rule, Declared: declared, Description: def.Description,
			InputSchema: def.InputSchema, Aliases: def.Aliases, TimeoutS: def.Timeout.Seconds(), ResultBytes: def.ResultBytes,
		})
	}
	if list, err = selectTools(list, names); err != nil {
		return err
	}
	if len(names) > 0 && !asJSON {
		return describeTools(a.stdout, list)
	}
	return showTable(a, asJSON, list, table[listedTool]{titles: []string{"TOOL", "CLASS", "RUNS", "MODE", "WHAT IT DOES"}, cells: toolCells})
}

// toolsOf returns the tools of a session with this configuration, including those that
// are off.
func toolsOf(conf *config.Config) ([]tools.Definition, error) {
	fetching, err := conf.FetchOptions()
	if err != nil {
		return nil, err
	}
	resources, err := conf.SandboxResources()
	if err != nil {
		return nil, err
	}
	used, _ := conf.UsedServers() // a session reports its error
	o := runner.ToolOptions{Fetch: fetching, Declared: conf.Tools.Declared()}
	o.MCP.Servers = make([]runner.MCPServer, len(used)) // search_tools is on if there are any
	if valueOf(conf.MemoryTools) {
		o.Memory = memory.NewStore("", "") // nothing is read or written
	}
	var asked []loop.Profile
	for _, name := range conf.Workers.Models {
		asked = append(asked, loop.Profile{Name: name})
	}
	o.Workers = workerOptions(conf, asked)
	return runner.DefinitionsOf(o, resources.CommandTime)
}

// selectTools keeps the named tools. Names may have either form.
func selectTools(list []listedTool, names []string) ([]listedTool, error) {
	if len(names) == 0 {
		return list, nil
	}
	var kept []listedTool
	for _, name := range names {
		i := slices.IndexFunc(list, func(t listedTool) bool { return t.Name.Same(tools.Name(name)) })
		if i < 0 {
			return nil, noTool(name)
		}
		kept = append(kept, list[i])
	}
	return kept, nil
}

func noTool(name string) error {
	return newFailure(exitInput, nil, fmt.Sprintf("there is no tool %q", name), "caisson tools ls lists them, and caisson mcp test those of MCP servers.")
}

func toolCells(one listedTool) []string {
	mode := string(one.Mode)
	if !one.Enabled {
		mode = "off"
	}
	what, _, _ := strings.Cut(one.Description, ". ")
	what = strings.TrimSuffix(what, ".")
	if i := strings.IndexAny(what, ",:("); i > 0 && len(what) > 90 {
		what = strings.TrimSpace(what[:i])
	}
	return []string{string(one.Name), string(one.Class), string(one.Runs), mode, what}
}

func describeTools(w io.Writer, list []listedTool) error {
	for i, one := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		about, _ := tools.DisplayLines(one.Description)
		schema, err := json.MarshalIndent(one.InputSchema, "", "  ")
		if err != nil {
			return fmt.Errorf("show schema of %s: %w", one.Name, err)
		}
		safe, _ := tools.DisplayLines(string(schema))
		state := "mode " + string(one.Mode) + ", by " + one.Rule
		if !one.Enabled {
			state = "off"
		}
		fmt.Fprintf(w, "%s: class %s, runs in %s, %s, %g s, %d bytes\n\n%s\n\n%s\n", one.Name, one.Class, describePlace(one.Runs), state, one.TimeoutS, one.ResultBytes, about, safe)
	}
	return nil
}

func describePlace(p tools.Place) string {
	switch p {
	case tools.PlaceHost:
		return "this process"
	case tools.PlaceState:
		return "this process, on Caisson's own state"
	}
	return "the sandbox"
}

type callFlags struct {
	JSON bool `flag:"json" doc:"write the result as JSON"`
	workspaceFlags
}

func newToolsCallCommand(a *app) *cobra.Command {
	var f callFlags
	return newCommand(&cobra.Command{
		Use: "call [flags] NAME [ARGUMENTS | -]", Short: "Call one tool without a model", Args: wantArgs(1, 2, "the name of a tool and one JSON object"),
		Long: `Call one tool as a session would, without a model: under the same policy, in the same sandbox, with its
own records (caisson trace show). A read-only tool starts no sandbox. SERVER/TOOL is a tool of an MCP
server, which is started for the call.

ARGUMENTS is the JSON object of the call, as a model writes it; "-" reads it from standard input. The
default is {}. Standard output has the text for the model; with --json, the result as one JSON object.

Every setting of caisson run that is not about the model is a flag here too.
`,
		Example: `  caisson tools call read_file '{"path": "go.mod"}'
  caisson tools call shell '{"command": "go test ./..."}' --backend gvisor
  caisson tools call apply_patch - < arguments.json`,
		RunE: func(cmd *cobra.Command, args []string) error { return callTool(cmd.Context(), a, f, args) },
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|interruptible, nil)
}

func callTool(ctx context.Context, a *app, f callFlags, args []string) error {
	input, err := readArguments(a, args)
	if err != nil {
		return err
	}
	s, err := openSessionBuilder(a, f.workspaceFlags)
	if err != nil {
		return err
	}
	defer s.close()
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return err
	}
	name, err := s.selectTool(defs, args[0])
	if err != nil {
		return err
	}
	u := newInterface(a, false)
	ctx, force, _, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	if err := s.checkServerCall(name, u.defaultPreset(sandbox.WorkspaceMode(*s.conf.Mode).KeepsChanges())); err != nil {
		return err
	}
	session, err := s.openWithoutModel(ctx, u, force, "caisson tools call "+string(name), nil)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	result, err := session.Call(ctx, name, input)
	r := session.Close()
	if err != nil { // the report has the cause
		return u.finishCall(ctx, r, name, nil, f.JSON)
	}
	redact := redact.New(s.knownSecrets())
	for i, b := range result.Content {
		result.Content[i].Text = string(redact.Bytes([]byte(b.Text)))
	}
	return u.finishCall(ctx, r, name, &result, f.JSON)
}

// selectTool finds a tool of Caisson or an MCP server, and prepares the session for
// calling it.
func (s *sessionBuilder) selectTool(defs []tools.Definition, asked string) (tools.Name, error) {
	i := slices.IndexFunc(defs, func(def tools.Definition) bool { return def.Name.Same(tools.Name(asked)) })
	if i >= 0 {
		name := defs[i].Name
		if name == worker.ConferName || name == worker.CoordinateName {
			return "", newUsageError("%s asks models for a session's model; without one there is caisson %s", name, name)
		}
		s.reads = defs[i].Runs != tools.PlaceSandbox
		return name, nil
	}
	name, err := tools.OperatorName(asked)
	if err != nil || name.Server() == "" {
		return "", noTool(asked)
	}
	if _, known := s.conf.MCP[name.Server()]; !known {
		return "", noTool(asked)
	}
	if err := s.selectServer(name.Server()); err != nil {
		return "", err
	}
	server := s.conf.MCP[name.Server()]
	s.servers, s.reads, s.orders = true, !server.RunsInSandbox(), server.RunsInSandbox()
	return name, nil
}

// checkServerCall refuses an MCP server's tool that the policy denies: its server would
// not be started. preset is the policy if none is set.
func (s *sessionBuilder) checkServerCall(name tools.Name, preset string) error {
	if name.Server() == "" {
		return nil
	}
	p, err := s.conf.ToolPolicy(preset)
	if err != nil {
		return err
	}
	server := s.conf.MCP[name.Server()]
	class, runs := server.Runs()
	def := tools.Definition{Name: name, Class: class, Runs: runs}
	v := p.Decide(def, s.workspace.Path)
	if v.Mode != policy.ModeDeny {
		return nil
	}
	hint := "To allow it, add policy: {tools: {" + config.FlowScalar(string(name)) + ": auto}} to the configuration."
	if p.NoPrompts = false; p.Decide(def, s.workspace.Path).Mode == policy.ModePrompt {
		return newFailure(exitNoApprover, nil, fmt.Sprintf("%s needs an approval, and this policy asks nobody (%s)", name, v.Rule), "On a terminal, --policy default asks. "+hint)
	}
	return newFailure(exitFailed, nil, fmt.Sprintf("the policy denies %s (%s)", name, v.Rule), hint)
}

func readArguments(a *app, args []string) (json.RawMessage, error) {
	text := "{}"
	switch {
	case len(args) == 2 && args[1] == "-":
		var err error
		if text, err = readBounded(a.stdin, "standard input"); err != nil {
			return nil, err
		}
	case len(args) == 2:
		text = args[1]
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, newUsageError("the arguments are no JSON object: %s", errorText(err))
	}
	return json.RawMessage(text), nil
}

func errorText(err error) string {
	if err == nil {
		return "null"
	}
	return err.Error()
}

func (u *userInterface) finishCall(ctx context.Context, r runner.Report, name tools.Name, result *loop.ToolResult, asJSON bool) error {
	u.showEnd(ctx, r)
	u.reportEnd(r)
	status := r.ExitStatus
	if result == nil || r.Reason != loop.StopAnswered { // the call did not run to its end
		status = max(status, exitFailed)
		if !asJSON {
			return exitWith(status)
		}
		result = &loop.ToolResult{IsError: true, Content: []tools.Block{}}
		if r.Problem != nil {
			result.Content = []tools.Block{{Text: r.Problem.Cause}}
		}
	}
	if result.IsError && status == exitDone {
		status = exitFailed
	}
	if asJSON {
		err := writeJSON(u.app.stdout, map[string]any{
			"tool": name, "session": r.Session, "is_error": result.IsError, "content": result.Content, "changed": r.Changed,
			"exit_status": status,
		})
		return cmp.Or(err, exitWith(status))
	}
	return cmp.Or(printResult(u.app.stdout, result.Content, u.app.terminal(u.app.stdout)), exitWith(status))
}

// printResult writes the model's text of a result. If safe is set, it makes it safe to
// show.
func printResult(w io.Writer, content []tools.Block, safe bool) error {
	for _, b := range content {
		text := b.Text
		if b.Image != nil {
			text = fmt.Sprintf("[%s, %d bytes]\n", b.MediaType, len(b.Image))
		}
		if safe {
			text, _ = tools.DisplayLines(text)
		}
		if len(text) > 0 && text[len(text)-1] != '\n' {
			text += "\n"
		}
		if _, err := io.WriteString(w, text); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
	}
	return nil
}
