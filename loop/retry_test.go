package loop

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

// modelCalls returns the events' model calls, one word each: profile and attempt, and a
// failure's class with its retry's delay.
func modelCalls(events []Event) []string {
	var out []string
	for _, e := range events {
		switch e := e.(type) {
		case ModelCallCompleted:
			out = append(out, describeCall(e.ModelCall)+" answered")
		case ModelCallFailed:
			text := describeCall(e.ModelCall) + " " + string(e.Class)
			if e.Retry != nil {
				text += " retry"
			}
			out = append(out, text)
		case ProfileChanged:
			out = append(out, e.From+" > "+e.To)
		}
	}
	return out
}

func describeCall(c ModelCall) string { return c.Profile + " " + string(rune('0'+c.Attempt)) }

// failing returns a model that fails with the given errors and then answers.
func failing(failures ...error) *scriptModel {
	return &scriptModel{respond: func(n int, _ Request, _ func(Delta)) (Response, error) {
		if n <= len(failures) {
			return Response{}, failures[n-1]
		}
		return textResponse("Done."), nil
	}}
}

func TestRetries(t *testing.T) {
	busy := &ModelError{Class: ModelServer, Retryable: true, Err: errors.New("busy")}
	for name, tt := range map[string]struct {
		failures []error
		profile  Profile
		reason   StopReason
		// least and most bound the turn's duration.
		least, most time.Duration
		calls       []string
	}{
		"none":   {reason: StopAnswered, calls: []string{"p 1 answered"}},
		"twice":  {failures: []error{busy, busy}, reason: StopAnswered, least: 1125 * time.Millisecond, most: 1500 * time.Millisecond, calls: []string{"p 1 server_error retry", "p 2 server_error retry", "p 3 answered"}},
		"thrice": {failures: []error{busy, busy, busy}, reason: StopProviderFailed, least: 1125 * time.Millisecond, most: 1500 * time.Millisecond, calls: []string{"p 1 server_error retry", "p 2 server_error retry", "p 3 server_error"}},
		"as often as allowed": {
			failures: []error{busy, busy}, profile: Profile{MaxRetries: new(1)}, reason: StopProviderFailed, least: 375 * time.Millisecond, most: 500 * time.Millisecond,
			calls: []string{"p 1 server_error retry", "p 2 server_error"},
		},
		"never": {failures: []error{busy}, profile: Profile{MaxRetries: new(0)}, reason: StopProviderFailed, calls: []string{"p 1 server_error"}},
		"bounded delay": {
			failures: slices.Repeat([]error{busy}, 9), profile: Profile{MaxRetries: new(9), MaxRetryDelay: 2 * time.Second}, reason: StopAnswered,
			least: 11625 * time.Millisecond, most: 15500 * time.Millisecond,
			calls: append(slices.Collect(func(yield func(string) bool) {
				for i := range 9 {
					if !yield("p " + string(rune('1'+i)) + " server_error retry") {
						return
					}
				}
			}), "p : answered"),
		},
		"as the provider asks": {
			failures: []error{&ModelError{Class: ModelRateLimit, Retryable: true, RetryAfter: 90 * time.Second, Err: errors.New("slow down")}},
			reason:   StopAnswered, least: 90 * time.Second, most: 90 * time.Second, calls: []string{"p 1 rate_limit retry", "p 2 answered"},
		},
		"asked to wait too long": {
			failures: []error{&ModelError{Class: ModelRateLimit, Retryable: true, RetryAfter: time.Hour, Err: errors.New("slow down")}},
			reason:   StopProviderFailed, calls: []string{"p 1 rate_limit"},
		},
		"not retryable": {
			failures: []error{&ModelError{Class: ModelServer, Err: errors.New("broken")}}, reason: StopProviderFailed, calls: []string{"p 1 server_error"},
		},
		"not classified": {failures: []error{errors.New("broken")}, reason: StopProviderFailed, calls: []string{"p 1 other"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTestOptions(nil, nil)
				tt.profile.Name, tt.profile.Model = "p", failing(tt.failures...)
				o.Profiles = []Profile{tt.profile}
				began := time.Now()
				out, events := runTurn(t, t.Context(), o)
				if took := time.Since(began); out.Reason != tt.reason || took < tt.least || took > tt.most {
					t.Errorf("%s after %v: %v", out.Reason, took, out.Err)
				}
				if diff := cmp.Diff(tt.calls, modelCalls(events)); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestNoRetryAfterDelta checks that nothing is repeated after a piece of an answer was
// emitted, whatever the adapter reports.
func TestNoRetryAfterDelta(t *testing.T) {
	model := &scriptModel{respond: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
		onDelta(Delta{ToolName: "shell"})
		return Response{}, &ModelError{Class: ModelServer, Retryable: true, Err: errors.New("broke off")}
	}}
	out, events := runTurn(t, t.Context(), newTestOptions(model, nil))
	if out.Reason != StopProviderFailed || len(model.requests) != 1 {
		t.Errorf("%s after %d requests: %v", out.Reason, len(model.requests), modelCalls(events))
	}
}

// TestCancelledRetry checks that cancellation and the time limit end a retry's delay.
func TestCancelledRetry(t *testing.T) {
	busy := &ModelError{Class: ModelRateLimit, Retryable: true, RetryAfter: time.Minute, Err: errors.New("busy")}
	why := errors.New("interrupted")
	for name, tt := range map[string]struct {
		budget limits.Budget
		reason StopReason
	}{
		"cancelled":     {reason: StopCancelled},
		"limit of time": {budget: limits.Budget{WallTime: new(time.Second)}, reason: StopLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				model := failing(busy)
				o := newTestOptions(model, nil)
				o.Budget = tt.budget
				time.AfterFunc(2*time.Second, func() { cancel(why) })
				began := time.Now()
				out, _ := runTurn(t, ctx, o)
				if out.Reason != tt.reason || len(model.requests) != 1 || time.Since(began) > 2*time.Second {
					t.Errorf("%s after %v and %d requests: %v", out.Reason, time.Since(began), len(model.requests), out.Err)
				}
			})
		})
	}
}

// TestCost checks that an answer's cost comes from its profile's price, or else from
// the provider, or else is unknown.
func TestCost(t *testing.T) {
	price := &limits.Price{Input: 2, CachedInput: 0.5, CacheWrite: 3, Output: 8}
	used := limits.Usage{InputTokens: 40, CachedInputTokens: 60, CacheWriteTokens: 10, OutputTokens: 10}
	for name, tt := range map[string]struct {
		price *limits.Price
		usage limits.Usage
		want  *int64
	}{
		"priced":              {price: price, usage: used, want: new(int64(220))},
		"reported":            {usage: limits.Usage{InputTokens: 1, CostMicroUSD: new(int64(123))}, want: new(int64(123))},
		"ours beats theirs":   {price: price, usage: limits.Usage{InputTokens: 5, CostMicroUSD: new(int64(123))}, want: new(int64(10))},
		"free":                {price: &limits.Price{}, usage: used, want: new(int64(0))},
		"unknown price":       {usage: used},
		"unknown usage":       {price: price},
		"usage unknown alone": {price: price, usage: limits.Usage{CostMicroUSD: new(int64(7))}, want: new(int64(7))},
	} {
		t.Run(name, func(t *testing.T) {
			answer := textResponse("Done.")
			answer.Usage, answer.Model = tt.usage, "script-2026-01-01"
			o := newTestOptions(playResponses(answer), nil)
			o.Profiles[0].Price = tt.price
			out, events := runTurn(t, t.Context(), o)
			if diff := cmp.Diff(tt.want, out.Usage.CostMicroUSD); diff != "" {
				t.Errorf("cost (-want +got):\n%s", diff)
			}
			for _, e := range events {
				switch e := e.(type) {
				case ModelCallStarted:
					if e.Profile != "fake/script" || e.Attempt != 1 || e.Model.Model != "script" {
						t.Errorf("started %+v", e)
					}
				case ModelCallCompleted:
					if diff := cmp.Diff(tt.want, e.Usage.CostMicroUSD); diff != "" || e.Profile != "fake/script" || e.Model.Model != "script-2026-01-01" {
						t.Errorf("completed %+v\n%s", e, diff)
					}
				}
			}
		})
	}
}
