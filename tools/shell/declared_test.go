package shell

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

const oneArgument = `{"type":"object","properties":{"x":{"type":"string"},"flag":{"type":"boolean"},"n":{"type":"number"},"list":{"type":"array","items":{"type":"string"}},"file":{"type":"string"}}}`

// hostileValues returns values that break out of a shell's text or word. Each
// would create the file "marker".
func hostileValues() []string {
	return []string{
		"; touch marker", "& touch marker &", "| touch marker", "&& touch marker", "$(touch marker)", "`touch marker`",
		"x\ntouch marker\n", "x\r\ntouch marker\r\n", "'; touch marker; '", `"; touch marker; "`, "x' $(touch marker) '", `x" $(touch marker) "`,
		"${IFS}$(touch${IFS}marker)", "<(touch marker)", "x; touch marker #", "\\\n; touch marker",
	}
}

// declaredResult runs a declared tool on the host, in a new directory.
func declaredResult(t *testing.T, d Declared, in map[string]any) (result tools.Result, dir string) {
	t.Helper()
	dir = t.TempDir()
	d.Name, d.Description = "probe", "A probe."
	if d.InputSchema == nil {
		d.InputSchema = json.RawMessage(oneArgument)
	}
	factory, err := NewDeclared(hostRunner{dir}, d, Options{HostRoot: "/host/ws"})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := policy.Preset("sandboxed")
	if err != nil {
		t.Fatal(err)
	}
	disp, err := dispatch.New(dispatch.Options{Workspace: "/host/ws", Mount: "/workspace", Policy: policy, Emit: func(dispatch.Event) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := disp.Register(factory); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := disp.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: "probe", Input: raw}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0], dir
}

func hasMarker(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "marker*")) // one may end in \r
	return err == nil && len(found) > 0
}

// TestDeclaredNeverSplices passes hostile values to both kinds of template: each
// arrives as one argument and is not run. The control splices them into a shell's
// text, as a careless template would.
func TestDeclaredNeverSplices(t *testing.T) {
	spliced := 0
	for _, value := range hostileValues() {
		for name, template := range map[string]Template{
			"an element":          {Argv: []string{"printf", "[%s]", "{{x}}"}},
			"a part of one":       {Argv: []string{"printf", "[%s]", "x={{x}}=x"}},
			"an option's value":   {Argv: []string{"printf", "--", "[%s]", "--x={{x}}"}},
			"a script":            {Script: `printf '[%s]' "$ARG_X"`},
			"a script's variable": {Script: `y="$ARG_X"; printf '[%s]' "$y"`},
		} {
			r, dir := declaredResult(t, Declared{Template: template}, map[string]any{"x": value})
			if hasMarker(dir) {
				t.Errorf("%s: %q ran", name, value)
			}
			want := value
			if strings.Contains(name, "part") {
				want = "x=" + value + "=x"
			}
			if strings.Contains(name, "option") {
				want = "--x=" + value
			}
			if r.IsError || !strings.Contains(resultText(r), "["+want+"]") {
				t.Errorf("%s: %q arrived as %s", name, value, resultText(r))
			}
		}
		for _, naive := range []string{"printf '[%s]' {{x}}", "printf '[%s]' '{{x}}'", `printf '[%s]' "{{x}}"`} {
			dir := t.TempDir()
			c := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(naive, "{{x}}", value))
			c.Dir = dir
			_ = c.Run()
			if hasMarker(dir) {
				spliced++
				break
			}
		}
	}
	if spliced < len(hostileValues())-2 { // <(…) runs when it will, and not every sh knows it
		t.Errorf("control: only %d of %d values run where they are spliced", spliced, len(hostileValues()))
	}
}

func TestDeclaredArguments(t *testing.T) {
	argv := func(a ...string) Template { return Template{Argv: append([]string{"printf", "[%s]", "="}, a...)} }
	for name, c := range map[string]struct {
		d    Declared
		in   map[string]any
		want string
	}{
		"numbers and booleans": {Declared{Template: argv("{{n}}", "{{flag}}")}, map[string]any{"n": 1.5, "flag": true}, "[=][1.5][true]"},
		"a list":               {Declared{Template: argv("{{list}}", "end")}, map[string]any{"list": []string{"a b", "c;d"}}, "[=][a b][c;d][end]"},
		"an empty list":        {Declared{Template: argv("{{list}}", "end")}, map[string]any{"list": []string{}}, "[=][end]"},
		"left out":             {Declared{Template: argv("--x={{x}}", "{{list}}", "end")}, map[string]any{}, "[=][end]"},
		"an empty text":        {Declared{Template: argv("{{x}}", "end")}, map[string]any{"x": ""}, "[=][][end]"},
		"two in one":           {Declared{Template: argv("{{x}}:{{n}}")}, map[string]any{"x": "a", "n": 2}, "[=][a:2]"},
		"a placeholder inside": {Declared{Template: argv("{{x}}")}, map[string]any{"x": "{{n}}", "n": 2}, "[=][{{n}}]"},
		"a path":               {Declared{Template: argv("{{file}}"), Paths: []string{"file"}}, map[string]any{"file": "-a/../b"}, "[=][/workspace/b]"},
		"a host path":          {Declared{Template: argv("{{file}}"), Paths: []string{"file"}}, map[string]any{"file": "/host/ws/b"}, "[=][/workspace/b]"},
		"a script's list":      {Declared{Template: Template{Script: `printf '[%s]' "$ARG_LIST"; printf '[%s]' "${ARG_X-unset}" "$#"`}}, map[string]any{"list": []string{"a", "b"}}, "[a\nb][unset][0]"},
		"the hook of a shell":  {Declared{Template: Template{Script: `printf '[%s]' "${BASH_ENV-}" "${ARG_X}"`}}, map[string]any{"x": "BASH_ENV=/tmp/x"}, "[][BASH_ENV=/tmp/x]"},
	} {
		r, _ := declaredResult(t, c.d, c.in)
		if r.IsError || !strings.Contains(resultText(r), c.want) {
			t.Errorf("%s: %s, want %s", name, resultText(r), c.want)
		}
	}
}

func TestDeclaredRefusesInput(t *testing.T) {
	touch := Template{Argv: []string{"sh", "-c", "touch marker", "{{x}}"}}
	for name, c := range map[string]struct {
		d    Declared
		in   map[string]any
		want string
	}{
		"a leading dash":          {Declared{Template: Template{Argv: []string{"touch", "marker", "{{x}}"}}}, map[string]any{"x": "--reference=/etc/passwd"}, "begins with a dash"},
		"a dash in a list":        {Declared{Template: Template{Argv: []string{"touch", "marker", "{{list}}"}}}, map[string]any{"list": []string{"a", "-c"}}, "begins with a dash"},
		"a dash before more":      {Declared{Template: Template{Argv: []string{"touch", "marker", "{{x}}.txt"}}}, map[string]any{"x": "-r"}, "begins with a dash"},
		"a negative number":       {Declared{Template: Template{Argv: []string{"touch", "marker", "{{n}}"}}}, map[string]any{"n": -1}, "begins with a dash"},
		"a NUL":                   {Declared{Template: touch}, map[string]any{"x": "a\x00b"}, "NUL"},
		"too long":                {Declared{Template: touch}, map[string]any{"x": strings.Repeat("x", MaxScriptBytes+1)}, "at most"},
		"outside":                 {Declared{Template: Template{Argv: []string{"touch", "marker", "{{file}}"}}, Paths: []string{"file"}}, map[string]any{"file": "../../etc/passwd"}, "outside the workspace"},
		"outside by its name":     {Declared{Template: Template{Argv: []string{"touch", "marker", "{{file}}"}}, Paths: []string{"file"}}, map[string]any{"file": "/etc/passwd"}, "outside the workspace"},
		"an argument of no tool":  {Declared{Template: touch}, map[string]any{"command": "touch marker"}, "unknown property"},
		"the wrong type":          {Declared{Template: touch}, map[string]any{"x": []string{"a"}}, "want string"},
		"an option of the script": {Declared{Template: touch}, map[string]any{"ENV": "x"}, "unknown property"},
	} {
		r, dir := declaredResult(t, c.d, c.in)
		if !r.IsError || !strings.Contains(resultText(r), c.want) {
			t.Errorf("%s: %s, want %s", name, resultText(r), c.want)
		}
		if hasMarker(dir) {
			t.Errorf("%s: it ran", name)
		}
	}
	// After -- a dash is no option, and arrives.
	r, _ := declaredResult(t, Declared{Template: Template{Argv: []string{"printf", "--", "[%s]", "{{x}}"}}}, map[string]any{"x": "-n"})
	if r.IsError || !strings.Contains(resultText(r), "[-n]") {
		t.Errorf("after --: %s", resultText(r))
	}
}

func TestDeclarationsAreChecked(t *testing.T) {
	good := Declared{Name: "probe", Description: "x", InputSchema: json.RawMessage(oneArgument), Template: Template{Argv: []string{"ls", "{{x}}"}}, Dir: "sub"}
	if problems := good.Check(); len(problems) > 0 {
		t.Fatalf("good: %v", problems)
	}
	// What is no program's text is the operator's to write.
	for _, argv := range [][]string{{"grep", "-e", "{{x}}", "."}, {"sh", "-c", `grep -e "$1" .`, "sh", "{{x}}"}, {"python3", "tool.py", "-n", "{{x}}"}, {"cc", "-c", "{{x}}"}} {
		d := good
		d.Template.Argv = argv
		if problems := d.Check(); len(problems) > 0 {
			t.Errorf("%q: %v", argv, problems)
		}
	}
	for name, c := range map[string]struct {
		change    func(*Declared)
		key, want string
	}{
		"neither":             {func(d *Declared) { d.Template = Template{} }, "command", "either command"},
		"both":                {func(d *Declared) { d.Template.Script = "ls" }, "script", "either command"},
		"the program":         {func(d *Declared) { d.Template.Argv = []string{"{{x}}"} }, "command", "the program can't be an argument"},
		"an unknown argument": {func(d *Declared) { d.Template.Argv = []string{"ls", "{{y}}"} }, "command", "{{y}} names no argument of input_schema; there are: file, flag, list, n, x"},
		"a list in a word":    {func(d *Declared) { d.Template.Argv = []string{"ls", "a{{list}}"} }, "command", "must be an element of its own"},
		"spliced script":      {func(d *Declared) { d.Template = Template{Script: "ls {{x}}"} }, "script", `write "$ARG_X" for {{x}}`},
		"a shell's program":   {func(d *Declared) { d.Template.Argv = []string{"sh", "-c", "grep {{x}} ."} }, "command", `sh reads "grep {{x}} ." as a program`},
		"one behind another": {func(d *Declared) {
			d.Template.Argv = []string{"timeout", "5", "/bin/bash", "-euo", "pipefail", "-lc", "{{x}}"}
		}, "command", "bash reads"},
		"an interpreter's": {func(d *Declared) { d.Template.Argv = []string{"python3.12", "-c", "print('{{x}}')"} }, "command", "python3.12 reads"},
		"a NUL":            {func(d *Declared) { d.Template.Argv = []string{"ls", "\x00"} }, "command", "NUL"},
		"class":            {func(d *Declared) { d.Class = tools.ClassRead }, "class", `class is "read"`},
		"parallel write":   {func(d *Declared) { d.Class, d.Parallel = tools.ClassWrite, true }, "parallel", "only a tool of class execute"},
		"timeout":          {func(d *Declared) { d.Timeout = -1 }, "timeout", "negative"},
		"paths":            {func(d *Declared) { d.Paths = []string{"y"} }, "paths", `"y" is no argument`},
		"cwd outside":      {func(d *Declared) { d.Dir = "../x" }, "cwd", "inside the workspace"},
		"cwd absolute":     {func(d *Declared) { d.Dir = "/etc" }, "cwd", "inside the workspace"},
		"no object":        {func(d *Declared) { d.InputSchema = json.RawMessage(`{"type":"string"}`) }, "input_schema", "must be object"},
		"an object argument": {func(d *Declared) {
			d.InputSchema = json.RawMessage(`{"type":"object","properties":{"x":{"type":"object"}}}`)
		}, "input_schema", `argument "x" must be a string`},
		"a variable": {func(d *Declared) {
			d.InputSchema = json.RawMessage(`{"type":"object","properties":{"a b":{"type":"string"}}}`)
			d.Template = Template{Script: "ls"}
		}, "script", "can't be a variable"},
		"one variable twice": {func(d *Declared) {
			d.InputSchema = json.RawMessage(`{"type":"object","properties":{"ab":{"type":"string"},"AB":{"type":"string"}}}`)
			d.Template = Template{Script: "ls"}
		}, "script", "are the same variable $ARG_AB"},
	} {
		d := good
		c.change(&d)
		problems := d.Check()
		if len(problems) != 1 || problems[0].Key != c.key || !strings.Contains(problems[0].Message, c.want) {
			t.Errorf("%s: %v, want %s: %s", name, problems, c.key, c.want)
		}
		if _, err := NewDeclared(noRunner, d, Options{}); err == nil {
			t.Errorf("%s: NewDeclared took it", name)
		}
	}
}

func TestDeclaredDefinition(t *testing.T) {
	d := Declared{
		Name: "probe", Description: "x", InputSchema: json.RawMessage(oneArgument), Paths: []string{"file"},
		Template: Template{Argv: []string{"ls", "{{file}}", "--x={{x}}"}},
	}
	factory, err := NewDeclared(runnerFunc(func(context.Context, Command) (Result, error) { return Result{}, nil }), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	def := factory().Definition()
	if def.Class != tools.ClassExecute || def.Runs != tools.PlaceSandbox || def.Timeout <= DefaultTimeout {
		t.Errorf("%+v", def)
	}
	raw := json.RawMessage(`{"file":"a","x":"it's; here"}`)
	if diff := cmp.Diff([]string{"a"}, def.Paths(raw)); diff != "" {
		t.Error(diff)
	}
	if got := def.Summary(raw); got != `ls a '--x=it'\''s; here'` {
		t.Errorf("summary %s", got)
	}
	if diff := cmp.Diff([]string{`ls a '--x=it'\''s; here'`}, def.Commands(raw)); diff != "" {
		t.Error(diff)
	}
}
