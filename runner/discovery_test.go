//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// A model finds the tool of a server, calls it, and has it again when the session goes on.
func TestModelFindsTools(t *testing.T) {
	b, _ := newServerBench(t, inSandbox("one"), inSandbox("two"))
	const turns = `  - calls: [{tool: one__echo, input: {text: early}}]
  - calls: [{tool: search_tools, input: {query: echo, server: "mcp:one"}}]
  - calls: [{tool: one__echo, input: {text: hello}}, {tool: two__echo, input: {text: hello}}]
  - text: Done.
`
	b.opts.Profiles = []loop.Profile{{Model: player(t, turns)}}
	r, records := b.run(t.Context())
	if r.Answer != "Done." {
		t.Fatalf("%+v", r)
	}
	activated := of[record.ToolActivated](t, records)
	if len(activated) != 1 || activated[0].Name != "one/echo" {
		t.Errorf("activated %+v", activated)
	}
	var called []tools.Name
	for _, p := range of[record.ToolCalled](t, records) {
		called = append(called, p.Name)
	}
	if diff := cmp.Diff([]tools.Name{"search_tools", "one/echo"}, called); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	for _, p := range of[record.ToolFailed](t, records) {
		if p.Reason != "not_loaded" && p.Reason != "unknown_tool" {
			t.Errorf("failed %+v", p)
		}
	}

	again := b.reopen(turns + "  - calls: [{tool: one__echo, input: {text: again}}]\n  - text: Done again.\n")
	again.opts.Task = "once more"
	_, records = again.run(t.Context())
	var last record.ToolCompleted
	for _, p := range of[record.ToolCompleted](t, records) {
		last = p
	}
	if n := len(of[record.ToolCompleted](t, records)); n != 3 || last.Name != "one/echo" || !last.Success {
		t.Errorf("%d calls completed, the last %+v; failed %+v", n, last, of[record.ToolFailed](t, records))
	}
	if n := len(of[record.ToolActivated](t, records)); n != 1 {
		t.Errorf("%d activations", n)
	}
}

// A server that never answers keeps no other one's tools from being found.
func TestSearchBesideAServerThatHangs(t *testing.T) {
	hanging := inSandbox("hanging")
	hanging.Args = []string{"hang"}
	b, _ := newServerBench(t, inSandbox("one"), hanging)
	b.backend.Scripts["hang"] = func(ctx context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		select {
		case <-ctx.Done():
		case <-box.Done():
		}
		return sandbox.ExitStatus{Code: -1, Signal: 9}
	}
	s := b.opened()
	for _, query := range []string{`{"query":"echo","server":"one"}`, `{"query":"servers"}`} {
		r, err := s.Call(t.Context(), "search_tools", json.RawMessage(query))
		text := boundary.ResultText(r.Content)
		if err != nil || r.IsError || !strings.Contains(text, "one__echo: Echo. (text)") && !strings.Contains(text, "- hanging: 0 tools (it is starting)\n- one: 1 tools") {
			t.Errorf("%s: %q, %v", query, text, err)
		}
	}
	s.Close()
}

// Rules about tools of configured servers are not reported as rules about nothing.
func TestRulesAboutServers(t *testing.T) {
	b, _ := newServerBench(t, inSandbox("one"))
	b.opts.Policy.Tools["one__nothing"], b.opts.Policy.Tools["other/*"] = policy.ModeDeny, policy.ModeDeny
	s := b.opened()
	var warnings []string
	for _, w := range of[record.Warning](t, b.records(s.Close())) {
		warnings = append(warnings, w.Message)
	}
	if diff := cmp.Diff([]string{`the policy's rule for "other/*" matches no tool`}, warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
