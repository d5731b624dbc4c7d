package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

const goodTools = `
memory_tools: true
tools:
  go_test:
    description: Runs the tests of one package.
    input_schema:
      type: object
      properties:
        package: {type: string, description: "such as ./loop"}
        run: {type: string}
      required: [package]
    command: [go, test, "-run={{run}}", --, "{{package}}"]
    cwd: src
    timeout: 5m
    paths: [package]
  count_lines:
    description: Counts.
    script: 'wc -l <"${ARG_X:-/dev/null}"'
`

func TestDeclaredTools(t *testing.T) {
	c, err := Load(Options{Path: write(t, "config.yaml", goodTools)})
	if err != nil {
		t.Fatal(err)
	}
	got := c.Tools.Declared()
	if len(got) != 2 || got[0].Name != "count_lines" || got[1].Name != "go_test" || c.MemoryTools == nil || !*c.MemoryTools {
		t.Fatalf("got %+v", got)
	}
	if got[0].Template.Script != `wc -l <"${ARG_X:-/dev/null}"` {
		t.Errorf("the script was changed: %s", got[0].Template.Script)
	}
	d := got[1]
	if d.Dir != "src" || d.Timeout != 5*time.Minute || d.Class != "" {
		t.Errorf("%+v", d)
	}
	if diff := cmp.Diff([]string{"go", "test", "-run={{run}}", "--", "{{package}}"}, d.Template.Argv); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(string(d.InputSchema), `"required":["package"]`) {
		t.Errorf("schema %s", d.InputSchema)
	}
}

func TestToolsOfAProfile(t *testing.T) {
	text := goodTools + "profiles:\n  ci:\n    tools:\n      count_lines: {description: Other., command: [wc]}\n      third: {description: Third., command: [ls]}\n"
	c, err := Load(Options{Path: write(t, "config.yaml", text), Profile: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	var names []tools.Name
	for _, d := range c.Tools.Declared() {
		names = append(names, d.Name)
	}
	if diff := cmp.Diff([]tools.Name{"count_lines", "go_test", "third"}, names); diff != "" || c.Tools.Declared()[0].Description != "Other." {
		t.Error(diff, c.Tools.Declared()[0])
	}
}

func TestBadToolsAreRefusedWithTheirPlace(t *testing.T) {
	const schema = "    input_schema: {type: object, properties: {x: {type: string}}}\n"
	checkFaults(t, map[string]fault{
		"no description":    {"tools:\n  probe:\n    command: [ls]\n", 2, 3, "description is missing"},
		"no command":        {"tools:\n  probe:\n    description: x\n", 2, 3, "either command"},
		"a bad name":        {"tools:\n  read__it:\n    description: x\n    command: [ls]\n", 2, 3, "must be snake_case"},
		"a server's name":   {"tools:\n  a/b:\n    description: x\n    command: [ls]\n", 2, 3, "not a name for a declared tool"},
		"a built-in's name": {"tools:\n  read_file:\n    description: x\n    command: [ls]\n", 2, 3, "is a tool of Caisson's own"},
		"twice":             {"tools:\n  probe: {description: x, command: [ls]}\n  probe: {description: x, command: [ls]}\n", 3, 3, "already defined"},
		"an unknown key":    {"tools:\n  probe:\n    description: x\n    command: [ls]\n    privileged: true\n", 5, 5, `unknown field "privileged"`},
		"unknown argument":  {"tools:\n  probe:\n    description: x\n" + schema + "    command: [ls, '{{y}}']\n", 5, 5, "{{y}} names no argument"},
		"the program":       {"tools:\n  probe:\n    description: x\n" + schema + "    command: ['{{x}}']\n", 5, 5, "the program can't be an argument"},
		"spliced":           {"tools:\n  probe:\n    description: x\n" + schema + "    script: 'rm {{x}}'\n", 5, 5, `write "$ARG_X" for {{x}}`},
		"a class":           {"tools:\n  probe:\n    description: x\n    class: read\n    command: [ls]\n", 4, 5, `class is "read"`},
		"outside":           {"tools:\n  probe:\n    description: x\n    cwd: ../..\n    command: [ls]\n", 4, 5, "inside the workspace"},
		"a time":            {"tools:\n  probe:\n    description: x\n    timeout: 5\n    command: [ls]\n", 4, 14, "invalid duration"},
		"paths":             {"tools:\n  probe:\n    description: x\n" + schema + "    paths: [z]\n    command: [ls]\n", 5, 5, `"z" is no argument`},
		"a schema's ref":    {"tools:\n  probe:\n    description: x\n    command: [ls]\n    input_schema: {type: object, properties: {x: {type: string, $ref: '#'}}}\n", 5, 5, "$ref"},
		"no schema":         {"tools:\n  probe:\n    description: x\n    command: [ls]\n    input_schema: [1]\n", 5, 19, "keys with their values"},
		"a list":            {"tools: [probe]\n", 1, 8, "declared by their names"},
		"in a profile":      {"profiles:\n  ci:\n    tools:\n      probe: {description: x}\n", 4, 7, "either command"},
	})
}

func TestWorkspacesDeclareNoTools(t *testing.T) {
	if _, ok := mapOf(t, "project")["tools"]; ok {
		t.Error("a project's file has the key tools")
	}
	if _, ok := mapOf(t, "user")["tools"]; !ok {
		t.Error("control: the user's file has no key tools")
	}
}

func mapOf(t *testing.T, schema string) map[string]any {
	t.Helper()
	s, err := Schema(schema)
	if err != nil {
		t.Fatal(err)
	}
	properties, _ := s["properties"].(map[string]any)
	return properties
}
