package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/policy"
)

// serveFlags are the flags that caisson serve and caisson mcp share.
type serveFlags struct {
	Roots     []string `flag:"root" doc:"directory that holds workspaces, or is one (repeatable)"`
	Listen    []string `flag:"listen" doc:"address for HTTP: HOST:PORT or unix:PATH (repeatable)"`
	Remote    bool     `flag:"allow-remote" doc:"accept addresses that other machines reach; only with tokens in the configuration"`
	TokenFile string   `flag:"token-file" doc:"file for the token that is made at start (default: in the state directory)"`
	Verbose   bool     `flag:"verbose,v" doc:"log every request"`
	profileFlag
	projectOptions
	Settings config.File
}

func newServeCommand(a *app) *cobra.Command {
	var f struct {
		Open bool `flag:"open" doc:"open the page in a browser, signed in"`
		serveFlags
		Batches []string `flag:"batches" doc:"directory of a batch or of several, to show in the page (repeatable)"`
	}
	return newCommand(&cobra.Command{
		Use: "serve --root DIR [flags]", Short: "Serve a page and the HTTP API: many sessions at once", Args: noArgs,
		Long: `Serve a page for people and the HTTP API: many sessions at once, each in a container of its own; their
records as a stream of events; their confirmations, changes and metrics. docs/http.md describes both, and
/openapi.json the API. --open opens the page in a browser, signed in; caisson open does so later.

The server listens on ` + config.DefaultListen + `, or on a unix socket that only its user may use. Every request of
the API needs a bearer token; browsers sign in (caisson open). Without tokens in the configuration
(serve.tokens), the server makes one at each start, writes it to a file that only its user may read
(serve.token in the state directory), and prints that path, never the token. Workspaces are at or below
a --root, and a client can't loosen the settings here. Confirmations wait for a client, and are refused
when their time is over.

SIGINT or SIGTERM ends the sessions and removes their containers; a second one kills running commands.
Standard error has the log, one JSON object per line.
`,
		Example: `  caisson serve --root ~/work --open
  caisson serve --root /srv/work --listen unix:/run/user/1000/caisson.sock --backend gvisor
  curl -H "Authorization: Bearer $(cat ~/.local/state/caisson/serve.token)" http://127.0.0.1:8717/sessions`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Settings.Serve.Batches = f.Batches
			return runServer(cmd.Context(), a, f.serveFlags, f.Open)
		},
	}, &f, usesConfig|usesInput|startsSandbox, statuses{exitFailed: "the server failed, or something of a session was left behind"})
}

func runServer(ctx context.Context, a *app, f serveFlags, open bool) (err error) {
	f.Settings.Serve.Listen, f.Settings.Serve.Roots = f.Listen, f.Roots
	if f.Remote {
		f.Settings.Serve.AllowRemote = new(true)
	}
	h := &serverHost{}
	ctx, err = h.open(ctx, a, f)
	if err != nil {
		return err
	}
	defer h.close()
	if h.roots, err = openRoots(h.base.conf.Serve.Roots); err != nil {
		return err
	}
	defer func() { _ = h.roots.close() }()
	if err := h.checkPlaces(); err != nil {
		return err
	}
	if h.batches, err = resolveBatches(h.base.conf.Serve.Batches); err != nil {
		return err
	}
	keys, err := h.loadTokens()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keys.close()) }()
	h.secrets = keys.list
	unusable, err := h.shareBackend(ctx)
	if err != nil {
		if interruption(ctx) != nil {
			return nil
		}
		return err
	}
	srv, err := server.New(h.serverOptions())
	if err != nil {
		return &config.Error{Where: "serve", Message: err.Error(), Hint: "change serve in the configuration", Err: err}
	}
	h.servePage(srv)
	listeners, err := h.openListeners(ctx)
	if err != nil {
		return errors.Join(err, srv.Close(nil))
	}
	keepTidy := h.cleanPeriodically(ctx)
	defer keepTidy()
	h.announce(listeners, "", keys)
	if err := h.announcePage(ctx, srv, listeners, keys, open); err != nil {
		for _, l := range listeners {
			_ = l.Close() // it has no connections
		}
		return errors.Join(err, srv.Close(nil))
	}
	if unusable != nil {
		h.say("backend none: sessions can only read until one can be used: " + unusable.Cause + ". " + unusable.Hint)
	} else {
		choice := h.shared.Load().choice
		h.say("backend " + choice.Chosen + " (" + choice.Why + ")")
	}
	return srv.Serve(ctx, listeners...)
}

// open opens what a server of many sessions needs: settings, backends and log. The
// returned context ends at the first interrupt. Unless open fails, the caller must
// close the host.
func (h *serverHost) open(ctx context.Context, a *app, f serveFlags) (context.Context, error) {
	s, err := loadServerSettings(a, f.Settings, f.Profile)
	if err != nil {
		return ctx, err
	}
	s.workspaces = &h.workspaces
	base, err := openBackends(s, nil)
	if err != nil {
		return ctx, err
	}
	h.app, h.flags, h.base, h.log = a, f, base, serveLog(a, f.Verbose)
	base.host.SetLogger(h.log)
	ctx, force, _, stop := a.handleInterrupts(ctx, h.say)
	h.force = force
	h.close = func() {
		stop()
		base.close()
	}
	if _, err := base.openObserver(); err != nil {
		h.close()
		return ctx, err
	}
	a.telemetry.logWarning(h.log)
	return ctx, nil
}

func (h *serverHost) say(text string) { fmt.Fprintln(h.app.stderr, "caisson: "+makeSafe(text)) }

// serveLog returns the operators' log, on standard error.
func serveLog(a *app, verbose bool) *zap.Logger {
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	level := zapcore.InfoLevel
	if verbose {
		level = zapcore.DebugLevel
	}
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(conf), zapcore.Lock(zapcore.AddSync(record.LogWriter(a.stderr))), level))
}

// formatAddress returns the address of a listener for clients.
func formatAddress(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return "http://" + a.String()
}

// announce tells the operator the addresses of the server, with path appended, and the
// file of a generated token.
func (h *serverHost) announce(listeners []net.Listener, path string, keys *tokens) {
	for _, l := range listeners {
		h.say("listening on " + formatAddress(l.Addr()) + path)
	}
	if keys.path != "" {
		h.say("the token is in " + keys.path)
	}
}

// openListeners opens all listeners, or none.
func (h *serverHost) openListeners(ctx context.Context) ([]net.Listener, error) {
	conf := h.base.conf.Serve
	addresses := conf.Listen
	if len(addresses) == 0 {
		addresses = []string{config.DefaultListen}
	}
	remote := valueOf(conf.AllowRemote)
	if remote && len(conf.Tokens) == 0 {
		return nil, &config.Error{
			Where: "serve.tokens", Message: "other machines may reach this server, and it has no token of its own",
			Hint: "name tokens in the configuration, or leave out --allow-remote",
		}
	}
	var out []net.Listener
	for _, a := range addresses {
		l, err := server.Listen(ctx, a, remote)
		if err == nil {
			out = append(out, l)
			continue
		}
		for _, l := range out {
			_ = l.Close() // it has no connections
		}
		hint := "Name another address with --listen."
		if errors.Is(err, server.ErrRemote) {
			hint = "Name 127.0.0.1 or a unix socket, or say --allow-remote where other machines are to reach it; a proxy in front of it can add TLS."
		}
		return nil, newFailure(exitInput, err, "the server can't "+err.Error(), hint)
	}
	return out, nil
}

// tidyEvery is the time between two sweeps for remains of dead owners, and for old
// changes and records.
const tidyEvery = time.Hour

// cleanPeriodically cleans up every tidyEvery until ctx ends or stop is called.
func (h *serverHost) cleanPeriodically(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, text := range slices.Concat(h.base.expireChanges(), h.base.expireCaches(), h.base.pruneSessions(ctx)) {
				h.log.Info(text)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(tidyEvery):
			}
			removed, _ := h.base.host.Sweep(ctx) // it logs its errors
			for _, l := range removed {
				h.log.Info("removed what a dead owner left", zap.Any("leftover", l))
			}
		}
	}()
	return func() {
		cancel(errors.New("the server stops"))
		<-done
	}
}

const maxTokenBytes = 4096

// tokens are a server's tokens. path is the file of a generated one, or "" if they are
// configured.
type tokens struct {
	list []server.Token
	path string
	lock *state.Lock
}

// loadTokens returns the configured tokens, or generates one.
func (h *serverHost) loadTokens() (*tokens, error) {
	conf := h.base.conf.Serve
	if len(conf.Tokens) == 0 {
		return makeToken(cmp.Or(h.flags.TokenFile, filepath.Join(h.app.environ.stateDir(), tokenName)))
	}
	values, err := conf.ServeTokens(h.app.environ, readToken)
	if err != nil {
		return nil, err
	}
	t := &tokens{}
	for label, value := range values {
		token := server.Token{Label: label, Value: value, Roles: conf.Tokens[label].Roles}
		if err := token.Validate(); err != nil {
			hint := "make one with openssl rand -hex 32"
			if errors.Is(err, server.ErrRoles) {
				hint = "name read, run, approve or admin, or leave roles out: that is read and run"
			}
			return nil, &config.Error{Where: "serve.tokens." + label, Message: err.Error(), Hint: hint}
		}
		t.list = append(t.list, token)
	}
	return t, nil
}

func readToken(path string) ([]byte, error) { return readAtMost(path, maxTokenBytes) }

// makeToken generates a token and writes it to a file that only its user may read. Two
// servers can't share the file: the second would replace the first's token.
func makeToken(path string) (*tokens, error) {
	refused := func(err error) error {
		return newFailure(exitInput, err, fmt.Sprintf("the token can't be written to %s: %v", path, err), "Name another file with --token-file, or tokens under serve in the configuration.")
	}
	lock, err := state.TryAcquire(path + ".lock")
	if errors.Is(err, state.ErrHeld) {
		return nil, refused(errors.New("another server uses it"))
	}
	if err != nil {
		return nil, refused(err)
	}
	token := server.NewToken("local", server.RoleAdmin)
	if err := state.Replace(path, []byte(token.Value+"\n")); err != nil {
		return nil, errors.Join(refused(err), lock.Release())
	}
	return &tokens{path: path, lock: lock, list: []server.Token{token}}, nil
}

// close removes the file of a generated token, which is now useless.
func (t *tokens) close() error {
	if t.path == "" {
		return nil
	}
	err := state.IgnoreMissing(os.Remove(t.path + addressSuffix)) // mcp writes none
	return errors.Join(err, os.Remove(t.path), t.lock.Release())
}

// resumeSession makes the options for resuming a session. It keeps its workspace, its
// mode, and the preset that was last applied to the server's policy.
func (h *serverHost) resumeSession(ctx context.Context, session string, in server.ResumeSession) (runner.Options, func(), error) {
	found, err := findResumable(h.app.environ.stateDir(), session, "")
	if e, ok := errors.AsType[*trace.Error](err); ok && e.Reason == trace.Unreadable {
		err = &runner.ResumeError{Reason: runner.ResumeDamaged, Session: session, Err: err}
	} else if ok {
		err = fmt.Errorf("%w: %w", sessiondir.ErrNoRecords, err)
	}
	if err != nil {
		return runner.Options{}, nil, err
	}
	last := found.Settings
	if i := strings.LastIndexByte(last.Policy, '+'); in.Policy == "" && i >= 0 && slices.Contains(policy.PresetNames(), last.Policy[i+1:]) {
		in.Policy = last.Policy[i+1:]
	}
	return h.buildSession(ctx, server.NewSession{
		Workspace: found.Created.Workspace, Mode: found.Created.WorkspaceMode, Model: cmp.Or(in.Model, last.Profile), Image: cmp.Or(in.Image, last.Image), Policy: in.Policy, Skills: in.Skills, Limits: in.Limits,
	}, session)
}

// prepareSandbox makes the options of a sandbox without a model for a client.
func (h *serverHost) prepareSandbox(ctx context.Context, in server.NewSandbox) (o runner.Options, _ func(), err error) {
	var undo closers.Stack // none of these errors matters
	defer func() {
		if err != nil {
			_ = undo.Close()
			err = prepareError(err)
		}
	}()
	var s *settings
	var w *runner.Workspace
	if in.Workspace == "" {
		s, err = loadClientSettings(h.app, h.flags.Settings, h.flags.Profile)
	} else if s, w, err = h.openWorkspace(in.Workspace); err == nil {
		undo.PushFunc(func() { _ = w.Close() })
		err = s.checkStartable(w)
	}
	if err != nil {
		return o, nil, err
	}
	if err := h.checkSandboxPolicy(s, w); err != nil {
		return o, nil, err
	}
	hidden := append(s.knownSecrets(), h.tokenSecrets()...)
	dir, err := sessiondir.Create(h.app.environ.stateDir(), hidden)
	if err != nil {
		return o, nil, err
	}
	undo.PushFunc(func() { _ = dir.Close() }) // an empty directory does no harm
	if w == nil {
		undo.PushFunc(func() {
			if err := errors.Join(sessiondir.DiscardChanges(dir.Path, ""), sessiondir.RemoveWorkspace(h.app.environ.stateDir(), dir.Session)); err != nil {
				h.log.Error("remove the workspace of a sandbox", zap.String("session", dir.Session), zap.Error(err))
			}
		})
		if w, err = runner.MakeWorkspace(dir); err != nil {
			return o, nil, err
		}
		undo.PushFunc(func() { _ = w.Close() }) // its directory is removed next
	}
	wishes, err := s.conf.AskSandbox(in)
	if err != nil {
		return o, nil, requestError(err)
	}
	b, err := h.newBuilder(s, w, wishes)
	if err != nil {
		return o, nil, err
	}
	undo.PushFunc(func() {
		b.backends.close()
		_ = runner.CloseMounts(b.mounts) // only directories
	})
	b.orders, b.dir, b.hidden = true, dir, hidden
	b.host.SetLogger(dir.Log)
	if o, err = b.sandboxOptions(ctx, h); err != nil {
		return o, nil, err
	}
	o.InstructionFiles, o.InstructionTexts, o.Skills = false, nil, runner.SkillOptions{}
	return o, func() { _ = undo.Close() }, nil
}

// checkSandboxPolicy refuses a sandbox without a model if the policy denies or asks
// about commands in it. w is nil if the sandbox gets a new empty directory.
func (h *serverHost) checkSandboxPolicy(s *settings, w *runner.Workspace) error {
	p, err := s.conf.ToolPolicy(h.defaultPreset(false))
	if err != nil {
		return err
	}
	workspace, enabled := "", s.conf.Serve.Sandboxes.Enabled // nil leaves it to the policy
	if w != nil {
		workspace = w.Path
	}
	v := p.DecideSandbox(workspace, valueOf(enabled))
	problem := record.Problem{Hint: "Start a session instead of a sandbox, or ask the server's operator."}
	switch {
	case enabled != nil && !*enabled:
		problem.Cause = "this server starts no sandboxes without a model"
	case v.Mode == policy.ModeAuto:
		d, _ := s.conf.PolicyDecider()
		required := s.conf.Requirements.Policy != nil && s.conf.Requirements.Policy.Decider != nil
		if d == nil || enabled != nil && !required {
			return nil
		}
		problem.Cause = "a decider rules on the calls of sessions, and a sandbox without a model has none"
		if !required {
			problem.Hint = "Start a session instead of a sandbox, or ask the server's operator to set serve.sandboxes.enabled."
		}
	case v.Mode == policy.ModeDeny:
		problem.Cause = "the policy denies what commands of a sandbox without a model may do (" + v.Rule + ")"
	default:
		problem.Cause = "the policy asks about what commands of a sandbox without a model may do (" + v.Rule + "), and nothing asks in such a sandbox"
		problem.Hint = "Start a session instead of a sandbox, or ask the server's operator to set serve.sandboxes.enabled."
	}
	return &server.PrepareError{Code: "policy", Problem: problem}
}
