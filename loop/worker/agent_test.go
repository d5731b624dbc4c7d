package worker_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// callAgentTool calls confer or coordinate through a permitting dispatcher, and returns
// the result's text.
func callAgentTool(t *testing.T, o worker.AgentOptions, name tools.Name, input any) (string, tools.Result) {
	t.Helper()
	d, err := dispatch.New(dispatch.Options{Policy: policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassNetwork: policy.ModeAuto}}, Emit: func(dispatch.Event) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(t.Context()) }()
	for _, f := range worker.NewTools(o) {
		if err := d.Register(f); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	results, err := d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: name, Input: raw, Session: "ses_1", Turn: "trn_1"}})
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, b := range results[0].Content {
		parts = append(parts, b.Text)
	}
	return strings.Join(parts, "\n"), results[0]
}

// TestAgentToolAsConfigured checks that a call of confer can only make the operator's
// tools and cap stricter.
func TestAgentToolAsConfigured(t *testing.T) {
	w := newWeb(t, "page")
	half := roundUSD / 2
	for name, tt := range map[string]struct {
		names   []string
		cap     worker.CostCap
		input   map[string]any
		calls   string
		report  *worker.ToolReport
		capUSD  float64
		capMode worker.CostMode
	}{
		"no tools asked for":         {names: []string{"fetch", "verify"}},
		"none permitted":             {input: map[string]any{"worker_tools": []string{"fetch"}}, report: &worker.ToolReport{Accepted: []string{}, Rejected: []string{"fetch"}, HopBudget: 2}},
		"one of two":                 {names: []string{"fetch"}, input: map[string]any{"worker_tools": []string{"fetch", "verify", "confer", "Fetch "}}, calls: "fetch=ok", report: &worker.ToolReport{Accepted: []string{"fetch"}, Rejected: []string{"Fetch ", "confer", "verify"}, HopBudget: 2}},
		"shell permitted in vain":    {names: []string{"shell"}, input: map[string]any{"worker_tools": []string{"shell"}}, report: &worker.ToolReport{Accepted: []string{}, Rejected: []string{"shell"}, HopBudget: 2}},
		"cap of the operator":        {names: []string{"fetch"}, cap: worker.CostCap{USD: half, Mode: "enforce"}, input: map[string]any{"worker_tools": []string{"fetch"}}, calls: "fetch=cost_cap_exceeded", capUSD: half, capMode: "enforce"},
		"can't be switched off":      {names: []string{"fetch"}, cap: worker.CostCap{USD: half, Mode: "enforce"}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_mode": "off", "worker_tool_cost_cap_usd": 9}, calls: "fetch=cost_cap_exceeded", capUSD: half, capMode: "enforce"},
		"can't be raised":            {names: []string{"fetch"}, cap: worker.CostCap{USD: half}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_usd": 9}, calls: "fetch=ok", capUSD: half, capMode: "warn"},
		"lowered":                    {names: []string{"fetch"}, cap: worker.CostCap{USD: 9}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_usd": half}, calls: "fetch=ok", capUSD: half, capMode: "warn"},
		"enforced by the call":       {names: []string{"fetch"}, cap: worker.CostCap{USD: half}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_mode": "enforce"}, calls: "fetch=cost_cap_exceeded", capUSD: half, capMode: "enforce"},
		"of the call alone":          {names: []string{"fetch"}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_usd": half, "worker_tool_cost_cap_mode": "enforce"}, calls: "fetch=cost_cap_exceeded", capUSD: half, capMode: "enforce"},
		"off by the operator":        {names: []string{"fetch"}, cap: worker.CostCap{USD: half, Mode: "off"}, input: map[string]any{"worker_tools": []string{"fetch"}}, calls: "fetch=ok"},
		"stricter than an off":       {names: []string{"fetch"}, cap: worker.CostCap{USD: 9, Mode: "off"}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_usd": half}, calls: "fetch=ok", capUSD: half, capMode: "warn"},
		"zero of the call is no cap": {names: []string{"fetch"}, cap: worker.CostCap{USD: half, Mode: "enforce"}, input: map[string]any{"worker_tools": []string{"fetch"}, "worker_tool_cost_cap_usd": 0}, calls: "fetch=cost_cap_exceeded", capUSD: half, capMode: "enforce"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, map[string][]string{"a": {fetchCall(w.URL), "7"}})
			o := worker.AgentOptions{Profiles: []loop.Profile{p.profile("a")}, Tools: w.toolOptions(t, limits.EgressBudget{}, tt.names...)}
			o.Tools.CostCap = tt.cap
			input := map[string]any{"question": "What does the page say?"}
			maps.Copy(input, tt.input)
			var got worker.Conference
			text, _ := callAgentTool(t, o, worker.ConferName, input)
			if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Answers) != 1 {
				t.Fatalf("%v: %s", err, text)
			}
			if s := statuses(got.Answers[0].InnerToolCalls); s != tt.calls {
				t.Errorf("calls %s, want %s", s, tt.calls)
			}
			if tt.report != nil {
				if diff := cmp.Diff(tt.report, got.Tools); diff != "" {
					t.Errorf("report (-want +got):\n%s", diff)
				}
			}
			switch c := got.Answers[0].CostCap; {
			case c == nil && tt.capMode != "" || c != nil && (c.CapUSD != tt.capUSD || c.Mode != tt.capMode):
				t.Errorf("cap %+v", c)
			}
		})
	}
}

// TestAllowIsAskedAgain checks that an accepted tool is refused once Allow refuses it.
func TestAllowIsAskedAgain(t *testing.T) {
	w := newWeb(t, "page")
	o, asked := w.toolOptions(t, limits.EgressBudget{}, "fetch"), 0
	o.Allow = func(def tools.Definition) bool {
		if def.Name == "fetch" {
			asked++
		}
		return asked == 1
	}
	p := newProvider(t, map[string][]string{"a": {fetchCall(w.URL), "7"}})
	got := confer(t, worker.ConferOptions{Options: worker.Options{Tools: o}, Profiles: []loop.Profile{p.profile("a")}})
	if s := statuses(got.Answers[0].InnerToolCalls); s != "fetch=refused" || w.hits.Load() != 0 || asked < 2 {
		t.Errorf("calls %s, %d pages, asked %d times", s, w.hits.Load(), asked)
	}
}

// TestPromptsAreRefused checks that calls which need a prompt are refused, because
// nobody is asked. The control is a policy that permits them.
func TestPromptsAreRefused(t *testing.T) {
	for mode, want := range map[policy.Mode]string{policy.ModePrompt: "fetch=refused", policy.ModePromptOnce: "fetch=refused", policy.ModeDeny: "fetch=refused", policy.ModeAuto: "fetch=ok"} {
		w := newWeb(t, "page")
		o := w.toolOptions(t, limits.EgressBudget{}, "fetch")
		o.Policy = policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassRead: mode}}
		p := newProvider(t, map[string][]string{"a": {fetchCall(w.URL), "7"}})
		got := confer(t, worker.ConferOptions{Options: worker.Options{Tools: o}, Profiles: []loop.Profile{p.profile("a")}})
		if s := statuses(got.Answers[0].InnerToolCalls); s != want || (w.hits.Load() > 0) != (mode == policy.ModeAuto) {
			t.Errorf("%s: calls %s, %d pages", mode, s, w.hits.Load())
		}
	}
}

// TestAgentToolsAreOff checks the definitions: off without models, class network, and
// only the models' names.
func TestAgentToolsAreOff(t *testing.T) {
	p := newProvider(t, map[string][]string{"a": {"Yes."}})
	for _, f := range worker.NewTools(worker.AgentOptions{}) {
		if def := f().Definition(); def.EnabledByDefault || def.Class != tools.ClassNetwork || def.Runs != tools.PlaceHost {
			t.Errorf("without models: %+v", def)
		}
	}
	o := worker.AgentOptions{Profiles: []loop.Profile{p.profile("a")}}
	for _, f := range worker.NewTools(o) {
		if def := f().Definition(); !def.EnabledByDefault || !strings.Contains(string(def.InputSchema), `"enum":["a"]`) || slices.Contains([]tools.Name{"fetch", "verify"}, def.Name) {
			t.Errorf("with a model: %+v", def)
		}
	}
	for name, input := range map[string]map[string]any{
		"another model":   {"question": "?", "models": []string{"b"}},
		"no question":     {},
		"empty question":  {"question": ""},
		"unknown":         {"question": "?", "base_url": "http://elsewhere/"},
		"too many models": {"question": "?", "models": slices.Repeat([]string{"a"}, worker.MaxWorkers+1)},
		"session":         {"question": "?", "session_id": "x"},
		"a system prompt": {"question": "?", "system": "obey"},
	} {
		if _, r := callAgentTool(t, o, worker.ConferName, input); r.Class != tools.ErrorValidation {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if n := len(p.received("a")); n != 0 {
		t.Errorf("%d requests", n)
	}
	free := p.profile("a")
	free.Price = nil
	w := newWeb(t, "")
	o = worker.AgentOptions{Profiles: []loop.Profile{free}, Tools: w.toolOptions(t, limits.EgressBudget{}, "verify")}
	text, r := callAgentTool(t, o, worker.ConferName, map[string]any{"question": "?", "worker_tools": []string{"verify"}, "worker_tool_cost_cap_usd": 1, "worker_tool_cost_cap_mode": "enforce"})
	if !r.IsError || !strings.Contains(text, "price of the model a") {
		t.Errorf("a cap that nothing would hold: %s", text)
	}
}

// TestAgentAsksPlainly checks that without worker_tools a worker's request is byte for
// byte [worker.Confer]'s, and that long answers are cut to equal shares.
func TestAgentAsksPlainly(t *testing.T) {
	p := newProvider(t, map[string][]string{"a": {strings.Repeat("x", 100_000)}, "b": {"Yes."}})
	w := newWeb(t, "")
	o := worker.AgentOptions{Profiles: []loop.Profile{p.profile("a"), p.profile("b")}, Tools: w.toolOptions(t, limits.EgressBudget{}, "fetch", "verify")}
	text, _ := callAgentTool(t, o, worker.ConferName, map[string]any{"question": "Is it so?"})
	var got worker.Conference
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("the response is cut: %v: %.200s…", err, text)
	}
	if a := got.Answers[0].Answer; len(a) > 20_000 || !strings.Contains(a, "not shown") || got.Answers[1].Answer != "Yes." || got.Tools != nil {
		t.Errorf("answers of %d and %d bytes", len(a), len(got.Answers[1].Answer))
	}
	confer(t, worker.ConferOptions{Options: worker.Options{Question: "Is it so?"}, Profiles: []loop.Profile{p.profile("b")}})
	if all := p.received("b"); len(all) != 2 || string(all[0].raw) != string(all[1].raw) {
		t.Errorf("%d requests, which differ", len(all))
	}
}

// TestAgentCoordinates checks the default roles.
func TestAgentCoordinates(t *testing.T) {
	for name, tt := range map[string]struct {
		profiles []string
		input    map[string]any
		want     map[worker.Role][]string
	}{
		"one model":   {profiles: []string{"p"}, want: map[worker.Role][]string{"proposer": {"p"}, "critic": {"p"}, "synthesizer": {"p"}}},
		"three":       {profiles: []string{"p", "c", "d"}, want: map[worker.Role][]string{"proposer": {"p"}, "critic": {"c", "d"}, "synthesizer": {"p"}}},
		"named":       {profiles: []string{"p", "c", "d"}, input: map[string]any{"proposer": "d", "critics": []string{"p"}, "synthesizer": "c"}, want: map[worker.Role][]string{"proposer": {"d"}, "critic": {"p"}, "synthesizer": {"c"}}},
		"named twice": {profiles: []string{"p", "c"}, input: map[string]any{"critics": []string{"c", "c"}}, want: map[worker.Role][]string{"proposer": {"p"}, "critic": {"c", "c"}, "synthesizer": {"p"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, map[string][]string{"p": {"role"}, "c": {"role"}, "d": {"role"}})
			o := worker.AgentOptions{}
			for _, model := range tt.profiles {
				o.Profiles = append(o.Profiles, p.profile(model))
			}
			input := map[string]any{"question": "?"}
			maps.Copy(input, tt.input)
			text, r := callAgentTool(t, o, worker.CoordinateName, input)
			var got worker.Coordination
			if err := json.Unmarshal([]byte(text), &got); err != nil || r.IsError || got.Answer != "I am the synthesizer." {
				t.Fatalf("%v: %s", err, text)
			}
			parts := map[worker.Role][]string{}
			for _, a := range got.Workers {
				parts[a.Role] = append(parts[a.Role], a.Profile)
				if a.Answer != "" {
					t.Errorf("the envelope of %s is in the response twice", a.Profile)
				}
			}
			if diff := cmp.Diff(tt.want, parts); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAgentCoordinatesWithTools checks that tools are for the proposer and the critics.
func TestAgentCoordinatesWithTools(t *testing.T) {
	w := newWeb(t, "page")
	p := newProvider(t, map[string][]string{"p": {fetchCall(w.URL), "role"}, "c": {fetchCall(w.URL), "role"}, "s": {"role"}})
	o := worker.AgentOptions{Profiles: []loop.Profile{p.profile("p"), p.profile("c"), p.profile("s")}, Tools: w.toolOptions(t, limits.EgressBudget{}, "fetch")}
	text, _ := callAgentTool(t, o, worker.CoordinateName, map[string]any{"question": "?", "critics": []string{"c"}, "synthesizer": "s", "worker_tools": []string{"fetch", "solve"}})
	var got worker.Coordination
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.Answer == "" {
		t.Fatalf("%v: %s", err, text)
	}
	want := &worker.ToolReport{Accepted: []string{"fetch"}, Rejected: []string{"solve"}, HopBudget: 2, AppliesTo: []worker.Role{"proposer", "critic"}}
	if diff := cmp.Diff(want, got.Tools); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	for _, a := range got.Workers {
		if (len(a.InnerToolCalls) == 1) != (a.Role != worker.RoleSynthesizer) {
			t.Errorf("%s: calls %+v", a.Role, a.InnerToolCalls)
		}
	}
	if strings.Contains(p.received("s")[0].Messages[0].Content, "<tool_call>") {
		t.Error("the synthesizer's system prompt has the hint")
	}
}

// TestAgentEventsEndTheCall checks that a call whose events can't be recorded fails.
func TestAgentEventsEndTheCall(t *testing.T) {
	p := newProvider(t, map[string][]string{"a": {"Yes."}})
	o := worker.AgentOptions{Profiles: []loop.Profile{p.profile("a")}, Record: func(call string, _ worker.Event) error {
		if call != "tu_1" {
			t.Errorf("an event of the call %q", call)
		}
		return errors.New("disk full")
	}}
	if text, r := callAgentTool(t, o, worker.ConferName, map[string]any{"question": "?"}); !r.IsError || strings.Contains(text, "disk full") {
		t.Errorf("result %s", text)
	}
}
