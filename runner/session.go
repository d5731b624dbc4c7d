// Package runner runs one session: it makes the sandbox, where a call may need
// it, while the first model call is under way, wires tools to it, runs the loop,
// writes the records, and takes everything down again.
//
// It knows backends and models by their contracts only.
package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Session is one session under way: a container, its tools and a history, in
// which one turn runs at a time. The caller of [Open] closes it. It is safe for
// concurrent use.
//
//	Open ─▶ idle ──Start──▶ turn ──its end──▶ idle ─▶ … ──Close──▶ ended
//	          └────────── the sandbox is lost, ctx ends ─────────▶ over: Close it
type Session struct {
	opts   Options
	begun  time.Time
	dir    string
	log    *zap.Logger
	rec    *record.Recorder
	events *eventRecorder
	// reader is the view of the tools, original that of the directory itself.
	reader   workspace.View
	original *workspace.Reader
	box      *liveSandbox
	tools    *dispatch.Dispatcher
	exec     *executor

	// ctx is the session's: it ends by end, with the cause.
	ctx context.Context //nolint:containedctx // the contexts of its turns derive from it
	end context.CancelCauseFunc

	mu      sync.Mutex
	turn    *Turn // the one that runs, or nil
	turns   int
	closing bool
	// user is who started the turn that runs, or the last one; closedBy is the
	// label of the user who closed the session.
	user     User
	closedBy string
	// ended is the last turn that has ended, last how, and used what all have
	// used together.
	ended *Turn
	last  loop.Outcome
	used  limits.Usage
	// breaker bounds what all turns use together.
	breaker *limits.SessionBreaker
	// history holds the messages with which the next turn begins.
	history []loop.Message
	// stop ends what runs beside the turns once the first one has begun,
	// unforced the wait for Options.Force.
	stop     []func()
	unforced func()

	closed sync.Once
	report Report
	// looks ends when the session is closed, and lookers are those who compare
	// the workspace meanwhile.
	looks    context.Context //nolint:containedctx // it is the session's closing
	stopLook context.CancelCauseFunc
	lookers  sync.WaitGroup

	// files are those of the workspace when the sandbox began to start; looked
	// is closed when they are recorded, and looking is set meanwhile.
	files      *changes.FileStates
	looking    bool
	looked     chan struct{}
	privileges *privilegeCheck
	// quarantine knows the repositories as they were, once finished is closed.
	finished   chan struct{}
	quarantine *quarantine
	// layers are those of an overlay session, nil in bind mode; recorded says
	// that they know the original folder.
	layers   *overlay.Layers
	recorded bool
	// loaded is the workspace's instruction file, and instructions what the model
	// gets of it with the first turn; "" is none.
	loaded       []record.LoadedFile
	instructions string
	// notes is the message to the model about the notes of earlier sessions, or "".
	notes string
	// forget removes the list of repositories that is kept for the case that
	// this session is killed; nil where there is none.
	forget func()
}

// Open makes a session: its trace, with session.created in it, and its tools.
// Its container is made by the first turn whose tools may need it, or the first
// call that does. Cancelling ctx ends the turn that runs, and no other is started.
// Its error is an [Error].
func Open(ctx context.Context, o Options) (*Session, error) {
	s, err := newSession(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// start records the session's beginning.
func (s *Session) start(ctx context.Context) error {
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.looks, s.stopLook = context.WithCancelCause(context.WithoutCancel(ctx))
	s.box.fail = func(err error) { s.end(err) }
	s.unforced = s.obeyForce()
	if err := s.writeCreated(); err != nil {
		return s.abortStart(err)
	}
	return nil
}

// newSession makes the session's trace and its tools, and starts nothing.
func newSession(ctx context.Context, o Options) (_ *Session, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Session{
		opts: o, user: o.User, begun: time.Now(), dir: o.Dir.Path, log: o.Dir.Log,
		looked: make(chan struct{}), finished: make(chan struct{}),
	}
	if s.breaker, err = limits.NewSessionBreaker(o.SessionBudget, nil); err != nil {
		return nil, &Error{Status: ExitConfig, Problem: record.Problem{Cause: "session " + err.Error(), Hint: "Change the session's limits."}, Err: err}
	}
	s.rec, err = record.NewRecorder(record.RecorderOptions{Dir: s.dir, Session: o.Dir.Session, Secrets: o.Secrets, Mirror: o.Mirror, Write: o.writeTrace, Sync: o.syncTrace})
	if err != nil {
		return nil, &sessiondir.StateError{Path: s.dir, Reason: "can't be written: " + err.Error(), Err: err}
	}
	s.events = newEventRecorder(s.rec, o.Live)
	original, err := workspace.NewReader(o.Workspace.Dir, workspace.ReaderOptions{
		HostPath: o.Workspace.Path, ContainerPath: sandbox.WorkspaceDir, MaxEntries: readerEntries,
	})
	if err != nil {
		_ = s.rec.Close() // nothing is in it
		return nil, &WorkspaceError{Op: "read", Path: o.Workspace.Path, Err: err}
	}
	s.reader, s.original = original, original
	s.quarantine = &quarantine{
		reader: original, dir: o.Workspace.Dir, submounts: o.Submounts, git: o.Git, change: s.changeInside,
		renew: func() error { return s.box.startUnguarded() }, log: s.log,
	}
	s.privileges = &privilegeCheck{reader: original, log: s.log}
	if s.privileges.files, err = workspace.NewPrivileges(o.Workspace.Dir); err != nil {
		s.log.Debug("read privileges of files", zap.Error(err))
	}
	s.box = newLiveSandbox(ctx, o.Backend, s.sandboxSpec())
	s.box.record, s.box.phrase, s.box.log, s.box.refuseLost = s.events.writeRecord, o.phrase, s.log, o.RefuseLost
	s.box.prepare = s.guardRepositories
	s.box.onStart = func() { s.recordWorkspace(s.ctx) }
	if s.overlaid() {
		s.box.prepare = nil
		if err := s.openLayers(original); err != nil {
			return nil, errors.Join(err, s.rec.Close())
		}
	}
	if s.tools, err = s.dispatcher(); err != nil {
		_ = s.rec.Close() // nothing is in it
		s.endLayers(&Report{})
		return nil, fmt.Errorf("open session: %w", err)
	}
	return s, nil
}

// validate reports the first option that is missing.
func (o Options) validate() error {
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Dir", o.Dir == nil},
		{"Workspace", o.Workspace == nil},
		{"Backend", o.Backend == nil},
		{"Model", o.Model == nil},
	} {
		if f.missing {
			return fmt.Errorf("open session: Options.%s is missing", f.name)
		}
	}
	if err := o.Resources.Validate(); err != nil {
		return &Error{Status: ExitConfig, Problem: record.Problem{Cause: err.Error(), Hint: "Change the resource limits."}, Err: err}
	}
	return nil
}

func (s *Session) sandboxSpec() sandbox.Spec {
	return sandbox.Spec{
		Session: s.opts.Dir.Session, Image: s.opts.Image, Workspace: s.opts.Workspace.spec(s.opts.Submounts),
		Git: s.opts.Git, Resources: s.opts.Resources, Dir: filepath.Join(s.dir, sessiondir.SandboxDir),
		Grace: s.opts.Grace, CallerOwnsFiles: s.opts.CallerOwnsFiles, Notify: s.opts.Notify,
	}
}

// guardRepositories waits for the look for repositories, for the mounts that
// protect them.
func (s *Session) guardRepositories(ctx context.Context, spec *sandbox.Spec) {
	select {
	case <-s.finished:
		spec.Workspace.Repositories = s.quarantine.found.nested()
	case <-ctx.Done():
	}
}

// dispatcherOptions returns the options of the session's dispatcher.
func (s *Session) dispatcherOptions() dispatch.Options {
	return dispatch.Options{
		Session: s.opts.Dir.Session, Workspace: s.opts.Workspace.Path, Mount: sandbox.WorkspaceDir,
		Policy: s.opts.Policy, Broker: s.opts.Broker, OnPrompt: s.opts.OnPrompt, ConfirmTimeout: s.opts.ConfirmTimeout, Concurrency: s.opts.Concurrency,
		Allow:  s.mayUse,
		Grants: s.opts.Grants.As(approval.Author{By: "session " + s.opts.Dir.Session, Redact: redact.New(s.opts.Secrets).JSON}),
		Emit:   s.events.toolEvent, Abandon: s.abandon(),
		Scope: func(path string) error {
			return s.reader.Scope(context.Background(), path)
		},
		OnAbandon: func(callID string, def tools.Definition) {
			s.log.Error("a call does not end", zap.String("call", callID), zap.String("tool", string(def.Name)))
			if def.Runs == tools.PlaceSandbox {
				s.box.killCurrent()
			}
		},
		Logger: s.log,
	}
}

// dispatcher makes the dispatcher with the built-in tools.
func (s *Session) dispatcher() (*dispatch.Dispatcher, error) {
	d, err := dispatch.New(s.dispatcherOptions())
	if err != nil {
		return nil, err
	}
	s.exec = &executor{box: s.box, spill: newSpiller(s.dir, s.opts.Secrets), ready: s.looked, fresh: s.isFresh, after: s.quarantineAfterCommand, disk: s.diskWatch(), images: changes.NewPreimages(s.dir)}
	s.exec.background = newBackgrounds(s.exec, s.events.recordBackground, s.log)
	s.exec.patches = &patchMarker{dir: s.dir, workspace: s.opts.Workspace.Path, mode: s.workspaceMode(), log: s.log}
	all, err := newToolset(s).factories()
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if err := d.Register(f); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// abandon returns how long a cancelled call is waited for. The guest itself grants a
// command its grace period and then 30 s to be gone, and its answer must not
// come too late.
func (s *Session) abandon() time.Duration {
	grace := s.opts.Grace
	if grace == 0 {
		grace = sandbox.DefaultGrace
	}
	return max(dispatch.DefaultAbandon, grace+35*time.Second)
}

// closeTools ends what tools still do. After it nothing uses the container.
func (s *Session) closeTools() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.abandon()+destroyTime, errSlow)
	defer cancel()
	if err := s.tools.Close(ctx); err != nil {
		s.log.Error("close tools", zap.Error(err))
	}
}

// mayUse reports whether the user of the turn may use a tool.
func (s *Session) mayUse(def tools.Definition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return def.EnabledByDefault && (!def.RequiresAdmin || s.user.Admin)
}

// newCreated returns the first record.
func (s *Session) newCreated(defs []tools.Definition) record.SessionCreated {
	o := s.opts
	name := o.ImageName
	if name == "" {
		name = string(o.Image.Scheme)
	}
	git := o.Git
	if git == "" {
		git = sandbox.GitReadOnly
	}
	p := record.SessionCreated{
		Version: o.Version, Task: o.Task, Workspace: o.Workspace.Path, WorkspaceMode: s.workspaceMode(), Git: string(git),
		Backend: o.Choice, Image: name, Model: o.Model.Info(), Policy: o.Policy.Name, OnPrompt: string(o.OnPrompt), Client: o.User.Name,
		Resources: record.NewResources(o.Resources), Budget: record.NewBudget(o.Budget), Tools: []record.OfferedTool{},
		Configuration: record.NonNil(o.Sources), Ignored: append(o.Ignored, s.untrusted()...),
		FilesLoaded: record.NonNil(s.loaded), MCPServers: []string{}, MCPSkipped: []record.Ignored{}, Removed: o.Removed,
	}
	for _, d := range defs {
		p.Tools = append(p.Tools, record.OfferedTool{Name: d.Name, Class: d.Class, Runs: d.Runs})
	}
	return p
}

// untrusted lists the workspace's own settings that do not count, and that
// the options of the session do not mention.
func (s *Session) untrusted() []record.Ignored {
	var out []record.Ignored
	for name, why := range map[string]string{".caisson/config.yaml": "the workspace is not trusted", ".mcp.json": "a workspace's own MCP servers are not started"} {
		known := slices.ContainsFunc(s.opts.Ignored, func(i record.Ignored) bool { return i.Name == name }) ||
			slices.ContainsFunc(s.opts.Sources, func(c record.Source) bool { return c.Path == name })
		if known {
			continue
		}
		// A path that leads outside is not looked at, and does not count either.
		if there, err := s.original.Exists(context.Background(), name); err == nil && there {
			out = append(out, record.Ignored{Name: name, Why: why})
		}
	}
	slices.SortFunc(out, func(a, b record.Ignored) int { return strings.Compare(a.Name, b.Name) })
	return out
}
