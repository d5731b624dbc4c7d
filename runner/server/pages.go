package server

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// PageHost is a name of this machine's loopback address. [Server.PageHost] returns the
// name below it at which a user signs in, and which only that user knows.
const PageHost = "caisson.localhost"

// Pages are the pages that people see. They are served at all paths that the
// API doesn't have. The server has checked a request's host and origin, and for
// a POST its form. [UserOf] has the user; without one, only signing in is allowed.
type Pages interface {
	http.Handler
	// Refuse answers a request that the server doesn't pass on.
	Refuse(w http.ResponseWriter, r *http.Request, p *Problem)
}

// ServePages adds pages. It must be called before the server serves.
func (s *Server) ServePages(p Pages) { s.guard.pages = p }

// Call sends a request of the API on behalf of a user, in this process, and
// decodes the answer into out unless that is nil. The user needs the role of
// the operation. Errors of the API are of type [*Problem].
func (s *Server) Call(ctx context.Context, u User, method, path string, in, out any) error {
	var text []byte
	var err error
	if in != nil {
		if text, err = json.Marshal(in); err != nil {
			return fmt.Errorf("call %s: %w", path, err)
		}
	}
	r, err := http.NewRequestWithContext(context.WithValue(ctx, clientKey{}, u.client), method, path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	_, pattern := s.mux.Handler(r)
	if p := s.guard.authorize(u.client, pattern); p != nil {
		return p
	}
	answer := &keptResponse{header: http.Header{}}
	s.mux.ServeHTTP(answer, r)
	if answer.status >= http.StatusMultipleChoices {
		p := &Problem{}
		if err := json.Unmarshal(answer.body.Bytes(), p); err != nil {
			return fmt.Errorf("call %s: status %d", path, answer.status)
		}
		return p
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer.body.Bytes(), out); err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	return nil
}

// keptResponse keeps an answer in memory.
type keptResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *keptResponse) Header() http.Header             { return k.header }
func (k *keptResponse) SetReadDeadline(time.Time) error { return nil } // huma sets one

func (k *keptResponse) WriteHeader(status int) {
	if k.status == 0 {
		k.status = status
	}
}

func (k *keptResponse) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

// CodeOwner returns the label of the token that a code belongs to, or "" for a code
// that can't be used. The code stays usable.
func (s *Server) CodeOwner(code string) string { return s.guard.signIns.ownerOf(code) }

// SignIn returns the cookie for a code that a client got with its token, at the
// host of a request. ok is false for a code that is unknown, used or too old, or
// for a name that isn't the client's own.
func (s *Server) SignIn(code, host string) (_ *http.Cookie, ok bool) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	value, ok := s.guard.signIns.useCode(code, host)
	if !ok {
		return nil, false
	}
	return cookieOf(value), true
}

// SignedIn reports whether a user's cookie is still valid.
func (s *Server) SignedIn(u User) bool { return s.guard.signIns.isSignedIn(u) }

// SignOut makes a user's cookie invalid, and returns the one that removes it.
func (s *Server) SignOut(u User) *http.Cookie {
	s.guard.signIns.signOut(u)
	return cookieOf("")
}

// PageHost returns the name at which the holder of a token signs in, for browsers
// on the server's machine.
func (s *Server) PageHost(t Token) string { return s.guard.signIns.hosts[t.Label] }

// Internal logs an error, and returns a problem without its text for users.
func (s *Server) Internal(doing string, err error) *Problem { return s.internalProblem(doing, err) }

// NewCode returns a code with which a client signs in, as POST /signins does.
func (s *Server) NewCode(t Token) string {
	for _, c := range s.guard.keys.clients {
		if c.label == t.Label {
			code, _ := s.guard.signIns.newCode(c)
			return code
		}
	}
	return ""
}

// Sessions returns the IDs of all sessions, newest first, including the ones
// that users may not see.
func (s *Server) Sessions() ([]string, error) { return s.sessions.archive.listIDs() }

// View returns what GET /sessions lists about a session. It remembers ended
// sessions, whose records don't change any more.
func (s *Server) View(id string) (Session, error) { return s.views.view(s.sessions, id) }

// maxViews bounds the sessions of viewCache, at some hundred bytes each.
const maxViews = 20_000

// viewCache has the views of ended sessions.
type viewCache struct {
	mu    sync.Mutex
	views map[string]cachedView
}

type cachedView struct {
	Session
	size    int64
	changed time.Time
}

func (c *viewCache) view(r *registry, id string) (Session, error) {
	info, err := os.Lstat(filepath.Join(sessiondir.Path(r.opts.StateDir, id), record.TraceFile))
	if err != nil || r.liveSession(id) != nil {
		return r.viewSession(id, false)
	}
	c.mu.Lock()
	kept, ok := c.views[id]
	c.mu.Unlock()
	if ok && kept.size == info.Size() && kept.changed.Equal(info.ModTime()) {
		return kept.Session, nil
	}
	v, err := r.viewSession(id, false)
	if err != nil || v.State != StateEnded {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.views == nil || len(c.views) >= maxViews {
		c.views = map[string]cachedView{}
	}
	c.views[id] = cachedView{v, info.Size(), info.ModTime()}
	return v, nil
}

// Live returns the sessions that are live in this server.
func (s *Server) Live() []Session {
	var out []Session
	for _, live := range s.sessions.listLive() {
		out = append(out, live.sessionView(false))
	}
	return out
}

// Dir returns the directory of a session's records, if users may see it.
func (s *Server) Dir(id string) (string, error) { return s.sessions.findDir(id) }

// Trace returns a session's records, if users may see them.
func (s *Server) Trace(id string) (trace.Session, error) {
	if _, err := s.Dir(id); err != nil {
		return trace.Session{}, err
	}
	return trace.Find(s.opts.StateDir, id)
}

// Records returns up to most records of a session, beginning with number from.
func (s *Server) Records(id string, from int64, most int) ([]record.Record, error) {
	dir, err := s.Dir(id)
	if err != nil {
		return nil, err
	}
	t, err := openTail(dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	if err := t.seekBefore(from); err != nil {
		return nil, err
	}
	var out []record.Record
	for len(out) < most {
		e, ok, err := t.nextEntry()
		if err != nil || !ok {
			return out, err
		}
		if e.Seq < from {
			continue
		}
		r, err := record.Decode(e.line)
		if err != nil {
			return out, err
		}
		out = append(out, r)
	}
	return out, nil
}

// OpenStream returns a writer of events for a user, and counts their stream until
// release is called. It returns a [*Problem] if the user has too many.
func (s *Server) OpenStream(w http.ResponseWriter, u User) (_ *httpserver.EventWriter, release func(), err error) {
	release, err = s.streams.takeStream(u.label)
	return httpserver.NewEventWriter(w, s.sessions.metrics.dropped.Inc), release, err
}

// Stopped is closed when the server has ended its sessions.
func (s *Server) Stopped() <-chan struct{} { return s.sessions.stopped }

// Follower reports what is new in a session that is live in this server.
type Follower struct {
	feed *feed
	sub  *subscription
	// Wake has a value when something is new.
	Wake <-chan struct{}
	// Leave must be called at the end.
	Leave func()
}

// Follow follows a session. It returns nil if the session isn't live here; then
// poll its records.
func (s *Server) Follow(id string) *Follower {
	live := s.sessions.liveSession(id)
	if live == nil {
		return nil
	}
	sub, leave := live.feed.subscribe()
	return &Follower{live.feed, sub, sub.wake, leave}
}

// Take returns the output since the last call, and whether the session has
// ended. Records that were written before are in the trace already.
func (f *Follower) Take() (deltas []Delta, ended bool) {
	waiting, _, ended := f.feed.takeDeltas(f.sub)
	for _, d := range waiting {
		deltas = append(deltas, d.Delta)
	}
	return deltas, ended
}

// isPage reports whether a path belongs to the pages.
func isPage(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "sessions", "sandboxes", "signins", "metrics", "openapi.json", "healthz":
		return false
	}
	return true
}

// maxLoginBytes bounds the forms of people who are not signed in.
const maxLoginBytes = 4 << 10

// servePage serves a request for a page. p is the reason for which it is
// refused, or nil.
func (g *guard) servePage(slots *httpserver.Quota, out *response, r *http.Request, p *Problem) {
	u, known := g.signIns.findUser(r)
	ctx := context.WithValue(r.Context(), responseKey{}, out)
	if known {
		httpserver.KeepConnection(r)
		ctx = context.WithValue(context.WithValue(ctx, userKey{}, u), clientKey{}, u.client)
	}
	r = r.WithContext(ctx)
	if !known && p == nil { // a slow stranger takes no slot
		p = g.readForm(out, r, u, known)
	}
	if !known || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/stream") {
		release, ok := slots.Take(u.label)
		if !ok {
			g.pages.Refuse(out, r, newProblem(http.StatusServiceUnavailable, "overloaded", "too many requests are under way", "Try again in a second"))
			return
		}
		out.releaseSlot = release
		defer release()
	}
	if known && p == nil {
		p = g.readForm(out, r, u, known)
	}
	if p != nil {
		g.pages.Refuse(out, r, p)
		return
	}
	out.unread = false
	g.pages.ServeHTTP(out, r)
}

// readForm reads the form of a POST, and refuses one that a page of this server
// did not send.
func (g *guard) readForm(out *response, r *http.Request, u User, known bool) *Problem {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if r.ContentLength != 0 {
			return newProblem(http.StatusBadRequest, "body", "a "+r.Method+" takes no body", "Leave it out")
		}
		return nil
	case http.MethodPost:
	default:
		return newProblem(http.StatusMethodNotAllowed, "method", "pages take GET and POST", "")
	}
	foreign := newProblem(http.StatusForbidden, "origin", "the form was not sent by a page of this server", "Reload the page and send it again")
	if r.Header.Get("Sec-Fetch-Site") != "same-origin" || len(r.Header.Values("Origin")) != 1 { // checkOrigin has compared it
		return foreign
	}
	if !known && (r.URL.Path != "/login" || r.ContentLength < 0 || r.ContentLength > maxLoginBytes) {
		return newProblem(http.StatusUnauthorized, "unauthorized", "you aren't signed in any more", "Sign in and try again")
	}
	if p := readBody(out, r, "application/x-www-form-urlencoded"); p != nil {
		return p
	}
	if err := r.ParseForm(); err != nil {
		return newProblem(http.StatusBadRequest, "malformed", "the form can't be read", "Reload the page and send it again")
	}
	if known && subtle.ConstantTimeCompare([]byte(r.PostForm.Get("form")), []byte(u.form)) != 1 && r.URL.Path != "/login" {
		return foreign
	}
	return nil
}

// PageURL returns the address at which people sign in with a code, for a page at
// base, such as http://caisson.localhost:8717. Session is the session to show,
// or "".
func PageURL(base, code, session string) string {
	to := ""
	if session != "" {
		to = "?to=/s/" + url.QueryEscape(session)
	}
	return base + "/login" + to + "#" + code
}
