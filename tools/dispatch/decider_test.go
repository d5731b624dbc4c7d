package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
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
	options.Ask = func(_ context.Context, raw []byte) ([]byte, error) {
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
	byDecider, askedPerson := []string{"resolved allow by decider"}, []string{"requested", "resolved allow by user"}
	refused := []string{"resolved deny by decider", "failed permission_denied"}
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
				r := find[ConfirmationResolved](rec)[0]
				if !strings.Contains(got.Content[0].Text, r.Reason) || r.Reason == "" || r.Client != "rules.sh" || r.RequestID != "" {
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
	rec := &recorder{}
	write := fakeTool{def: testDefinition("write_file", tools.ClassWrite), project: func(context.Context, *tools.Call) (tools.Projection, error) {
		return tools.Projection{Diff: "+one", State: "s"}, nil
	}}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "strict"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeSession)), Decider: deciding(&asked, approval.Decider{})},
		write, fakeTool{def: testDefinition("read_file", tools.ClassRead)})
	roundOK(t, d, call("a", "write_file", `{"text":"please ask"}`), call("b", "read_file", `{"text":"please deny"}`))
	roundOK(t, d, call("c", "write_file", `{"text":"please allow"}`), call("d", "write_file", `{"text":"please deny"}`))
	if got := rec.of("c")[0]; got != "resolved allow by session" {
		t.Errorf("a call that a person allowed for the session: %s", got)
	}
	if got := rec.of("d"); !slices.Equal(got, []string{"resolved deny by decider", "failed permission_denied"}) {
		t.Errorf("the decider does not deny what a person allowed: %q", got)
	}
	slices.Sort(asked)
	if diff := cmp.Diff([]string{"write_file prompt +one", "write_file prompt +one", "write_file prompt +one"}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestDeciderOfHosts: it rules on hosts before people, and without people.
func TestDeciderOfHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		command  string
		mayAllow bool
		broker   *approval.Broker
		want     string
	}{
		"deny":        {"please deny", true, brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce)), "deny by decider"},
		"fail":        {"please break", true, brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce)), "deny by decider"},
		"allow":       {"please allow", false, brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce)), "allow by user"},
		"allow alone": {"please allow", false, nil, "deny by on_prompt"},
		"may allow":   {"please allow", true, nil, "allow by decider"},
		"ask":         {"please ask", true, brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce)), "deny by user"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			rec := &recorder{}
			q := exampleQuestion
			q.Host = tc.command
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: tc.broker, Decider: deciding(&asked, approval.Decider{MayAllow: tc.mayAllow})})
			r, err := d.AskHost(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(r.Decision) + " by " + r.By; got != tc.want || len(asked) != 1 {
				t.Errorf("%s after %q, want %s", got, asked, tc.want)
			}
		})
	}
}
