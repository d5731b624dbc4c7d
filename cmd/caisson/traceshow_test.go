package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// TestTraceShowBreaksAtBlanks: on a terminal, lines are not broken within words, and
// continued rows are below the text. Elsewhere lines are whole.
func TestTraceShowBreaksAtBlanks(t *testing.T) {
	sentence := strings.TrimSpace(strings.Repeat("sandboxed-execution records everything ", 8))
	w := newWorld(t, "  - calls: [{tool: shell, input: {command: 'echo "+sentence+"; false'}}]\n  - text: "+sentence+"\n")
	if status := w.run("--policy", "ci"); status != 0 {
		t.Fatalf("run: status %d", status)
	}
	show := func(columns int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		d := w.app
		d.stdout, d.terminal, d.size = &out, func(any) bool { return columns > 0 }, func() (int, int) { return columns, 24 }
		if status := run(context.Background(), append([]string{"trace", "show"}, append(args, "last")...), append([]string{"NO_COLOR=1"}, w.env...), d); status != 0 {
			t.Fatalf("trace show: status %d\n%s", status, out.String())
		}
		return out.String()
	}
	whole, broken := show(0), show(80)
	if !strings.Contains(whole, "\n              "+sentence+"\n") {
		t.Errorf("without a terminal the sentence is not whole:\n%s", whole)
	}
	for line := range strings.SplitSeq(broken, "\n") {
		if words := strings.Fields(line); ansi.StringWidth(line) >= 80 && len(words) > 1 {
			t.Errorf("a line has %d columns: %s", ansi.StringWidth(line), line)
		}
		if strings.HasPrefix(line, "sandboxed") || strings.HasPrefix(line, "records") {
			t.Errorf("a row begins before the text above it: %s", line)
		}
	}
	if !strings.Contains(whole, " · 2 model calls · 1 tool call\n") {
		t.Errorf("calls are not counted:\n%s", whole)
	}
	if strings.Join(strings.Fields(whole), " ") != strings.Join(strings.Fields(broken), " ") {
		t.Errorf("words differ:\n%s\n%s", whole, broken)
	}
	if kinds := show(80, "--kind", "session.created"); strings.Count(kinds, "\n") != 1 {
		t.Errorf("a record has several lines:\n%s", kinds)
	}
}
