package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

func TestCancelled(t *testing.T) {
	lost := fmt.Errorf("engine: %w", tools.ErrSandboxLost)
	over := &limits.ExceededError{Kind: limits.KindMemory, Limit: 1, Used: 2}
	for name, tt := range map[string]struct {
		cause error
		want  StopReason
	}{
		"by a person":       {cause: errors.New("interrupted"), want: StopCancelled},
		"by a limit":        {cause: over, want: StopLimit},
		"by a lost sandbox": {cause: lost, want: StopSandboxLost},
	} {
		t.Run(name, func(t *testing.T) {
			for _, where := range []string{"model", "tool", "between"} {
				ctx, cancel := context.WithCancelCause(t.Context())
				d := &fakeDispatcher{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
					if where == "tool" {
						cancel(tt.cause)
					}
					return "ok", context.Cause(ctx)
				}}
				model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
					switch where {
					case "model":
						cancel(tt.cause)
						return Response{}, fmt.Errorf("complete: %w", context.Cause(ctx))
					case "between":
						cancel(tt.cause)
					}
					return callsResponse("shell {}", "shell {}"), nil
				}}
				out, _ := runTurn(t, ctx, newTestOptions(model, d))
				if out.Reason != tt.want || !errors.Is(out.Err, tt.cause) || len(model.requests) != 1 {
					t.Errorf("%s: reason %s, err %v, requests %d", where, out.Reason, out.Err, len(model.requests))
				}
				if out.Truncated != (tt.want == StopLimit) {
					t.Errorf("%s: truncated %t", where, out.Truncated)
				}
				if where == "between" && len(d.ran) != 0 {
					t.Errorf("%s: %d calls ran after the cancellation", where, len(d.ran))
				}
			}
		})
	}
}

// TestInterruptedBeatsAnswer checks that an interrupted turn is never reported as
// answered.
func TestInterruptedBeatsAnswer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
		cancel(errors.New("interrupted"))
		return textResponse("Done."), nil
	}}
	if out, _ := runTurn(t, ctx, newTestOptions(model, nil)); out.Reason != StopCancelled || out.Answer != "Done." {
		t.Errorf("outcome = %+v", out)
	}
}

func TestDispatcherErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want StopReason
	}{
		"start":    {err: fmt.Errorf("image: %w", tools.ErrSandboxStart), want: StopSandboxStart},
		"lost":     {err: fmt.Errorf("gone: %w", tools.ErrSandboxLost), want: StopSandboxLost},
		"approver": {err: dispatch.ErrNoApprover, want: StopNoApprover},
		"record":   {err: errors.Join(errors.New("disk full"), tools.ErrRecord), want: StopTraceUnwritable},
		"limit":    {err: &limits.ExceededError{Kind: limits.KindPIDs}, want: StopLimit},
		"nameless": {err: errors.New("what?"), want: StopProviderFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeDispatcher{names: []tools.Name{"shell"}, err: tt.err}
			model := playResponses(callsResponse("shell {}", "shell {}"))
			out, _ := runTurn(t, t.Context(), newTestOptions(model, d))
			if out.Reason != tt.want || !errors.Is(out.Err, tt.err) || len(model.requests) != 1 {
				t.Errorf("reason %s, err %v, requests %d", out.Reason, out.Err, len(model.requests))
			}
		})
	}
}

func TestModelErrors(t *testing.T) {
	for class, want := range map[ErrorClass]StopReason{
		ModelAuth: StopAuth, ModelContextOverflow: StopLimit, ModelRateLimit: StopProviderFailed,
		ModelServer: StopProviderFailed, ModelNetwork: StopProviderFailed, ModelInvalidRequest: StopProviderFailed,
		ModelOther: StopProviderFailed, ModelCancelled: StopProviderFailed, "": StopProviderFailed,
	} {
		t.Run(string(class), func(t *testing.T) {
			cause := errors.New("secret words of the provider")
			model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
				if class == "" {
					return Response{}, cause
				}
				return Response{}, &ModelError{Class: class, Status: 418, Err: cause}
			}}
			o := newTestOptions(model, nil)
			o.Profiles[0].ContextWindow = 1000
			out, events := runTurn(t, t.Context(), o)
			if out.Reason != want || !errors.Is(out.Err, cause) {
				t.Errorf("reason %s, err %v", out.Reason, out.Err)
			}
			if class == ModelContextOverflow && (out.Limit.Kind != limits.KindContext || out.Limit.Limit != 1000 || !out.Truncated) {
				t.Errorf("limit = %+v", out.Limit)
			}
			failed := events[len(events)-2].(ModelCallFailed)
			if strings.Contains(failed.Message, "secret") || failed.Message == "" || failed.ErrorID == "" {
				t.Errorf("event %+v", failed)
			}
		})
	}
}

func TestModelErrorMessages(t *testing.T) {
	for want, failure := range map[string]ModelError{
		"The model call failed.":                       {},
		"The model call failed. (HTTP 418)":            {Status: 418},
		"The model call failed (HTTP 418): no kettle.": {Status: 418, ProviderMessage: "no kettle."},
	} {
		failure.Class, failure.Err = ModelOther, errors.New("secret")
		model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) { return Response{}, &failure }}
		_, events := runTurn(t, t.Context(), newTestOptions(model, nil))
		if got := events[len(events)-2].(ModelCallFailed); got.Message != want || got.Status != failure.Status {
			t.Errorf("reported %+v, want %q", got, want)
		}
	}
}

func TestVisibleModelError(t *testing.T) {
	model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
		return Response{}, &ModelError{Class: ModelOther, Visible: true, Err: errors.New("the script has no more turns")}
	}}
	_, events := runTurn(t, t.Context(), newTestOptions(model, nil))
	if got := events[len(events)-2].(ModelCallFailed).Message; got != "the script has no more turns" {
		t.Errorf("message = %q", got)
	}
}

// TestEmitErrors checks that a turn stops as soon as any event can't be recorded.
func TestEmitErrors(t *testing.T) {
	full := errors.New("disk full")
	for failAt := 1; ; failAt++ {
		d := &fakeDispatcher{names: []tools.Name{"shell"}}
		model := playResponses(callsResponse("shell {}", "shell {}"), textResponse("Done."))
		o := newTestOptions(model, d)
		var n, ranThen, requestsThen int
		o.Emit = func(Event) error {
			n++
			if n == failAt {
				ranThen, requestsThen = len(d.ran), len(model.requests)
				return full
			}
			if n > failAt {
				t.Fatalf("event %d after the failure at %d", n, failAt)
			}
			return nil
		}
		out, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		checkHistory(t, out.History)
		if n < failAt {
			if failAt < 10 {
				t.Fatalf("only %d events in a whole turn", n)
			}
			return
		}
		if out.Reason != StopTraceUnwritable || !errors.Is(out.Err, full) {
			t.Fatalf("failure at event %d: %+v", failAt, out)
		}
		if len(d.ran) != ranThen || len(model.requests) != requestsThen {
			t.Fatalf("failure at event %d: calls %d → %d, model %d → %d", failAt, ranThen, len(d.ran), requestsThen, len(model.requests))
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"no model":        {change: func(o *Options) { o.Profiles = nil }, want: ErrNoModel},
		"no session":      {change: func(o *Options) { o.Session = "" }, want: ErrInvalid},
		"no turn":         {change: func(o *Options) { o.Turn = "" }, want: ErrInvalid},
		"no message":      {change: func(o *Options) { o.Messages = nil }, want: ErrInvalid},
		"not the user's":  {change: func(o *Options) { o.Messages = []Message{NewText(RoleAssistant, "Hi.")} }, want: ErrInvalid},
		"negative window": {change: func(o *Options) { o.Profiles[0].ContextWindow = -1 }, want: ErrInvalid},
		"zero rounds":     {change: func(o *Options) { o.Budget.Rounds = new(int64(0)) }, want: ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestOptions(playResponses(textResponse("Hi.")), nil)
			tt.change(&o)
			if _, err := Run(t.Context(), o); !errors.Is(err, tt.want) {
				t.Errorf("Run() = %v, want %v", err, tt.want)
			}
		})
	}
}
