package server

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/skill"
)

type listInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"sessions per page"`
	Before string `query:"before" doc:"next of the previous page"`
}

// SessionList is a page of sessions, the newest first.
type SessionList struct {
	Sessions []Session `json:"sessions" nullable:"false"`
	Next     string    `json:"next,omitempty" doc:"send it as before to get the next page; absent on the last"`
}

type sessionsAPI struct{ sessions *registry }

func (a sessionsAPI) addOperations(o operations) {
	a.addSkills(o)
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions", "startSession", "Start a session",
		"Its container is created when the first turn begins.", http.StatusCreated, 422, 429, 503),
		func(ctx context.Context, in *body[NewSession]) (*created[Session], error) {
			live, err := a.sessions.startSession(ctx, in.Body, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			return &created[Session]{"/sessions/" + live.id, live.sessionView(true)}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions", "listSessions", "List sessions",
		"Live and ended sessions, including the ones of the same user's other Caissons, on workspaces at or below a root, the newest first.", http.StatusOK),
		func(_ context.Context, in *listInput) (*body[SessionList], error) {
			list, err := a.listSessions(in.Limit, in.Before)
			return &body[SessionList]{list}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}", "getSession", "Look at a session", "", http.StatusOK, 404),
		func(_ context.Context, in *SessionPath) (*body[Session], error) {
			v, err := a.sessions.viewSession(in.ID, true)
			return &body[Session]{v}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/resume", "resumeSession", "Resume a session",
		`Continues, under the same id, a session that has ended or whose process died, from its records. Calls that were under way get a result that reports the interruption, and are never run again. The sandbox is new.
No turn begins: send a message, or continue if unfinished is true. 409: its process is alive (live), its records were changed (damaged) or are missing (no_records), or it can't be resumed for another reason, which the code names.`,
		http.StatusOK, 404, 409, 422, 429, 503),
		func(ctx context.Context, in *sessionRequest[ResumeSession]) (*body[Session], error) {
			live, err := a.sessions.resumeSession(ctx, in.ID, in.Body, clientOf(ctx))
			if err != nil {
				return nil, err
			}
			v := live.sessionView(true)
			if !clientOf(ctx).hasRole(RoleRead) {
				v = Session{ID: v.ID, State: v.State, Client: v.Client, Unfinished: v.Unfinished}
			}
			return &body[Session]{v}, nil
		})
	huma.Register(o.api, o.newOperation(http.MethodDelete, "/sessions/{id}", "endSession", "End a session",
		"Cancels its turn, removes its container, and answers when that is done. Its records and the changes of an overlay are kept. Ending an ended session does nothing.",
		http.StatusOK, 404, 409),
		func(ctx context.Context, in *SessionPath) (*body[Session], error) {
			v, err := a.endSession(ctx, in.ID)
			if !clientOf(ctx).hasRole(RoleRead) {
				v = Session{ID: v.ID, State: v.State, Client: v.Client}
			}
			return &body[Session]{v}, err
		})
}

func (a sessionsAPI) addSkills(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/skills", "listSkills", "List the skills of a session",
		"The skills that the model of a live session can load, the ones it has loaded, the ones that can't be used, and the tools that a turn of this client would be offered now.", http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *SessionPath) (*body[runner.SkillReport], error) {
			report, err := a.listSkills(ctx, in.ID)
			for i := range report.Skills {
				report.Skills[i].Body = ""
			}
			return &body[runner.SkillReport]{report}, err
		})
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/skills/{name}", "getSkill", "Look at a skill of a session",
		"With its text as it was when the session began.", http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *struct {
			SessionPath
			Name string `path:"name" doc:"the name of a skill"`
		},
		) (*body[skill.Info], error) {
			report, err := a.listSkills(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			for _, one := range report.Skills {
				if one.Name == in.Name {
					return &body[skill.Info]{one}, nil
				}
			}
			return nil, newProblem(http.StatusNotFound, "no_skill", "the session has no such skill", "GET …/skills lists them")
		})
}

func (a sessionsAPI) listSkills(ctx context.Context, id string) (runner.SkillReport, error) {
	live, err := a.sessions.requireLive(id)
	if err != nil {
		return runner.SkillReport{}, err
	}
	return live.run.Skills(clientOf(ctx).runnerUser()), nil
}

func (a sessionsAPI) listSessions(limit int, before string) (SessionList, error) {
	out := SessionList{Sessions: []Session{}}
	names, err := a.sessions.archive.listIDs()
	if err != nil {
		return out, a.sessions.internalProblem("list sessions", err)
	}
	for _, id := range names {
		if before != "" && id >= before {
			continue
		}
		if len(out.Sessions) == limit {
			out.Next = out.Sessions[limit-1].ID
			break
		}
		v, err := a.sessions.viewSession(id, false)
		if err != nil {
			continue // it has no trace yet, or is gone
		}
		out.Sessions = append(out.Sessions, v)
	}
	return out, nil
}

func (a sessionsAPI) endSession(ctx context.Context, id string) (Session, error) {
	if live := a.sessions.liveSession(id); live != nil {
		if live.adopted != nil {
			return Session{}, inTerminal()
		}
		live.close(clientOf(ctx).name())
		if err := waitClosed(ctx, live.closed); err != nil {
			return Session{}, err
		}
	}
	v, err := a.sessions.viewSession(id, true)
	if err == nil && v.State == StateElsewhere {
		err = runsElsewhere(id, "End it there")
	}
	return v, err
}
