package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// NewTurn is a user's message.
type NewTurn struct {
	Message  string      `json:"message,omitempty" minLength:"1" maxLength:"1000000" doc:"what the user says; required without continue"`
	Continue bool        `json:"continue,omitempty" doc:"instead of a message, in a resumed session: continue its last turn, which has no answer"`
	Limits   *TurnLimits `json:"limits,omitempty" doc:"limits of this turn, below the session's"`
}

// check refuses a turn with neither a message nor continue, or with both.
func (t NewTurn) check() error {
	switch {
	case !t.Continue && t.Message == "":
		return newProblem(http.StatusUnprocessableEntity, "refused", "a turn needs a message", "Send message, or continue in a session that was resumed")
	case t.Continue && t.Message != "":
		return newProblem(http.StatusUnprocessableEntity, "refused", "continue takes no message", "Send one of them")
	}
	return nil
}

// Budget returns the limits as a budget. It is empty for nil.
func (l *TurnLimits) Budget() limits.Budget {
	if l == nil {
		return limits.Budget{}
	}
	b := (&TotalLimits{ToolCalls: l.ToolCalls, Tokens: l.Tokens, CostUSD: l.CostUSD, TimeoutSeconds: l.TimeoutSeconds}).Budget()
	b.Rounds = l.Rounds
	return b
}

// Budget returns the limits as a budget. It is empty for nil.
func (l *TotalLimits) Budget() limits.Budget {
	if l == nil {
		return limits.Budget{}
	}
	b := limits.Budget{ToolCalls: l.ToolCalls, Tokens: l.Tokens}
	if l.CostUSD != nil {
		b.CostMicroUSD = new(int64(math.Round(*l.CostUSD * 1e6)))
	}
	if l.TimeoutSeconds != nil {
		b.WallTime = new(time.Duration(*l.TimeoutSeconds) * time.Second)
	}
	return b
}

// limitProblem returns the problem for a turn's limits that can't be used, or
// nil for any other error.
func limitProblem(err error) *Problem {
	if e, ok := errors.AsType[*limits.RaisedError](err); ok {
		key, show := "max_"+string(e.Kind), func(n int64) string { return strconv.FormatInt(n, 10) }
		switch e.Kind {
		case limits.KindCost:
			show = func(n int64) string { return record.CostUSD(&n) }
		case limits.KindWallTime:
			key, show = "timeout_seconds", func(n int64) string { return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64) }
		}
		return newProblem(http.StatusUnprocessableEntity, "refused", fmt.Sprintf("limits.%s: %s is above the session's limit of %s", key, show(e.Asked), show(e.Limit)), "Ask for less, or leave it out")
	}
	if f, ok := errors.AsType[runner.Fault](err); ok && f.Kind == runner.FaultInvalidLimits {
		return newProblem(http.StatusUnprocessableEntity, "refused", "limits: "+f.Error(), "Leave max_cost_usd out, or start a session with a model that has a price")
	}
	return nil
}

// Started is a turn that has begun.
type Started struct {
	Turn string `json:"turn"`
}

// TraceHeader is the header of a client that traces its requests.
type TraceHeader struct {
	Traceparent string `header:"traceparent" doc:"the client's span, in the format of W3C Trace Context: turn.started records it, and the turn's span links to it. A malformed value is ignored"`
}

// Resolve drops a header that was sent more than once, since any of them may be
// wrong.
func (h *TraceHeader) Resolve(ctx huma.Context) []error {
	sent := 0
	ctx.EachHeader(func(name, _ string) {
		if name == "Traceparent" {
			sent++
		}
	})
	if sent > 1 {
		h.Traceparent = ""
	}
	return nil
}

type turnsAPI struct{ sessions *registry }

func (a turnsAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/turns", "startTurn", "Send a session a message",
		"Answers when the turn has begun; the events report its progress.", http.StatusAccepted, 404, 409, 410, 422),
		func(ctx context.Context, in *struct {
			SessionPath
			TraceHeader
			Body NewTurn
		},
		) (*created[Started], error) {
			if err := in.Body.check(); err != nil {
				return nil, err
			}
			live, err := a.sessions.requireLive(in.ID)
			if err != nil {
				return nil, err
			}
			t, err := live.startTurn(in.Body, clientOf(ctx), in.Traceparent)
			if err != nil {
				return nil, err
			}
			return &created[Started]{"/sessions/" + in.ID + "/turns/" + t.ID, Started{t.ID}}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/turns/{turn}", "getTurn", "Look at a turn", "", http.StatusOK, 404),
		func(_ context.Context, in *TurnPath) (*body[Turn], error) {
			t, err := a.findTurn(in.ID, in.Turn)
			return &body[Turn]{t}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/turns/{turn}/cancel", "cancelTurn", "Cancel a turn",
		"Stops its commands and withdraws its questions. It answers at once; the turn ends when its commands have ended. Cancelling an ended turn does nothing.",
		http.StatusOK, 404),
		func(ctx context.Context, in *TurnPath) (*body[Turn], error) {
			if live := a.sessions.liveSession(in.ID); live != nil {
				live.cancelTurn(in.Turn, clientOf(ctx))
			}
			t, err := a.findTurn(in.ID, in.Turn)
			if !clientOf(ctx).hasRole(RoleRead) {
				t = Turn{ID: t.ID, State: t.State}
			}
			return &body[Turn]{t}, err
		})
}

var turnID = lazyRegexp(`^trn_[0-9A-HJKMNP-TV-Z]{26}$`)

func (a turnsAPI) findTurn(session, id string) (Turn, error) {
	none := newProblem(http.StatusNotFound, "no_turn", "the session has no such turn", "POST /sessions/{id}/turns returns its id")
	if live := a.sessions.liveSession(session); live != nil {
		if t, ok := live.turnView(id); ok {
			return t, nil
		}
	}
	dir, err := a.sessions.findDir(session)
	if err != nil {
		return Turn{}, err
	}
	if !turnID().MatchString(id) {
		return Turn{}, none
	}
	t, err := readTurn(dir, id)
	switch {
	case err != nil:
		return Turn{}, a.sessions.internalProblem("read turn", err)
	case t == nil:
		return Turn{}, none
	}
	if t.State == TurnInterrupted && a.sessions.archive.isLive(session) {
		t.State = TurnRunning
	}
	return *t, nil
}
