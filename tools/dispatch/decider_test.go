package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// deciding returns a decider of commands and hosts that does what the summary of a call
// says: "please allow", or "please break" to fail.
func deciding(asked *[]string, options approval.Decider) *approval.Decider {
	options.Name, options.Timeout, options.Hosts = "rules.sh", time.Minute, true
	options.Classes = []tools.Class{tools.ClassWrite, tools.ClassExecute}
	slot := make(chan struct{}, 1)
	options.Ask = func(_ context.Context, _ string, raw []byte) ([]byte, error) {
		slot <- struct{}{}
		defer func() { <-slot }()
		var q struct{ ID, Tool, Summary, Policy, Diff string }
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		*asked = append(*asked, q.Tool+" "+q.Policy+" "+q.Diff)
		for _, d := range []string{"allow", "deny", "ask"} {
			if strings.Contains(q.Summary, "please "+d) {
				return json.Marshal(map[string]string{"id": q.ID, "decision": d, "reason": "rule 7"})
			}
		}
		return nil, errors.New("broken")
	}
	return approval.NewDecider(options)
}

// TestDecider: what a decider rules about a call is recorded and done, before anybody is
// asked. It can't allow what the policy asks about or denies unless it may.
func TestDecider(t *testing.T) {
	person := answering(approval.DecisionAllow, approval.ScopeOnce)
	ran := []string{"called execute", "completed true"}
	byDecider, askedPerson := []string{"requested", "resolved allow by decider"}, []string{"requested", "resolved allow by user"}
	refused := []string{"requested", "resolved deny by decider", "failed permission_denied"}
	for name, tc := range map[string]struct {
		mode    policy.Mode
		options approval.Decider
		text    string
		want    []string
	}{
		"allow what runs":          {mode: policy.ModeAuto, text: "please allow", want: slices.Concat(byDecider, ran)},
		"deny what runs":           {mode: policy.ModeAuto, text: "please deny", want: refused},
		"ask about what runs":      {mode: policy.ModeAuto, text: "please ask", want: slices.Concat([]string{"warning"}, askedPerson, ran)},
		"fail":                     {mode: policy.ModeAuto, text: "please break", want: refused},
		"fail, and ask":            {mode: policy.ModeAuto, options: approval.Decider{AskOnFailure: true}, text: "please break", want: slices.Concat([]string{"warning"}, askedPerson, ran)},
		"allow what is asked":      {mode: policy.ModePrompt, text: "please allow", want: slices.Concat(askedPerson, ran)},
		"may allow what is asked":  {mode: policy.ModePrompt, options: approval.Decider{MayAllow: true}, text: "please allow", want: slices.Concat(byDecider, ran)},
		"allow a dangerous one":    {mode: policy.ModeAuto, options: approval.Decider{MayAllow: true}, text: "rm -rf . please allow", want: slices.Concat(askedPerson, ran)},
		"deny what is asked":       {mode: policy.ModePromptOnce, text: "please deny", want: refused},
		"allow what is denied":     {mode: policy.ModeDeny, options: approval.Decider{MayAllow: true}, text: "please allow", want: []string{"failed permission_denied"}},
		"fail at a prompt":         {mode: policy.ModePrompt, options: approval.Decider{MayAllow: true}, text: "please break", want: refused},
		"fail at one, and ask":     {mode: policy.ModePrompt, options: approval.Decider{AskOnFailure: true}, text: "please break", want: slices.Concat([]string{"warning"}, askedPerson, ran)},
		"ask about what is asked":  {mode: policy.ModePrompt, options: approval.Decider{MayAllow: true}, text: "please ask", want: slices.Concat([]string{"warning"}, askedPerson, ran)},
		"control without a ruling": {mode: policy.ModeAuto, text: "", want: ran},
	} {
		t.Run(name, func(t *testing.T) {
			shell := fakeTool{def: testDefinition("shell", tools.ClassExecute)}
			shell.def.Commands = commandOfText
			rules := preset(t, "default")
			rules.Classes[tools.ClassExecute] = tc.mode
			delete(rules.Sandboxed, tools.ClassExecute)
			var asked []string
			rec, o := &recorder{}, Options{Policy: rules, Broker: brokerOf(person)}
			if tc.text != "" {
				o.Decider = deciding(&asked, tc.options)
			}
			got := roundOK(t, newDispatcher(t, rec, o, shell), call("a", "shell", `{"text":"`+tc.text+`"}`))[0]
			wantEvents(t, rec, "a", tc.want...)
			if slices.Equal(tc.want, refused) {
				r, reason, read := find[ConfirmationResolved](rec)[0], "rule 7", "Its reason: rule 7"
				if tc.text == "please break" {
					reason, read = "the decider rules.sh gave no valid answer: broken", "gave no valid answer about this call, so it is refused."
				}
				if r.Reason != reason || r.Client != "rules.sh" || r.RequestID != find[ConfirmationRequested](rec)[0].Confirmation.ID || !strings.HasSuffix(got.Content[0].Text, read) {
					t.Errorf("%+v; the model reads %q", r, got.Content[0].Text)
				}
			}
		})
	}
}

// TestDeciderSeesEachCall: earlier answers of people don't go around the decider, which
// sees the diff of a write. It isn't asked about classes that it doesn't cover.
func TestDeciderSeesEachCall(t *testing.T) {
	var asked []string
	var scopes [][]approval.Scope
	rec := &recorder{}
	write := fakeTool{def: testDefinition("write_file", tools.ClassWrite), project: func(context.Context, *tools.Call) (tools.Projection, error) {
		return tools.Projection{Diff: "+one", State: "s"}, nil
	}}
	person := brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		if c.Class == tools.ClassWrite {
			scopes = append(scopes, c.Scopes)
		}
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
	})
	grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
	d := newDispatcher(t, rec, Options{Policy: preset(t, "strict"), Workspace: "/w", Grants: grants, Broker: person, Decider: deciding(&asked, approval.Decider{})},
		write, fakeTool{def: testDefinition("read_file", tools.ClassRead)})
	byUser, ran := []string{"requested", "resolved allow by user"}, []string{"called write", "completed true"}
	for i, step := range []struct {
		text string
		want []string
	}{
		{"please allow", slices.Concat(byUser, ran)}, // and always
		{"please allow", slices.Concat([]string{"resolved allow by grant"}, ran)},
		{"please deny", []string{"requested", "resolved deny by decider", "failed permission_denied"}},
		{"please ask", slices.Concat([]string{"warning"}, byUser, ran)},
		{"please allow", slices.Concat([]string{"resolved allow by grant"}, ran)},
	} {
		id := fmt.Sprint(i)
		roundOK(t, d, call(id, "write_file", `{"text":"`+step.text+`"}`), call("r"+id, "read_file", `{"text":"please deny"}`))
		if diff := cmp.Diff(step.want, rec.of(id)); diff != "" {
			t.Errorf("call %d, %s (-want +got):\n%s", i, step.text, diff)
		}
	}
	if diff := cmp.Diff(slices.Repeat([]string{"write_file prompt +one"}, 5), asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if len(scopes) != 2 || len(scopes[0]) != 3 || !slices.Equal(scopes[1], []approval.Scope{approval.ScopeOnce}) {
		t.Errorf("answers may have the scopes %q", scopes)
	}
}

// TestDeciderWantsAPerson: where nobody can be asked, on_prompt does not answer for one.
// The control is the same prompt without its "ask".
func TestDeciderWantsAPerson(t *testing.T) {
	for text, want := range map[string]string{"please ask": "resolved deny by on_prompt", "please allow": "resolved allow by on_prompt"} {
		var asked []string
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "strict"), OnPrompt: OnPromptAllow, Decider: deciding(&asked, approval.Decider{})},
			fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
		roundOK(t, d, call("a", "write_file", `{"text":"`+text+`"}`))
		if got := rec.of("a"); !slices.Contains(got, want) {
			t.Errorf("%s: %q, want %s", text, got, want)
		}
	}
}

// TestDeciderMayNotOverrule: where a person refused a call for the session or for good,
// a decider that may allow doesn't. The control is a call that nobody refused.
func TestDeciderMayNotOverrule(t *testing.T) {
	for scope, want := range map[approval.Scope]string{"": "resolved allow by decider", approval.ScopeSession: "resolved deny by session", approval.ScopeAlways: "resolved deny by grant"} {
		var asked []string
		rec := &recorder{}
		grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		d := newDispatcher(t, rec, Options{
			Policy: preset(t, "strict"), Workspace: "/w", Grants: grants, Broker: brokerOf(answering(approval.DecisionDeny, scope)),
			Decider: deciding(&asked, approval.Decider{MayAllow: true, AskOnFailure: true}),
		}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
		if scope != "" {
			roundOK(t, d, call("before", "write_file", `{"text":"please break"}`))
			// The answer was to a question of the decider's own, which is for once.
			if got := rec.of("before"); !slices.Contains(got, "resolved deny by user") {
				t.Fatalf("before: %q", got)
			}
			switch scope {
			case approval.ScopeAlways:
				if err := grants.Add(approval.Grant{Tool: "write_file", Workspace: "/w", Decision: approval.DecisionDeny}); err != nil {
					t.Fatal(err)
				}
			default:
				d.answers.Keep(approval.AnswerKey{Tool: "write_file"}, approval.DecisionDeny, func(approval.Scope) bool { return true })
			}
		}
		roundOK(t, d, call("a", "write_file", `{"text":"please allow"}`))
		if got := rec.of("a"); !slices.Contains(got, want) {
			t.Errorf("%s: %q, want %s", scope, got, want)
		}
	}
}

// TestDeciderSeesChanges: if a file changes after a ruling, the decider rules again on
// what the call would change then, whoever allowed the call.
func TestDeciderSeesChanges(t *testing.T) {
	for name, o := range map[string]Options{
		"nobody is asked": {Policy: policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassWrite: policy.ModeAuto}}},
		"a person":        {Policy: preset(t, "strict"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))},
		"on_prompt":       {Policy: preset(t, "strict"), OnPrompt: OnPromptAllow},
		"the decider":     {Policy: preset(t, "strict")},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			var versions atomic.Int32
			o.Decider = deciding(&asked, approval.Decider{MayAllow: name == "the decider"})
			write := fakeTool{def: testDefinition("write_file", tools.ClassWrite), project: func(context.Context, *tools.Call) (tools.Projection, error) {
				version := min(versions.Add(1), 2) // it changes once, after the ruling
				return tools.Projection{Diff: fmt.Sprint("+", version), State: fmt.Sprint(version)}, nil
			}}
			rec := &recorder{}
			roundOK(t, newDispatcher(t, rec, o, write), call("a", "write_file", `{"text":"please allow"}`))
			var diffs []string
			for _, a := range asked {
				diffs = append(diffs, a[strings.LastIndex(a, " ")+1:])
			}
			if got := rec.of("a"); !slices.Equal(diffs, []string{"+1", "+2"}) || !slices.Contains(got, "completed true") {
				t.Errorf("it saw %q; %q", diffs, got)
			}
		})
	}
}

// TestDeciderRulesNotForever: a call whose file changes whenever it was ruled on is
// refused, and the round goes on.
func TestDeciderRulesNotForever(t *testing.T) {
	var asked []string
	var versions atomic.Int32
	write := fakeTool{def: testDefinition("write_file", tools.ClassWrite), project: func(context.Context, *tools.Call) (tools.Projection, error) {
		return tools.Projection{State: fmt.Sprint(versions.Add(1))}, nil
	}}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "ci"), Decider: deciding(&asked, approval.Decider{})}, write)
	got := roundOK(t, d, call("a", "write_file", `{"text":"please allow"}`))[0]
	if failed := find[Failed](rec); !got.IsError || len(failed) != 1 || failed[0].Reason != "changing" || len(asked) != maxChanges+1 {
		t.Errorf("ruled %d times: %+v, %+v", len(asked), got, failed)
	}
}

// TestDeciderIsNotOutdated: what a person answers while the decider rules counts, and a
// private address is for a person. The control is the same question without either.
func TestDeciderIsNotOutdated(t *testing.T) {
	for name, tc := range map[string]struct {
		addr   string
		denied bool
		want   string
	}{"control": {"", false, "allow by decider"}, "denied in the meantime": {"", true, "deny by grant"}, "a private address": {"10.0.0.5", false, "deny by on_prompt"}} {
		q := exampleQuestion
		q.Addr = tc.addr
		grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		decider := approval.NewDecider(approval.Decider{Name: "x", Hosts: true, MayAllow: true, Timeout: time.Minute, Ask: func(_ context.Context, _ string, raw []byte) ([]byte, error) {
			if tc.denied {
				if err := grants.Add(approval.Grant{Tool: approval.HostTool, Workspace: "/w", Phrase: q.phrase(), Decision: approval.DecisionDeny}); err != nil {
					return nil, err
				}
			}
			var asked struct{ ID string }
			err := json.Unmarshal(raw, &asked)
			return fmt.Appendf(nil, `{"id":%q,"decision":"allow"}`, asked.ID), err
		}})
		r, err := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "default"), Workspace: "/w", Grants: grants, Decider: decider}).AskHost(t.Context(), q)
		if got := fmt.Sprint(r.Decision, " by ", r.By); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
}

// TestDeciderOfHostsIsCancelled: nobody ruled on a host whose question was cancelled.
func TestDeciderOfHostsIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	rec := &recorder{}
	decider := approval.NewDecider(approval.Decider{Name: "x", Hosts: true, Timeout: time.Minute, Ask: func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		cancel(errors.New("stopped"))
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Workspace: "/w", Decider: decider})
	if r, err := d.AskHost(ctx, exampleQuestion); err != nil || r.Decision != approval.DecisionDeny || r.By != approval.ByCancel {
		t.Errorf("%+v, %v", r, err)
	}
	if got := find[ConfirmationResolved](rec); len(got) > 0 {
		t.Errorf("recorded %+v", got)
	}
}

// TestDeciderOfHosts: it rules on hosts before people and before stored answers, and
// without people.
func TestDeciderOfHosts(t *testing.T) {
	allowing := func() *approval.Broker { return brokerOf(answering(approval.DecisionAllow, approval.ScopeAlways)) }
	for name, tc := range map[string]struct {
		host     string
		mayAllow bool
		broker   *approval.Broker
		stored   approval.Decision
		want     string
	}{
		"deny":                   {"please deny", true, allowing(), "", "deny once by decider"},
		"deny what is stored":    {"please deny", true, allowing(), approval.DecisionAllow, "deny once by decider"},
		"fail":                   {"please break", true, allowing(), "", "deny once by decider"},
		"allow":                  {"please allow", false, allowing(), "", "allow once by user"},
		"allow what is stored":   {"please allow", false, allowing(), approval.DecisionAllow, "allow once by grant"},
		"allow what is refused":  {"please allow", false, allowing(), approval.DecisionDeny, "deny always by grant"},
		"allow alone":            {"please allow", false, nil, "", "deny once by on_prompt"},
		"may allow":              {"please allow", true, nil, "", "allow once by decider"},
		"may not, as refused":    {"please allow", true, nil, approval.DecisionDeny, "deny always by grant"},
		"ask":                    {"please ask", true, allowing(), "", "allow once by user"},
		"ask about what is kept": {"please ask", true, allowing(), approval.DecisionAllow, "allow once by user"},
		"ask without anybody":    {"please ask", true, nil, approval.DecisionAllow, "deny once by on_prompt"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			rec := &recorder{}
			q := exampleQuestion
			q.Host = tc.host
			grants := approval.NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
			if tc.stored != "" {
				if err := grants.Add(approval.Grant{Tool: approval.HostTool, Workspace: "/w", Phrase: q.phrase(), Decision: tc.stored}); err != nil {
					t.Fatal(err)
				}
			}
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Workspace: "/w", Grants: grants, Broker: tc.broker, Decider: deciding(&asked, approval.Decider{MayAllow: tc.mayAllow})})
			r, err := d.AskHost(t.Context(), q)
			if failed := tc.host == "please break"; (err != nil) != failed {
				t.Fatalf("an error: %v, want %t", err, failed)
			}
			wantAsked := 1
			if tc.stored == approval.DecisionDeny {
				wantAsked = 0
			}
			if got := fmt.Sprint(r.Decision, " ", r.Scope, " by ", r.By); got != tc.want || len(asked) != wantAsked {
				t.Errorf("%s after %q, want %s", got, asked, tc.want)
			}
			if requests := find[ConfirmationRequested](rec); r.By != approval.ByGrant && (len(requests) != 1 || requests[0].Confirmation.ID != r.RequestID || !strings.Contains(requests[0].Confirmation.Input, tc.host)) {
				t.Errorf("the record of the question does not name the host: %+v", requests)
			}
		})
	}
}
