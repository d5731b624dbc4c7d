package dispatch

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// serverTool is a server's tool that describes itself.
func serverTool(class tools.Class, description string) fakeTool {
	def := testDefinition("srv/do_it", class)
	def.Description, def.FullSchema = description, true
	return fakeTool{def: def}
}

// Answers that outlast a call are bound to the definition: if the server changes
// it, an allowed tool is asked about again, and the question says why. A deny
// holds.
func TestAnswersAreBoundToDefinitions(t *testing.T) {
	ask := func(d approval.Decision) []string {
		end := []string{"called execute", "completed true"}
		if d == approval.DecisionDeny {
			end = []string{"failed user_denied"}
		}
		return append([]string{"requested", "resolved " + string(d) + " by user"}, end...)
	}
	const allow, deny = approval.DecisionAllow, approval.DecisionDeny
	for _, tt := range []struct {
		name   string
		mode   policy.Mode
		answer approval.Answer
		same   []string // the events of a second call
		redef  []string // and of a third one, after the change
		asked  bool     // that is reported as redefined
	}{
		{"session", policy.ModePrompt, approval.Answer{Decision: allow, Scope: approval.ScopeSession}, []string{"resolved allow by session", "called execute", "completed true"}, ask(allow), true},
		{"prompt_once", policy.ModePromptOnce, approval.Answer{Decision: allow, Scope: approval.ScopeOnce}, []string{"resolved allow by session", "called execute", "completed true"}, ask(allow), true},
		{"always", policy.ModePrompt, approval.Answer{Decision: allow, Scope: approval.ScopeAlways}, []string{"resolved allow by grant", "called execute", "completed true"}, ask(allow), true},
		{"once", policy.ModePrompt, approval.Answer{Decision: allow, Scope: approval.ScopeOnce}, ask(allow), ask(allow), false},
		{"deny for the session", policy.ModePrompt, approval.Answer{Decision: deny, Scope: approval.ScopeSession}, []string{"resolved deny by session", "failed user_denied"}, []string{"resolved deny by session", "failed user_denied"}, false},
		{"deny for good", policy.ModePrompt, approval.Answer{Decision: deny, Scope: approval.ScopeAlways}, []string{"resolved deny by grant", "failed user_denied"}, []string{"resolved deny by grant", "failed user_denied"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recorder{}
			var last approval.Confirmation
			d := newDispatcher(t, rec, Options{
				Policy: policy.Policy{Tools: map[string]policy.Mode{"srv__*": tt.mode}}, Workspace: "/p", Grants: approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json")),
				Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
					last = c
					return tt.answer, nil
				}),
			}, serverTool(tools.ClassExecute, "first"))
			roundOK(t, d, call("a", "srv__do_it", `{}`))
			wantEvents(t, rec, "a", ask(tt.answer.Decision)...)
			if want := []approval.Scope{approval.ScopeOnce, approval.ScopeSession, approval.ScopeAlways}; !slices.Equal(last.Scopes, want) || last.Redefined || last.Definition == "" {
				t.Errorf("the first question is %+v", last)
			}
			before := last.Definition
			roundOK(t, d, call("b", "srv/do_it", `{}`))
			wantEvents(t, rec, "b", tt.same...)

			d.Unregister("srv/do_it")
			if err := d.Register(serverTool(tools.ClassExecute, "second").factory()); err != nil {
				t.Fatal(err)
			}
			last = approval.Confirmation{}
			roundOK(t, d, call("c", "srv/do_it", `{}`))
			wantEvents(t, rec, "c", tt.redef...)
			if last.Redefined != tt.asked || last.Definition == before {
				t.Errorf("the question after the change is %+v", last)
			}
			// Now the new definition is allowed.
			roundOK(t, d, call("d", "srv/do_it", `{}`))
			wantEvents(t, rec, "d", tt.same...)
		})
	}
}

// A question about a server's tool has its server, the safe description, and the
// exact input.
func TestConfirmationOfAServersTool(t *testing.T) {
	const input = `{"text":"<b>\u202e"}`
	var shown approval.Confirmation
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{
		Policy: preset(t, "sandboxed"), Workspace: "/p",
		Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			shown = c
			return approval.Answer{}, nil
		}),
	}, serverTool(tools.ClassNetwork, "Reads.\x1b[2J\U000e0041 "+strings.Repeat("long ", 200_000)))
	roundOK(t, d, call("a", "srv__do_it", input))
	if shown.Name != "srv/do_it" || !strings.HasPrefix(shown.Description, `Reads.\x1b[2J\U000e0041 long`) || len(shown.Description) > 3<<10 {
		t.Errorf("name %s, description %.100q of %d bytes", shown.Name, shown.Description, len(shown.Description))
	}
	if string(shown.Exact) != "{\"text\":\"<b>\u202e\"}" || shown.Input != `{"text":"<b>\u202e"}` || !shown.Hidden {
		t.Errorf("exact %s, shown %s", shown.Exact, shown.Input)
	}
	if !slices.ContainsFunc(shown.Notices, func(n string) bool { return strings.Contains(n, "description holds characters") }) {
		t.Errorf("notices %q", shown.Notices)
	}
	// The control: a tool of our own has no description.
	own := fakeTool{def: testDefinition("own", tools.ClassNetwork)}
	if err := d.Register(own.factory()); err != nil {
		t.Fatal(err)
	}
	roundOK(t, d, call("b", "own", `{}`))
	if shown.Description != "" || shown.Definition != "" {
		t.Errorf("our own tool is described as %q", shown.Description)
	}
}

// The answer to an unknown name is small, however many tools there are.
func TestUnknownToolAmongMany(t *testing.T) {
	own := []fakeTool{readTool("read_file", nil), readTool("search_tools", nil)}
	for i := range 2000 {
		tool := serverTool(tools.ClassNetwork, "Does it.")
		tool.def.Name = tools.Name(fmt.Sprintf("server-%d/create_page_%d", i%50, i))
		own = append(own, tool)
	}
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "default")}, own...)
	for name, want := range map[string]string{
		"server-7__create_pge_1007": `Did you mean "server-7__create_page_1007"`,
		"readfile":                  `Use "read_file" instead.`,
		"teleport":                  "The tools are: read_file, search_tools, ",
		strings.Repeat("x", 1<<20):  "and 1962 more. search_tools finds and loads tools of servers.",
	} {
		text := blocksText(roundOK(t, d, call("a", name, `{}`))[0].Content)
		if !strings.Contains(text, want) || len(text) > 4<<10 {
			t.Errorf("%.50s: %d bytes, %.200q", name, len(text), text)
		}
	}
}

// Tools come and go while rounds run: every call ends once, and the offered tools
// are the registered ones.
func TestRegisterWhileRoundsRun(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: policy.Policy{Tools: map[string]policy.Mode{"srv/*": policy.ModeAuto}}})
	factory := serverTool(tools.ClassNetwork, "Does it.").factory()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			if err := d.Register(factory); err != nil {
				t.Error(err)
			}
			d.Unregister("srv__do_it")
		}
	}()
	var calls []tools.Call
	for i := range 200 {
		round := []tools.Call{call(fmt.Sprintf("a%d", i), "srv/do_it", `{}`), call(fmt.Sprintf("b%d", i), "srv__do_it", `{}`)}
		for _, r := range roundOK(t, d, round...) {
			if r.IsError && r.Class != tools.ErrorNotFound && r.Class != tools.ErrorExecution {
				t.Errorf("ends with %+v", r)
			}
		}
		calls = append(calls, round...)
		_ = d.Definitions()
	}
	<-done
	checkTerminals(t, rec, calls)
	if defs := d.Definitions(); len(defs) != 0 {
		t.Errorf("%d tools are offered", len(defs))
	}
	if diff := cmp.Diff([]string(nil), d.UnmatchedRules("srv")); diff != "" {
		t.Errorf("a rule about a server is unmatched: %s", diff)
	}
}
