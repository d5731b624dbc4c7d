package dispatch

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// TestUnknownToolsAreTranslated: another program's tool name is answered with our
// tool, if it is offered. The control is a name that is like none.
func TestUnknownToolsAreTranslated(t *testing.T) {
	var own []fakeTool
	for name, class := range map[string]tools.Class{
		"shell": tools.ClassExecute, "read_file": tools.ClassRead, "write_file": tools.ClassWrite, "patch_file": tools.ClassWrite, "grep": tools.ClassRead, "delete_file": tools.ClassWrite, "list_dir": tools.ClassRead,
	} {
		own = append(own, fakeTool{def: testDefinition(name, class)})
	}
	off := testDefinition("fetch", tools.ClassRead)
	off.EnabledByDefault = false
	own = append(own, fakeTool{def: off})
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "sandboxed")}, own...)
	for name, want := range map[string]string{
		"bash": `Use "shell" instead.`, "Bash": `Use "shell" instead.`, "run_terminal_cmd": `Use "shell" instead.`, "Read": `Use "read_file" instead.`, "Edit": `Use "patch_file" instead.`,
		"str_replace_editor": `Use "patch_file", "read_file", "write_file" instead.`, "str_replace_based_edit_tool": `Use "patch_file", "read_file", "write_file" instead.`,
		"ReadFile": `Use "read_file" instead.`, "Write": `Use "write_file" instead.`, "LS": `Use "list_dir" instead.`, "rm": `Use "delete_file" instead.`, "Grep": `Use "grep" instead.`,
		"web_fetch": "", "Glob": "", "teleport": "", "": "",
	} {
		text := blocksText(roundOK(t, d, call("a", name, `{}`))[0].Content)
		if !strings.Contains(text, "There is no tool ") || !strings.Contains(text, "The tools are: ") {
			t.Errorf("%s: %q", name, text)
		}
		if want == "" && strings.Contains(text, " instead") || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
	}
}
