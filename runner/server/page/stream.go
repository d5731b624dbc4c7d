package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

// pollEvery is how often the records of another process's session are looked
// at, restTime the shortest time between two looks at a session, so that output
// doesn't cause an update for each line.
const pollEvery, restTime = time.Second, 100 * time.Millisecond

var errStopped = errors.New("the server stops")

// stream sends what is new in a session to one browser: "step" has the items of
// one record and its number as ID, "open" a call under way, "delta" output,
// "ask" the questions that wait, "state" the head of the page, "end" is the last.
type stream struct {
	page  *Page
	u     server.User
	id    string
	index *trace.Index
	frame frame
	after int64
	// sent is what was last sent for "ask" and "state", open the number of the
	// last record of each call that was sent as "open".
	sent map[string]string
	open map[string]int64
	*httpserver.EventWriter
}

func (p *Page) streamSession(w http.ResponseWriter, r *http.Request, u server.User) error {
	id := r.PathValue("id")
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.URL.Query().Get("after")
	}
	after, err := strconv.ParseInt(text, 10, 64)
	if text != "" && (err != nil || after < 0) {
		return refusal(http.StatusBadRequest, "The number of the last event is none.")
	}
	x, err := p.openIndex(r.Context(), id)
	if err != nil {
		return err
	}
	out, release, err := p.srv.OpenStream(w, u)
	if err != nil {
		return err
	}
	defer release()
	st := &stream{page: p, u: u, id: id, index: x, frame: p.frame(r, "", ""), after: after, sent: map[string]string{}, open: map[string]int64{}, EventWriter: out}
	if err := st.Begin(); err == nil {
		_ = st.follow(r.Context()) // the browser comes back
	}
	return nil
}

// follow sends until the session has ended or the browser is gone.
func (st *stream) follow(ctx context.Context) error {
	f := st.page.srv.Follow(st.id)
	var wake <-chan struct{}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	if f != nil {
		defer f.Leave()
		wake = f.Wake
	}
	beat := time.NewTicker(httpserver.Heartbeat)
	defer beat.Stop()
	for {
		ended, err := st.catchUp(ctx, f)
		if err != nil {
			return err
		}
		if ended {
			return st.Event("", "end", "")
		}
		select {
		case <-time.After(restTime):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-wake:
		case <-poll.C: // the state can change after a turn's last record
		case <-beat.C:
			if !st.page.srv.SignedIn(st.u) {
				return nil
			}
			if err := st.Beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-st.page.srv.Stopped():
			_, err := st.catchUp(ctx, f)
			return errors.Join(errStopped, err)
		}
	}
}

// catchUp sends what is new. ended reports that there will be nothing more.
func (st *stream) catchUp(ctx context.Context, f *server.Follower) (ended bool, err error) {
	var deltas []server.Delta
	if f != nil {
		deltas, ended = f.Take()
	}
	var v sessionView
	if v.Session, err = st.page.srv.View(st.id); err != nil {
		return false, err
	}
	if err := st.index.Extend(ctx); err != nil {
		return false, err
	}
	// A call is there before its output, and its output before its result.
	begun := st.index.Overview().Begun
	if err := st.sendOpen(begun); err != nil {
		return false, err
	}
	for _, d := range deltas {
		call, _ := tools.Display(d.CallID) // as templates write it
		text, err := json.Marshal(struct {
			Call    string `json:"call"`
			Stream  string `json:"stream"`
			Text    string `json:"text"`
			Omitted bool   `json:"omitted,omitempty"`
		}{call, d.Stream, d.Text, d.Omitted})
		if err != nil {
			return false, err
		}
		if err := st.Event("", "delta", string(text)); err != nil {
			return false, err
		}
	}
	if err := st.sendSteps(begun); err != nil {
		return false, err
	}
	v.Overview = st.index.Overview()
	v.frame = st.frame
	st.page.fill(ctx, st.u, &v)
	if err := st.sendTemplate("ask", "questions", v); err != nil {
		return false, err
	}
	if err := st.sendTemplate("state", "state", v); err != nil {
		return false, err
	}
	return v.Ended && (f == nil || ended), nil
}

// sendSteps sends the steps of each new record.
func (st *stream) sendSteps(begun time.Time) error {
	for {
		steps := st.index.After(st.after) // of a part
		if len(steps) == 0 {
			return nil
		}
		for len(steps) > 0 {
			seq := steps[0].Seq
			n := slices.IndexFunc(steps, func(s trace.Step) bool { return s.Seq != seq })
			if n < 0 {
				n = len(steps)
			}
			html, err := st.page.render("steps", stepViews(steps[:n], begun, "/s/"+st.id))
			if err != nil {
				return err
			}
			if err := st.Event(strconv.FormatInt(seq, 10), "step", html); err != nil {
				return err
			}
			st.after = seq
			steps = steps[n:]
		}
	}
}

// sendOpen sends the calls under way that have changed.
func (st *stream) sendOpen(begun time.Time) error {
	open := map[string]int64{}
	for _, s := range st.index.Open() {
		open[s.Call.ID] = s.Seq
		if st.open[s.Call.ID] == s.Seq {
			continue
		}
		html, err := st.page.render("open", trace.StepView(s, begun, "/s/"+st.id))
		if err != nil {
			return err
		}
		if err := st.Event("", "open", html); err != nil {
			return err
		}
	}
	st.open = open
	return nil
}

// sendTemplate sends an event with what a template writes, unless that was sent
// before.
func (st *stream) sendTemplate(event, name string, data any) error {
	html, err := st.page.render(name, data)
	if err != nil || html == st.sent[event] {
		return err
	}
	st.sent[event] = html
	return st.Event("", event, html)
}
