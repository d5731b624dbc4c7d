package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMCPAddTo: a client's file is extended once and the old one kept. A file that
// can't be extended stays unchanged.
func TestMCPAddTo(t *testing.T) {
	h := newHostile(t)
	file := filepath.Join(h.home, ".cursor", "mcp.json")
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	write := func(text string) {
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		must(t, err)
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
	project := []string{"mcp", "add-to", "vscode", "--workspace", h.dir, "--write"}
	outside, dir := t.TempDir(), filepath.Join(h.dir, ".vscode")
	for _, link := range []struct{ from, to string }{
		{dir, outside}, {dir, "elsewhere"}, {filepath.Join(dir, "mcp.json"), filepath.Join(outside, "mcp.json")},
	} {
		must(t, errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Dir(link.from), 0o755), os.Symlink(link.to, link.from)))
		if got, _, log := h.run(t, nil, project...); got != exitFailed || !strings.Contains(log, "is a symlink") {
			t.Errorf("through %s: status %d: %s", link.from, got, log)
		}
	}
	if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
		t.Errorf("outside of the workspace: %v, %v", made, err)
	}
	must(t, os.RemoveAll(dir))
	if got, _, log := h.run(t, nil, project...); got != 0 || !strings.Contains(read(filepath.Join(dir, "mcp.json")), `"caisson"`) {
		t.Errorf("without a symlink: status %d: %s", got, log)
	}
	link := filepath.Join(t.TempDir(), "mcp.json")
	write(before)
	must(t, errors.Join(os.Rename(file, link), os.Symlink(link, file)))
	if got, _, log := h.run(t, nil, append(add, "--write")...); got != 0 || !strings.Contains(read(link), `"caisson"`) {
		t.Errorf("a symlink of the user: status %d: %s", got, log)
	}
	if got, _, _ := h.run(t, nil, "mcp", "add-to", "nonesuch"); got != exitUsage {
		t.Errorf("an unknown client: status %d", got)
	}
	if got, out, _ := h.run(t, nil, "mcp", "add-to", "--list"); got != 0 || !strings.Contains(out, file) {
		t.Errorf("list: status %d, %s", got, out)
	}
}
