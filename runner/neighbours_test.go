package runner

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// TestNeighboursAreWarnedOf: a session that begins while another is alive on its workspace is warned.
// The control is the first session.
func TestNeighboursAreWarnedOf(t *testing.T) {
	const script = "  - calls: [{tool: shell, input: {command: work}}]\n  - text: done\n"
	warned := func(records []record.Record, session string) bool {
		for _, w := range of[record.Warning](t, records) {
			if strings.Contains(w.Message, session) && strings.Contains(w.Message, "works on this workspace too") {
				return true
			}
		}
		return false
	}
	first := newBench(t, script)
	second := newBench(t, script)
	second.opts.Workspace = first.opts.Workspace
	folder, err := sessiondir.Create(filepath.Dir(filepath.Dir(first.opts.Dir.Path)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	second.opts.Dir = folder
	var during []record.Record
	first.backend.Scripts["work"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		_, during = second.run(t.Context())
		return sandbox.ExitStatus{}
	}
	second.backend.Scripts["work"] = fakesandbox.WriteText("ok\n")
	r, records := first.run(t.Context())
	if !warned(during, r.Session) || warned(records, "ses_") {
		t.Errorf("the second is warned: %v, the first: %v", warned(during, r.Session), warned(records, "ses_"))
	}
}
