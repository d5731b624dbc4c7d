package loop

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

func fail(c ErrorClass) error { return &ModelError{Class: c, Err: errors.New("failed")} }

func TestFallback(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second, third *scriptModel
		windows              [3]int64
		reason               StopReason
		calls                []string
	}{
		"not needed": {first: failing(), calls: []string{"a 1 answered"}, reason: StopAnswered},
		"rate limit": {first: failing(fail(ModelRateLimit)), second: failing(), calls: []string{"a 1 rate_limit", "a > b", "b 2 answered"}, reason: StopAnswered},
		"server":     {first: failing(fail(ModelServer)), second: failing(), calls: []string{"a 1 server_error", "a > b", "b 2 answered"}, reason: StopAnswered},
		"network":    {first: failing(fail(ModelNetwork)), second: failing(), calls: []string{"a 1 network", "a > b", "b 2 answered"}, reason: StopAnswered},
		"key":        {first: failing(fail(ModelAuth)), second: failing(), calls: []string{"a 1 auth", "a > b", "b 2 answered"}, reason: StopAnswered},
		"unreadable": {first: failing(fail(ModelOther)), second: failing(), calls: []string{"a 1 other", "a > b", "b 2 answered"}, reason: StopAnswered},
		"the third": {
			first: failing(fail(ModelServer)), second: failing(fail(ModelAuth)), third: failing(),
			calls: []string{"a 1 server_error", "a > b", "b 2 auth", "b > c", "c 3 answered"}, reason: StopAnswered,
		},
		"none is left": {
			first: failing(fail(ModelServer)), second: failing(fail(ModelRateLimit)), third: failing(fail(ModelAuth)),
			calls: []string{"a 1 server_error", "a > b", "b 2 rate_limit", "b > c", "c 3 auth"}, reason: StopAuth,
		},
		"after the retries": {
			first: failing(&ModelError{Class: ModelServer, Retryable: true, Err: errors.New("busy")}, fail(ModelServer)), second: failing(),
			calls: []string{"a 1 server_error retry", "a 2 server_error", "a > b", "b 3 answered"}, reason: StopAnswered,
		},
		"not for an invalid request": {first: failing(fail(ModelInvalidRequest)), second: failing(), calls: []string{"a 1 invalid_request"}, reason: StopProviderFailed},
		"not after a piece of the answer": {
			first: &scriptModel{respond: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
				onDelta(Delta{Text: "Hel"})
				return Response{}, fail(ModelNetwork)
			}},
			second: failing(), calls: []string{"a 1 network"}, reason: StopProviderFailed,
		},
		"overflow, to a larger window": {
			first: failing(fail(ModelContextOverflow)), second: failing(), third: failing(), windows: [3]int64{1000, 1000, 2000},
			calls: []string{"a 1 context_overflow", "a > c", "c 2 answered"}, reason: StopAnswered,
		},
		"too large for a rate limit, to a window of this size": {
			first:  failing(&ModelError{Class: ModelContextOverflow, Status: http.StatusTooManyRequests, Err: errors.New("too large")}),
			second: failing(), windows: [3]int64{1000, 1000, 0},
			calls: []string{"a 1 context_overflow", "a > b", "b 2 answered"}, reason: StopAnswered,
		},
		"overflow, to an unknown window": {
			first: failing(fail(ModelContextOverflow)), second: failing(), windows: [3]int64{1000, 0, 0},
			calls: []string{"a 1 context_overflow", "a > b", "b 2 answered"}, reason: StopAnswered,
		},
		"overflow, all windows are smaller": {
			first: failing(fail(ModelContextOverflow)), second: failing(), third: failing(), windows: [3]int64{1000, 999, 500},
			calls: []string{"a 1 context_overflow"}, reason: StopLimit,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newTestOptions(nil, nil)
				o.Profiles = nil
				for i, m := range []*scriptModel{tt.first, tt.second, tt.third} {
					if m != nil {
						o.Profiles = append(o.Profiles, Profile{Name: string(rune('a' + i)), Model: m, ContextWindow: tt.windows[i]})
					}
				}
				out, events := runTurn(t, t.Context(), o)
				if out.Reason != tt.reason {
					t.Errorf("%s: %v", out.Reason, out.Err)
				}
				if diff := cmp.Diff(tt.calls, modelCalls(events)); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestRestingProfile checks that a failed profile is not asked again for five minutes,
// that no call runs twice, and that each answer has its profile's price.
func TestRestingProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &scriptModel{respond: func(n int, _ Request, _ func(Delta)) (Response, error) {
			if n == 1 {
				return Response{}, fail(ModelServer)
			}
			return withUsage(textResponse("Done."), 10, nil), nil
		}}
		second := &scriptModel{}
		d := &fakeDispatcher{names: []tools.Name{"wait"}}
		second.respond = func(n int, _ Request, _ func(Delta)) (Response, error) {
			r := withUsage(callsResponse(`wait {"n":1}`), 10, nil)
			if n == 2 {
				r = withUsage(callsResponse(`wait {"n":2}`), 10, nil)
				time.Sleep(restTime)
			}
			return r, nil
		}
		o := newTestOptions(nil, d)
		o.Profiles = []Profile{
			{Name: "a", Model: first, Price: &limits.Price{Input: 1}},
			{Name: "b", Model: second, Price: &limits.Price{Input: 3}},
		}
		out, events := runTurn(t, t.Context(), o)
		want := []string{"a 1 server_error", "a > b", "b 2 answered", "b 1 answered", "a 1 answered"}
		if diff := cmp.Diff(want, modelCalls(events)); diff != "" || out.Reason != StopAnswered {
			t.Errorf("%s: calls (-want +got):\n%s", out.Reason, diff)
		}
		if len(d.ran) != 2 || *out.Usage.CostMicroUSD != 10+2*30 {
			t.Errorf("%d calls ran, cost %d", len(d.ran), *out.Usage.CostMicroUSD)
		}
	})
}

// TestReasoningOfOthers checks that a model gets its own reasoning back unchanged, and
// no other's.
func TestReasoningOfOthers(t *testing.T) {
	own := Thinking{Text: "hm", Signature: "c2ln", Redacted: "x", Model: "fake/script"}
	foreign := Thinking{Text: "ha", Signature: "b3Ro", Model: "other/script"}
	unknown := Thinking{Text: "old"}
	m := playResponses(textResponse("Done."))
	o := newTestOptions(m, nil)
	o.History = []Message{NewText(RoleUser, "Begin."), {Role: RoleAssistant, Blocks: []Block{
		{Thinking: &own}, {Thinking: &foreign}, {Thinking: &unknown}, {Text: &Text{Text: "Yes."}},
	}}}
	out, _ := runTurn(t, t.Context(), o)
	want := []Block{{Thinking: &own}, {Thinking: &unknown}, {Text: &Text{Text: "Yes."}}}
	if diff := cmp.Diff(want, m.requests[0].Messages[1].Blocks); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if len(out.History[1].Blocks) != 4 {
		t.Error("the history was changed")
	}
}
