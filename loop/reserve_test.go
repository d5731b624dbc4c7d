package loop

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

func chargedModel(responses ...Response) *scriptModel {
	m := playResponses(responses...)
	m.charged = true
	return m
}

func usedTokens(r Response, input, output int64) Response {
	r.Usage.InputTokens, r.Usage.OutputTokens = input, output
	return r
}

// firstBound returns the input bound of newTestOptions' first request.
func firstBound(d *fakeDispatcher) int64 {
	var n countedInput
	return n.estimateInput([]Message{NewText(RoleSystem, "You are a test."), NewText(RoleUser, "Do it.")}, d.Definitions(), "")
}

// TestRequestsBeginWithinTheirReservation checks when a request is sent, how its answer
// is bounded, and how the turn ends otherwise.
func TestRequestsBeginWithinTheirReservation(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	bound := firstBound(d)
	dear := &limits.Price{Input: 1, CachedInput: 1, CacheWrite: 3, Output: 10} // input is reserved at 3
	for name, tt := range map[string]struct {
		profile   Profile
		budget    limits.Budget
		outputs   []int64 // MaxOutputTokens of each request
		truncated bool    // the provider cuts the answer
		want      limits.Kind
	}{
		"no limit":                              {profile: Profile{MaxOutputTokens: 500}, outputs: []int64{500}},
		"no limit and no bound":                 {outputs: []int64{0}},
		"rounds need no reservation":            {budget: limits.Budget{Rounds: new(int64(5))}, outputs: []int64{0}},
		"tokens fit exactly":                    {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + 5000)}, outputs: []int64{5000}},
		"tokens lower the answer":               {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + 4999)}, outputs: []int64{4999}},
		"tokens for the shortest answer":        {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + minOutput)}, outputs: []int64{minOutput}},
		"one token too few":                     {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + minOutput - 1)}, want: limits.KindTokens},
		"a short answer is enough":              {profile: Profile{MaxOutputTokens: 10}, budget: limits.Budget{Tokens: new(bound + 10)}, outputs: []int64{10}},
		"default bound under a limit":           {budget: limits.Budget{Tokens: new(int64(1 << 40))}, outputs: []int64{defaultMaxOutput}},
		"default bound in a small window":       {profile: Profile{ContextWindow: 8000}, budget: limits.Budget{Tokens: new(int64(1 << 40))}, outputs: []int64{2000}},
		"cost fits exactly":                     {profile: Profile{MaxOutputTokens: 5000, Price: dear}, budget: limits.Budget{CostMicroUSD: new(3*bound + 50_000)}, outputs: []int64{5000}},
		"cost lowers the answer":                {profile: Profile{MaxOutputTokens: 5000, Price: dear}, budget: limits.Budget{CostMicroUSD: new(3*bound + 49_999)}, outputs: []int64{4999}},
		"cost too low":                          {profile: Profile{MaxOutputTokens: 5000, Price: dear}, budget: limits.Budget{CostMicroUSD: new(3*bound + 10*minOutput - 1)}, want: limits.KindCost},
		"a price of zero":                       {profile: Profile{MaxOutputTokens: 5000, Price: &limits.Price{}}, budget: limits.Budget{CostMicroUSD: new(int64(1))}, outputs: []int64{5000}},
		"the smaller of two limits counts":      {profile: Profile{MaxOutputTokens: 5000, Price: dear}, budget: limits.Budget{CostMicroUSD: new(3*bound + 40_000), Tokens: new(bound + 3000)}, outputs: []int64{3000}},
		"an answer cut by the limit is its end": {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + 4999)}, outputs: []int64{4999}, truncated: true, want: limits.KindTokens},
		"an answer cut by its own bound is not": {profile: Profile{MaxOutputTokens: 5000}, budget: limits.Budget{Tokens: new(bound + 5000)}, outputs: []int64{5000}, truncated: true},
	} {
		t.Run(name, func(t *testing.T) {
			answer := usedTokens(textResponse("Done."), 1, 1)
			answer.Truncated = tt.truncated
			model := chargedModel(answer)
			o := newTestOptions(model, d)
			tt.profile.Model = model
			o.Profiles, o.Budget = []Profile{tt.profile}, tt.budget
			out, _ := runTurn(t, t.Context(), o)
			var outputs []int64
			for _, r := range model.requests {
				outputs = append(outputs, r.MaxOutputTokens)
			}
			if diff := cmp.Diff(tt.outputs, outputs); diff != "" {
				t.Errorf("longest answers (-want +got):\n%s", diff)
			}
			if tt.want == "" && out.Reason != StopAnswered {
				t.Errorf("ended as %s: %v", out.Reason, out.Limit)
			}
			if tt.want != "" && (out.Reason != StopLimit || out.Limit.Kind != tt.want || !out.Truncated) {
				t.Errorf("ended as %s by %v, want %s", out.Reason, out.Limit, tt.want)
			}
			if refused := tt.want != "" && tt.outputs == nil; refused && out.Limit.Needed <= out.Limit.Limit {
				t.Errorf("%v does not say that more is needed", out.Limit)
			}
		})
	}
}

// TestUsageReplacesTheReservation checks that the second request is measured by the
// provider's count of the first, and that the actual use counts, not the reservation.
func TestUsageReplacesTheReservation(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	bound := firstBound(d)
	model := chargedModel(usedTokens(callsResponse("shell {}"), 10, 5), usedTokens(textResponse("Done."), 20, 5))
	o := newTestOptions(model, d)
	o.Profiles[0].MaxOutputTokens = 2000
	o.Budget.Tokens = new(bound + 2000)
	out, _ := runTurn(t, t.Context(), o)
	if out.Reason != StopAnswered || len(model.requests) != 2 {
		t.Fatalf("ended as %s by %v after %d requests", out.Reason, out.Limit, len(model.requests))
	}
	var n countedInput
	last := model.requests[1]
	n.recordCount(&pendingCall{messages: model.requests[0].Messages, offered: last.Tools}, "m", limits.Usage{InputTokens: 10, OutputTokens: 5})
	want := n.estimateInput(last.Messages, last.Tools, "m")
	if all := (&countedInput{}).estimateInput(last.Messages, last.Tools, "m"); want >= all {
		t.Errorf("the count does not tighten the bound: %d of %d", want, all)
	}
	if wantOutput := min(2000, *o.Budget.Tokens-15-want); last.MaxOutputTokens != wantOutput {
		t.Errorf("second request has %d tokens of output, want %d", last.MaxOutputTokens, wantOutput)
	}
}

// TestEstimateIsABound compares the bound with the worst tokenizer, one token per byte,
// over random contents: for whole requests and after a count.
func TestEstimateIsABound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		messages, size := randomMessages(random)
		var n countedInput
		if got := n.estimateInput(messages, nil, "m"); got < size {
			t.Fatalf("the bound of %d bytes is %d: %+v", size, got, messages)
		}
		cut := 1 + random.IntN(len(messages))
		n.recordCount(&pendingCall{messages: messages[:cut]}, "m", limits.Usage{InputTokens: max(textSize(messages[:cut]), 1)})
		if got := n.estimateInput(messages, nil, "m"); got < size {
			t.Fatalf("the bound of %d bytes after a count is %d", size, got)
		}
		if other := n.estimateInput(messages, nil, "other"); other < size {
			t.Fatalf("the count of one model was used for another: %d of %d", other, size)
		}
		messages[cut-1] = NewText(RoleUser, boundary.Text(strings.Repeat("x", 100_000)))
		if got := n.estimateInput(messages, nil, "m"); got < 100_000 {
			t.Fatalf("a message that was replaced since the count is not counted: %d", got)
		}
	}
}

// randomMessages returns messages of random text, calls, results and images, and their
// size in bytes.
func randomMessages(r *rand.Rand) ([]Message, int64) {
	alphabet := []rune("ab \n\t\"\\{}<\x00\x1bäß漢字🙂\u200b")
	text := func() string {
		var b strings.Builder
		for range r.IntN(200) {
			b.WriteRune(alphabet[r.IntN(len(alphabet))])
		}
		return b.String()
	}
	var out []Message
	for i := range 1 + r.IntN(6) {
		id := "tu_" + string(rune('a'+i))
		switch r.IntN(3) {
		case 0:
			out = append(out, NewText(RoleUser, boundary.Text(text())))
		case 1:
			out = append(out, Message{Role: RoleAssistant, Blocks: []Block{
				{Thinking: &Thinking{Text: text(), Signature: text()}}, {ToolUse: &ToolUse{ID: id, Name: "shell", Input: []byte(text())}},
			}})
		default:
			out = append(out, Message{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: id, Content: []tools.Block{{Text: text()}, {Text: text()}}}}}})
		}
	}
	return out, textSize(out)
}

func textSize(messages []Message) int64 {
	n := 0
	for _, m := range messages {
		for _, b := range m.Blocks {
			switch {
			case b.Text != nil:
				n += len(b.Text.Text)
			case b.Thinking != nil:
				n += len(b.Thinking.Text) + len(b.Thinking.Signature)
			case b.ToolUse != nil:
				n += len(b.ToolUse.ID) + len(b.ToolUse.Input)
			case b.ToolResult != nil:
				for _, c := range b.ToolResult.Content {
					n += len(c.Text)
				}
			}
		}
	}
	return int64(n)
}

type fakeLedger struct {
	reserve  func(profile string, d limits.Demand) (LedgerEntry, error)
	settle   error
	profiles []string
	settled  []*limits.Usage
}

func (f *fakeLedger) Reserve(_ context.Context, profile string, d limits.Demand) (LedgerEntry, error) {
	f.profiles = append(f.profiles, profile)
	e := LedgerEntry{Demand: d}
	if f.reserve != nil {
		var err error
		if e, err = f.reserve(profile, d); err != nil {
			return e, err
		}
	}
	e.Settle = func(used *limits.Usage) error {
		f.settled = append(f.settled, used)
		return f.settle
	}
	return e, nil
}

// TestLedger checks that each request is reserved and settled once, for the right
// profile.
func TestLedger(t *testing.T) {
	failure := &ModelError{Class: ModelServer, Err: errors.New("down")}
	failing := &scriptModel{charged: true, respond: func(int, Request, func(Delta)) (Response, error) { return Response{}, failure }}
	breaking := &scriptModel{charged: true, respond: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
		onDelta(Delta{Text: strings.Repeat("x", 40)})
		return Response{}, &ModelError{Class: ModelNetwork, Err: errors.New("cut")}
	}}
	answering := func() *scriptModel { return chargedModel(usedTokens(textResponse("Done."), 7, 3)) }
	price := &limits.Price{Input: 1, CachedInput: 1, CacheWrite: 1, Output: 1}
	exceeded := &limits.ExceededError{Kind: limits.KindCost, Limit: 5, Used: 5}
	bound := firstBound(&fakeDispatcher{})
	for name, tt := range map[string]struct {
		profiles []Profile
		ledger   fakeLedger
		reason   StopReason
		reserved []string
		settled  []*limits.Usage
		answered bool
	}{
		"an answer": {
			profiles: []Profile{{Name: "a", Model: answering(), Price: price}}, reason: StopAnswered, reserved: []string{"a"},
			settled: []*limits.Usage{{Rounds: 1, InputTokens: 7, OutputTokens: 3, CostMicroUSD: new(int64(10))}}, answered: true,
		},
		"a fallback": {
			profiles: []Profile{{Name: "a", Model: failing}, {Name: "b", Model: answering(), Price: price}}, reason: StopAnswered, reserved: []string{"a", "b"},
			settled: []*limits.Usage{nil, {Rounds: 1, InputTokens: 7, OutputTokens: 3, CostMicroUSD: new(int64(10))}}, answered: true,
		},
		"an answer that breaks off": {
			profiles: []Profile{{Name: "a", Model: breaking, Price: price}}, reason: StopProviderFailed, reserved: []string{"a"},
			settled: []*limits.Usage{{Rounds: 1, InputTokens: bound, OutputTokens: 40, CostMicroUSD: new(bound + 40)}},
		},
		"a recording": {profiles: []Profile{{Name: "a", Model: playResponses(textResponse("Done."))}}, reason: StopAnswered, answered: true},
		"refused": {
			profiles: []Profile{{Name: "a", Model: answering()}, {Name: "b", Model: answering()}},
			ledger:   fakeLedger{reserve: func(string, limits.Demand) (LedgerEntry, error) { return LedgerEntry{}, exceeded }}, reason: StopLimit, reserved: []string{"a"},
		},
		"unusable": {
			profiles: []Profile{{Name: "a", Model: answering()}},
			ledger:   fakeLedger{reserve: func(string, limits.Demand) (LedgerEntry, error) { return LedgerEntry{}, errors.New("no space") }}, reason: StopTraceUnwritable, reserved: []string{"a"},
		},
		"usage that can't be written": {
			profiles: []Profile{{Name: "a", Model: answering(), Price: price}}, ledger: fakeLedger{settle: errors.New("no space")}, reason: StopTraceUnwritable, reserved: []string{"a"},
			settled: []*limits.Usage{{Rounds: 1, InputTokens: 7, OutputTokens: 3, CostMicroUSD: new(int64(10))}}, answered: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestOptions(nil, &fakeDispatcher{})
			for i := range tt.profiles {
				tt.profiles[i].MaxRetries = new(0)
			}
			o.Profiles, o.Ledger = tt.profiles, &tt.ledger
			out, _ := runTurn(t, t.Context(), o)
			if out.Reason != tt.reason || (out.Answer != "") != tt.answered {
				t.Errorf("ended as %s with %q: %v", out.Reason, out.Answer, out.Err)
			}
			if tt.reason == StopLimit && out.Limit != exceeded {
				t.Errorf("limit %v, want %v", out.Limit, exceeded)
			}
			if diff := cmp.Diff(tt.reserved, tt.ledger.profiles); diff != "" {
				t.Errorf("reserved (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.settled, tt.ledger.settled); diff != "" {
				t.Errorf("settled (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLedgerLowersTheAnswer checks that a request asks for what the ledger reserved,
// and that an answer cut there ends the turn by the ledger's limit.
func TestLedgerLowersTheAnswer(t *testing.T) {
	cut := usedTokens(textResponse("Do"), 7, 3)
	cut.Truncated = true
	model := chargedModel(cut)
	o := newTestOptions(model, &fakeDispatcher{})
	lowered := &limits.ExceededError{Kind: limits.KindTokens, Limit: 100, Used: 90}
	o.Ledger = &fakeLedger{reserve: func(_ string, d limits.Demand) (LedgerEntry, error) {
		d.Output = 1234
		return LedgerEntry{Demand: d, Lowered: lowered, Warnings: []limits.ExceededError{*lowered}}, nil
	}}
	out, events := runTurn(t, t.Context(), o)
	if out.Reason != StopLimit || out.Limit != lowered || model.requests[0].MaxOutputTokens != 1234 {
		t.Errorf("ended as %s by %v, asked for %d tokens", out.Reason, out.Limit, model.requests[0].MaxOutputTokens)
	}
	warned := 0
	for _, e := range events {
		if w, ok := e.(BudgetWarning); ok && w.What == limits.KindTokens {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("%d warnings, want 1", warned)
	}
}

// TestCostLimitNeedsAPrice checks that a cost limit without a price is refused.
func TestCostLimitNeedsAPrice(t *testing.T) {
	for name, tt := range map[string]struct {
		profile Profile
		refused bool
	}{
		"no price":        {Profile{Model: chargedModel()}, true},
		"a price":         {Profile{Model: chargedModel(), Price: &limits.Price{}}, false},
		"a recorded cost": {Profile{Model: playResponses()}, false},
	} {
		o := newTestOptions(nil, nil)
		o.Profiles, o.Budget.CostMicroUSD = []Profile{tt.profile}, new(int64(1))
		if err := o.validate(); (err != nil) != tt.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
