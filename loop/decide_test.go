package loop

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

func TestNextStep(t *testing.T) {
	user := NewText(RoleUser, "Do it.")
	asks := Message{Role: RoleAssistant, Blocks: []Block{
		{ToolUse: &ToolUse{ID: "tu_1", Name: "shell", Input: []byte("{}")}}, {ToolUse: &ToolUse{ID: "tu_2", Name: "shell", Input: []byte("{}")}},
	}}
	result := func(id string) Message {
		return Message{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: id}}}}
	}
	byRounds := &limits.ExceededError{Kind: limits.KindRounds, Limit: 1, Used: 1}
	closing := &ending{reason: StopLimit, limit: byRounds, truncated: true}

	type got struct {
		Action      action
		Reason      StopReason
		Limit       limits.Kind
		Truncated   bool
		Run, Refuse int
		Topic       string
	}
	for name, tt := range map[string]struct {
		history []Message
		budget  limits.Budget
		used    limits.Usage
		state   state
		want    got
	}{
		"beginning":                {history: []Message{user}, state: state{hasTools: true}, want: got{Action: actCallModel}},
		"without tools":            {history: []Message{user}, want: got{Action: actCallModel}},
		"calls":                    {history: []Message{user, asks}, state: state{hasTools: true}, want: got{Action: actHandleCalls, Run: 2}},
		"half answered":            {history: []Message{user, asks, result("tu_1")}, state: state{hasTools: true}, want: got{Action: actHandleCalls, Run: 1}},
		"answered":                 {history: []Message{user, asks, result("tu_1"), result("tu_2")}, state: state{hasTools: true}, want: got{Action: actCallModel}},
		"the answer":               {history: []Message{user, NewText(RoleAssistant, "Done.")}, state: state{hasTools: true}, want: got{Action: actEnd, Reason: StopAnswered}},
		"the answer, cut":          {history: []Message{user, NewText(RoleAssistant, "Do")}, state: state{truncated: true}, want: got{Action: actEnd, Reason: StopAnswered, Truncated: true}},
		"calls, then none offered": {history: []Message{user, asks, result("tu_1"), result("tu_2")}, want: got{Action: actCallModel}},
		"calls, none known":        {history: []Message{user, asks}, want: got{Action: actHandleCalls, Refuse: 2}},
		"calls in the closing": {
			history: []Message{user, asks}, state: state{hasTools: true, closing: closing}, want: got{Action: actHandleCalls, Refuse: 2},
		},
		"closed": {
			history: []Message{user, NewText(RoleAssistant, "So far.")}, state: state{hasTools: true, closing: closing},
			want: got{Action: actEnd, Reason: StopLimit, Limit: limits.KindRounds, Truncated: true},
		},
		"closed without a word": {
			history: []Message{user}, state: state{hasTools: true, closing: closing, emptyAnswer: true},
			want: got{Action: actEnd, Reason: StopLimit, Limit: limits.KindRounds, Truncated: true},
		},
		"rounds used": {
			history: []Message{user}, budget: limits.Budget{Rounds: new(int64(1))}, used: limits.Usage{Rounds: 1}, state: state{hasTools: true},
			want: got{Action: actClose, Reason: StopLimit, Limit: limits.KindRounds, Truncated: true},
		},
		"calls left for one": {
			history: []Message{user, asks}, budget: limits.Budget{ToolCalls: new(int64(3))}, used: limits.Usage{ToolCalls: 2}, state: state{hasTools: true},
			want: got{Action: actHandleCalls, Run: 1, Refuse: 1},
		},
		"calls refused": {
			history: []Message{user}, state: state{hasTools: true, refusedBy: &limits.ExceededError{Kind: limits.KindToolCalls}},
			want: got{Action: actClose, Reason: StopLimit, Limit: limits.KindToolCalls, Truncated: true},
		},
		"tokens used": {
			history: []Message{user}, budget: limits.Budget{Tokens: new(int64(5))}, used: limits.Usage{OutputTokens: 5}, state: state{hasTools: true},
			want: got{Action: actEnd, Reason: StopLimit, Limit: limits.KindTokens, Truncated: true},
		},
		"tokens used by calls": {
			history: []Message{user, asks}, budget: limits.Budget{Tokens: new(int64(5))}, used: limits.Usage{OutputTokens: 5}, state: state{hasTools: true},
			want: got{Action: actHandleCalls, Refuse: 2},
		},
		"time used": {
			history: []Message{user}, budget: limits.Budget{WallTime: new(time.Second)}, state: state{hasTools: true, elapsed: time.Second},
			want: got{Action: actEnd, Reason: StopLimit, Limit: limits.KindWallTime, Truncated: true},
		},
		"empty": {history: []Message{user}, state: state{emptyAnswer: true}, want: got{Action: actNudge, Topic: "empty"}},
		"empty again": {
			history: []Message{user}, state: state{emptyAnswer: true, nudged: map[string]bool{"empty": true}},
			want: got{Action: actEnd, Reason: StopProviderFailed},
		},
		"empty in the last round": {
			history: []Message{user}, budget: limits.Budget{Rounds: new(int64(1))}, used: limits.Usage{Rounds: 1}, state: state{emptyAnswer: true},
			want: got{Action: actEnd, Reason: StopLimit, Limit: limits.KindRounds, Truncated: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			meter, err := limits.NewMeter(tt.budget)
			if err != nil {
				t.Fatal(err)
			}
			meter.Add(tt.used)
			tt.state.meter = &meter
			for range 2 { // nextStep has no state
				s := nextStep(tt.history, tt.state)
				have := got{
					Action: s.action, Reason: s.ending.reason, Truncated: s.ending.truncated,
					Run: len(s.run), Refuse: len(s.refuse), Topic: s.topic,
				}
				if s.ending.limit != nil {
					have.Limit = s.ending.limit.Kind
				}
				if diff := cmp.Diff(tt.want, have); diff != "" {
					t.Errorf("step (-want +got):\n%s", diff)
				}
				if s.action == actClose && !strings.Contains(string(s.message), describeLimit(s.ending.limit)) {
					t.Errorf("%q does not name the limit", s.message)
				}
				if len(s.refuse) > 0 && s.refusal == "" || s.action == actClose && s.message == "" || s.action == actNudge && s.message == "" {
					t.Errorf("a step without a message: %+v", s)
				}
			}
		})
	}
}

func TestDescribeLimit(t *testing.T) {
	for want, e := range map[string]limits.ExceededError{
		"50 rounds":       {Kind: limits.KindRounds, Limit: 50},
		"3 tool calls":    {Kind: limits.KindToolCalls, Limit: 3},
		"900 tokens":      {Kind: limits.KindTokens, Limit: 900},
		"0.25 US dollars": {Kind: limits.KindCost, Limit: 250_000},
		"1m30s":           {Kind: limits.KindWallTime, Limit: 90_000},
		"context":         {Kind: limits.KindContext},
	} {
		if got := describeLimit(&e); got != want {
			t.Errorf("describeLimit(%s) = %q, want %q", e.Kind, got, want)
		}
	}
}
