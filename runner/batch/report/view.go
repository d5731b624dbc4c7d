package report

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/internal/httpserver"
)

const (
	// filePolicy is for files of agents and verifiers: they are shown, but can do
	// nothing.
	filePolicy = "default-src 'none'; sandbox"
	// storyPolicy is for sessions, whose pages have styles and pictures of their own.
	storyPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
	// noFrames is added to the policies of all pages and files. It counts only in a header.
	noFrames = "; frame-ancestors 'none'"
)

// Bounds on the time for a request's headers and a response.
const (
	requestTime  = 10 * time.Second
	responseTime = 10 * time.Minute
)

// ViewOptions configures [Serve] and [NewHandler]. All fields but Home are required.
type ViewOptions struct {
	// Dir is a batch's directory. The batch may be running.
	Dir   string
	Title string
	// Home is the address of a page that pages link to, or "".
	Home string
	// Story writes the page of the session whose records are in dir.
	Story func(w io.Writer, dir string) error
}

// Serve serves [NewHandler] below /KEY/ on a listener until ctx ends. Without the key,
// nothing is found. Serve closes the listener.
func Serve(ctx context.Context, l net.Listener, key string, o ViewOptions) error {
	h := &http.Server{Handler: http.StripPrefix("/"+key, NewHandler(o)), ReadHeaderTimeout: requestTime, WriteTimeout: responseTime}
	return httpserver.Serve(ctx, h, func() error { return nil }, l)
}

// NewHandler shows a batch's current state: the report at /, comparisons of two agents
// at /compare, and where the report links to a trial's directory, the trial's page, the
// story of its sessions, and its files as text. Links are relative, so that a prefix can
// be stripped. The handler only reads, and follows no symlinks out of trials'
// directories. It checks no client.
func NewHandler(o ViewOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", o.serveReport)
	mux.HandleFunc("GET /compare", o.serveComparison)
	mux.HandleFunc("GET /"+batch.TrialsDir+"/{trial}/{$}", o.serveTrial)
	mux.HandleFunc("GET /"+batch.TrialsDir+"/{trial}/{file...}", o.serveFile)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httpserver.KeepConnection(r) // it knows the key
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", filePolicy+noFrames) // of errors
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		if err := batch.CheckNames(o.Dir); err != nil { // the batch may be somebody else's
			writeError(w, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (o ViewOptions) newHead(title, rules string) head {
	h := newHead(title, rules, "'self'")
	h.Home = o.Home
	return h
}

func (o ViewOptions) read() (spec batch.Spec, results []batch.Result, err error) {
	if spec, err = batch.ReadSpec(o.Dir); err == nil {
		results, err = batch.ReadResults(o.Dir)
	}
	return spec, results, err
}

func (o ViewOptions) serveReport(w http.ResponseWriter, _ *http.Request) {
	spec, results, err := o.read()
	if err != nil {
		writeError(w, err)
		return
	}
	p := newPage(spec, results)
	p.head = o.newHead(o.Title, filterRules(len(p.Agents)))
	if len(p.Agents) > 1 {
		p.Choice = &choice{spec.Agents, p.Agents[0].Agent, p.Agents[1].Agent}
	}
	writePage(w, p.Policy, func(out io.Writer) error { return pageTemplate().Execute(out, p) })
}

func (o ViewOptions) serveComparison(w http.ResponseWriter, r *http.Request) {
	spec, results, err := o.read()
	var p *comparePage
	if err == nil {
		p, err = newComparePage(o, spec, results, r.FormValue("a"), r.FormValue("b"))
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writePage(w, p.Policy, func(out io.Writer) error { return pageTemplate().ExecuteTemplate(out, "compare", p) })
}

func (o ViewOptions) serveTrial(w http.ResponseWriter, r *http.Request) {
	results, err := batch.ReadResults(o.Dir)
	i := slices.IndexFunc(results, func(result batch.Result) bool { return result.Key.Name() == r.PathValue("trial") })
	if err == nil && i < 0 {
		err = fs.ErrNotExist
	}
	var p *trialPage
	if err == nil {
		p, err = o.readTrialPage(results, i)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writePage(w, p.Policy, func(out io.Writer) error { return pageTemplate().ExecuteTemplate(out, "trial", p) })
}

// serveFile writes a trial's file, or for a session's directory its story.
func (o ViewOptions) serveFile(w http.ResponseWriter, r *http.Request) {
	name, isDir := strings.CutSuffix(r.PathValue("file"), "/")
	root, err := openTrial(o.Dir, r.PathValue("trial"))
	if err != nil {
		writeError(w, err)
		return
	}
	defer func() { _ = root.Close() }() // only read
	if isDir {
		if !slices.Contains(findSessions(root), name) {
			writeError(w, fs.ErrNotExist)
			return
		}
		writePage(w, storyPolicy, func(out io.Writer) error { return o.Story(out, filepath.Join(root.Name(), name)) })
		return
	}
	f, err := openFile(root, name)
	if err != nil {
		writeError(w, err)
		return
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", filePolicy+noFrames)
	if isText(f) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	}
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// writePage writes a page, or the error from making it.
func writePage(w http.ResponseWriter, policy string, write func(out io.Writer) error) {
	var page bytes.Buffer // buffer it, so that an error has its status
	if err := write(&page); err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Security-Policy", policy+noFrames)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w) // the browser is gone
}

func writeError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, "there is no such page", http.StatusNotFound)
	case errors.Is(err, errNoAgent):
		http.Error(w, showLine(err), http.StatusNotFound)
	default:
		http.Error(w, showLine(err), http.StatusInternalServerError)
	}
}

// openTrial opens a finished trial's directory. name must be one path element.
func openTrial(dir, name string) (*os.Root, error) {
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return nil, fs.ErrNotExist
	}
	dir = filepath.Join(dir, batch.TrialsDir, name)
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// openFile opens a trial's regular file. It doesn't open symlinks.
func openFile(root *os.Root, name string) (*os.File, error) {
	if !fs.ValidPath(name) {
		return nil, fs.ErrNotExist
	}
	info, err := root.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return root.Open(name)
}

func isText(f io.ReaderAt) bool {
	head := make([]byte, 1024)
	n, _ := f.ReadAt(head, 0) // as much as there is
	head = head[:n]
	for i := 0; i < utf8.UTFMax && len(head) > 0 && !utf8.Valid(head); i++ { // a cut character
		head = head[:len(head)-1]
	}
	return utf8.Valid(head) && !bytes.ContainsRune(head, 0)
}
