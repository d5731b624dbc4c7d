package tools

import (
	"strings"
	"testing"
)

// TestUnknownToolsAreTranslated: a name of another program's tool is answered with
// the tool of ours, where it is offered. The control is a name that is like none.
func TestUnknownToolsAreTranslated(t *testing.T) {
	var own []fakeTool
	for name, class := range map[string]Class{
		"shell": ClassExecute, "read_file": ClassRead, "write_file": ClassWrite, "patch_file": ClassWrite, "grep": ClassRead, "delete_file": ClassWrite, "list_dir": ClassRead,
	} {
		own = append(own, fakeTool{def: testDefinition(name, class)})
	}
	off := testDefinition("fetch", ClassRead)
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
	for foreign, names := range foreignTools {
		if foreign != plainName(foreign) || len(names) == 0 {
			t.Errorf("%q is never found", foreign)
		}
	}
}
