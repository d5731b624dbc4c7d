package runner

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestToolsFromGoAndDeclaredToolsAreEquals: a tool of [ToolOptions].Tools and a declared one with
// the same definition are listed, decided and recorded alike.
func TestToolsFromGoAndDeclaredToolsAreEquals(t *testing.T) {
	declared := shell.Declared{
		Name: "srv/do_it", Description: "Does it.", InputSchema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`),
		Template: shell.Template{Script: "do it"}, Paths: []string{"path"},
	}
	definitions := func(o ToolOptions) []tools.Definition {
		t.Helper()
		all, err := DefinitionsOf(o, 0)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	listed := definitions(ToolOptions{Declared: []shell.Declared{declared}})
	def := listed[slices.IndexFunc(listed, func(d tools.Definition) bool { return d.Name == declared.Name })]
	fromGo := tools.NewFunc(def, func(context.Context, struct{}) (string, error) { return "done", nil })
	kinds := map[string]ToolOptions{"declared": {Declared: []shell.Declared{declared}}, "from Go": {Tools: []tools.Factory{fromGo}}}

	type decided struct {
		Offered []record.OfferedTool
		Kinds   []record.Kind
		Called  []record.ToolCalled
		Invalid []record.ToolInputInvalid
		Failed  []record.ToolFailed
		Denials []record.Denial
	}
	decide := func(o ToolOptions, p policy.Policy) decided {
		t.Helper()
		b := newBench(t, "")
		b.opts.ToolOptions, b.opts.Policy = o, p
		b.backend.Scripts["do it"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
			return sandbox.ExitStatus{}
		}
		s := b.opened()
		for _, input := range []string{`{"path":"a"}`, `{"path":"../a"}`, `{"path":1}`} {
			if _, err := s.Call(t.Context(), declared.Name, json.RawMessage(input)); err != nil {
				t.Fatal(err)
			}
		}
		r := s.Close()
		var got decided
		records := b.records(r)
		for _, rec := range records {
			if rec.Kind != record.KindSandboxStarted { // the function runs nothing in it
				got.Kinds = append(got.Kinds, rec.Kind)
			}
		}
		got.Offered, got.Called = of[record.SessionCreated](t, records)[0].Tools, of[record.ToolCalled](t, records)
		got.Invalid, got.Failed, got.Denials = of[record.ToolInputInvalid](t, records), of[record.ToolFailed](t, records), r.Denials
		for i := range got.Called {
			got.Called[i].CallID = ""
		}
		for i := range got.Invalid {
			got.Invalid[i].CallID = ""
		}
		for i := range got.Failed {
			got.Failed[i].CallID, got.Failed[i].ErrorID, got.Failed[i].LatencyMS = "", "", 0
		}
		for i := range got.Denials {
			got.Denials[i].CallID = ""
		}
		return got
	}
	for name, tt := range map[string]struct {
		rules map[string]policy.Mode
		calls int
	}{
		"allowed":            {rules: map[string]policy.Mode{"srv__*": policy.ModeAuto}, calls: 1},
		"by default":         {},
		"by name":            {rules: map[string]policy.Mode{"srv/do_it": policy.ModeDeny}},
		"by server":          {rules: map[string]policy.Mode{"srv/*": policy.ModeDeny}},
		"as what it acts":    {rules: map[string]policy.Mode{"shell": policy.ModeDeny}},
		"with no one to ask": {rules: map[string]policy.Mode{"srv/do_it": policy.ModePrompt}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Preset("ci")
			if err != nil {
				t.Fatal(err)
			}
			p.Tools = tt.rules
			a, b := decide(kinds["declared"], p), decide(kinds["from Go"], p)
			if diff := cmp.Diff(a, b); diff != "" {
				t.Errorf("(-declared +from Go):\n%s", diff)
			}
			if len(a.Called) != tt.calls || len(a.Offered) == 0 {
				t.Errorf("called %d times, want %d; offered %v", len(a.Called), tt.calls, a.Offered)
			}
		})
	}
	same := cmp.Comparer(func(a, b tools.Definition) bool {
		return a.Name == b.Name && a.Class == b.Class && a.Runs == b.Runs && a.EnabledByDefault == b.EnabledByDefault && a.Timeout == b.Timeout && a.ResultBytes == b.ResultBytes
	})
	if diff := cmp.Diff(listed, definitions(kinds["from Go"]), same); diff != "" {
		t.Errorf("listed (-declared +from Go):\n%s", diff)
	}
}
