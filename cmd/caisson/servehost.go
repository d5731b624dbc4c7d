package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// serverHost makes the sessions of a server. It is safe for concurrent use.
type serverHost struct {
	app   *app
	flags serveFlags
	// base has the settings of the start. shared is the backend of all sessions.
	base       *backends
	shared     atomic.Pointer[readyBackend]
	roots      roots
	named      string   // the workspace that the operator named in addition to the roots, or ""
	batches    []string // directories of batches for the page
	workspaces workspaceSet
	log        *zap.Logger
	secrets    []server.Token
	// force is closed at the second interrupt. close undoes open.
	force <-chan struct{}
	close func()
}

var _ reporter = (*serverHost)(nil)

func (h *serverHost) printNotice(text string)   { h.log.Info(text) }
func (h *serverHost) recordWarning(text string) { h.log.Warn(text) }
func (h *serverHost) reportDifference(d replay.Difference) {
	h.log.Warn("the replay differs: " + d.String())
}

// news returns all facts: they are recorded.
func (h *serverHost) news(facts []string) []string { return facts }

// defaultPreset asks about everything with an effect: clients can answer.
func (h *serverHost) defaultPreset(bool) string { return "default" }

func (h *serverHost) serverOptions() server.Options {
	conf := h.base.conf.Serve
	return server.Options{
		StateDir: h.app.environ.stateDir(), Prepare: h.prepareSession, Resume: h.resumeSession, PrepareSandbox: h.prepareSandbox, Tokens: h.secrets, Hosts: conf.Hosts,
		Force: h.force, Logger: h.log, OpenMetrics: valueOf(conf.OpenMetrics),
		MaxSessions: int(valueOf(conf.MaxSessions)), MaxStreams: int(valueOf(conf.MaxStreams)), MaxTransfer: int64(valueOf(conf.MaxTransfer)),
		MaxSandboxTTL: time.Duration(valueOf(conf.Sandboxes.MaxTTL)), IdleTime: time.Duration(valueOf(conf.IdleTime)),
		Shows: func(workspace string) bool {
			_, _, ok := h.roots.findRoot(workspace)
			return ok
		},
		OpenWorkspace: func(path string) (*runner.Workspace, error) {
			_, w, err := h.openWorkspace(path)
			if err != nil {
				return nil, prepareError(err)
			}
			return w, nil
		},
		Settle: func(ctx context.Context, session string) error { return h.base.removeSandbox(ctx, session, false) },
	}
}

// openWorkspace reloads the settings and opens a workspace below a root, with its own
// settings if it is trusted.
func (h *serverHost) openWorkspace(workspace string) (_ *settings, w *runner.Workspace, err error) {
	path, err := h.roots.resolve(workspace)
	if err != nil {
		return nil, nil, err
	}
	s, err := loadClientSettings(h.app, h.flags.Settings, h.flags.Profile)
	if err != nil {
		return nil, nil, err
	}
	if w, err = s.openWorkspace(path); err != nil {
		if !h.roots.containsPath(path) { // it has become a symlink
			err = outsideError(path)
		}
		return nil, nil, err
	}
	err = h.roots.checkWorkspace(w)
	if err == nil {
		err = s.useProject(w, h.flags.projectOptions)
	}
	if err != nil {
		return nil, nil, errors.Join(err, w.Close())
	}
	return s, w, nil
}

// openSession opens a workspace for a session and checks the client's requests against
// all settings. Its errors tell whether the client, the workspace or the server is at
// fault.
func (h *serverHost) openSession(in server.NewSession) (_ *sessionBuilder, err error) {
	s, w, err := h.openWorkspace(in.Workspace)
	if err != nil {
		return nil, err
	}
	var undo closers.Stack
	defer undo.CloseOnError(&err)
	undo.PushFunc(func() { _ = w.Close() })
	if err := s.checkStartable(w); err != nil {
		return nil, err
	}
	wishes, err := s.conf.Ask(in)
	if err != nil {
		return nil, requestError(err)
	}
	return h.newBuilder(s, w, wishes)
}

// newBuilder returns the builder of a session with a client's wishes. From now on,
// programs in the session's workspace don't run on this machine. So it refuses a
// workspace with a program that the server runs for all sessions, or with a directory
// of PATH unless the operator named the workspace.
func (h *serverHost) newBuilder(s *settings, w *runner.Workspace, wishes config.File) (*sessionBuilder, error) {
	if program := h.base.findProgramIn(w.Path); program != "" {
		return nil, &server.PrepareError{Code: "refused", Err: fmt.Errorf("%s lies in the workspace %s", program, w.Path), Problem: record.Problem{
			Cause: "the workspace holds a program that this server runs on its own machine", Hint: "Work on another directory.",
		}}
	}
	if dir := h.findPathDir(w.Path); dir != "" && w.Path != h.named && !slices.ContainsFunc(h.roots, func(r root) bool { return r.path == w.Path }) {
		return nil, &server.PrepareError{Code: "refused", Err: fmt.Errorf("%s lies in the workspace %s", dir, w.Path), Problem: record.Problem{
			Cause: "the workspace holds a directory of the server's PATH: no session could use its programs any more", Hint: "Work on another directory, or start the server with --root for this one.",
		}}
	}
	s.workspaces = &h.workspaces
	if _, _, below := h.roots.findRoot(w.Path); below { // otherwise it is new and empty
		h.workspaces.add(w.Path)
	}
	if err := s.load(wishes); err != nil {
		return nil, err
	}
	if err := checkStartable(&s.conf); err != nil {
		return nil, requestError(err)
	}
	bs, err := openBackends(s, w)
	if err != nil {
		return nil, err
	}
	return &sessionBuilder{backends: bs, workspace: w, tokens: h.tokenSecrets(), shared: h.shared.Load()}, nil
}

// findPathDir returns a directory of PATH that is or lies in dir, or "".
func (h *serverHost) findPathDir(dir string) string {
	for _, on := range filepath.SplitList(h.app.environ.get("PATH")) {
		if programs.CleanPath(on, []string{dir}) != programs.CleanPath(on, nil) {
			return on
		}
	}
	return ""
}

// shareBackend chooses the backend that all sessions share. If none is configured and
// none can be used, it returns why. Sessions then start without one, and each call that
// needs one chooses again until that succeeds.
func (h *serverHost) shareBackend(ctx context.Context) (unusable *commandError, err error) {
	ready, err := h.base.choose(ctx, h)
	if err == nil {
		h.shared.Store(ready)
		return nil, nil
	}
	unusable = describeError(err)
	if *h.base.conf.Backend != "auto" || unusable.Status != exitSandboxStart || ctx.Err() != nil {
		return nil, err
	}
	h.shared.Store(h.base.chooseLate(noneCanStart+err.Error(), func(ctx context.Context) (sandbox.Creator, error) {
		ready, err := h.base.choose(ctx, h)
		if err != nil {
			return nil, err
		}
		h.shared.Store(ready)
		h.log.Info("a backend can be used", zap.String("backend", ready.choice.Chosen), zap.String("why", ready.choice.Why))
		return ready.backend, nil
	}))
	return unusable, nil
}

func (h *serverHost) prepareSession(ctx context.Context, in server.NewSession) (runner.Options, func(), error) {
	return h.buildSession(ctx, in, "")
}

// buildSession makes the options of a session. resume is the id of the one to resume,
// or "".
func (h *serverHost) buildSession(ctx context.Context, in server.NewSession, resume string) (o runner.Options, done func(), err error) {
	s, err := h.openSession(in)
	if err != nil {
		return o, nil, prepareError(err)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.resume = resume
	o, err = s.sessionOptions(ctx, in.Title, h)
	if err != nil {
		if c, ok := errors.AsType[*config.Error](err); ok && errors.Is(err, config.ErrUnknownPrice) {
			const named = "name a model that has a price in the server's configuration"
			switch l := cmp.Or(in.Limits, &server.SessionLimits{}); {
			case l.CostUSD != nil && c.Where == "limits.max_cost_usd", l.Session.Budget().CostMicroUSD != nil && c.Where == "limits.session.max_cost_usd":
				err = requestError(&config.Error{Where: c.Where, Message: c.Message, Hint: "leave it out, or " + named, Err: c})
			case in.Model != "": // the limit is the server's
				err = requestError(&config.Error{Where: "model", Message: c.Message, Hint: named, Err: c})
			}
		}
		return o, nil, prepareError(err)
	}
	if in.Policy != "" {
		stricter, err := policy.Preset(in.Policy)
		if err != nil {
			return o, nil, requestError(err)
		}
		server := o.Policy
		o.Policy.Tighten = append(slices.Clone(o.Policy.Tighten), stricter)
		o.Policy.NoPrompts = o.Policy.NoPrompts || stricter.NoPrompts
		o.Policy.Name += "+" + in.Policy
		if text := notGranted(stricter, o.Policy, s.workspace.Path); text != "" {
			return o, nil, requestError(&config.Error{
				Where: "policy", Message: fmt.Sprintf("with the server's policy %s, %s would be another one: %s", server.Name, in.Policy, text),
				Hint: "ask for a stricter one, or leave it out",
			})
		}
	}
	return o, s.close, nil
}

func (h *serverHost) tokenSecrets() []redact.Secret {
	var out []redact.Secret
	for _, t := range h.secrets {
		out = append(out, redact.Secret{Name: "token " + t.Label, Value: t.Value})
	}
	return out
}

// notGranted describes the first class of calls that would get another mode from the
// effective policy than from the preset. It returns "" if there is none.
func notGranted(preset, effective policy.Policy, workspace string) string {
	for _, class := range []tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork} {
		def := tools.Definition{Class: class, Runs: tools.PlaceHost}
		if class == tools.ClassWrite || class == tools.ClassExecute {
			def.Runs = tools.PlaceSandbox
		}
		asked, got := preset.Decide(def, workspace).Mode, effective.Decide(def, workspace).Mode
		if asked != got {
			return fmt.Sprintf("calls of class %s would have the mode %s instead of %s", class, got, asked)
		}
	}
	return ""
}

// requestError describes a fault of a client's request.
func requestError(err error) error {
	p := record.Problem{Cause: err.Error(), Hint: "Ask for something else."}
	if c, ok := errors.AsType[*config.Error](err); ok {
		p.Cause = c.Error()
		p.Hint = cmp.Or(makeSentence(c.Hint), p.Hint)
	}
	return &server.PrepareError{Code: "refused", Problem: p, Err: err}
}

// prepareError describes an error for clients, unless the server does that itself.
// Faults of a workspace's own settings are faults of the request, not of the server.
func prepareError(err error) error {
	if r, ok := errors.AsType[*server.PrepareError](err); ok {
		return r
	}
	if errors.As(err, new(*runner.WorkspaceError)) || errors.As(err, new(*state.DirError)) {
		return err
	}
	if own, ok := errors.AsType[*ownError](err); ok {
		return &server.PrepareError{Code: "workspace_configuration", Problem: describeError(own.err).Problem, Err: err}
	}
	if u, ok := errors.AsType[*untrustedError](err); ok {
		return &server.PrepareError{Code: "untrusted", Err: err, Problem: record.Problem{
			Cause: u.Error() + ", and this server requires it", Hint: "Ask the server's operator to trust it.",
		}}
	}
	code, ok := prepareCodes[describeError(err).Status]
	if !ok {
		return err
	}
	return &server.PrepareError{Code: code, Err: err} // its text is for the operator
}

// prepareCodes are the error codes for clients, by exit status.
var prepareCodes = map[int]string{
	exitInput: "input", exitConfig: "configuration", exitAuth: "model", exitSandboxStart: "sandbox", exitFatal: "records",
}

// roots are the directories at or below which workspaces must be. They stay open while
// the server runs: if a root is replaced, the old one still counts.
type roots []root

type root struct {
	path string
	dir  *os.Root
}

// resolveBatches resolves the directories of batches, whose names are the operator's and
// may have links. It refuses those that can't be read.
func resolveBatches(paths []string) ([]string, error) {
	var out []string
	for _, path := range paths {
		dir, err := resolveLinks(path)
		if err == nil {
			_, err = os.ReadDir(dir)
		}
		if err != nil {
			return nil, newFailure(exitInput, err, fmt.Sprintf("the batches of %s can't be shown: %v", path, err), "Name an existing directory with --batches, or with serve.batches in the configuration.")
		}
		out = append(out, dir)
	}
	return out, nil
}

func openRoots(paths []string) (_ roots, err error) {
	if len(paths) == 0 {
		return nil, newUsageError("name the directory at or below which workspaces are: --root DIR, or serve.roots in the configuration")
	}
	var out roots
	for _, path := range paths {
		refused := func(err error) error {
			return errors.Join(newFailure(exitInput, err, fmt.Sprintf("the root %s can't be used: %v", path, err), "Name an existing directory with --root."), out.close())
		}
		abs, err := resolveLinks(path) // the operator's own name may have links
		if err != nil {
			return nil, refused(err)
		}
		dir, err := os.OpenRoot(abs)
		if err != nil {
			return nil, refused(err)
		}
		out = append(out, root{abs, dir})
	}
	return out, nil
}

func (r roots) close() error {
	var err error
	for _, root := range r {
		err = errors.Join(err, root.dir.Close())
	}
	return err
}

// resolve makes a client's path absolute. It refuses one that is not at or below a root
// by its name.
func (r roots) resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		if len(r) != 1 {
			return "", outsideError(path)
		}
		path = filepath.Join(r[0].path, path)
	}
	path = filepath.Clean(path)
	if !r.containsPath(path) {
		return "", outsideError(path)
	}
	return path, nil
}

// containsPath reports whether a path is at or below a root, without a symlink on the
// way. It doesn't look behind symlinks: a client must not learn their targets.
func (r roots) containsPath(path string) bool {
	root, rel, ok := r.findRoot(path)
	if !ok {
		return false
	}
	at := ""
	for part := range strings.SplitSeq(rel, "/") {
		at = filepath.Join(at, part)
		info, err := root.dir.Lstat(at)
		if err != nil {
			return true // opening it reports why
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return false
		}
	}
	return true
}

// findRoot returns the root that a path is at or below, and the path from there.
func (r roots) findRoot(path string) (root, string, bool) {
	for _, root := range r {
		rel, err := filepath.Rel(root.path, path)
		if err == nil && filepath.IsLocal(rel) {
			return root, rel, true
		}
	}
	return root{}, "", false
}

// checkWorkspace refuses a workspace if its name doesn't lead to the opened directory
// without leaving the root.
func (r roots) checkWorkspace(w *runner.Workspace) error {
	root, rel, ok := r.findRoot(w.Path)
	if !ok {
		return outsideError(w.Path)
	}
	there, err := root.dir.Stat(rel)
	if err != nil {
		return outsideError(w.Path)
	}
	opened, err := w.Dir.Stat()
	if err != nil || !os.SameFile(there, opened) {
		return outsideError(w.Path)
	}
	return nil
}

// checkPlaces refuses a token or a socket where a session could have its workspace. The
// state directory is safe: no workspace may contain it.
func (h *serverHost) checkPlaces() error {
	type place struct{ where, path string }
	places := []place{{"token-file", h.flags.TokenFile}}
	for label, t := range h.base.conf.Serve.Tokens {
		if t.File != nil {
			places = append(places, place{"serve.tokens." + label, *t.File})
		}
	}
	for _, a := range h.base.conf.Serve.Listen {
		if socket, ok := strings.CutPrefix(a, "unix:"); ok {
			places = append(places, place{"serve.listen", socket})
		}
	}
	state := roots{{path: withoutLinks(h.app.environ.stateDir())}}
	for _, p := range places {
		if p.path == "" {
			continue
		}
		path := withoutLinks(p.path)
		_, _, below := h.roots.findRoot(path)
		if _, _, safe := state.findRoot(path); !below || safe {
			continue
		}
		return &config.Error{
			Where: p.where, Message: path + " lies at or below a root, where sandboxes could reach it",
			Hint: "name a place outside of the roots, or in the state directory",
		}
	}
	return nil
}

// withoutLinks makes a path absolute and resolves links in its existing part.
func withoutLinks(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	for dir, rest := path, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return path
		}
	}
}

func outsideError(path string) error {
	return &server.PrepareError{Code: "workspace", Problem: record.Problem{
		Cause: fmt.Sprintf("the workspace %q is not at or below a root of this server", path),
		Hint:  "Name one that is, without a symlink on the way.",
	}}
}
