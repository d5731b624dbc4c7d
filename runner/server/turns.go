package server

import (
	"context"
	"net/http"
	"regexp"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

// NewTurn is a user's message.
type NewTurn struct {
	Message string `json:"message" minLength:"1" maxLength:"1000000" doc:"what the user says"`
}

// Started is a turn that has begun.
type Started struct {
	Turn string `json:"turn"`
}

// turnsAPI are the operations on turns.
type turnsAPI struct{ sessions *registry }

func (a turnsAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/turns", "startTurn", "Give a session a message",
		"Answers when the turn has begun; the events report its progress.", http.StatusAccepted, 404, 409, 410),
		func(ctx context.Context, in *struct {
			SessionPath
			Body NewTurn
		},
		) (*struct {
			Location string `header:"Location"`
			Body     Started
		}, error,
		) {
			live, err := a.sessions.requireLive(in.ID)
			if err != nil {
				return nil, err
			}
			t, err := live.startTurn(in.Body.Message, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			return &struct {
				Location string `header:"Location"`
				Body     Started
			}{"/sessions/" + in.ID + "/turns/" + t.ID, Started{t.ID}}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/turns/{turn}", "getTurn", "Look at a turn", "", http.StatusOK, 404),
		func(_ context.Context, in *TurnPath) (*body[Turn], error) {
			t, err := a.findTurn(in.ID, in.Turn)
			return &body[Turn]{t}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/turns/{turn}/cancel", "cancelTurn", "Cancel a turn",
		"Stops its commands and withdraws its questions. It answers at once; the turn ends when what runs has ended. Cancelling an ended turn does nothing.",
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

var turnID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^trn_[0-9A-HJKMNP-TV-Z]{26}$`)
})

// findTurn returns a turn of a session, live or ended.
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
