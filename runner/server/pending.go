package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

var confirmationID = lazyRegexp(`^[0-9a-f]{32}$`)

// keptAsked bounds the confirmations whose turn a live session remembers. The
// broker has the same bound.
const keptAsked = 4096

// confirmations are one live session's confirmations. It is safe for concurrent
// use.
type confirmations struct {
	*diagnostics
	session string
	broker  *approval.Broker

	mu     sync.Mutex
	inTurn map[string]string // confirmation → turn
	oldest []string          // keys of inTurn, oldest first
}

func newConfirmations(d *diagnostics) *confirmations {
	return &confirmations{diagnostics: d, broker: approval.NewBroker(approval.BrokerOptions{Attended: true}), inTurn: map[string]string{}}
}

func (c *confirmations) rememberTurn(confirmation, turn string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inTurn[confirmation] = turn
	c.oldest = append(c.oldest, confirmation)
	if len(c.oldest) > keptAsked {
		delete(c.inTurn, c.oldest[0])
		c.oldest = c.oldest[1:]
	}
}

// turnOf returns a confirmation's turn, or "" if it is not known.
func (c *confirmations) turnOf(confirmation string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inTurn[confirmation]
}

func (c *confirmations) listPending() []Confirmation {
	list := []Confirmation{}
	for _, p := range c.broker.Pending() {
		turn := c.turnOf(p.ID)
		if turn == "" {
			continue // its record is not written yet
		}
		v := Confirmation{
			ID: p.ID, Turn: turn, CallID: p.CallID, Name: p.Name, Class: p.Class, Seq: p.Seq, Runs: p.Runs, Summary: p.Summary, Display: p.Input,
			Exact: p.Exact, InputHash: p.InputHash, Projected: record.NonNil(p.Projected), Diff: p.Diff, Dangerous: p.Dangerous, Phrase: p.Phrase, Elided: p.DiffElided, Notices: p.Notices, Covers: p.Covers, Hidden: p.Hidden, Changed: p.Changed, Admin: p.RequiresAdmin,
			Description: p.Description, Definition: p.Definition, Redefined: p.Redefined,
			Session: p.SessionWords(), Lasting: p.LastingWords(),
			Scopes: record.NonNil(p.Scopes), Expires: p.Expires.UTC(),
		}
		list = append(list, v)
	}
	return list
}

func (c *confirmations) answerConfirmation(ctx context.Context, turn, id string, a Answer, from client) (Resolution, error) {
	unknown := newProblem(http.StatusNotFound, "no_confirmation", "this turn of this session has no such confirmation", "The open ones of the session have other ids")
	asked := c.turnOf(id)
	given := approval.Answer{Decision: a.Decision, Scope: a.Scope, Reason: a.Reason}
	if _, hidden := tools.DisplayLines(a.Reason); hidden {
		return Resolution{}, newProblem(http.StatusUnprocessableEntity, "refused", "the reason has characters that can't be shown", "Write plain text; lines and tabs are allowed")
	}
	if a.Reason != "" && a.Decision != approval.DecisionDeny {
		return Resolution{}, newProblem(http.StatusUnprocessableEntity, "refused", "only a deny takes a reason", "Leave the reason out")
	}
	if !confirmationID().MatchString(id) || asked != "" && asked != turn {
		// The attempt is recorded. The broker bounds these records, so that a
		// client can't fill a trace.
		if err := c.broker.Misdirected(id, given, from.name()); errors.Is(err, tools.ErrRecord) {
			return Resolution{}, c.internalProblem("record an attempt", err)
		}
		return Resolution{}, unknown
	}
	if c.needsAdmin(id, given) && !from.hasRole(RoleAdmin) {
		if err := c.broker.Forbidden(id, given, from.name()); err != nil {
			return Resolution{}, c.internalProblem("record an attempt", err)
		}
		return Resolution{}, from.lacksRole(RoleAdmin)
	}
	// The answer counts even if the client leaves.
	got, err := c.broker.Answer(context.WithoutCancel(ctx), id, given, from.name())
	if late, ok := errors.AsType[*approval.ResolvedError](err); ok {
		p := newProblem(http.StatusConflict, "resolved", "it was already answered: "+string(late.Resolution.Decision)+", by "+cmp.Or(late.Resolution.Client, late.Resolution.By), "That decision stands")
		p.Resolution = new(newResolution(late.Resolution, asked))
		return Resolution{}, p
	}
	switch {
	case errors.Is(err, approval.ErrUnknownConfirmation):
		return Resolution{}, unknown
	case errors.Is(err, tools.ErrRecord):
		return Resolution{}, c.internalProblem("record an answer: nothing was allowed", err)
	case err != nil:
		return Resolution{}, c.internalProblem("answer", err)
	}
	c.log.Info("confirmation answered", zap.String("session", c.session), zap.String("confirmation", id),
		zap.String("decision", string(got.Decision)), zap.String("client", from.label))
	return newResolution(got, asked), nil
}

func (c *confirmations) needsAdmin(id string, a approval.Answer) bool {
	if a.Scope == approval.ScopeAlways {
		return true
	}
	return a.Decision == approval.DecisionAllow && slices.ContainsFunc(c.broker.Pending(), func(p approval.Confirmation) bool {
		return p.ID == id && p.RequiresAdmin
	})
}

func newResolution(r approval.Resolution, turn string) Resolution {
	return Resolution{Confirmation: r.RequestID, Turn: turn, CallID: r.CallID, Decision: r.Decision, Scope: r.Scope, By: r.By, Client: r.Client, Reason: r.Reason}
}

type confirmationsAPI struct{ sessions *registry }

func (a confirmationsAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/confirmations", "listConfirmations", "List a session's confirmations",
		"The confirmations waiting for an answer; none once the session has ended.", http.StatusOK, 404),
		func(_ context.Context, in *SessionPath) (*body[ConfirmationList], error) {
			out := &body[ConfirmationList]{ConfirmationList{[]Confirmation{}}}
			if live := a.sessions.liveSession(in.ID); live != nil {
				out.Body.Confirmations = live.confirmations.listPending()
				return out, nil
			}
			_, err := a.sessions.findDir(in.ID)
			return out, err
		})
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/turns/{turn}/confirmations/{request}", "answerConfirmation", "Answer a confirmation",
		"The first answer from any client counts, and is recorded before this request is answered. The scope always, and allowing a tool that requires an administrator, need the role admin. A deny may have a reason, which the model is told as the user's words. 409 has the decision that stands. 410: the session has ended, and its confirmations with it.",
		http.StatusOK, 404, 409, 410, 422),
		func(ctx context.Context, in *struct {
			TurnPath
			Request string `path:"request" doc:"a confirmation's id"`
			Body    Answer
		},
		) (*body[Resolution], error) {
			live, err := a.sessions.requireLive(in.ID)
			if err != nil {
				return nil, a.logStray(ctx, in.ID, in.Request, err)
			}
			got, err := live.confirmations.answerConfirmation(ctx, in.Turn, in.Request, in.Body, clientOf(ctx))
			return &body[Resolution]{got}, err
		})
}

// logStray logs an answer to a session that has ended or doesn't exist, and so
// has no trace to record it in. It returns err.
func (a confirmationsAPI) logStray(ctx context.Context, session, confirmation string, err error) error {
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		return err
	}
	a.sessions.metrics.late.Inc()
	a.sessions.strays.Warn("an answer to no live session", zap.String("why", p.Code), zap.String("session", displayTitle(session)),
		zap.String("confirmation", displayTitle(confirmation)), zap.String("client", clientOf(ctx).label))
	return err
}
