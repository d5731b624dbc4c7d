package limits_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

func TestBudgetValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		budget limits.Budget
		want   string
	}{
		"none":          {},
		"all":           {budget: limits.Budget{Rounds: new(int64(1)), ToolCalls: new(int64(1)), Tokens: new(int64(1)), CostMicroUSD: new(int64(1)), WallTime: new(time.Second)}},
		"zero rounds":   {budget: limits.Budget{Rounds: new(int64(0))}, want: "budget rounds is 0, must be positive or left out"},
		"negative cost": {budget: limits.Budget{CostMicroUSD: new(int64(-1))}, want: "budget cost_usd is -1, must be positive or left out"},
		"zero time":     {budget: limits.Budget{WallTime: new(time.Duration(0))}, want: "budget wall_time is 0, must be positive or left out"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tt.budget.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Validate() = %q, want %q", got, tt.want)
			}
			if _, err := limits.NewMeter(tt.budget); (err != nil) != (tt.want != "") {
				t.Errorf("NewMeter() = %v, want an error: %v", err, tt.want != "")
			}
		})
	}
}

func TestMeterExceeded(t *testing.T) {
	all := limits.Budget{
		Rounds: new(int64(2)), ToolCalls: new(int64(3)), Tokens: new(int64(100)),
		CostMicroUSD: new(int64(50)), WallTime: new(time.Minute),
	}
	for name, tt := range map[string]struct {
		used    limits.Usage
		elapsed time.Duration
		// want has an entry per step: round, closing, tool call.
		want [3]limits.Kind
	}{
		"nothing used":   {},
		"rounds used":    {used: limits.Usage{Rounds: 2, CostMicroUSD: new(int64(0))}, want: [3]limits.Kind{limits.KindRounds}},
		"one round left": {used: limits.Usage{Rounds: 1}},
		"calls used":     {used: limits.Usage{ToolCalls: 3}, want: [3]limits.Kind{2: limits.KindToolCalls}},
		"tokens used": {
			used: limits.Usage{InputTokens: 40, CachedInputTokens: 30, CacheWriteTokens: 10, OutputTokens: 20},
			want: [3]limits.Kind{limits.KindTokens, limits.KindTokens, limits.KindTokens},
		},
		"tokens left":  {used: limits.Usage{InputTokens: 99}},
		"cost used":    {used: limits.Usage{CostMicroUSD: new(int64(51))}, want: [3]limits.Kind{limits.KindCost, limits.KindCost, limits.KindCost}},
		"cost unknown": {used: limits.Usage{InputTokens: 5}},
		"time used":    {elapsed: time.Minute, want: [3]limits.Kind{limits.KindWallTime, limits.KindWallTime, limits.KindWallTime}},
		"time and rounds used": {
			used: limits.Usage{Rounds: 2}, elapsed: time.Hour,
			want: [3]limits.Kind{limits.KindWallTime, limits.KindWallTime, limits.KindWallTime},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := limits.NewMeter(all)
			if err != nil {
				t.Fatal(err)
			}
			m.Add(tt.used)
			var got [3]limits.Kind
			for i, s := range []limits.Step{limits.StepRound, limits.StepClosing, limits.StepToolCall} {
				if e := m.Exceeded(s, tt.elapsed); e != nil {
					got[i] = e.Kind
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("exceeded (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMeterWithoutBudgetIsNeverExceeded(t *testing.T) {
	m, err := limits.NewMeter(limits.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	m.Add(limits.Usage{Rounds: math.MaxInt64, ToolCalls: math.MaxInt64, InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64})
	m.Add(limits.Usage{Rounds: 5, InputTokens: 5})
	if e := m.Exceeded(limits.StepRound, math.MaxInt64); e != nil {
		t.Errorf("Exceeded() = %v without a budget", e)
	}
	if got := m.Used().Tokens(); got != math.MaxInt64 {
		t.Errorf("Tokens() = %d after overflow, want the largest int64", got)
	}
	if _, limited := m.LeftToolCalls(); limited {
		t.Error("LeftToolCalls() is limited without a budget")
	}
}

func TestMeterCostStaysUnknown(t *testing.T) {
	m, _ := limits.NewMeter(limits.Budget{CostMicroUSD: new(int64(100))})
	m.Add(limits.Usage{ToolCalls: 1})
	m.Add(limits.Usage{Rounds: 1, InputTokens: 10, CostMicroUSD: new(int64(7))})
	if got := m.Used().CostMicroUSD; got == nil || *got != 7 {
		t.Fatalf("cost = %v, want 7: tool calls have no price", got)
	}
	m.Add(limits.Usage{Rounds: 1, InputTokens: 10})
	m.Add(limits.Usage{Rounds: 1, InputTokens: 10, CostMicroUSD: new(int64(100))})
	if got := m.Used().CostMicroUSD; got != nil {
		t.Errorf("cost = %d, want unknown", *got)
	}
	if e := m.Exceeded(limits.StepRound, 0); e == nil || e.Used != 107 {
		t.Errorf("Exceeded() = %v, want the known part of the cost to count", e)
	}
}

func TestMeterCostIsUnknownWithoutAPrice(t *testing.T) {
	for name, tt := range map[string]struct {
		used  limits.Usage
		known bool
	}{
		"nothing":   {known: true},
		"a call":    {used: limits.Usage{ToolCalls: 1}, known: true},
		"one round": {used: limits.Usage{Rounds: 1}},
		"one token": {used: limits.Usage{OutputTokens: 1}},
	} {
		m, _ := limits.NewMeter(limits.Budget{})
		m.Add(tt.used)
		if got := m.Used().CostMicroUSD; (got != nil) != tt.known {
			t.Errorf("%s: cost %v, want it known: %v", name, got, tt.known)
		}
	}
}

func TestMeterRoundsShortWallTimeUp(t *testing.T) {
	m, _ := limits.NewMeter(limits.Budget{WallTime: new(10 * time.Microsecond)})
	want := &limits.ExceededError{Kind: limits.KindWallTime, Limit: 1, Used: 1}
	if diff := cmp.Diff(want, m.Exceeded(limits.StepRound, time.Millisecond)); diff != "" {
		t.Errorf("exceeded (-want +got):\n%s", diff)
	}
	if e := m.Exceeded(limits.StepRound, 0); e != nil {
		t.Errorf("Exceeded() = %v before any time has passed", e)
	}
}

func TestMeterIgnoresNegativeCounts(t *testing.T) {
	m, _ := limits.NewMeter(limits.Budget{Tokens: new(int64(10))})
	m.Add(limits.Usage{InputTokens: 12, OutputTokens: -100})
	if e := m.Exceeded(limits.StepRound, 0); e == nil {
		t.Error("a negative count reduced the tokens used")
	}
}

func TestMeterWarnsOnceAtFourFifths(t *testing.T) {
	m, _ := limits.NewMeter(limits.Budget{Rounds: new(int64(10)), Tokens: new(int64(1000)), WallTime: new(10 * time.Second)})
	m.Add(limits.Usage{Rounds: 7, InputTokens: 799})
	if got := m.Warnings(7 * time.Second); got != nil {
		t.Fatalf("Warnings() = %v below four fifths", got)
	}
	m.Add(limits.Usage{Rounds: 1, InputTokens: 1})
	want := []limits.ExceededError{
		{Kind: limits.KindRounds, Limit: 10, Used: 8},
		{Kind: limits.KindTokens, Limit: 1000, Used: 800},
		{Kind: limits.KindWallTime, Limit: 10_000, Used: 8000},
	}
	if diff := cmp.Diff(want, m.Warnings(8*time.Second)); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if got := m.Warnings(9 * time.Second); got != nil {
		t.Errorf("Warnings() = %v the second time", got)
	}
}

func TestLeftToolCalls(t *testing.T) {
	var none limits.Meter
	if left, limited := none.LeftToolCalls(); left != 0 || limited {
		t.Errorf("LeftToolCalls() = %d, %v without a limit, want 0, false", left, limited)
	}
	m, _ := limits.NewMeter(limits.Budget{ToolCalls: new(int64(3))})
	m.Add(limits.Usage{ToolCalls: 2})
	if left, limited := m.LeftToolCalls(); left != 1 || !limited {
		t.Errorf("LeftToolCalls() = %d, %v, want 1, true", left, limited)
	}
	m.Add(limits.Usage{ToolCalls: 5})
	if left, _ := m.LeftToolCalls(); left != 0 {
		t.Errorf("LeftToolCalls() = %d, want 0", left)
	}
}

func TestResourcesValidate(t *testing.T) {
	if err := limits.DefaultResources().Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for name, tt := range map[string]struct {
		field func(*limits.Resources) *int64
		least int64
	}{
		"memory":       {func(r *limits.Resources) *int64 { return &r.MemoryBytes }, limits.MinMemoryBytes},
		"pids":         {func(r *limits.Resources) *int64 { return &r.PIDs }, limits.MinPIDs},
		"cpus":         {func(r *limits.Resources) *int64 { return &r.MilliCPUs }, 10},
		"tmp":          {func(r *limits.Resources) *int64 { return &r.TmpBytes }, 1 << 20},
		"home":         {func(r *limits.Resources) *int64 { return &r.HomeBytes }, 1 << 20},
		"shm":          {func(r *limits.Resources) *int64 { return &r.ShmBytes }, 4096},
		"open files":   {func(r *limits.Resources) *int64 { return &r.OpenFiles }, 64},
		"command time": {func(r *limits.Resources) *int64 { return (*int64)(&r.CommandTime) }, int64(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			r := limits.DefaultResources()
			*tt.field(&r) = tt.least
			if err := r.Validate(); err != nil {
				t.Errorf("the least: %v", err)
			}
			*tt.field(&r)--
			want := fmt.Sprintf("resource %s is %d, must be at least %d", name, tt.least-1, tt.least)
			if err := r.Validate(); err == nil || err.Error() != want {
				t.Errorf("one less: %v, want %s", err, want)
			}
		})
	}
}

func TestUsagePlus(t *testing.T) {
	a := limits.Usage{Rounds: 1, ToolCalls: 2, InputTokens: 3, CachedInputTokens: 4, CacheWriteTokens: 5, OutputTokens: 6, CostMicroUSD: new(int64(7))}
	b := limits.Usage{Rounds: 10, ToolCalls: 20, InputTokens: 30, CachedInputTokens: 40, CacheWriteTokens: 50, OutputTokens: math.MaxInt64, CostMicroUSD: new(int64(70))}
	want := limits.Usage{Rounds: 11, ToolCalls: 22, InputTokens: 33, CachedInputTokens: 44, CacheWriteTokens: 55, OutputTokens: math.MaxInt64, CostMicroUSD: new(int64(77))}
	if diff := cmp.Diff(want, a.Plus(b)); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	if got := a.Plus(limits.Usage{Rounds: -1}).Rounds; got != 1 {
		t.Errorf("1 and -1 rounds are %d", got)
	}
	b.CostMicroUSD = nil
	if got := a.Plus(b); got.CostMicroUSD != nil {
		t.Errorf("an unknown cost became %d", *got.CostMicroUSD)
	}
}
