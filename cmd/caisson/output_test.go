package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplacedOutputsEndTheRunWithAFailure: if another process replaces a file of -o or
// --patch-out during the run, the run fails with the reason, and the new file is not
// written. The control replaces nothing.
func TestReplacedOutputsEndTheRunWithAFailure(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount an overlay")
	}
	for _, flag := range []string{"-o", "--patch-out"} {
		for name, c := range map[string]struct {
			replace string
			fails   bool
		}{
			"control":               {"true", false},
			"removed":               {"rm out", true},
			"renamed over":          {"echo kept >new; mv new out", true},
			"symlink to a file":     {"ln -sf victim out", true},
			"directory moved":       {"mv ../outputs ../moved; mkdir ../outputs", true},
			"directory made a link": {"mv ../outputs ../moved; mkdir ../other; ln -s other ../outputs", true},
		} {
			t.Run(flag+" "+name, func(t *testing.T) {
				outputs := filepath.Join(t.TempDir(), "outputs")
				must(t, os.Mkdir(outputs, 0o755))
				victim := filepath.Join(outputs, "victim")
				must(t, os.WriteFile(victim, []byte("kept\n"), 0o644))
				w := newWorld(t, "  - calls: [{tool: shell, input: {command: 'echo made >made; cd "+outputs+"; "+c.replace+"'}}]\n  - text: the answer\n")
				out := filepath.Join(outputs, "out")
				status, _, errs := w.callTask("--policy", "ci", "--mode", "overlay", flag, out)
				if want := map[bool]int{true: exitFailed}[c.fails]; status != want {
					t.Errorf("status %d, want %d: %s", status, want, errs)
				}
				if c.fails && !strings.Contains(errs, "removed or replaced") {
					t.Errorf("the reason is not reported: %s", errs)
				}
				if text, err := os.ReadFile(out); !c.fails && (err != nil || len(text) == 0) || c.fails && len(text) > 0 && string(text) != "kept\n" {
					t.Errorf("%s holds %q, %v", out, text, err)
				}
				if text, err := os.ReadFile(victim); err == nil && string(text) != "kept\n" {
					t.Errorf("another file was written: %q", text)
				}
			})
		}
	}
}
