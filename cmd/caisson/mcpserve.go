package main

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/mcpserver"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/tools"
)

type mcpServeFlags struct {
	Workspace  string `flag:"workspace" default:"." doc:"directory to work in"`
	serveFlags `groups:"Policy,Sandbox,Files and user,Limits,Output"`
	named      bool
}

func newMCPServeCommand(a *app) *cobra.Command {
	var f mcpServeFlags
	return newCommand(&cobra.Command{
		Use: "mcp [flags]", Short: "Offer the sandboxed tools to another agent by MCP, and list MCP servers",
		Long: `Offer the sandboxed tools to another agent: a server of the Model Context Protocol (MCP). The agent reads
and writes files and runs commands in a container of its own, under the policy and with records as in
caisson run. docs/mcp.md describes it, and caisson mcp add-to registers it with an agent. The other
subcommands are about MCP servers whose tools Caisson's own model can load.

It serves one client on standard input and output, until the client closes its input. With --listen it
serves many over streamable HTTP, at the path /mcp; every request needs a bearer token, as for caisson
serve (by default in mcp.token in the state directory).

Clients work on --workspace. With --root, a client that names roots of its own works on the first one
that is at or below a --root; others are refused. The default policy is ci, because the client can't
answer questions: calls that need an answer are refused.

SIGINT or SIGTERM ends the sessions and removes their containers; a second one kills running commands.
Standard error has the log, one JSON object per line.
`,
		Example: `  caisson mcp --workspace ~/src/project
  caisson mcp --root ~/src --mode overlay --egress-preset npm
  caisson mcp --listen 127.0.0.1:8718 --workspace ~/src/project
  caisson mcp add-to claude-code --write`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(cmd, args[0])
			}
			f.named = cmd.Flags().Changed("workspace")
			return runMCPServer(cmd.Context(), a, f)
		},
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|interruptible, statuses{exitFailed: "the client sent something that is not a message of the protocol, or something was left behind"})
}

// mcpHost opens the sessions of MCP clients. It is safe for concurrent use.
type mcpHost struct {
	serverHost

	flags mcpServeFlags

	mu    sync.Mutex
	worst int // worst exit status of the sessions
}

var _ reporter = (*mcpHost)(nil)

// defaultPreset returns a policy that never asks: only the client's agent could answer.
func (h *mcpHost) defaultPreset(bool) string { return "ci" }

// runMCPServer serves until the only client is gone or ctx ends.
func runMCPServer(ctx context.Context, a *app, f mcpServeFlags) (err error) {
	f.Settings.Serve.Listen = f.Listen
	if f.Remote {
		f.Settings.Serve.AllowRemote = new(true)
	}
	if f.TokenFile == "" {
		f.TokenFile = filepath.Join(a.environ.stateDir(), "mcp.token")
	}
	h := &mcpHost{flags: f}
	ctx, err = h.open(ctx, a, f.serveFlags)
	if err != nil {
		return err
	}
	defer h.close()
	if err := h.openRoots(); err != nil {
		return err
	}
	defer func() { _ = h.roots.close() }()
	unusable, err := h.shareBackend(ctx)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	if unusable != nil {
		h.say("backend none: calls can only read until one can be used: " + unusable.Cause + ". " + unusable.Hint)
	}
	o := mcpserver.Options{
		Open: h.openClient, AsksRoots: len(f.Roots) > 0, Describe: describeToClient, Ended: h.noteEnd, Version: programVersion(), Logger: h.log,
	}
	keepTidy := h.cleanPeriodically(ctx)
	defer keepTidy()
	if len(f.Listen) > 0 {
		return h.serveHTTP(ctx, o)
	}
	srv, err := mcpserver.New(o)
	if err != nil {
		return err
	}
	if err := srv.ServeStdio(ctx, a.stdin, a.stdout); err != nil {
		h.log.Error("the connection to the client ended", zap.Error(err))
		h.worst = max(h.worst, exitFailed)
	}
	return cmp.Or(interruption(ctx), exitWith(h.worst))
}

// openRoots opens the roots, or the workspace as the only one.
func (h *mcpHost) openRoots() (err error) {
	paths := h.flags.Roots
	if len(paths) == 0 {
		w, err := h.base.openWorkspace(h.flags.Workspace)
		if err != nil {
			return err
		}
		h.flags.Workspace, paths = w.Path, []string{w.Path}
		_ = w.Close() // only its path is needed
	}
	if h.roots, err = openRoots(paths); err != nil {
		return err
	}
	if path, err := h.roots.resolve(h.flags.Workspace); err == nil && h.flags.named { // otherwise a client gets the error
		h.named = path
	}
	if len(h.flags.Listen) == 0 {
		return nil
	}
	return h.checkPlaces()
}

func (h *mcpHost) serveHTTP(ctx context.Context, o mcpserver.Options) (err error) {
	keys, err := h.loadTokens()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keys.close()) }()
	h.secrets = keys.list
	conf := h.base.conf.Serve
	gate, err := server.NewGate(keys.list, conf.Hosts, h.log)
	if err != nil {
		return &config.Error{Where: "serve", Message: err.Error(), Hint: "change serve in the configuration", Err: err}
	}
	o.Admit = gate.Admit
	o.MaxSessions = int(valueOf(conf.MaxSessions))
	o.IdleTime = time.Duration(valueOf(conf.IdleTime))
	srv, err := mcpserver.New(o)
	if err != nil {
		return err
	}
	listeners, err := h.openListeners(ctx)
	if err != nil {
		return err
	}
	h.announce(listeners, mcpserver.Path, keys)
	if err := srv.Serve(ctx, listeners...); err != nil {
		return err
	}
	return exitWith(h.worst)
}

func (h *mcpHost) openClient(ctx context.Context, c mcpserver.Client) (_ *mcpserver.Session, err error) {
	path, err := h.chooseWorkspace(c)
	if err != nil {
		return nil, err
	}
	s, w, err := h.openWorkspace(path)
	if err != nil {
		return nil, err
	}
	b, err := h.newBuilder(s, w, config.File{})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	o, err := b.modelessOptions(ctx, tools.Elide(strings.TrimSpace("caisson mcp "+c.Name+" "+c.Version), maxTaskText), h)
	if err != nil {
		return nil, err
	}
	// Each call is a turn of its own, so a limit on a turn's calls would limit nothing.
	o.SessionBudget.ToolCalls = limits.Lower(o.SessionBudget.ToolCalls, o.Budget.ToolCalls)
	o.Force, o.Skills = h.force, runner.SkillOptions{} // the client's model has its own
	o.Mirror = h.logWarning
	if c.User.Name != "" {
		o.User = c.User
	}
	session, err := runner.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	h.log.Info("session begins", zap.String("session", b.dir.Session), zap.String("workspace", w.Path), zap.String("policy", o.Policy.Name))
	return &mcpserver.Session{Runner: session, Redact: redact.New(b.hidden), Done: b.close}, nil
}

func (h *mcpHost) logWarning(r record.Record, _ []byte) {
	if isWarning(r) {
		h.log.Warn(string(r.Kind), zap.String("session", r.Session), zap.Any("payload", r.Payload))
	}
}

func (h *mcpHost) chooseWorkspace(c mcpserver.Client) (string, error) {
	if len(h.flags.Roots) == 0 || len(c.Roots) == 0 && h.flags.named {
		return h.flags.Workspace, nil
	}
	for _, uri := range c.Roots {
		path, ok := pathOfURI(uri)
		if !ok {
			continue
		}
		if real := resolvePath(path); real != "" && h.roots.containsPath(real) {
			return real, nil
		}
	}
	if len(c.Roots) == 0 {
		return "", newFailure(exitInput, nil, "the client names no root, and the server has no workspace of its own", "Start caisson mcp with --workspace too, or use a client with roots.")
	}
	named := tools.Elide(strings.Join(c.Roots, ", "), maxTaskText)
	return "", newFailure(exitInput, nil, "no root of the client is an existing directory at or below one of this server: "+named,
		"Open a directory below "+strings.Join(h.flags.Roots, ", ")+", or start caisson mcp with another --root.")
}

// pathOfURI returns the absolute path of a file URI of this machine.
func pathOfURI(uri string) (string, bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
		return "", false
	}
	return u.Path, true
}

func describeToClient(err error) string {
	problem := record.Problem{}
	if p, ok := errors.AsType[*server.PrepareError](err); ok && p.Cause != "" {
		problem = p.Problem
	} else {
		problem = describeError(err).Problem
	}
	text := strings.TrimSuffix(problem.Cause, ".") + "."
	if problem.Hint != "" {
		text += " " + problem.Hint
	}
	safe, _ := tools.DisplayLines(text)
	return safe
}

// noteEnd keeps the worst status of the sessions. A client that goes away during a call
// is no failure.
func (h *mcpHost) noteEnd(r runner.Report) {
	status := r.ExitStatus
	if r.Reason == loop.StopCancelled && r.Signal == 0 && len(r.Left) == 0 {
		status = exitDone
	}
	if r.Problem != nil && status != exitDone {
		h.log.Warn("the session ended with a problem", zap.String("session", r.Session), zap.Int("status", status), zap.String("cause", r.Problem.Cause), zap.String("hint", r.Problem.Hint))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.worst = max(h.worst, status)
}
