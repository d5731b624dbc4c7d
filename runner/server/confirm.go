package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"
)

// confirmationsAPI are the operations on confirmations.
type confirmationsAPI struct{ sessions *registry }

func (a confirmationsAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/confirmations", "listConfirmations", "What a session asks",
		"Those that wait for an answer; none once the session has ended.", http.StatusOK, 404),
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
		"The first answer counts, from any client, and is recorded before this answers. The scope always, and allowing a tool that requires an administrator, need the role admin. A deny may have a reason, which the model is told as the user's words. 409 has the decision that stands; 410: the session has ended, and with it all that it asked.",
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
