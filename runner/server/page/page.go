// Package page is the page of caisson serve: sessions as people follow and
// answer them, in HTML from the server. Scripts only make it quicker.
//
// Everything that a user does is a request of the API on their behalf, with the
// roles of the token that they signed in with. Texts of models, tools and tasks
// reach the page only through html/template and [trace.Templates].
package page

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/trace"
)

//go:embed assets templates
var files embed.FS

// Options are what the page shows beside sessions.
type Options struct {
	// Conversation is for the page of one session, which a terminal runs.
	Conversation bool
	// Workspace is offered for new sessions, Models are the names that clients
	// may use.
	Workspace string
	Models    []string
	// Doctor checks the machine.
	Doctor func(ctx context.Context) []Finding
	// Batches are absolute paths of batches, or of directories that hold them.
	Batches []string
	// Story writes the exported page of the session whose records are in dir.
	// It is needed with Batches.
	Story func(w io.Writer, dir string) error
}

// Finding is the result of one check of the machine: ok, warning, failed or
// absent, with what was found and what to do about it.
type Finding struct{ Check, Result, Detail, Hint string }

// Page serves the page of one server. It is safe for concurrent use.
type Page struct {
	srv       *server.Server
	o         Options
	mux       *http.ServeMux
	templates func() *template.Template
	indexes   indexCache
	batches   *batches
	reading   sync.Once // of all sessions
	read      atomic.Bool
	// reads has an element for each session that is read in the background.
	reads chan struct{}
}

// contentPolicy lets the page load only its own files. Scripts can't make markup
// from strings, except through the policy caisson in page.js.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types caisson"

// New returns the page of a server, which passes requests to it after
// [server.Server.ServePages].
func New(srv *server.Server, o Options) *Page {
	p := &Page{srv: srv, o: o, mux: http.NewServeMux(), templates: sync.OnceValue(parseTemplates), reads: make(chan struct{}, maxReads), batches: &batches{dirs: o.Batches, story: o.Story}}
	p.mux.HandleFunc("GET /assets/{file}", p.serveAsset)
	p.mux.HandleFunc("GET /login", p.showLogin)
	p.mux.HandleFunc("POST /login", p.signIn)
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request, server.User) error{
		"POST /logout": p.signOut,
		"GET /b":       p.showBatches, "GET /b/{name}/{rest...}": func(w http.ResponseWriter, r *http.Request, _ server.User) error { return p.batches.serve(w, r) },
		"GET /{$}": p.showSessions, "POST /{$}": p.startSession,
		"GET /attention": p.countWaiting, "GET /doctor": p.showDoctor,
		"GET /s/{id}": p.showStory, "GET /s/{id}/chunk/{n}": p.writeChunk, "GET /s/{id}/stream": p.streamSession, "GET /s/{id}/find": p.findStep,
		"GET /s/{id}/changes": p.showChanges, "GET /s/{id}/timeline": p.showTimeline, "GET /s/{id}/records": p.showRecords, "GET /s/{id}/film/{seq}": p.showFilm,
		"POST /s/{id}/message": p.sendMessage, "POST /s/{id}/stop": p.stopTurn, "POST /s/{id}/end": p.endSession,
		"POST /s/{id}/answer": p.answer, "POST /s/{id}/apply": p.apply,
	} {
		p.mux.HandleFunc(pattern, p.forUsers(serve))
	}
	return p
}

func parseTemplates() *template.Template {
	t := trace.Templates().Funcs(template.FuncMap{
		"asset": func(name string) string { return "/assets/" + name + "?" + assets()[name].hash },
		"since": formatSince,
		"json": func(v any) (string, error) {
			var text strings.Builder
			out := json.NewEncoder(&text)
			out.SetEscapeHTML(false) // the template does
			out.SetIndent("", "  ")
			err := out.Encode(v)
			return text.String(), err
		},
	})
	return template.Must(t.ParseFS(files, "templates/*.tmpl"))
}

// asset is a file that pages load, also compressed. Pages name it with its hash, so
// that browsers keep it. Pages themselves aren't compressed: they have secrets beside
// foreign texts, and a length would tell about both.
type asset struct {
	text, packed []byte
	hash         string
}

var assets = sync.OnceValue(func() map[string]asset {
	out := map[string]asset{}
	for _, name := range []string{"page.css", "page.js"} {
		text, err := files.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		if name == "page.css" {
			text = append([]byte(trace.Style()), text...)
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(text) // a buffer takes everything
		_ = z.Close()
		out[name] = asset{text, packed.Bytes(), fmt.Sprintf("%.8x", sha256.Sum256(text))}
	}
	return out
})

func (p *Page) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	a, ok := assets()[name]
	if !ok {
		p.Refuse(w, r, notFound("There is no such file."))
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == a.hash {
		h.Set("Cache-Control", "max-age=31536000, immutable")
	}
	h.Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		a.text = a.packed
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(a.text))
}

func refusal(status int, detail string) *server.Problem {
	return &server.Problem{Status: status, Detail: detail}
}

func notFound(detail string) *server.Problem { return refusal(http.StatusNotFound, detail) }

// ServeHTTP serves a request that the server has let pass.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w)
	if _, pattern := p.mux.Handler(r); pattern == "" {
		p.Refuse(w, r, notFound("There is no such page."))
		return
	}
	p.mux.ServeHTTP(w, r)
}

func setHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// A page without a referrer would send forms with the origin "null".
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

// Refuse shows why a request was refused, and the way back.
func (p *Page) Refuse(w http.ResponseWriter, r *http.Request, problem *server.Problem) {
	setHeaders(w)
	back := "/"
	if rest, ok := strings.CutPrefix(r.URL.Path, "/s/"); ok {
		back = "/s/" + strings.SplitN(rest, "/", 2)[0]
	}
	title := "Failed"
	switch {
	case problem.Status == http.StatusUnauthorized:
		title = "Signed out"
	case problem.Status == http.StatusForbidden:
		title = "Not allowed"
	case problem.Status == http.StatusNotFound:
		title = "Not found"
	case problem.Status < http.StatusInternalServerError:
		title = "Not done"
	}
	p.write(w, problem.Status, "problem", problemView{p.frame(r, title, ""), problem, back})
}

type problemView struct {
	frame
	Problem *server.Problem
	Back    string
}

// forUsers shows the form for signing in to everybody else.
func (p *Page) forUsers(serve func(http.ResponseWriter, *http.Request, server.User) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		u, ok := server.UserOf(r.Context())
		switch {
		case !ok && r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "/stream"):
			p.write(w, http.StatusUnauthorized, "login", loginView{frame: p.frame(r, "Sign in", ""), To: r.URL.RequestURI()})
		case !ok:
			p.Refuse(w, r, refusal(http.StatusUnauthorized, "You aren't signed in any more. Sign in, and try again."))
		case !u.Has(server.RoleRead):
			p.Refuse(w, r, refusal(http.StatusForbidden, "The page needs a token with the role read."))
		default:
			if err := serve(w, r, u); err != nil {
				p.fail(w, r, err)
			}
		}
	}
}

func (p *Page) fail(w http.ResponseWriter, r *http.Request, err error) {
	problem, ok := errors.AsType[*server.Problem](err)
	switch {
	case ok:
	case r.Context().Err() != nil:
		return // the browser is gone
	default:
		problem = p.srv.Internal("serve page", err)
	}
	p.Refuse(w, r, problem)
}

// frame is what every page has.
type frame struct {
	Title string
	// Section is sessions, batches, doctor or "".
	Section string
	// User is the label of the user, or "" for nobody.
	User, Form                                string
	Conversation, CanRun, CanAnswer, CanAdmin bool
}

func (p *Page) frame(r *http.Request, title, section string) frame {
	f := frame{Title: title, Section: section, Conversation: p.o.Conversation}
	if u, ok := server.UserOf(r.Context()); ok {
		f.User, f.Form = strings.TrimSuffix(u.Label(), "/browser"), u.Form()
		f.CanRun, f.CanAnswer, f.CanAdmin = u.Has(server.RoleRun), u.Has(server.RoleApprove), u.Has(server.RoleAdmin)
	}
	return f
}

// render returns what a template writes.
func (p *Page) render(name string, data any) (string, error) {
	var out strings.Builder
	err := p.templates().ExecuteTemplate(&out, name, data)
	return out.String(), err
}

// write writes a page from a template.
func (p *Page) write(w http.ResponseWriter, status int, name string, data any) {
	html, err := p.render(name, data)
	if err != nil {
		http.Error(w, fmt.Sprintf("the page %s can't be written: %v", name, err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, html) // the browser may be gone
}

type loginView struct {
	frame
	// To is the path to show after signing in.
	To     string
	Failed bool
	// Other is whom Code signs in instead of the user, who is asked.
	Other, Code string
}

func (p *Page) showLogin(w http.ResponseWriter, r *http.Request) {
	p.write(w, http.StatusOK, "login", loginView{frame: p.frame(r, "Sign in", ""), To: ownPath(r.URL.Query().Get("to"))})
}

// ownPath returns a path of the page, or "/" for anything that could lead
// elsewhere.
func ownPath(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return to
}

// signIn signs somebody in with a code. It first asks a user who is signed in as somebody
// else, because another site can link here with its own code.
func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	view := loginView{frame: p.frame(r, "Sign in", ""), To: ownPath(r.PostForm.Get("to")), Code: r.PostForm.Get("code")}
	old, signedIn := server.UserOf(r.Context())
	if owner := p.srv.CodeOwner(view.Code); signedIn && owner != "" && owner != view.User && r.PostForm.Get("replace") == "" {
		view.Other = owner
		p.write(w, http.StatusOK, "login", view)
		return
	}
	cookie, ok := p.srv.SignIn(view.Code, r.Host)
	if !ok {
		view.Failed = true
		p.write(w, http.StatusForbidden, "login", view)
		return
	}
	if signedIn {
		p.srv.SignOut(old)
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, view.To, http.StatusSeeOther)
}

func (p *Page) signOut(w http.ResponseWriter, r *http.Request, u server.User) error {
	http.SetCookie(w, p.srv.SignOut(u))
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return nil
}

// showDoctor is for admins: findings name paths of the server's machine.
func (p *Page) showDoctor(w http.ResponseWriter, r *http.Request, u server.User) error {
	if !u.Has(server.RoleAdmin) {
		return refusal(http.StatusForbidden, "The checks of the machine are for the role admin.")
	}
	view := struct {
		frame
		Findings []Finding
	}{frame: p.frame(r, "Doctor", "doctor")}
	if p.o.Doctor != nil {
		view.Findings = p.o.Doctor(r.Context())
	}
	p.write(w, http.StatusOK, "doctor", view)
	return nil
}

func (p *Page) showBatches(w http.ResponseWriter, r *http.Request, u server.User) error {
	list := p.batches.list()
	if !u.Has(server.RoleAdmin) { // what can't be read names paths of the server's machine
		for i := range list.Faults {
			list.Faults[i] = "A directory of batches can't be read."
		}
		for i := range list.Rows {
			if list.Rows[i].Problem != "" {
				list.Rows[i].Problem = "its files can't be used"
			}
		}
	}
	p.write(w, http.StatusOK, "batches", struct {
		frame
		batchList
	}{p.frame(r, "Batches", "batches"), list})
	return nil
}

// formatSince returns the time since t, like 12m or 3d.
func formatSince(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
