package page

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/trace"
)

const (
	// maxIndexes is the number of sessions whose index is kept, maxReads the
	// number that is read in the background at once.
	maxIndexes, maxReads = 16, 4
	// readTime is how long a page waits for the index of a long session. The
	// index is then completed in the background.
	readTime = 100 * time.Millisecond
	// findTime bounds a search in a session.
	findTime = 20 * time.Second
	// maxRecordsShown is the number of records on a page of them.
	maxRecordsShown = 100
)

// indexCache keeps the indexes that were used last. It is safe for concurrent
// use.
type indexCache struct {
	mu   sync.Mutex
	used []*cachedIndex // the newest last
}

type cachedIndex struct {
	id string
	*trace.Index
}

// openIndex returns the index of a session, read as far as is possible within
// readTime.
func (p *Page) openIndex(ctx context.Context, id string) (*trace.Index, error) {
	if _, err := p.srv.Dir(id); err != nil { // also a session that was removed or hidden since
		return nil, err
	}
	x, err := p.indexes.get(id, func() (trace.Session, error) { return p.srv.Trace(id) })
	if err != nil {
		return nil, err
	}
	return x, p.extend(ctx, x)
}

// extend reads what was added to a session, for readTime at most. The rest is
// read after that.
func (p *Page) extend(ctx context.Context, x *trace.Index) error {
	done := make(chan error, 1)
	go func() {
		defer p.recoverReading()
		p.reads <- struct{}{}
		defer func() { <-p.reads }()
		done <- x.Extend(context.WithoutCancel(ctx))
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(readTime):
	case <-ctx.Done():
	}
	return nil
}

// recoverReading keeps the records of one session from ending the server.
func (p *Page) recoverReading() {
	if v := recover(); v != nil {
		_ = p.srv.Internal("read session", fmt.Errorf("panic: %v", v)) // it logs
	}
}

func (c *indexCache) get(id string, find func() (trace.Session, error)) (*trace.Index, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, have := range c.used {
		if have.id == id {
			c.used = append(append(c.used[:i:i], c.used[i+1:]...), have)
			return have.Index, nil
		}
	}
	s, err := find()
	if err != nil {
		return nil, err
	}
	made := &cachedIndex{id, trace.NewIndex(s)}
	c.used = append(c.used, made)
	if len(c.used) > maxIndexes {
		c.used = c.used[1:]
	}
	return made.Index, nil
}

// sessionView is what all pages of one session have.
type sessionView struct {
	frame
	Session server.Session
	Row     sessionRow
	// Tab is story, changes, timeline or records.
	Tab string
	// Here reports that the session is live in this server, Ended that it is
	// over.
	Here, Ended bool
	Questions   []question
	Overview    trace.Overview
}

// question is a confirmation that waits, with what its card needs to be sent.
type question struct {
	server.Confirmation
	Session, Form string
	CanAnswer     bool
	CanAdmin      bool
}

func (p *Page) viewOf(r *http.Request, u server.User, tab string) (sessionView, *trace.Index, error) {
	id := r.PathValue("id")
	if id == trace.Last {
		ids, err := p.srv.Sessions()
		if err != nil {
			return sessionView{}, nil, err
		}
		for _, one := range ids {
			if _, err := p.srv.View(one); err == nil {
				id = one
				break
			}
		}
	}
	var v sessionView
	if err := p.srv.Call(r.Context(), u, http.MethodGet, "/sessions/"+url.PathEscape(id), nil, &v.Session); err != nil {
		return v, nil, err
	}
	x, err := p.openIndex(r.Context(), id)
	if err != nil {
		return v, nil, err
	}
	v.frame = p.frame(r, cmp.Or(v.Session.Title, id), "sessions")
	v.Tab = tab
	v.Overview = x.Overview()
	p.fill(r.Context(), u, &v)
	return v, x, nil
}

// fill sets what changes while a session runs.
func (p *Page) fill(ctx context.Context, u server.User, v *sessionView) {
	v.Row = newSessionRow(v.Session)
	switch v.Session.State {
	case server.StateIdle, server.StateRunning, server.StateClosing:
		v.Here = true
	case server.StateEnded, server.StateInterrupted:
		v.Ended = true
	}
	v.Questions = p.questions(ctx, u, v.Session.ID)
}

func (p *Page) questions(ctx context.Context, u server.User, id string) []question {
	var list server.ConfirmationList
	if err := p.srv.Call(ctx, u, http.MethodGet, "/sessions/"+id+"/confirmations", nil, &list); err != nil {
		return nil // the session was removed or hidden
	}
	var out []question
	for _, c := range list.Confirmations {
		out = append(out, question{c, id, u.Form(), u.Has(server.RoleApprove), u.Has(server.RoleAdmin)})
	}
	return out
}

type storyView struct {
	sessionView
	// Chunks are the parts of the story. Number is of the one that is shown to
	// browsers without script; Steps are its steps, as data of the template "step".
	Chunks []chunkView
	Number int
	Steps  []any
	// Open are the calls under way.
	Open []any
	// After is the number of the last record on the page. The stream continues
	// after it.
	After int64
	// Reading reports that the index of a long session is still being made.
	Reading  bool
	At       int64
	Find     string
	NotFound bool
}

type chunkView struct {
	trace.Chunk
	Number int
	// Loaded is the chunk whose steps are on the page.
	Loaded bool
}

func (p *Page) showStory(w http.ResponseWriter, r *http.Request, u server.User) error {
	v, x, err := p.viewOf(r, u, "story")
	if err != nil {
		return err
	}
	q := r.URL.Query()
	view := storyView{sessionView: v, Reading: !x.Whole(), Find: q.Get("q"), NotFound: q.Get("found") == "no"}
	chunks := x.Chunks()
	if !v.Ended { // people look at what happens now
		view.Number = len(chunks) - 1
	}
	if n, err := strconv.Atoi(q.Get("chunk")); err == nil {
		view.Number = n
	}
	if at, err := strconv.ParseInt(q.Get("at"), 10, 64); err == nil {
		view.At = at
		if view.Number = x.Find(at); view.Number < 0 { // it is of a call under way
			view.Number = len(chunks) - 1
		}
	}
	view.Number = min(max(view.Number, 0), max(len(chunks)-1, 0))
	for i, c := range chunks {
		view.Chunks = append(view.Chunks, chunkView{c, i, i == view.Number})
		view.After = max(view.After, c.Last)
	}
	if len(chunks) > 0 {
		steps, err := x.Steps(view.Number)
		if err != nil {
			return err
		}
		view.Steps = stepViews(steps, v.Overview.Begun, "/s/"+v.Session.ID)
		if view.Number == len(chunks)-1 && len(steps) > 0 { // it may have grown since
			view.After = steps[len(steps)-1].Seq
		}
	}
	view.Open = stepViews(x.Open(), v.Overview.Begun, "/s/"+v.Session.ID)
	p.write(w, http.StatusOK, "session", view)
	return nil
}

func stepViews(steps []trace.Step, begun time.Time, base string) []any {
	out := make([]any, 0, len(steps))
	for _, s := range steps {
		out = append(out, trace.StepView(s, begun, base))
	}
	return out
}

// writeChunk writes the steps of one chunk, as items of a list.
func (p *Page) writeChunk(w http.ResponseWriter, r *http.Request, _ server.User) error {
	x, err := p.openIndex(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(r.PathValue("n"))
	if err != nil || n < 0 || n >= len(x.Chunks()) {
		return notFound("The session has no such part.")
	}
	steps, err := x.Steps(n)
	if err != nil {
		return err
	}
	p.write(w, http.StatusOK, "steps", stepViews(steps, x.Overview().Begun, "/s/"+r.PathValue("id")))
	return nil
}

// findStep leads to the next step with a text, or to the next or previous one
// that failed.
func (p *Page) findStep(w http.ResponseWriter, r *http.Request, _ server.User) error {
	id, q := r.PathValue("id"), r.URL.Query()
	x, err := p.openIndex(r.Context(), id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), findTime, refusal(http.StatusServiceUnavailable, "The search took longer than 20 seconds. Search again from a later step."))
	defer cancel()
	if err := x.Extend(ctx); err != nil { // wait for all of a long session
		return err
	}
	after, _ := strconv.ParseInt(q.Get("after"), 10, 64) // 0 for none
	var seq int64
	var found bool
	text := strings.TrimSpace(q.Get("q"))
	if which := q.Get("failure"); which != "" {
		if after == 0 && which == "prev" {
			after = math.MaxInt64
		}
		seq, found = x.Failure(after, which == "prev")
	} else if text != "" {
		if seq, found, err = x.Search(ctx, text, after); err != nil {
			return err
		}
	}
	to := url.Values{}
	if text != "" {
		to.Set("q", text)
	}
	fragment := ""
	if found {
		to.Set("at", strconv.FormatInt(seq, 10))
		fragment = "#s" + to.Get("at")
	} else {
		to.Set("found", "no")
		if after > 0 && after < math.MaxInt64 {
			to.Set("at", strconv.FormatInt(after, 10))
		}
	}
	http.Redirect(w, r, "/s/"+id+"?"+to.Encode()+fragment, http.StatusSeeOther)
	return nil
}

func (p *Page) showTimeline(w http.ResponseWriter, r *http.Request, u server.User) error {
	v, x, err := p.viewOf(r, u, "timeline")
	if err != nil {
		return err
	}
	p.write(w, http.StatusOK, "timelinepage", struct {
		sessionView
		Timeline  trace.TimelineView
		TurnChart trace.TurnChart
		Reading   bool
	}{v, x.Timeline("/s/" + v.Session.ID), x.Chart(), !x.Whole()})
	return nil
}

// showFilm plays what the terminal of a command showed. Its template sets its
// pace by attributes, which no other page allows.
func (p *Page) showFilm(w http.ResponseWriter, r *http.Request, u server.User) error {
	v, x, err := p.viewOf(r, u, "story")
	if err != nil {
		return err
	}
	none := notFound("This step has no recording of a terminal, or not any more.")
	seq, err := strconv.ParseInt(r.PathValue("seq"), 10, 64)
	if err != nil {
		return none
	}
	s, err := p.srv.Trace(v.Session.ID)
	if err != nil {
		return err
	}
	view := struct {
		sessionView
		Film *trace.Film
		Seq  int64
	}{sessionView: v, Seq: seq}
	if chunk := x.Find(seq); chunk >= 0 {
		steps, err := x.Steps(chunk)
		if err != nil {
			return err
		}
		for _, step := range steps {
			if step.Seq == seq && step.Recording != nil {
				view.Film = trace.ReadFilm(s, step)
			}
		}
	}
	if view.Film == nil {
		return none
	}
	w.Header().Set("Content-Security-Policy", contentPolicy+"; style-src-attr 'unsafe-inline'")
	p.write(w, http.StatusOK, "filmpage", view)
	return nil
}

func (p *Page) showRecords(w http.ResponseWriter, r *http.Request, u server.User) error {
	v, _, err := p.viewOf(r, u, "records")
	if err != nil {
		return err
	}
	from, _ := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64) // 0 for the first
	view := struct {
		sessionView
		Records    []record.Record
		Prev, Next int64
	}{sessionView: v}
	if view.Records, err = p.srv.Records(v.Session.ID, from, maxRecordsShown); err != nil {
		return err
	}
	if from > 1 {
		view.Prev = max(from-maxRecordsShown, 1)
	}
	if n := len(view.Records); n == maxRecordsShown && view.Records[n-1].Seq < v.Session.Seq {
		view.Next = view.Records[n-1].Seq + 1
	}
	p.write(w, http.StatusOK, "records", view)
	return nil
}
