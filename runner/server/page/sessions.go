package page

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner/server"
)

const (
	// perPage is the number of sessions on a page.
	perPage = 50
	// searchTime bounds a search through the sessions; what is older is on the
	// next page. Until all sessions were read once, that is soon.
	searchTime = 100 * time.Millisecond
)

// sessionRow is one session of the list.
type sessionRow struct {
	server.Session
	// Look is waiting, running, idle, failed, done or other, and Words says it.
	Look, Words string
}

func newSessionRow(v server.Session) sessionRow {
	row := sessionRow{v, "other", string(v.State)}
	switch {
	case v.Waiting > 0:
		row.Look, row.Words = "waiting", "waiting for you"
	case v.State == server.StateRunning, v.State == server.StateClosing:
		row.Look = "running"
	case v.State == server.StateElsewhere:
		row.Look, row.Words = "running", "runs in another process"
	case v.State == server.StateIdle:
		row.Look, row.Words = "idle", "waiting for a message"
	case v.State == server.StateInterrupted:
		row.Look = "failed"
	case v.State == server.StateEnded && v.Exit != nil && *v.Exit != 0:
		row.Look, row.Words = "failed", strings.ReplaceAll(v.Reason, "_", " ")
	case v.State == server.StateEnded:
		row.Look, row.Words = "done", strings.ReplaceAll(v.Reason, "_", " ")
	}
	return row
}

// matches reports whether a row is of a filter and has a text.
func (s sessionRow) matches(show, text string) bool {
	switch show {
	case "waiting", "failed":
		if s.Look != show {
			return false
		}
	case "running":
		if s.Look != "running" && s.Look != "waiting" && s.Look != "idle" {
			return false
		}
	}
	if text == "" {
		return true
	}
	in := strings.ToLower(strings.Join([]string{s.Title, s.Workspace, s.Model, s.ID, s.Backend, s.Reason, s.Client}, "\n"))
	for word := range strings.FieldsSeq(strings.ToLower(text)) {
		if !strings.Contains(in, word) {
			return false
		}
	}
	return true
}

type sessionsView struct {
	frame
	// Show is the filter, one of waiting, running, failed and all.
	Show, Query string
	// Waiting and Running count the live sessions of this server.
	Waiting, Running int
	Rows             []sessionRow
	// Next is the query of the next page, or "". More reports that the search
	// went through a part of the sessions only.
	Next string
	More bool
	// Reading reports that a later search finds more.
	Reading   bool
	Workspace string
	Models    []string
}

func (p *Page) showSessions(w http.ResponseWriter, r *http.Request, _ server.User) error {
	q := r.URL.Query()
	view := sessionsView{frame: p.frame(r, "Sessions", "sessions"), Show: "all", Query: q.Get("q"), Workspace: p.o.Workspace, Models: p.o.Models}
	if show := q.Get("show"); show == "waiting" || show == "running" || show == "failed" {
		view.Show = show
	}
	for _, live := range p.srv.Live() {
		view.Running++
		if live.Waiting > 0 {
			view.Waiting++
		}
	}
	ids, err := p.srv.Sessions()
	if err != nil {
		return err
	}
	p.reading.Do(func() { // what is known of ended sessions makes searches quick
		go func() {
			defer p.recoverReading()
			defer p.read.Store(true)
			for _, id := range ids {
				select {
				case <-p.srv.Stopped():
					return
				default:
					_, _ = p.srv.View(id) // it may be gone
				}
			}
		}()
	})
	view.Reading = !p.read.Load()
	before, until := q.Get("before"), time.Now().Add(searchTime)
	for _, id := range ids {
		if before != "" && id >= before {
			continue
		}
		if view.More = time.Now().After(until); view.More || len(view.Rows) == perPage {
			next := url.Values{"show": {view.Show}, "before": {before}}
			if view.Query != "" {
				next.Set("q", view.Query)
			}
			view.Next = "/?" + next.Encode()
			break
		}
		before = id
		v, err := p.srv.View(id)
		if err != nil {
			continue // it has no records yet, is gone, or is not to be seen
		}
		if row := newSessionRow(v); row.matches(view.Show, view.Query) {
			view.Rows = append(view.Rows, row)
		}
	}
	p.write(w, http.StatusOK, "sessions", view)
	return nil
}

// countWaiting tells hidden tabs what waits for an answer.
func (p *Page) countWaiting(w http.ResponseWriter, r *http.Request, _ server.User) error {
	var out struct {
		Waiting int `json:"waiting"`
	}
	for _, live := range p.srv.Live() {
		out.Waiting += live.Waiting
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(out)
}

// startSession starts a session and sends it its task.
func (p *Page) startSession(w http.ResponseWriter, r *http.Request, u server.User) error {
	f := r.PostForm
	var made server.Session
	in := server.NewSession{Workspace: f.Get("workspace"), Model: f.Get("model"), Mode: f.Get("mode")}
	if err := p.srv.Call(r.Context(), u, http.MethodPost, "/sessions", in, &made); err != nil {
		return err
	}
	if task := f.Get("message"); strings.TrimSpace(task) != "" {
		if err := p.srv.Call(r.Context(), u, http.MethodPost, "/sessions/"+made.ID+"/turns", server.NewTurn{Message: task}, nil); err != nil {
			return err
		}
	}
	http.Redirect(w, r, "/s/"+made.ID, http.StatusSeeOther)
	return nil
}
