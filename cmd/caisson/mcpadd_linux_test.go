package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMCPAddTo tests that a client's file is extended once, with the old one kept, and that
// one which can't be extended stays as it is.
func TestMCPAddTo(t *testing.T) {
	h := newHostile(t)
	file := filepath.Join(h.home, ".cursor", "mcp.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const before = `{"mcpServers": {"other": {"command": "x"}}}`
	write(before)
	add := []string{"mcp", "add-to", "cursor", "--workspace", h.dir}
	if got, out, log := h.run(t, nil, add...); got != 0 || !strings.Contains(out, `"mcpServers"`) || read(file) != before {
		t.Errorf("printed with status %d: %s%s", got, out, log)
	}
	for range 2 {
		if got, _, log := h.run(t, nil, append(add, "--write", "--", "--mode", "overlay")...); got != 0 {
			t.Errorf("written with status %d: %s", got, log)
		}
	}
	after := read(file)
	if !strings.Contains(after, `"other": {"command": "x"}`) || strings.Count(after, `"caisson"`) != 1 || !strings.Contains(after, `"overlay"`) || !strings.Contains(after, h.dir) {
		t.Errorf("the file is %s", after)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if kept := read(file + ".bak"); kept != before {
		t.Errorf("kept %s", kept)
	}
	if _, err := os.Stat(file + ".bak.1"); err == nil {
		t.Error("a second backup of nothing")
	}
	if got, _, _ := h.run(t, nil, append(add, "--write")...); got != exitFailed || read(file) != after {
		t.Errorf("another server of the name: status %d", got)
	}
	write("// mine\n" + before)
	if got, _, _ := h.run(t, nil, append(add, "--write")...); got != exitFailed || read(file) != "// mine\n"+before {
		t.Errorf("comments: status %d, %s", got, read(file))
	}
	if got, _, _ := h.run(t, nil, "mcp", "add-to", "nonesuch"); got != exitUsage {
		t.Errorf("an unknown client: status %d", got)
	}
	if got, out, _ := h.run(t, nil, "mcp", "add-to", "--list"); got != 0 || !strings.Contains(out, file) {
		t.Errorf("list: status %d, %s", got, out)
	}
}
