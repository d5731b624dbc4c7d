package shell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// Declared is a tool that an operator declares in the configuration: a command that
// runs in the session's sandbox.
type Declared struct {
	Name        tools.Name
	Description string
	// InputSchema is an object schema in the subset of docs/tools.md, whose
	// arguments are strings, numbers, booleans, or lists of these.
	InputSchema json.RawMessage
	Template    Template
	// Class is execute or write; "" means execute.
	Class tools.Class
	// Dir is the working directory, relative to the workspace.
	Dir string
	// Timeout limits one run. The session's timeout applies if it is shorter, or if
	// Timeout is zero.
	Timeout time.Duration
	// Paths are the arguments that are workspace paths. They are checked, and
	// passed to the command as absolute paths in the container.
	Paths []string
	// Parallel lets calls run in parallel with other commands.
	Parallel bool
	// RequiresAdmin restricts the tool to administrators.
	RequiresAdmin bool
}

// Check returns all errors in a declaration.
func (d Declared) Check() []DeclaredError {
	arguments, lists, err := d.schemaArguments()
	if err != nil {
		return []DeclaredError{{"input_schema", err.Error()}}
	}
	var problems []DeclaredError
	add := func(key string, bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, DeclaredError{key, fmt.Sprintf(format, args...)})
		}
	}
	key := "command"
	if d.Template.Script != "" {
		key = "script"
	}
	if err := d.Template.check(arguments, lists); err != nil {
		add(key, true, "%v", err)
	}
	add("class", d.Class != "" && d.Class != tools.ClassExecute && d.Class != tools.ClassWrite, "class is %q; a command is execute, or write where it only changes files", d.Class)
	add("parallel", d.Parallel && d.Class == tools.ClassWrite, "only a tool of class execute can be parallel")
	add("timeout", d.Timeout < 0, "timeout is negative")
	for _, p := range d.Paths {
		add("paths", !slices.Contains(arguments, p), "%q is no argument of input_schema; there are: %s", p, strings.Join(arguments, ", "))
	}
	add("cwd", d.Dir != "" && !filepath.IsLocal(d.Dir) || strings.ContainsRune(d.Dir, 0), "cwd %q must be a folder inside the workspace, relative to it", d.Dir)
	return problems
}

// DeclaredError is an error in a declaration, with the key that it is about.
type DeclaredError struct{ Key, Message string }

// schemaArguments returns the names of the schema's properties, and of the lists
// among them, both sorted.
func (d Declared) schemaArguments() (all, lists []string, err error) {
	var schema struct {
		Type       string `json:"type"`
		Properties map[string]struct {
			Type  json.RawMessage `json:"type"`
			Items struct {
				Type string `json:"type"`
			} `json:"items"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(d.InputSchema, &schema); err != nil {
		return nil, nil, fmt.Errorf("no schema: %w", err)
	}
	if schema.Type != "object" {
		return nil, nil, errors.New("the schema's type must be object")
	}
	scalars := []string{"string", "integer", "number", "boolean"}
	for name, p := range schema.Properties {
		var kind string
		_ = json.Unmarshal(p.Type, &kind) // fails for a list of types, which is refused below
		switch {
		case kind == "array" && slices.Contains(scalars, p.Items.Type):
			lists = append(lists, name)
		case !slices.Contains(scalars, kind):
			return nil, nil, fmt.Errorf("argument %q must be a string, integer, number or boolean, or an array of one of these", name)
		}
		all = append(all, name)
	}
	slices.Sort(all)
	slices.Sort(lists)
	return all, lists, nil
}

// NewDeclared returns a factory for a declared tool that runs its commands with r.
// Except for Background, the options apply as to the shell tool.
func NewDeclared(r commandRunner, d Declared, opts Options) (tools.Factory, error) {
	if problems := d.Check(); len(problems) > 0 {
		return nil, fmt.Errorf("make tool %s: %s: %s", d.Name, problems[0].Key, problems[0].Message)
	}
	opts.Background = nil
	if d.Timeout > 0 && (opts.Timeout == 0 || d.Timeout < opts.Timeout) {
		opts.Timeout = d.Timeout
	}
	shell, err := newShellTool(r, opts)
	if err != nil {
		return nil, err
	}
	def := tools.Definition{
		Name: d.Name, Description: d.Description, InputSchema: d.InputSchema, Class: cmp.Or(d.Class, tools.ClassExecute), Runs: tools.PlaceSandbox,
		Timeout: shell.def.Timeout, Parallel: d.Parallel, EnabledByDefault: true, RequiresAdmin: d.RequiresAdmin,
		Commands: d.inputCommands, ActsAs: func(json.RawMessage) []tools.Name { return []tools.Name{Name} },
	}
	if len(d.Template.Argv) > 0 {
		def.Summary = d.summarizeInput
	}
	if len(d.Paths) > 0 {
		def.Paths = d.inputPaths
	}
	shell.def = def
	return func() tools.Tool { return &declaredTool{Declared: d, shell: shell} }, nil
}

type declaredTool struct {
	Declared
	shell *shellTool
}

func (d Declared) inputPaths(raw json.RawMessage) []string {
	values, err := argumentValues(raw)
	if err != nil {
		return nil
	}
	var out []string
	for _, name := range d.Paths {
		out = append(out, values[name]...)
	}
	return out
}

// commandLine returns the command for an input, as people and the policy see it.
func (d Declared) commandLine(raw json.RawMessage) (string, error) {
	values, err := argumentValues(raw)
	if err != nil {
		return "", err
	}
	_, _, shown, err := d.Template.fillCommand(values)
	return shown, err
}

func (d Declared) summarizeInput(raw json.RawMessage) string {
	shown, _ := d.commandLine(raw)
	return shown
}

func (d Declared) inputCommands(raw json.RawMessage) []string {
	shown, err := d.commandLine(raw)
	if err != nil {
		return nil
	}
	return []string{shown}
}

// quoteCommand returns a command line for display, with elements quoted where a
// shell would need it.
func quoteCommand(args []string) string {
	out := slices.Clone(args)
	for i, a := range out {
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return !strings.ContainsRune("@%+=:,./-_", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func (d *declaredTool) Definition() tools.Definition { return d.shell.def }

// Project returns what an approval covers besides the input.
func (d *declaredTool) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	command, err := d.commandLine(call.Input)
	if err != nil {
		return tools.Projection{}, err
	}
	return d.shell.projectCommand(ctx, d.Dir, command)
}

func (d *declaredTool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	values, err := argumentValues(call.Input)
	if err != nil {
		return tools.Output{}, refusalError("invalid_argument", formatSentence(err.Error()))
	}
	for _, name := range d.Paths {
		for i, p := range values[name] {
			inside, ok := d.shell.containerDir(p)
			if !ok {
				return tools.Output{}, &tools.Error{
					Class: tools.ErrorPermissionDenied, Reason: "workspace_escape", Visible: true,
					Message: fmt.Sprintf("%s %q is outside the workspace.", name, clipText(p)),
				}
			}
			values[name][i] = inside
		}
	}
	script, args, shown, err := d.Template.fillCommand(values)
	if dash, ok := errors.AsType[*dashError](err); ok {
		return tools.Output{}, refusalError("leading_dash", formatSentence(dash.Error())+" Give a value without it.")
	}
	if err != nil {
		return tools.Output{}, err
	}
	for _, a := range args {
		if len(a) > MaxScriptBytes {
			return tools.Output{}, refusalError("too_long", fmt.Sprintf("An argument has %d bytes; at most %d can be given.", len(a), MaxScriptBytes))
		}
	}
	cmd, err := d.shell.newCommand(input{Command: script, Dir: d.Dir})
	if err != nil {
		return tools.Output{}, err
	}
	cmd.Args, cmd.CallID = args, call.ID
	cmd.NoLinks = call.Asked && d.Dir != ""
	return d.shell.runForeground(ctx, call, cmd, shown)
}
