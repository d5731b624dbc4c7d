package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/chat"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	webpage "github.com/caisson-run/caisson/runner/server/page"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// tokenName is the file of the token that a server makes, in the state directory. The
// file with addressSuffix beside it has the server's address.
const (
	tokenName     = "serve.token"
	addressSuffix = ".url"
)

func newOpenCommand(a *app) *cobra.Command {
	var f openFlags
	return newCommand(&cobra.Command{
		Use: "open [flags] [SESSION]", Short: "Open the page of caisson serve in a browser, signed in",
		Args: wantArgs(0, 1, "at most one session (caisson trace ls lists them)"),
		Long: `Open the page of caisson serve in a browser, signed in: all sessions, or SESSION, which is an id, the
beginning of one, or last. Start the server first: caisson serve --root DIR.

The command shows its token to the server and gets a code, which the browser exchanges for a cookie. A
code works once, and for a minute. The page may do what the token may.

The address has a random name below caisson.localhost, so that no other server on this machine gets the
cookie. If your browser doesn't find it, replace the name with 127.0.0.1. Without a display, or with
--print, the command only prints the address. SESSION is looked up on this machine.
`,
		Example: `  caisson open
  caisson open last
  caisson open --url https://caisson.example.org --token-file ~/token --print`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runOpen(cmd.Context(), a, f, firstArgument(args))
		},
	}, &f, usesConfig|usesInput, statuses{exitFailed: "no server answers", exitAuth: "the server refused the token"})
}

type openFlags struct {
	URL       string `flag:"url" doc:"address of the server (default: of the one that runs here, else serve.listen)"`
	TokenFile string `flag:"token-file" doc:"file with the server's token (default: in the state directory)"`
	Print     bool   `flag:"print" doc:"only print the address"`
}

func runOpen(ctx context.Context, a *app, f openFlags, session string) error {
	state, err := findState(a.environ)
	if err != nil {
		return err
	}
	s, err := loadSettings(a, config.File{}, "")
	if err != nil {
		return err
	}
	if session != "" {
		found, err := trace.Find(state, session)
		if err != nil {
			return err
		}
		if found.Dir != sessiondir.Path(state, found.ID) {
			return newFailure(exitInput, nil, "the page doesn't show "+session+", which is not in "+filepath.Dir(sessiondir.Path(state, "x")), "caisson trace html makes a page of it.")
		}
		session = found.ID
	}
	tokenPath := cmp.Or(f.TokenFile, filepath.Join(state, tokenName))
	token, err := readToken(tokenPath)
	if err != nil {
		return newFailure(exitInput, err, "there is no token for the page: "+err.Error(), "Start a server with caisson serve --root DIR --open, or name the token of one with --token-file.")
	}
	noted, _ := readToken(tokenPath + addressSuffix) // only servers that made the token write it
	base, err := parseAddress(cmp.Or(f.URL, strings.TrimSpace(string(noted)), firstAddress(s.conf.Serve.Listen)))
	if err != nil {
		return err
	}
	got, err := requestCode(ctx, base, strings.TrimSpace(string(token)))
	if err != nil {
		return err
	}
	address := server.PageURL(pageBase(base, got.Host), got.Code, session)
	if _, err := fmt.Fprintln(a.stdout, "open "+address); err != nil || f.Print {
		return err
	}
	here, err := filepath.Abs(".") // perhaps a workspace
	if err != nil {
		return err
	}
	openBrowser(ctx, a.environ, s.writableDirs(here), address)
	return nil
}

// firstAddress returns the address of addresses that browsers can reach, or else the
// first one, or the default.
func firstAddress(addresses []string) string {
	for _, address := range addresses {
		if !strings.HasPrefix(address, "unix:") {
			return address
		}
	}
	return cmp.Or(slices.Concat(addresses, []string{config.DefaultListen})...)
}

// parseAddress returns the URL of a server, from one or from the address that it listens
// on.
func parseAddress(text string) (*url.URL, error) {
	if strings.HasPrefix(text, "unix:") {
		return nil, newFailure(exitInput, nil, "browsers can't reach the socket "+text, "Start the server with --listen "+config.DefaultListen+" too, or name its address with --url.")
	}
	whole := text
	if !strings.Contains(text, "://") {
		whole = "http://" + text
	}
	u, err := url.Parse(whole)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return nil, newUsageError("%q is no address of a server; want one such as http://%s", text, config.DefaultListen)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "" || ip != nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	}
	u.Path = ""
	return u, nil
}

// pageBase returns the address of a server's page, on this machine with a name.
func pageBase(u *url.URL, name string) string {
	host := u.Host
	if asked := u.Hostname(); u.Scheme == "http" && (asked == "localhost" || asked == "127.0.0.1" || asked == "::1") {
		host = name
		if port := u.Port(); port != "" {
			host = net.JoinHostPort(host, port)
		}
	}
	return u.Scheme + "://" + host
}

// requestTime bounds the request for a code.
const requestTime = 10 * time.Second

// requestCode asks a server for a code of a token. It sends the token to no other
// server.
func requestCode(ctx context.Context, base *url.URL, token string) (got server.SignIn, _ error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, fmt.Errorf("there was no answer in %s", requestTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base.String()+"/signins", nil)
	if err != nil {
		return got, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	const start = "Start one with caisson serve --root DIR --open, or name its address with --url."
	res, err := client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return got, newFailure(exitFailed, err, fmt.Sprintf("no server answers at %s: %v", base, err), start)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxTokenBytes))
	var problem server.Problem
	switch {
	case err != nil:
		return got, newFailure(exitFailed, err, fmt.Sprintf("the server at %s broke off: %v", base, err), "Try again.")
	case res.StatusCode == http.StatusCreated && json.Unmarshal(text, &got) == nil && ownCode().MatchString(got.Code+" "+got.Host):
		return got, nil
	case res.StatusCode == http.StatusUnauthorized:
		return got, newFailure(exitAuth, nil, fmt.Sprintf("the server at %s doesn't know the token", base), "Name the file with its token with --token-file.")
	case res.StatusCode == http.StatusForbidden && json.Unmarshal(text, &problem) == nil && problem.Code == "role":
		return got, newFailure(exitAuth, nil, "the page needs a token with the role read", "Name another one with --token-file.")
	case json.Unmarshal(text, &problem) == nil && problem.Detail != "":
		return got, newFailure(exitFailed, nil, fmt.Sprintf("the server at %s refused: %s", base, problem.Detail), "")
	}
	return got, newFailure(exitFailed, nil, fmt.Sprintf("what answers at %s is no caisson serve of this version (status %d)", base, res.StatusCode), start)
}

// ownCode is a code and a name that a server of this program makes.
var ownCode = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Z2-7]{16} [a-z2-7]{12}\.caisson\.localhost$`)
})

// openBrowser opens an address in the user's browser if there is a display. Callers also
// print the address, so that a failure needs no error.
func openBrowser(ctx context.Context, env environ, writable []string, address string) {
	if env.get("DISPLAY") == "" && env.get("WAYLAND_DISPLAY") == "" {
		return
	}
	// xdg-open would run whatever program BROWSER names, also one of a workspace.
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "BROWSER=") })
	cmd, err := programs.Command(context.WithoutCancel(ctx), env, writable, "xdg-open", address)
	if err != nil {
		return
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl+C on this terminal doesn't end the browser
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}

// servePage serves the page beside the API.
func (h *serverHost) servePage(srv *server.Server) {
	conf := h.base.conf
	o := webpage.Options{Models: conf.Serve.Models, Doctor: h.checkMachine(), Batches: h.batches, Story: writeStory}
	if o.Models == nil {
		o.Models = slices.Sorted(maps.Keys(conf.Models))
	}
	if len(h.roots) == 1 {
		o.Workspace = h.roots[0].path
	}
	srv.ServePages(webpage.New(srv, o))
}

// checkedFor is how long the page shows the same findings.
const checkedFor = time.Minute

// checkMachine returns the checks of caisson doctor --quick, made at most once in
// checkedFor.
func (h *serverHost) checkMachine() func(context.Context) []webpage.Finding {
	var mu sync.Mutex
	var kept []webpage.Finding
	var at time.Time
	return func(ctx context.Context) []webpage.Finding {
		mu.Lock()
		defer mu.Unlock()
		if kept != nil && time.Since(at) < checkedFor {
			return kept
		}
		var out []webpage.Finding
		s, err := loadServerSettings(h.app, h.flags.Settings, h.flags.Profile)
		s.workspaces = &h.workspaces
		for _, f := range describeFindings(runChecks(ctx, h.app, s, err, true)) {
			out = append(out, webpage.Finding{Check: f.Check, Result: string(f.Result), Detail: makeSafe(f.Detail), Hint: makeSafe(f.Hint)})
		}
		if ctx.Err() == nil { // otherwise they were interrupted
			kept, at = out, time.Now()
		}
		return out
	}
}

// announcePage tells the operator how to see the page. With open, it also opens it, signed
// in with keys.administrator.
func (h *serverHost) announcePage(ctx context.Context, srv *server.Server, listeners []net.Listener, keys *tokens, open bool) error {
	var addresses []string
	for _, l := range listeners {
		addresses = append(addresses, formatAddress(l.Addr()))
	}
	address := firstAddress(addresses)
	if err := keys.noteAddress(address); err != nil {
		return err
	}
	u, err := parseAddress(address)
	if err != nil { // there are only sockets
		if open {
			return err
		}
		return nil
	}
	how := "the page: run caisson open"
	if !isLoopback(u.Host) {
		how = "the page needs a proxy with TLS: browsers don't keep its cookie otherwise"
	}
	h.say(how)
	if open {
		at := server.PageURL(pageBase(u, srv.PageHost(keys.administrator())), srv.NewCode(keys.administrator()), "")
		h.say("open " + at)
		openBrowser(ctx, h.app.environ, h.base.writableDirs(""), at)
	}
	return nil
}

// noteAddress writes the server's address beside the token that it made.
func (t *tokens) noteAddress(address string) error {
	if t.path == "" {
		return nil
	}
	if err := state.Replace(t.path+addressSuffix, []byte(address+"\n")); err != nil {
		return newFailure(exitInput, err, "the server's address can't be written: "+err.Error(), "Name another file for the token with --token-file.")
	}
	return nil
}

// administrator returns the first token with the role admin, or the first one.
func (t *tokens) administrator() server.Token {
	all := slices.SortedFunc(slices.Values(t.list), func(a, b server.Token) int { return cmp.Compare(a.Label, b.Label) })
	i := slices.IndexFunc(all, func(t server.Token) bool { return slices.Contains(t.Roles, server.RoleAdmin) })
	return all[max(i, 0)]
}

// chatPage serves the page of one conversation, from when the user opens it. Until then
// it costs nothing.
type chatPage struct {
	settings *settings
	adoption server.Adoption
	mirror   atomic.Pointer[func(record.Record, []byte)]
	live     atomic.Pointer[func(runner.Delta)]

	mu     sync.Mutex
	closed bool
	srv    *server.Server
	base   string
	stop   func()
}

var errConversationEnded = errors.New("the conversation ends")

// passRecord returns a function that passes records on to show, and to the page.
func (p *chatPage) passRecord(show func(record.Record, []byte)) func(record.Record, []byte) {
	return func(r record.Record, line []byte) {
		show(r, line)
		if mirror := p.mirror.Load(); mirror != nil {
			(*mirror)(r, line)
		}
	}
}

func (p *chatPage) passDelta(show func(runner.Delta)) func(runner.Delta) {
	return func(d runner.Delta) {
		show(d)
		if live := p.live.Load(); live != nil {
			(*live)(d)
		}
	}
}

// open returns the address that signs in to the page, and opens it in a browser.
func (p *chatPage) open(ctx context.Context, turns chat.Turns, workspace string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", errConversationEnded
	}
	if p.srv == nil {
		if err := p.serve(ctx, turns); err != nil {
			return "", err
		}
	}
	address := server.PageURL(p.base, p.srv.NewCode(p.adoption.Token), p.adoption.ID)
	openBrowser(ctx, p.settings.environ, p.settings.writableDirs(workspace), address)
	return address, nil
}

// serve begins to serve.
func (p *chatPage) serve(ctx context.Context, turns chat.Turns) error {
	l, err := server.Listen(ctx, "127.0.0.1:0", false)
	if err != nil {
		return err
	}
	o := p.adoption
	o.Token = server.NewToken("local", server.RoleAdmin)
	o.Running, o.Start = turns.Running, turns.Start
	o.Install = func(mirror func(record.Record, []byte), live func(runner.Delta)) {
		p.mirror.Store(&mirror)
		p.live.Store(&live)
	}
	srv, err := server.Adopt(o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	srv.ServePages(webpage.New(srv, webpage.Options{Conversation: true}))
	_, port, _ := net.SplitHostPort(l.Addr().String()) // as the kernel writes it
	p.adoption, p.srv, p.base = o, srv, "http://"+net.JoinHostPort(srv.PageHost(o.Token), port)
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(serving, l) // the session reports what is left
	}()
	p.stop = func() {
		end(errConversationEnded)
		<-done
	}
	return nil
}

func (p *chatPage) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.stop != nil {
		p.stop()
	}
}
