package runner

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

const toolsPage = "../docs/tools.md"

// TestToolsPage compares the tables of docs/tools.md with the definitions; -update writes them.
func TestToolsPage(t *testing.T) {
	defs, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(toolsPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for name, table := range map[string]string{"tools": toolsTable(t, defs), "aliases": aliasTable(defs)} {
		begin, end := "<!-- "+name+": written by go test ./runner -run ToolsPage -update -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(page, begin)
		old, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no table %s", toolsPage, name)
		}
		if *update {
			page = before + begin + table + end + after
			continue
		}
		if diff := cmp.Diff(table, old); diff != "" {
			t.Errorf("table %s of %s (-is +says):\n%s", name, toolsPage, diff)
		}
	}
	if *update {
		if err := os.WriteFile(toolsPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func toolsTable(t *testing.T, defs []tools.Definition) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| tool | class | runs | arguments |\n|---|---|---|---|\n")
	for _, def := range defs {
		var schema struct {
			Properties map[string]any `json:"properties"`
			Required   []string       `json:"required"`
		}
		if err := json.Unmarshal(def.InputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		var arguments []string
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
			if !slices.Contains(schema.Required, name) {
				arguments = append(arguments, name+"?")
			}
		}
		arguments = append(slices.Clone(schema.Required), arguments...)
		name := "`" + string(def.Name) + "`"
		if !def.EnabledByDefault {
			name += " (off)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, def.Class, def.Runs, strings.Join(arguments, ", "))
	}
	return b.String()
}

func aliasTable(defs []tools.Definition) string {
	var b strings.Builder
	b.WriteString("| tool | argument | also |\n|---|---|---|\n")
	for _, def := range defs {
		others := map[string][]string{}
		for _, alias := range slices.Sorted(maps.Keys(def.Aliases)) {
			others[def.Aliases[alias]] = append(others[def.Aliases[alias]], "`"+alias+"`")
		}
		for _, argument := range slices.Sorted(maps.Keys(others)) {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", def.Name, argument, strings.Join(others[argument], ", "))
		}
	}
	return b.String()
}

var update = flag.Bool("update", false, "write the tables of docs/tools.md")
