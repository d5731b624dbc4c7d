package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestNobodyToAsk(t *testing.T) {
	unreachable := approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{}, errors.New("no terminal")
	})
	for name, ask := range map[string]approval.Approver{"no approver": nil, "approver that reaches nobody": unreachable} {
		t.Run(name+", deny", func(t *testing.T) {
			rec := &recorder{}
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)}, readTool("read_file", nil))
			results := roundOK(t, d, call("a", "shell", `{}`), call("b", "read_file", `{}`), call("c", "shell", `{}`))
			wantText(t, results[0], true, `Tool "shell" (class execute) needs an approval, and no one can be asked in this session.`)
			wantText(t, results[1], false, "done")
			wantEvents(t, rec, "a", "requested", "resolved deny by on_prompt", "failed permission_denied")
			if f := find[Failed](rec)[0]; f.Reason != "no_approver" || d.Unapproved() != 2 {
				t.Errorf("reason %q, %d unapproved", f.Reason, d.Unapproved())
			}
		})
		t.Run(name+", fail", func(t *testing.T) {
			rec := &recorder{}
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask), OnPrompt: OnPromptFail}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			calls := []tools.Call{call("a", "shell", `{}`), call("b", "shell", `{}`)}
			results, err := d.Round(t.Context(), calls)
			if !errors.Is(err, ErrNoApprover) || len(results) != 2 || len(find[Called](rec)) != 0 {
				t.Errorf("round ends with %v, %d results, called %v", err, len(results), find[Called](rec))
			}
			checkTerminals(t, rec, calls)
		})
		t.Run(name+", allow", func(t *testing.T) {
			rec := &recorder{}
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask), OnPrompt: OnPromptAllow}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			wantText(t, roundOK(t, d, call("a", "shell", `{}`))[0], false, "done")
			wantEvents(t, rec, "a", "requested", "resolved allow by on_prompt", "called execute", "completed true")
		})
	}
}

// With fail nothing of the round runs, not even calls that need no answer.
func TestFailStopsTheWholeRound(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), OnPrompt: OnPromptFail}, fakeTool{def: testDefinition("shell", tools.ClassExecute)}, readTool("read_file", nil))
	results, err := d.Round(t.Context(), []tools.Call{call("a", "read_file", `{}`), call("b", "shell", `{}`)})
	if !errors.Is(err, ErrNoApprover) || len(find[Called](rec)) != 0 {
		t.Errorf("round ends with %v, called %v", err, find[Called](rec))
	}
	wantText(t, results[0], true, "Cancelled: the run has ended.")
}

func TestPromptsOfARoundAreShownTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		answers := map[string]chan approval.Decision{"a": make(chan approval.Decision, 1), "c": make(chan approval.Decision, 1)}
		ask := approver(func(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
			select {
			case d := <-answers[c.CallID]:
				return approval.Answer{Decision: d, Scope: approval.ScopeOnce}, nil
			case <-ctx.Done():
				return approval.Answer{}, context.Cause(ctx)
			}
		})
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)},
			fakeTool{def: testDefinition("write_file", tools.ClassWrite)}, readTool("read_file", nil))
		go func() {
			synctest.Wait()
			// Both are shown, and calls that need no answer run. A read of a path
			// whose write is asked about waits.
			want := []string{"a requested", "b called read", "b completed true", "c requested"}
			var got []string
			for _, ev := range rec.all() {
				id, text := brief(ev)
				got = append(got, id+" "+text)
			}
			less := func(list []string) map[string]bool {
				m := map[string]bool{}
				for _, s := range list {
					m[s] = true
				}
				return m
			}
			if diff := cmp.Diff(less(want), less(got)); diff != "" {
				t.Errorf("before any answer (-want +got):\n%s", diff)
			}
			answers["c"] <- approval.DecisionDeny
			synctest.Wait()
			answers["a"] <- approval.DecisionAllow
		}()
		results := roundOK(t, d, call("a", "write_file", `{"path":"x"}`), call("b", "read_file", `{"path":"y"}`),
			call("c", "write_file", `{"path":"z"}`), call("e", "read_file", `{"path":"x"}`))
		for i, class := range []tools.ErrorClass{"", "", tools.ErrorUserDenied, ""} {
			if results[i].Class != class {
				t.Errorf("call %d ends with %q, want %q", i, results[i].Class, class)
			}
		}
	})
}

func TestPromptOnce(t *testing.T) {
	for _, decision := range []approval.Decision{approval.DecisionAllow, approval.DecisionDeny} {
		rec := &recorder{}
		rules := preset(t, "default")
		rules.Tools = map[string]policy.Mode{"shell": policy.ModePromptOnce}
		var mu sync.Mutex
		asked := 0
		d := newDispatcher(t, rec, Options{Policy: rules, Broker: brokerFunc(func(context.Context, approval.Confirmation) (approval.Answer, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return approval.Answer{Decision: decision, Scope: approval.ScopeOnce}, nil
		})}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		results := roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`))
		results = append(results, roundOK(t, d, call("c", "shell", `{}`))...)
		if asked != 1 {
			t.Errorf("asked %d times, want once for the session", asked)
		}
		for _, r := range results {
			if r.IsError != (decision == approval.DecisionDeny) {
				t.Errorf("after %s, call %s gives %+v", decision, r.CallID, r)
			}
		}
		if got := rec.of("b")[0]; got != fmt.Sprintf("resolved %s by session", decision) {
			t.Errorf("the second call of the round begins with %q", got)
		}
		if got := find[ConfirmationResolved](rec)[0]; got.Scope != approval.ScopeSession {
			t.Errorf("the answer is recorded at scope %q", got.Scope)
		}
	}
}

// An answer for the session also answers the other questions about the tool that
// are already shown.
func TestSessionAnswerSettlesSiblings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		ask := approver(func(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
			if c.CallID == "b" {
				time.Sleep(time.Second)
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, nil
			}
			<-ctx.Done()
			return approval.Answer{}, context.Cause(ctx)
		})
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		start := time.Now()
		for _, r := range roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`), call("c", "shell", `{}`)) {
			wantText(t, r, false, "done")
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		wantEvents(t, rec, "a", "requested", "resolved allow by session", "called execute", "completed true")
	})
}

func TestCancelEndsAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		stubborn := make(chan struct{})
		ask := approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
			<-stubborn // does not even look at its context
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
		})
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		time.AfterFunc(time.Second, func() { d.Cancel(errors.New("the user cancelled")) })
		r := roundOK(t, d, call("a", "shell", `{}`))[0]
		wantText(t, r, true, "Cancelled.")
		wantEvents(t, rec, "a", "requested", "resolved deny by cancel", "failed cancelled")
		close(stubborn)
		synctest.Wait()
		wantEvents(t, rec, "a", "requested", "resolved deny by cancel", "failed cancelled")
	})
}

func TestApproverThatMisbehaves(t *testing.T) {
	for name, ask := range map[string]approver{
		"panics":            func(context.Context, approval.Confirmation) (approval.Answer, error) { panic("boom") },
		"answers nothing":   answering("", ""),
		"answers a timeout": answering(approval.DecisionTimeout, approval.ScopeSession),
		"answers yes":       answering("yes", approval.ScopeAlways),
	} {
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		if r := roundOK(t, d, call("a", "shell", `{}`))[0]; !r.IsError || len(find[Called](rec)) != 0 {
			t.Errorf("an approver that %s lets the call run: %+v", name, r)
		}
		if name != "panics" {
			wantEvents(t, rec, "a", "requested", "resolved deny by user", "failed user_denied")
		}
	}
}

// fileTool writes one file of a map, with or without a projection. Like the file
// tools, it refuses changes that were not shown.
func fileTool(files map[string]string, projects bool) fakeTool {
	tool := fakeTool{def: testDefinition("write_file", tools.ClassWrite)}
	content := func(path string) string {
		if text, ok := files[path]; ok {
			return hashInput([]byte(text))
		}
		return "absent"
	}
	tool.execute = func(_ context.Context, c *tools.Call) (tools.Output, error) {
		var in struct{ Path, Text string }
		if err := json.Unmarshal(c.Input, &in); err != nil {
			return tools.Output{}, err
		}
		if c.Projected != "" && c.Projected != content(in.Path) {
			return tools.Output{}, &tools.Error{Class: tools.ErrorExecution, Reason: "conflict", Message: "changed", Visible: true}
		}
		files[in.Path] = in.Text
		return textOutput("written"), nil
	}
	if projects {
		tool.project = func(_ context.Context, c *tools.Call) (tools.Projection, error) {
			var in struct{ Path, Text string }
			if err := json.Unmarshal(c.Input, &in); err != nil {
				return tools.Projection{}, err
			}
			switch in.Text {
			case "panic":
				panic("boom")
			case "exit":
				runtime.Goexit()
			}
			if in.Text == "fail" {
				return tools.Projection{Diff: "half", State: "x"}, errors.New("no such file")
			}
			return tools.Projection{Diff: "-" + files[in.Path] + "\n+" + in.Text + "\n", State: content(in.Path)}, nil
		}
	}
	return tool
}

func TestWhatWasShownIsAskedAgainWhereItChanged(t *testing.T) {
	run := func(projects bool) (files map[string]string, diffs []string, changed []bool) {
		files = map[string]string{"a": "old"}
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			diffs, changed = append(diffs, c.Diff), append(changed, c.Changed)
			if len(diffs) == 1 {
				files["a"] = "precious" // somebody else writes while the person reads
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, nil
			}
			return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
		})}, fileTool(files, projects))
		roundOK(t, d, call("x", "write_file", `{"path":"a","text":"new"}`))
		if projects {
			wantEvents(t, rec, "x", "requested", "resolved allow by user", "requested", "resolved deny by user", "failed user_denied")
		}
		return files, diffs, changed
	}
	files, diffs, changed := run(true)
	if files["a"] != "precious" {
		t.Errorf("what nobody approved was overwritten: %q", files["a"])
	}
	if diff := cmp.Diff([]string{"-old\n+new\n", "-precious\n+new\n"}, diffs); diff != "" || !changed[1] || changed[0] {
		t.Errorf("changed %v, shown (-want +got):\n%s", changed, diff)
	}
	if files, _, _ := run(false); files["a"] != "new" {
		t.Fatal("the control, which shows no diff, did not overwrite: this test shows nothing")
	}
}

func TestApprovedWriteCarriesWhatWasShown(t *testing.T) {
	files := map[string]string{}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))}, fileTool(files, true))
	wantText(t, roundOK(t, d, call("x", "write_file", `{"path":"a","text":"new"}`))[0], false, "written")
	if got := find[ConfirmationRequested](rec)[0].Confirmation; got.Diff != "-\n+new\n" || got.Changed {
		t.Errorf("shown %+v", got)
	}
	// If a projection fails or panics, the call is asked about without a diff, and
	// changes nothing that a diff could have shown.
	for _, text := range []string{"fail", "panic"} {
		wantText(t, roundOK(t, d, call(text, "write_file", `{"path":"b","text":"`+text+`"}`))[0], true, "changed")
		wantEvents(t, rec, text, "requested", "resolved allow by user", "called write", "failed execution_error")
	}
	if got := find[ConfirmationRequested](rec)[1].Confirmation; got.Diff != "" {
		t.Errorf("a failed projection shows %q", got.Diff)
	}
}

func TestConfirmationIsSafeToShow(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce))}, fileTool(map[string]string{}, true))
	shown := func(input string) approval.Confirmation {
		roundOK(t, d, tools.Call{ID: "c", Name: "write_file", Input: json.RawMessage(input)})
		all := find[ConfirmationRequested](rec)
		return all[len(all)-1].Confirmation
	}
	c := shown(`{"path":"a\u202etxt.exe","text":"\u001b[2Jgood\u200b"}`)
	for name, text := range map[string]string{"input": c.Input, "summary": c.Summary, "diff": c.Diff, "path": c.Projected[0]} {
		if strings.ContainsAny(text, "\x1b\u202e\u200b") {
			t.Errorf("%s holds raw controls: %q", name, text)
		}
	}
	if !c.Hidden || !strings.Contains(c.Diff, `\x1b[2Jgood\u200b`) || c.Projected[0] != `a\u202etxt.exe` {
		t.Errorf("shown %+v", c)
	}
	if !strings.Contains(string(c.Exact), "\u202e") {
		t.Fatalf("the exact input %q lacks what is to be hidden, so this test shows nothing", c.Exact)
	}
	// The input alone is enough, without a diff.
	d = newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce))}, fileTool(map[string]string{}, false))
	for _, text := range []string{`\u001b[8m`, `\r`, `\b`, `\u0000`, `\u2028`, `\u009b`, `\u202e`, `\\\u0007`} {
		if c := shown(`{"path":"a","text":"` + text + `"}`); !c.Hidden {
			t.Errorf("%s is hidden, and the question does not say so: %s", text, c.Input)
		}
	}
	for _, text := range []string{`\\u001b`, `\"\\r`, `ä\t`, `\u0041`} {
		if c := shown(`{"path":"a","text":"` + text + `"}`); c.Hidden {
			t.Errorf("nothing is hidden in %s", c.Input)
		}
	}
	if c := shown(`{"path":"a","text":"plain\nlines"}`); c.Hidden {
		t.Errorf("nothing is hidden in %+v", c)
	}
	// Each part that hides something is enough.
	covering := func(class tools.Class, p tools.Projection, paths ...string) bool {
		tool := fakeTool{def: testDefinition("write_file", class), project: func(context.Context, *tools.Call) (tools.Projection, error) { return p, nil }}
		tool.def.Paths = func(json.RawMessage) []string { return paths }
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce))}, tool)
		roundOK(t, d, call("c", "write_file", `{"path":"a"}`))
		return find[ConfirmationRequested](rec)[0].Confirmation.Hidden
	}
	for name, p := range map[string]tools.Projection{"diff": {Diff: "+\x1b"}, "covered name": {Covers: []string{"a\u200b", "b"}}} {
		if !covering(tools.ClassWrite, p) {
			t.Errorf("a character is hidden in the %s, and the question does not tell", name)
		}
	}
	if !covering(tools.ClassWrite, tools.Projection{}, "a\u200b", "b") {
		t.Error("a character is hidden in a path, and the question does not tell")
	}
	for _, class := range []tools.Class{tools.ClassWrite, tools.ClassExecute} {
		if covering(class, tools.Projection{Diff: "+x", Covers: []string{"a", "b"}}, "a", "b") {
			t.Errorf("nothing is hidden in a plain projection of class %s", class)
		}
	}
	d = newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce))}, fileTool(map[string]string{}, true))
	c = shown(`{"path":"a","text":"` + strings.Repeat("x", 100_000) + `"}`)
	if len(c.Input) > maxShownInput+100 || !strings.Contains(c.Input, "not shown") || len(c.Exact) < 100_000 {
		t.Errorf("input of %d bytes is shown in %d", len(c.Exact), len(c.Input))
	}
	if len(c.Summary) > maxSummaryBytes || c.DiffElided {
		t.Errorf("summary %d bytes, diff elided: %t", len(c.Summary), c.DiffElided)
	}
	c = shown(`{"path":"a","text":"` + strings.Repeat("x", maxShownDiff) + `"}`)
	if len(c.Diff) > maxShownDiff+100 || !c.DiffElided {
		t.Errorf("diff of %d bytes, elided: %t", len(c.Diff), c.DiffElided)
	}
}

func TestConfirmationIDsAreRandomAndBoundToTheInput(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	seen := map[string]bool{}
	for range 50 {
		roundOK(t, d, call("c", "shell", `{"text":"x"}`))
	}
	called := find[Called](rec)
	for i, ev := range find[ConfirmationRequested](rec) {
		if seen[ev.Confirmation.ID] || len(ev.Confirmation.ID) != 32 {
			t.Errorf("id %q is not 128 fresh bits", ev.Confirmation.ID)
		}
		seen[ev.Confirmation.ID] = true
		if ev.Confirmation.InputHash != called[i].InputHash {
			t.Errorf("shown %s, executed %s", ev.Confirmation.InputHash, called[i].InputHash)
		}
	}
}

func TestLastingAnswers(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
	shell.def.Commands = commandOfText
	opaque := fakeTool{def: testDefinition("opaque", tools.ClassExecute)}
	write := fakeTool{def: testDefinition("write_file", tools.ClassWrite)}
	store := filepath.Join(t.TempDir(), "approvals.json")
	var mu sync.Mutex
	var offered []approval.Scope
	session := func(workspace string, answer approval.Answer) (*Dispatcher, *recorder) {
		rec := &recorder{}
		return newDispatcher(t, rec, Options{
			Policy: preset(t, "default"), Workspace: workspace, Grants: approval.NewGrants(store).As(approval.Author{By: "session 1"}),
			Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
				mu.Lock()
				defer mu.Unlock()
				offered = c.Scopes
				return answer, nil
			}),
		}, shell, opaque, write), rec
	}
	first, _ := session("/p", approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways})
	roundOK(t, first, call("a", "shell", `{"text":"git  status"}`), call("b", "write_file", `{"path":"x"}`))
	roundOK(t, first, call("c", "shell", `{"text":"git status; id"}`))
	if diff := cmp.Diff([]approval.Scope{approval.ScopeOnce, approval.ScopeSession}, offered); diff != "" {
		t.Errorf("offered for a compound command (-want +got):\n%s", diff)
	}
	roundOK(t, first, call("d", "opaque", `{}`))
	if diff := cmp.Diff([]approval.Scope{approval.ScopeOnce, approval.ScopeSession}, offered); diff != "" {
		t.Errorf("offered for a tool without a phrase (-want +got):\n%s", diff)
	}

	asks := []string{"requested", "resolved deny by user", "failed user_denied"}
	runs := []string{"resolved allow by grant", "called execute", "completed true"}
	for i, tt := range []struct {
		workspace, tool, input string
		want                   []string
	}{
		{"/p", "shell", `{"text":"git status"}`, runs},
		{"/p", "shell", `{"text":"git 'status'"}`, runs},
		{"/p", "shell", `{"text":"git status -s"}`, asks},
		{"/p", "shell", `{"text":"git status; id"}`, asks},
		{"/p", "shell", `{"text":"git -c core.pager=x status"}`, asks},
		{"/q", "shell", `{"text":"git status"}`, asks},
		{"/p", "opaque", `{}`, asks},
		{"/p", "write_file", `{"path":"y"}`, []string{"resolved allow by grant", "called write", "completed true"}},
	} {
		d, rec := session(tt.workspace, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce})
		id := fmt.Sprint(i)
		roundOK(t, d, call(id, tt.tool, tt.input))
		if diff := cmp.Diff(tt.want, rec.of(id)); diff != "" {
			t.Errorf("%s %s in %s (-want +got):\n%s", tt.tool, tt.input, tt.workspace, diff)
		}
	}
	// Stored answers also count if nobody can be asked.
	alone := &recorder{}
	unattended := newDispatcher(t, alone, Options{Policy: preset(t, "default"), Workspace: "/p", Grants: approval.NewGrants(store)}, shell)
	roundOK(t, unattended, call("u", "shell", `{"text":"git status"}`), call("v", "shell", `{"text":"id"}`))
	wantEvents(t, alone, "u", runs...)
	wantEvents(t, alone, "v", "requested", "resolved deny by on_prompt", "failed permission_denied")
	if changes, err := approval.ReadChanges(filepath.Dir(store)); err != nil || changes[0].By != "session 1, answered at test" {
		t.Errorf("the log names %+v, %v", changes, err)
	}
	// A stored deny is a person's answer and beats the allow.
	if err := approval.NewGrants(store).Add(approval.Grant{Tool: "shell", Workspace: "/p", Phrase: "git status", Decision: approval.DecisionDeny}); err != nil {
		t.Fatal(err)
	}
	d, rec := session("/p", approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce})
	roundOK(t, d, call("z", "shell", `{"text":"git status"}`))
	wantEvents(t, rec, "z", "resolved deny by grant", "failed user_denied")
}

// TestNoLastingAnswerIsOffered: a lasting answer must name one command in one
// workspace. The control is offered one, and the answer is stored.
func TestNoLastingAnswerIsOffered(t *testing.T) {
	for name, tt := range map[string]struct {
		workspace string
		commands  []string
		stored    int
	}{
		"the control":  {"/p", []string{"ls"}, 1},
		"no workspace": {"", []string{"ls"}, 0},
		"no command":   {"/p", nil, 0},
		"two commands": {"/p", []string{"ls", "id"}, 0},
	} {
		store := filepath.Join(t.TempDir(), "approvals.json")
		var offered []approval.Scope
		tool := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
		tool.def.Commands = func(json.RawMessage) []string { return tt.commands }
		d := newDispatcher(t, &recorder{}, Options{
			Policy: preset(t, "default"), Workspace: tt.workspace, Grants: approval.NewGrants(store),
			Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
				offered = c.Scopes
				return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
			}),
		}, tool)
		roundOK(t, d, call("a", "shell", `{}`))
		list, err := approval.NewGrants(store).List()
		if err != nil || len(list) != tt.stored || slices.Contains(offered, approval.ScopeAlways) != (tt.stored > 0) {
			t.Errorf("%s: offers %v, stored are %v, %v", name, offered, list, err)
		}
	}
}

// TestStoredAnswersThatCantBeUsed: if the stored answers can't be read, the call is
// asked about with a warning. If the use of one can't be recorded, it allows
// nothing.
func TestStoredAnswersThatCantBeUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "approvals.json")
	g := approval.NewGrants(path)
	writeFile(t, path, "allow everything")
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Workspace: "/p", Grants: g}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
	roundOK(t, d, call("a", "write_file", `{}`))
	wantEvents(t, rec, "a", "warning", "requested", "resolved deny by on_prompt", "failed permission_denied")
	if err := g.Add(approval.Grant{Tool: "write_file", Workspace: "/p", Decision: approval.DecisionAllow}); err != nil {
		t.Fatal(err)
	}
	rec.fail = func(ev Event) error {
		if _, ok := ev.(ConfirmationResolved); ok {
			return errors.New("disk full")
		}
		return nil
	}
	if _, err := d.Round(t.Context(), []tools.Call{call("b", "write_file", `{}`)}); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("the round ends with %v", err)
	}
	wantEvents(t, rec, "b", "failed cancelled")
	if d.Unapproved() != 1 {
		t.Errorf("%d unapproved, want the first call alone", d.Unapproved())
	}
}

// Stored answers only answer prompts; only the policy decides what prompts.
func TestStoredAnswersOnlyAnswerPrompts(t *testing.T) {
	store := filepath.Join(t.TempDir(), "approvals.json")
	if err := approval.NewGrants(store).Add(approval.Grant{Tool: "write_file", Workspace: "/p", Decision: approval.DecisionAllow}); err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "readonly"), Workspace: "/p", Grants: approval.NewGrants(store)}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
	roundOK(t, d, call("a", "write_file", `{}`))
	wantEvents(t, rec, "a", "failed permission_denied")
}

// A prompt_once question without an answer gives the calls that share it the same
// result, and is asked again in the next round.
func TestPromptOnceWithoutAnAnswer(t *testing.T) {
	rules := preset(t, "default")
	rules.Tools = map[string]policy.Mode{"shell": policy.ModePromptOnce}
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		silent := approver(func(ctx context.Context, _ approval.Confirmation) (approval.Answer, error) {
			<-ctx.Done()
			return approval.Answer{}, context.Cause(ctx)
		})
		d := newDispatcher(t, rec, Options{Policy: rules, Broker: brokerOf(silent)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		start := time.Now()
		results := roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`))
		if took := time.Since(start); took != DefaultConfirmTimeout {
			t.Errorf("took %v", took)
		}
		wantEvents(t, rec, "a", "requested", "resolved timeout by timeout", "failed confirmation_timeout")
		wantEvents(t, rec, "b", "resolved timeout by timeout", "failed confirmation_timeout")
		if results[1].Class != tools.ErrorConfirmationTimeout || d.Unapproved() != 2 {
			t.Errorf("the second call ends with %q, %d unapproved, want 2", results[1].Class, d.Unapproved())
		}
		roundOK(t, d, call("c", "shell", `{}`))
		if got := rec.of("c")[0]; got != "requested" {
			t.Errorf("the next round begins with %q", got)
		}
	})
	nobody := approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{}, errors.New("no terminal")
	})
	denied := []string{"resolved deny by on_prompt", "failed permission_denied"}
	for _, tt := range []struct {
		ask  approval.Approver
		want []string
	}{{nobody, denied}, {nil, append([]string{"requested"}, denied...)}} {
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: rules, Broker: brokerOf(tt.ask)}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
		roundOK(t, d, call("a", "shell", `{}`), call("b", "shell", `{}`))
		wantEvents(t, rec, "b", tt.want...)
		if d.Unapproved() != 2 {
			t.Errorf("%d unapproved, want 2", d.Unapproved())
		}
	}
}

// A cancelled round asks nothing.
func TestNothingIsAskedUnderACancelledContext(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerFunc(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		t.Error("asked")
		return approval.Answer{}, nil
	})}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("ctrl-c"))
	if _, err := d.Round(ctx, []tools.Call{call("a", "shell", `{}`)}); err != nil {
		t.Error(err)
	}
	wantEvents(t, rec, "a", "failed cancelled")
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestConfirmationShowsTheEnd: the summary and the input shown to a person include
// the end of any command. The control cuts the end off.
func TestConfirmationShowsTheEnd(t *testing.T) {
	const end = "; rm -rf precious"
	for name, filler := range map[string]string{
		"lines":              strings.Repeat("echo x\n", 400),
		"spaces":             strings.Repeat(" ", 5000),
		"no-break spaces":    strings.Repeat("\u00a0", 5000),
		"ideographic spaces": strings.Repeat("\u3000", 5000),
		"wide text":          strings.Repeat("変更", 20000),
	} {
		var shown approval.Confirmation
		def := testDefinition("shell", tools.ClassExecute)
		def.Summary = func(raw json.RawMessage) string { return commandOfText(raw)[0] }
		d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			shown = c
			return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
		})}, fakeTool{def: def})
		input, err := json.Marshal(map[string]string{"text": "ls " + filler + end})
		if err != nil {
			t.Fatal(err)
		}
		roundOK(t, d, call("a", "shell", string(input)))
		if !strings.HasSuffix(shown.Summary, end) || !strings.Contains(shown.Input, end) || !strings.HasPrefix(shown.Summary, "ls") {
			t.Errorf("%s: the end is not shown: %q", name, shown.Summary)
		}
		if len(shown.Summary) > maxSummaryBytes || len(shown.Input) > maxShownInput+200 {
			t.Errorf("%s: %d and %d bytes are shown", name, len(shown.Summary), len(shown.Input))
		}
		if strings.ContainsAny(shown.Summary+shown.Input, "\u00a0\u3000") {
			t.Errorf("%s: blanks that are not spaces are shown raw", name)
		}
		var exact struct{ Text string }
		if err := json.Unmarshal(shown.Exact, &exact); err != nil || exact.Text != "ls "+filler+end {
			t.Errorf("%s: the whole input can't be seen: %v", name, err)
		}
		if strings.HasSuffix(utf8text.Clip("ls "+filler+end, maxSummaryBytes), end) {
			t.Errorf("%s: the control shows the end too", name)
		}
	}
}

// TestDangerousCommandsAreAskedAbout: if somebody can be asked, a dangerous command
// prompts each time in the modes auto and prompt_once. Otherwise it runs, with a
// warning.
func TestDangerousCommandsAreAskedAbout(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
	shell.def.Commands = commandOfText
	once := preset(t, "sandboxed")
	once.Tools = map[string]policy.Mode{"shell": policy.ModePromptOnce}
	denied := preset(t, "sandboxed")
	denied.Tools = map[string]policy.Mode{"shell": policy.ModeDeny}
	none := preset(t, "sandboxed")
	none.Dangerous = nil
	ran, asked := []string{"called execute", "completed true"}, []string{"requested", "resolved allow by user", "called execute", "completed true"}
	warned := append([]string{"warning"}, ran...)
	for name, tc := range map[string]struct {
		policy        policy.Policy
		broker        bool
		first, second []string
	}{
		"auto":                     {preset(t, "sandboxed"), true, asked, asked},
		"auto, nobody to ask":      {preset(t, "sandboxed"), false, warned, warned},
		"ci on a terminal":         {preset(t, "ci"), true, warned, warned},
		"prompt_once":              {once, true, asked, asked},
		"deny":                     {denied, true, []string{"failed permission_denied"}, []string{"failed permission_denied"}},
		"the control: no patterns": {none, true, ran, ran},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			o := Options{Policy: tc.policy}
			if tc.broker {
				o.Broker = brokerFunc(answering(approval.DecisionAllow, approval.ScopeSession))
			}
			d := newDispatcher(t, rec, o, shell)
			roundOK(t, d, call("a", "shell", `{"text":"cd x && rm -rf /"}`))
			roundOK(t, d, call("b", "shell", `{"text":"rm -fr ~"}`))
			wantEvents(t, rec, "a", tc.first...)
			wantEvents(t, rec, "b", tc.second...)
			roundOK(t, d, call("c", "shell", `{"text":"ls"}`))
			if events := rec.of("c"); tc.policy.Tools == nil && (len(events) != 2 || events[0] != "called execute") {
				t.Errorf("an ordinary command: %q", events)
			}
		})
	}
}

// TestCommandsAreJudgedOneByOne: the text of one command can't hide another, as it
// would if they were joined.
func TestCommandsAreJudgedOneByOne(t *testing.T) {
	split := func(raw json.RawMessage) []string { return strings.Split(commandOfText(raw)[0], "|") }
	for name, text := range map[string]string{
		"continuation":  `echo \\|git push --force`,
		"here-document": `cat <<X|rm -rf /|X`,
		"quote":         `echo '|rm -rf /|'`,
		"brace":         `{ echo|rm -rf /|}`,
	} {
		shell := fakeTool{def: testDefinition("verify_shell", tools.ClassExecute)}
		rec, input := &recorder{}, fmt.Sprintf(`{"text":"%s"}`, text)
		grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		var shown approval.Confirmation
		o := Options{Policy: preset(t, "sandboxed"), Workspace: "/p", Grants: grants, Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			shown = c
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
		})}
		shell.def.Commands = split
		roundOK(t, newDispatcher(t, rec, o, shell), call("a", "verify_shell", input))
		wantEvents(t, rec, "a", "requested", "resolved allow by user", "called execute", "completed true")
		if list, err := grants.List(); err != nil || len(list) != 0 || slices.Contains(shown.Scopes, approval.ScopeAlways) || shown.Dangerous == "" {
			t.Errorf("%s: stored %v (%v), shown %+v", name, list, err, shown)
		}
		// The control: joined, nothing is asked.
		danger, err := o.Policy.DangerousIn(strings.Join(split([]byte(input)), "\n"))
		if err != nil || name != "brace" && danger != "" {
			t.Errorf("%s: the control sees %q, %v", name, danger, err)
		}
	}
}

// TestDispatcherFindsEitherSpelling: a deny stored in the wire form refuses the
// call without a question.
func TestDispatcherFindsEitherSpelling(t *testing.T) {
	for _, spelling := range []string{"srv/do_it", "srv__do_it"} {
		path := filepath.Join(t.TempDir(), "approvals.json")
		writeFile(t, path, `{"version":1,"grants":[{"tool":"`+spelling+`","workspace":"/p","decision":"deny","created":"2026-11-20T10:00:00Z"}]}`)
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{
			Policy: preset(t, "default"), Workspace: "/p", Grants: approval.NewGrants(path), Broker: brokerFunc(answering(approval.DecisionAllow, approval.ScopeOnce)),
		}, fakeTool{def: testDefinition("srv/do_it", tools.ClassNetwork)})
		for _, name := range []string{"srv/do_it", "srv__do_it"} {
			roundOK(t, d, call(name, name, `{}`))
			wantEvents(t, rec, name, "resolved deny by grant", "failed user_denied")
		}
	}
}

// TestConfirmationSaysWhatItDoesNotCover: a person is shown which files an answer
// covers and which not.
func TestConfirmationSaysWhatItDoesNotCover(t *testing.T) {
	shown := tools.Projection{Covers: []string{"small.sh"}, NotCovered: []string{"big.sh", "the files that make runs"}}
	tool := fakeTool{def: testDefinition("shell", tools.ClassExecute), project: func(ctx context.Context, _ *tools.Call) (tools.Projection, error) { return shown, nil }}
	var asked approval.Confirmation
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		asked = c
		return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
	})}, tool)
	roundOK(t, d, call("a", "shell", `{}`))
	if !slices.Equal(asked.Covers, []string{"small.sh"}) || !slices.Contains(asked.Notices, "this answer does not cover the content of big.sh") {
		t.Errorf("the question covers %q and says %q", asked.Covers, asked.Notices)
	}
}

func TestExampleDenied(t *testing.T) {
	rec := &recorder{}
	var shown approval.Confirmation
	deny := approver(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		shown = c
		return approval.Answer{Decision: approval.DecisionDeny}, nil
	})
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(deny)}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
	r := roundOK(t, d, call("tu_01HZ_c", "write_file", `{"text":"x","path":"src/auth.ts"}`))[0]
	wantText(t, r, true, "The user denied this operation.")
	wantEvents(t, rec, "tu_01HZ_c", "requested", "resolved deny by user", "failed user_denied")
	want := approval.Confirmation{
		Question: approval.Question{
			ID: shown.ID, CallID: "tu_01HZ_c", Name: "write_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox, Summary: "src/auth.ts",
			Input:     `{"path":"src/auth.ts","text":"x"}`,
			InputHash: hashInput([]byte(`{"path":"src/auth.ts","text":"x"}`)), Projected: []string{"src/auth.ts"},
			Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeSession},
		},
		Seq: 1, Exact: []byte(`{"path":"src/auth.ts","text":"x"}`), Expires: shown.Expires,
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("confirmation (-want +got):\n%s", diff)
	}
	if len(shown.ID) != 32 || !shown.Expires.After(time.Now()) {
		t.Errorf("id %q, expires %v", shown.ID, shown.Expires)
	}
}

// TestConfirmationShowsWhatWasTypedBefore: an answer covers what the input completes,
// so a person sees it.
func TestConfirmationShowsWhatWasTypedBefore(t *testing.T) {
	for before, want := range map[string]string{"git \x1bpu": `together with what was typed before: git \x1bpu`, "": ""} {
		def := testDefinition("typing", tools.ClassExecute)
		def.Typed = true
		def.Commands = func(raw json.RawMessage) []string { return policy.TypedCommands(before, commandOfText(raw)[0]) }
		var asked approval.Confirmation
		d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			asked = c
			return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
		})}, fakeTool{def: def})
		roundOK(t, d, call("a", "typing", `{"text":"sh\n"}`))
		shown := slices.ContainsFunc(asked.Notices, func(n string) bool { return strings.HasPrefix(n, "together with") })
		if shown != (before != "") || shown && !slices.Contains(asked.Notices, want) || shown && !asked.Hidden {
			t.Errorf("after %q: hidden %t, %q", before, asked.Hidden, asked.Notices)
		}
	}
}
