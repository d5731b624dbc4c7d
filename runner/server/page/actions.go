package page

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"

	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/approval"
)

// backTo shows the page of a session after an action.
func backTo(w http.ResponseWriter, r *http.Request, rest string) error {
	http.Redirect(w, r, "/s/"+r.PathValue("id")+rest, http.StatusSeeOther)
	return nil
}

func sessionPath(r *http.Request, rest string) string {
	return "/sessions/" + url.PathEscape(r.PathValue("id")) + rest
}

// sendMessage begins a turn. A session that has ended is resumed for it.
func (p *Page) sendMessage(w http.ResponseWriter, r *http.Request, u server.User) error {
	var v server.Session
	if err := p.srv.Call(r.Context(), u, http.MethodGet, sessionPath(r, ""), nil, &v); err != nil {
		return err
	}
	if v.State == server.StateEnded || v.State == server.StateInterrupted {
		if err := p.srv.Call(r.Context(), u, http.MethodPost, sessionPath(r, "/resume"), server.ResumeSession{}, nil); err != nil {
			return err
		}
	}
	in := server.NewTurn{Message: r.PostForm.Get("message"), Continue: r.PostForm.Get("continue") != ""}
	if err := p.srv.Call(r.Context(), u, http.MethodPost, sessionPath(r, "/turns"), in, nil); err != nil {
		return err
	}
	return backTo(w, r, "")
}

func (p *Page) stopTurn(w http.ResponseWriter, r *http.Request, u server.User) error {
	var v server.Session
	if err := p.srv.Call(r.Context(), u, http.MethodGet, sessionPath(r, ""), nil, &v); err != nil {
		return err
	}
	if v.Turn != "" {
		if err := p.srv.Call(r.Context(), u, http.MethodPost, sessionPath(r, "/turns/"+v.Turn+"/cancel"), nil, nil); err != nil {
			return err
		}
	}
	return backTo(w, r, "")
}

func (p *Page) endSession(w http.ResponseWriter, r *http.Request, u server.User) error {
	if err := p.srv.Call(r.Context(), u, http.MethodDelete, sessionPath(r, ""), nil, nil); err != nil {
		return err
	}
	return backTo(w, r, "")
}

// answer answers a question. An answer that came too late shows whose counts.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, u server.User) error {
	f := r.PostForm
	in := server.Answer{Decision: approval.Decision(f.Get("decision")), Scope: approval.Scope(cmp.Or(f.Get("scope"), string(approval.ScopeOnce)))}
	if in.Decision == approval.DecisionDeny {
		in.Reason = f.Get("reason")
	}
	path := sessionPath(r, "/turns/"+url.PathEscape(f.Get("turn"))+"/confirmations/"+url.PathEscape(f.Get("request")))
	if err := p.srv.Call(r.Context(), u, http.MethodPost, path, in, nil); err != nil {
		return err
	}
	return backTo(w, r, "")
}

type changesView struct {
	sessionView
	Diff  server.Diff
	Files []trace.FileDiff
	// Problem says why there is nothing to show.
	Problem *server.Problem
	// Done is what an apply did.
	Done string
	// Confirm asks before the changes are discarded.
	Confirm bool
}

func (p *Page) showChanges(w http.ResponseWriter, r *http.Request, u server.User) error {
	v, _, err := p.viewOf(r, u, "changes")
	if err != nil {
		return err
	}
	view := changesView{sessionView: v, Done: r.URL.Query().Get("done"), Confirm: r.URL.Query().Get("confirm") == "discard"}
	if err := p.srv.Call(r.Context(), u, http.MethodGet, "/sessions/"+v.Session.ID+"/diff", nil, &view.Diff); err != nil {
		problem, ok := errors.AsType[*server.Problem](err)
		if !ok {
			return err
		}
		view.Problem = problem
	}
	view.Files = trace.ParsePatch(view.Diff.Patch)
	p.write(w, http.StatusOK, "changes", view)
	return nil
}

func (p *Page) apply(w http.ResponseWriter, r *http.Request, u server.User) error {
	f := r.PostForm
	var done server.Applied
	in := server.ApplyRequest{SkipConflicts: f.Get("action") == "skip", Discard: f.Get("action") == "discard", WithSymlinksOut: f.Get("symlinks") != ""}
	if err := p.srv.Call(r.Context(), u, http.MethodPost, sessionPath(r, "/apply"), in, &done); err != nil {
		return err
	}
	return backTo(w, r, "/changes?done="+url.QueryEscape(done.Changes))
}
