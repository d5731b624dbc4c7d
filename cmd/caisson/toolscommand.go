package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/memory"
)

func newToolsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "tools", Short: "List the tools, and call one without a model",
		Long: "What a model is offered: which tools there are, what they may do, where they run, and what the\n" +
			"policy says of them. A call runs one as a session would, under the same policy, with records.",
	}, newToolsListCommand(a), newToolsCallCommand(a))
}

func newToolsListCommand(a *app) *cobra.Command {
	var asJSON bool
	var profile string
	cmd := &cobra.Command{
		Use:   "ls [flags] [NAME...]",
		Short: "List the tools: class, where they run, what the policy says",
		Long: `List the tools of a session: Caisson's own and those that the configuration declares. With names, what
a model is told of each: its description and the schema of its arguments.

The mode is what the policy of a run without a terminal says (ci, or the configuration's own), for a
workspace that is not trusted. A tool that is off is not offered; the configuration turns it on.
` + exitHelp(nil, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson tools ls\n  caisson tools ls shell apply_patch\n  caisson tools ls --json",
		RunE: func(_ *cobra.Command, args []string) error {
			return listTools(a, profile, args, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, with descriptions and schemas")
	cmd.Flags().StringVar(&profile, "profile", "", "settings of profiles.NAME in the configuration")
	return cmd
}

// listedTool is a tool as tools ls tells it.
type listedTool struct {
	Name        tools.Name        `json:"name"`
	Class       tools.Class       `json:"class"`
	Runs        tools.Place       `json:"runs"`
	Enabled     bool              `json:"enabled"`
	Mode        tools.Mode        `json:"mode"`
	Rule        string            `json:"rule"`
	Declared    bool              `json:"declared"`
	Description string            `json:"description"`
	InputSchema json.RawMessage   `json:"input_schema"`
	Aliases     map[string]string `json:"aliases,omitempty"`
	TimeoutS    float64           `json:"timeout_seconds"`
	ResultBytes int               `json:"result_bytes"`
}

func listTools(a *app, profile string, names []string, asJSON bool) error {
	conf, err := loadConfig(a.deps, a.environ, config.File{}, profile, nil)
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
		list = append(list, listedTool{
			Name: def.Name, Class: def.Class, Runs: def.Runs, Enabled: def.EnabledByDefault && !def.RequiresAdmin,
			Mode: v.Mode, Rule: v.Rule, Declared: isDeclared(&conf, def.Name), Description: def.Description,
			InputSchema: def.InputSchema, Aliases: def.Aliases, TimeoutS: def.Timeout.Seconds(), ResultBytes: def.ResultBytes,
		})
	}
	if list, err = named(list, names); err != nil {
		return err
	}
	switch {
	case asJSON:
		return writeJSON(a.stdout, list)
	case len(names) > 0:
		return describeTools(a.stdout, list)
	}
	return tabulateTools(a, list)
}

// toolsOf are the tools that a session with this configuration has, off or on.
func toolsOf(conf *config.Config) ([]tools.Definition, error) {
	o := runner.Options{Declared: conf.Declared()}
	var err error
	if o.Fetch, err = conf.FetchOptions(); err != nil {
		return nil, err
	}
	if o.Resources, err = conf.SandboxResources(); err != nil {
		return nil, err
	}
	if on := conf.MemoryTools; on != nil && *on {
		o.Memory = memory.NewStore("", "") // nothing is read or written
	}
	return runner.DefinitionsOf(o)
}

// named keeps the tools of these names, in either form.
func named(list []listedTool, names []string) ([]listedTool, error) {
	if len(names) == 0 {
		return list, nil
	}
	var kept []listedTool
	for _, name := range names {
		i := slices.IndexFunc(list, func(t listedTool) bool { return isCalled(t.Name, name) })
		if i < 0 {
			return nil, noTool(name)
		}
		kept = append(kept, list[i])
	}
	return kept, nil
}

// isCalled says whether a tool has a name, in either of its forms.
func isCalled(name tools.Name, asked string) bool {
	wire, err := name.LLM()
	return string(name) == asked || err == nil && string(wire) == asked
}

func isDeclared(conf *config.Config, name tools.Name) bool {
	_, ok := conf.Tools[string(name)]
	return ok
}

func noTool(name string) error {
	return &runner.Error{Status: runner.ExitInput, Problem: record.Problem{
		Cause: fmt.Sprintf("there is no tool %q", name), Mend: "caisson tools ls lists them.",
	}}
}

func tabulateTools(a *app, list []listedTool) error {
	rows := [][]string{{"TOOL", "CLASS", "RUNS", "MODE", "WHAT IT DOES"}}
	for _, one := range list {
		mode := string(one.Mode)
		if !one.Enabled {
			mode = "off"
		}
		what, _, _ := strings.Cut(one.Description, ". ")
		what, _ = tools.Display(strings.TrimSuffix(what, "."))
		if i := strings.IndexAny(what, ",:("); i > 0 && len(what) > 90 {
			what = strings.TrimSpace(what[:i])
		}
		rows = append(rows, []string{string(one.Name), string(one.Class), string(one.Runs), mode, what})
	}
	return writeTable(a, rows)
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
		fmt.Fprintf(w, "%s: class %s, runs in %s, %s, %g s, %d bytes\n\n%s\n\n%s\n", one.Name, one.Class, place(one.Runs), state, one.TimeoutS, one.ResultBytes, about, safe)
	}
	return nil
}

// place says where a tool runs, in words.
func place(p tools.Place) string {
	switch p {
	case tools.PlaceHost:
		return "this process"
	case tools.PlaceState:
		return "this process, on Caisson's own state"
	}
	return "the sandbox"
}
