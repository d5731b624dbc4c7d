package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Names of the tools.
const (
	Name      tools.Name = "verify"
	ShellName tools.Name = "verify_shell"
)

// DefaultCommandTime is the default of Options.CommandTime.
const DefaultCommandTime = 10 * time.Minute

// Options configure the tools.
type Options struct {
	// View is the workspace. If it is nil, checks of files don't pass. verify_shell
	// requires it.
	View workspace.View
	// CommandTime limits all commands of one call, by default to
	// [DefaultCommandTime].
	CommandTime time.Duration
	// Grace is the time between SIGTERM and SIGKILL, as of the runner. Zero means
	// [sandbox.DefaultGrace].
	Grace time.Duration
}

// New returns a factory for verify, which runs no commands.
func New(o Options) tools.Factory { return newFactory(newDefinition(), engine{view: o.View}) }

// NewShell returns a factory for verify_shell, which runs its commands with r.
func NewShell(r commandRunner, o Options) (tools.Factory, error) {
	if r == nil || o.View == nil {
		return nil, errors.New("make verify_shell tool: no runner, or no view of the workspace")
	}
	if o.CommandTime == 0 {
		o.CommandTime = DefaultCommandTime
	}
	if o.CommandTime < time.Second {
		return nil, fmt.Errorf("make verify_shell tool: command time is %v, must be at least 1s", o.CommandTime)
	}
	return newFactory(newShellDefinition(o), engine{view: o.View, runner: r, commandTime: o.CommandTime}), nil
}

func newFactory(def tools.Definition, e engine) tools.Factory {
	return func() tools.Tool { return &tool{def: def, engine: e} }
}

// tool is one execution of either tool.
type tool struct {
	def    tools.Definition
	engine engine
}

// input is the tools' input after aliases were rewritten.
type input struct {
	Checks []check `json:"checks"`
}

const checksDescription = "Makes exact checks and says which of them hold: for claims about text and files that should not be taken on trust. Each check is about " +
	"target_text, or about the workspace file at path. A check that can't be made has not passed. " +
	"Kinds: contains, not_contains (value), contains_any, contains_all (values), regex_match (value, RE2, anywhere in the text), " +
	"min_length (value, in characters), json_schema (schema), sha256 (value, hex), file_exists (path)"

func newDefinition() tools.Definition {
	return tools.Definition{
		Name: Name, Description: checksDescription + ".", InputSchema: buildSchema(""), Class: tools.ClassRead, Runs: tools.PlaceHost,
		Paths: inputPaths, Summary: summarizeInput, ActsAs: actsAs(), EnabledByDefault: true,
	}
}

func newShellDefinition(o Options) tools.Definition {
	return tools.Definition{
		Name: ShellName,
		Description: checksDescription + ", and shell (cmd, a command line that is run in the sandbox, in the workspace; it must end with expect_exit, " +
			"0 when left out, and its standard output hold expect_stdout_contains where that is given).",
		InputSchema: buildSchema(fmt.Sprintf(`,
        "cmd": {"type": "string", "minLength": 1, "description": "shell: the command line."},
        "expect_exit": {"type": "integer", "minimum": 0, "maximum": 255, "description": "shell: the exit code; 0 when left out."},
        "expect_stdout_contains": {"type": "string", "description": "shell: what its standard output must hold."},
        "timeout_seconds": {"type": "integer", "minimum": 1, "maximum": %d, "description": "shell: seconds after which the command is stopped."}`,
			int64(o.CommandTime/time.Second)), kindShell),
		Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Timeout: o.CommandTime + cmp.Or(o.Grace, sandbox.DefaultGrace) + sandbox.StopTime,
		Paths: inputPaths, Summary: summarizeInput, Commands: inputCommands, ActsAs: actsAs(tools.NameShell), EnabledByDefault: true,
	}
}

// actsAs returns the [tools.Definition].ActsAs of a tool that also does others'
// work: a check of a file's content reads the file.
func actsAs(always ...tools.Name) func(json.RawMessage) []tools.Name {
	return func(raw json.RawMessage) []tools.Name {
		if len(raw) > 0 && len(inputPaths(raw)) > 0 {
			return append(slices.Clone(always), tools.NameReadFile)
		}
		return always
	}
}

// buildSchema returns the input's schema, with additional properties and kinds of
// checks.
func buildSchema(properties string, kinds ...string) json.RawMessage {
	kinds = append([]string{
		kindContains, kindNotContains, kindContainsAny, kindContainsAll, kindRegex, kindMinLength, kindJSONSchema, kindSHA256, kindFileExists,
	}, kinds...)
	return json.RawMessage(fmt.Sprintf(`{
  "type": "object",
  "properties": {
    "checks": {
      "type": "array", "minItems": 1, "maxItems": %d, "description": "The checks, at least one.",
      "items": {
        "type": "object",
        "properties": {
        "kind": {"type": "string", "enum": ["%s"]},
        "id": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Its name in the result; checkN when left out."},
        "target_text": {"type": "string", "description": "The text that it is about."},
        "path": {"type": "string", "minLength": 1, "description": "The workspace file that it is about."},
        "value": {"type": ["string", "integer"], "description": "What is looked for; for min_length a number."},
        "values": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 100, "description": "contains_any, contains_all: what is looked for."},
        "case_insensitive": {"type": "boolean", "description": "Take upper and lower case alike."},
        "schema": {"type": ["object", "boolean"], "description": "json_schema: the JSON Schema."}%s
        },
        "required": ["kind"],
        "additionalProperties": false
      }
    }
  },
  "required": ["checks"],
  "additionalProperties": false
}`, maxChecks, strings.Join(kinds, `", "`), properties))
}

func decodeInput(raw json.RawMessage) (input, error) {
	var in input
	if err := json.Unmarshal(raw, &in); err != nil {
		return in, fmt.Errorf("decode checks: %w", err)
	}
	return in, nil
}

// inputPaths returns the paths that the checks name, for the scope check and the
// order of calls.
func inputPaths(raw json.RawMessage) []string {
	in, err := decodeInput(raw)
	if err != nil {
		return nil
	}
	var out []string
	for _, c := range in.Checks {
		if c.Path != "" {
			out = append(out, c.Path)
		}
	}
	return out
}

// summarizeInput returns the number of checks of a call, and its commands.
func summarizeInput(raw json.RawMessage) string {
	in, err := decodeInput(raw)
	if err != nil {
		return ""
	}
	noun := "checks"
	if len(in.Checks) == 1 {
		noun = "check"
	}
	out := fmt.Sprintf("%d %s", len(in.Checks), noun)
	if commands := in.commands(); len(commands) > 0 {
		out += ": " + strings.Join(commands, " ; ")
	}
	return out
}

// inputCommands returns the commands that a call runs. The dispatcher matches each
// with the patterns of dangerous commands.
func inputCommands(raw json.RawMessage) []string {
	in, err := decodeInput(raw)
	if err != nil {
		return nil
	}
	return in.commands()
}

func (in input) commands() []string {
	var out []string
	for _, c := range in.Checks {
		if c.Command != "" {
			out = append(out, c.Command)
		}
	}
	return out
}

func (t *tool) Definition() tools.Definition { return t.def }

// Project returns the directory and scripts of the commands, which an approval
// covers besides their text.
func (t *tool) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	if t.engine.runner == nil {
		return tools.Projection{}, nil
	}
	return policy.ProjectCommands(ctx, t.engine.view, ".", inputCommands(call.Input))
}

// Execute makes the checks. If some don't pass, Success is false and there is no
// error, as for a command with an exit status other than 0. An error is a
// cancellation or a sandbox failure.
func (t *tool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	in, err := decodeInput(call.Input)
	if err != nil {
		return tools.Output{}, err
	}
	if len(in.Checks) == 0 { // the schema has refused it before
		return tools.Output{}, &tools.Error{Class: tools.ErrorExecution, Reason: "no_checks", Message: "There are no checks.", Visible: true}
	}
	r, failed := t.engine.runChecks(ctx, string(t.def.Name), in.Checks)
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return tools.Output{}, fmt.Errorf("encode result of checks: %w", err)
	}
	return tools.Output{
		Content: []tools.Block{{Text: text.String()}},
		Success: r.AllPassed,
		Metadata: map[string]any{
			"checks": len(in.Checks), "checks_run": r.Run, "all_passed": r.AllPassed, "summary": r.Summary,
		},
	}, failed
}

// Kinds of checks.
const (
	kindContains    = "contains"
	kindNotContains = "not_contains"
	kindContainsAny = "contains_any"
	kindContainsAll = "contains_all"
	kindRegex       = "regex_match"
	kindMinLength   = "min_length"
	kindJSONSchema  = "json_schema"
	kindSHA256      = "sha256"
	kindFileExists  = "file_exists"
	kindShell       = "shell"
)

// Bounds of one call.
const (
	maxChecks = 100
	// maxTextBytes bounds a file that is checked as text. The input's own size
	// limits its texts.
	maxTextBytes = 4 << 20
	// maxHashBytes bounds a file that is hashed.
	maxHashBytes = 256 << 20
	// maxReasonBytes bounds the reason of one result.
	maxReasonBytes = 500
)

// check is one check of an input, as the model wrote it.
type check struct {
	ID     string  `json:"id"`
	Kind   string  `json:"kind"`
	Target *string `json:"target_text"`
	Path   string  `json:"path"`
	// Value is a string, or an integer for min_length.
	Value           json.RawMessage `json:"value"`
	Values          []string        `json:"values"`
	CaseInsensitive bool            `json:"case_insensitive"`
	Schema          json.RawMessage `json:"schema"`

	Command string `json:"cmd"`
	// Exit and Timeout are integers in any JSON notation, such as 3.0.
	Exit    float64 `json:"expect_exit"`
	Stdout  string  `json:"expect_stdout_contains"`
	Timeout float64 `json:"timeout_seconds"`
}

// Result is the result of one check, as the model and records see it.
//
//	{"id":"check1","kind":"contains","passed":false,"reason":"\"total\" is not in it"}
type Result struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Passed bool   `json:"passed"`
	// Reason describes the finding. It is never empty.
	Reason string `json:"reason"`
	// ExitCode is the exit code of a shell check's command. It is nil if the
	// command was stopped or killed, and for other kinds.
	ExitCode *int `json:"exit_code,omitempty"`
}

// Report is the result of a call.
//
//	{"tool":"verify","checks_run":1,"results":[…],"all_passed":false,"summary":"0 of 1 checks passed"}
type Report struct {
	Tool      string   `json:"tool"`
	Run       int      `json:"checks_run"`
	Results   []Result `json:"results"`
	AllPassed bool     `json:"all_passed"`
	Summary   string   `json:"summary"`
}
