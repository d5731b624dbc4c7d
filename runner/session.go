// Package runner runs one session: it makes the sandbox during the first model call, if a call
// may need it, connects tools to it, runs the loop, writes the records, and takes everything
// down again. It knows backends and models only by their interfaces.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/discovery"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/workspace"
)

// readerEntries bounds the entries that one tool call reads.
const readerEntries = 500_000

// Session is a running session: a sandbox, tools and a history, with one turn at a time. The
// caller of [Open] closes it. It is safe for concurrent use.
//
//	Open ─▶ idle ──Start──▶ turn ──its end──▶ idle ─▶ … ──Close──▶ ended
//	          └────────── the sandbox is lost, ctx ends ─────────▶ over: Close it
type Session struct {
	opts   Options
	dir    string
	log    *zap.Logger
	rec    *record.Recorder
	events *eventRecorder
	// original reads the workspace itself, in overlay mode too.
	original *workspace.Reader
	worktree sync.Once // see warnOfWorktree
	tracker  tracker.Tracker
	patches  *patchMarker
	prompt   promptContext
	skills   *skill.Set
	loaded   discovery.Loaded
	sandbox  *livesandbox.Sandbox
	caches   *SessionCaches
	network  *network.Network // nil if neither commands nor servers have a network
	bridge   *modelBridge     // nil if commands have none
	servers  []*mcpServer
	mcp      *mcpServers
	tools    *dispatch.Dispatcher
	exec     *livesandbox.Executor

	// ctx is the session's; end ends it with a cause.
	ctx context.Context //nolint:containedctx // the contexts of its turns derive from it
	end context.CancelCauseFunc

	turns turns
	// The results of the checks.
	verification   *record.Verification
	verifyFiles    []byte
	answerProblems []string
	// unforced stops waiting for Options.Force.
	unforced func()

	// past has the session's earlier processes if it is resumed, otherwise nil.
	past *resumption
	// beside waits for Options.Beside.
	beside sync.WaitGroup

	// calls are the ones beside the turns; users runs the users' commands.
	calls    *callGroup
	users    *userCommands
	services closers.Stack
	serving  sync.Once
	closed   sync.Once
	report   Report
}

// Open makes a session, or resumes one if o.Dir is from [sessiondir.Reopen]; see
// [Session.Continue]. It writes the trace with session.created, and starts nothing else: the
// sandbox starts with the first turn whose tools may need it or the first call that does.
// Cancelling ctx ends the running turn, and no other can start. If the caller can do something
// about the error, it wraps a [Fault] of kind [FaultInvalidLimits] or [FaultRecords], a
// [WorkspaceError], a [ResumeError] or a [state.DirError].
func Open(ctx context.Context, o Options) (_ *Session, err error) {
	var undo closers.Stack
	defer undo.CloseOnError(&err)
	s, err := newSession(ctx, o, &undo)
	if err != nil {
		return nil, err
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.turns.ctx, s.turns.end = s.ctx, s.end
	undo.PushFunc(func() { s.end(errClosed) })
	s.unforced = s.sandbox.CloseOn(s.opts.Force)
	undo.PushFunc(s.unforced)
	if err := s.writeCreated(); err != nil {
		return nil, Fault{Kind: FaultRecords, Session: s.opts.Dir.Session, Dir: s.dir, Err: err}
	}
	if s.opts.Beside != nil {
		s.beside.Go(func() {
			for _, text := range s.opts.Beside(s.ctx) {
				s.events.recordWarning(text)
			}
		})
	}
	return s, nil
}

// newSession makes the trace and the tools, and starts nothing. It adds to undo what
// removes them.
func newSession(ctx context.Context, o Options, undo *closers.Stack) (_ *Session, err error) {
	if err := o.checkRequired(); err != nil {
		return nil, err
	}
	s := &Session{opts: o, dir: o.Dir.Path, log: o.Dir.Log, calls: newCallGroup()}
	s.turns = turns{opts: &s.opts, user: o.User, begun: time.Now(), view: loop.NewView(nil)}
	if o.from != nil {
		s.turns.view = o.from.view.Clone()
		s.turns.history, s.prompt.notice = o.from.history, o.from.notice
	}
	if s.servers, err = assignServers(o); err != nil {
		return nil, Fault{Kind: FaultSandboxStart, Err: err}
	}
	if s.turns.breaker, err = limits.NewSessionBreaker(o.SessionBudget, nil); err != nil {
		return nil, Fault{Kind: FaultInvalidLimits, Err: fmt.Errorf("session %w", err)}
	}
	for _, p := range slices.Concat(o.Profiles, o.Workers.Profiles) {
		if err := cmp.Or(p.CheckPrice(o.Budget), p.CheckPrice(o.SessionBudget)); err != nil {
			return nil, Fault{Kind: FaultInvalidLimits, Err: err}
		}
	}
	records := record.RecorderOptions{Dir: s.dir, Session: o.Dir.Session, Secrets: o.Secrets, Mirror: o.joinMirrors(), Write: o.writeTrace, Sync: o.syncTrace}
	if o.Dir.Resumes() {
		if s.past, err = readPast(o); err != nil {
			return nil, err
		}
		records.After = &s.past.End
		if err := o.Dir.MakeSandboxDir(); err != nil {
			return nil, err
		}
	}
	if s.rec, err = record.NewRecorder(records); err != nil {
		return nil, &state.DirError{Path: s.dir, Reason: "can't be written: " + err.Error(), Err: err}
	}
	undo.Push(s.rec.Close)
	s.events = newEventRecorder(s.rec, o.Live)
	s.turns.events = s.events
	s.restorePast()
	original, err := workspace.NewReader(o.Workspace.Dir, workspace.ReaderOptions{
		HostPath: o.Workspace.Path, ContainerPath: o.mountPoint(), MaxEntries: readerEntries,
	})
	if err != nil {
		return nil, &WorkspaceError{Op: "read", Path: o.Workspace.Path, Err: err}
	}
	s.original = original
	if s.caches, err = OpenCaches(o.Dir, o.Workspace, o.Mode, o.Caches); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	undo.PushFunc(func() { s.caches.End(s.past != nil) })
	if s.bridge, err = s.newModelBridge(); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if s.network, err = s.newNetwork(); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if s.network != nil {
		undo.PushFunc(func() { s.network.Close() })
	}
	images := changes.NewPreimages(s.dir)
	s.sandbox = livesandbox.New(ctx, s.liveSandboxOptions())
	s.exec = livesandbox.NewExecutor(s.sandbox, s.executorOptions(images))
	s.users = &userCommands{exec: s.exec, maxTime: o.MaxCommandTime, offline: !o.Egress.enabled(), bridge: s.bridge, events: s.events, sync: s.rec.Sync, hint: o.hint, log: s.log, session: o.Dir.Session, dir: s.dir, endSession: o.EndRequested}
	s.patches = &patchMarker{dir: s.dir, workspace: o.Workspace.Path, mode: o.workspaceMode(), warn: s.events.recordWarning, log: s.log}
	if s.tracker, err = s.newTracker(images); err != nil {
		return nil, err
	}
	undo.PushFunc(s.tracker.DiscardState)
	s.skills = s.findSkills(ctx)
	s.restoreLoaded()
	if s.tools, err = s.newDispatcher(); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if s.mcp, err = newMCPServers(s); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	undo.PushFunc(s.mcp.close)
	return s, nil
}

// endRepeating ends the background commands, one of which recreates repositories whenever
// they are quarantined. It doesn't wait.
func (s *Session) endRepeating(path string) {
	go func() {
		if n := s.exec.EndRepeating(); n > 0 {
			s.events.recordWarning(fmt.Sprintf("repositories were made again and again, the last one %s, so the commands in the background were ended (%d)", path, n))
		}
	}()
}

func (s *Session) newTracker(images *changes.Preimages) (tracker.Tracker, error) {
	w := s.opts.Workspace
	o := tracker.Options{
		CreateOptions: overlay.CreateOptions{Session: s.opts.Dir.Session, Path: w.Path, Workspace: w.Dir},
		Dir:           s.dir, Original: s.original, Sandbox: s.sandbox, Images: images, NoDiffs: s.opts.NoDiffs, Log: s.log,
		Submounts: s.opts.Submounts, Git: s.opts.Git, Change: s.exec.ApplyAnywhere, Warn: s.events.recordWarning, Repeated: s.endRepeating,
		User: s.opts.User.Name, Force: s.opts.Force, Mode: s.opts.Mode,
	}
	switch from := s.opts.from; {
	case from != nil && from.changed != nil:
		return from.changed.Fork(o)
	case s.opts.isOverlay() && s.past != nil:
		return s.past.reopenOverlay(o)
	case s.opts.isOverlay():
		return tracker.NewOverlay(o)
	}
	var mounts []tracker.Options
	for _, m := range s.opts.Mounts {
		if m.ReadOnly {
			continue
		}
		reader, err := workspace.NewReader(m.Dir, workspace.ReaderOptions{HostPath: m.Path, ContainerPath: m.Target, MaxEntries: readerEntries})
		if err != nil {
			return nil, &MountError{From: m.Path, Err: err}
		}
		of := o
		of.Path, of.Target, of.Workspace, of.Original, of.Submounts = m.Path, m.Target, m.Dir, reader, nil
		mounts = append(mounts, of)
	}
	return tracker.WithMounts(tracker.NewBind(o), mounts), nil
}

func (o Options) checkRequired() error {
	switch {
	case o.Dir == nil:
		return errors.New("open session: Options.Dir is missing")
	case o.Workspace == nil:
		return errors.New("open session: Options.Workspace is missing")
	case o.Backend == nil:
		return errors.New("open session: Options.Backend is missing")
	case o.Bridge != nil && len(o.Profiles) > 0:
		return errors.New("open session: Options.Bridge is for sessions without Profiles")
	}
	if err := o.Resources.Validate(); err != nil {
		return Fault{Kind: FaultInvalidLimits, Err: err}
	}
	if err := sandbox.CheckTarget(o.mountPoint()); err != nil {
		return fmt.Errorf("open session: Options.Target: %w", err)
	}
	if err := sandbox.CheckVariables(o.Env); err != nil {
		return fmt.Errorf("open session: Options.Env: %w", err)
	}
	if o.Egress.enabled() {
		if err := (&sandbox.EgressPlan{}).Validate(o.Env); err != nil {
			return fmt.Errorf("open session: Options.Env: %w", err)
		}
	}
	if o.Service != nil {
		if err := o.Service.Check(); err != nil {
			return fmt.Errorf("open session: Options.Service: %w", err)
		}
	}
	return o.checkMounts()
}

func recordService(s *sandbox.Service) *record.Service {
	if s == nil {
		return nil
	}
	r := &record.Service{Program: "image", AsAgent: s.AsAgent, HealthCheck: "image"}
	if len(s.Args) > 0 {
		r.Program = s.Args[0]
	}
	if s.HealthCheck != nil {
		r.HealthCheck = "configured"
	}
	return r
}

func variableNames(env []string) []string {
	var names []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		names = append(names, name)
	}
	return names
}

func (s *Session) sandboxSpec() sandbox.Spec {
	o, w := &s.opts, s.opts.Workspace
	spec := sandbox.Spec{
		Session: o.Dir.Session, Setup: o.Setup, Homes: serverHomes(s.servers), Dir: filepath.Join(s.dir, sessiondir.SandboxDir), Notify: o.Notify,
		Mounts: slices.Concat(o.Mounts, s.caches.Mounts), Env: slices.Concat(s.caches.Env, o.Env), Egress: s.network.Plan(),
		Workspace: sandbox.Workspace{Path: w.Path, Dir: w.Dir, Target: o.Target, Submounts: o.Submounts, CopyBytes: o.CopyBytes, CopyEntries: o.CopyEntries},
	}
	spec.Resources = sandboxResources(o.Resources, s.servers)
	return spec
}

// liveSandboxOptions returns the sandbox's options. Their functions use the tracker, which must
// be set before the sandbox starts.
func (s *Session) liveSandboxOptions() livesandbox.Options {
	o := livesandbox.Options{
		Backend: s.caches.Creator(s.opts.Backend, s.events.recordWarning), Spec: s.sandboxSpec(), RefuseLost: s.opts.RefuseLost,
		Touched: s.opts.from != nil && s.opts.from.changed != nil,
		Copy:    s.opts.Mode == sandbox.ModeCopy, Checkpoints: s.opts.Mode == sandbox.ModeCopy && !s.opts.NoCheckpoints,
		OnStart: func() { s.tracker.StartRecording(s.ctx) },
		Prepare: func(ctx context.Context, spec *sandbox.Spec) {
			s.worktree.Do(func() { s.warnOfWorktree(ctx) })
			s.tracker.PrepareSpec(ctx, spec)
		},
		Record: s.events.writeRecord, Fail: func(err error) { s.end(err) }, Describe: s.opts.describeStart, Log: s.log,
	}
	if s.network != nil {
		o.Network = s.network
	}
	return o
}

// warnOfWorktree warns that nothing can be committed in a linked worktree of git: its
// repository is outside the workspace, so at best read-only in the sandbox.
func (s *Session) warnOfWorktree(ctx context.Context) {
	if st, err := s.original.StatEntry(ctx, ".git"); err != nil || st.Type != workspace.TypeFile {
		return
	}
	file, err := s.original.ReadFile(ctx, ".git", 0, workspace.MaxPathBytes)
	dir := strings.TrimSpace(string(file.Data))
	if err == nil && strings.HasPrefix(dir, "gitdir:") && path.Base(path.Dir(dir)) == "worktrees" {
		s.events.recordWarning("The workspace is a linked worktree of git, whose repository commands can't change: nothing can be committed in the sandbox, in any mode. Commit outside the sandbox, or work on a clone.")
	}
}

func (s *Session) executorOptions(images *changes.Preimages) livesandbox.ExecutorOptions {
	return livesandbox.ExecutorOptions{
		Dir: s.dir, Secrets: s.opts.Secrets, Room: s.opts.sessionRoom(s.dir, s.caches.Mounts), Images: images,
		WaitRecorded:     func(ctx context.Context) error { return s.tracker.WaitRecorded(ctx) },
		IsFresh:          func(ctx context.Context, path string) bool { return s.tracker.IsFresh(ctx, path) },
		AfterCommand:     func(ctx context.Context) { s.tracker.CheckAfterCommand(ctx) },
		RecordBackground: s.events.recordBackground, Handles: s.past.lastHandle(), Offline: !s.opts.Egress.enabled(), Log: s.log,
	}
}

func (s *Session) dispatcherOptions() dispatch.Options {
	return dispatch.Options{
		Session: s.opts.Dir.Session, Workspace: s.opts.Workspace.Path, Mount: s.opts.mountPoint(),
		Policy: s.opts.Policy, Decider: s.opts.Decider, Broker: s.opts.Broker, OnPrompt: s.opts.OnPrompt, ConfirmTimeout: s.opts.ConfirmTimeout, Concurrency: s.opts.Concurrency,
		Allow: s.mayUse, Refusal: s.refuseTool,
		Grants: s.opts.Grants.As(approval.Author{By: "session " + s.opts.Dir.Session, Redact: redact.New(s.opts.Secrets).JSON}),
		Emit:   s.events.toolEvent, Abandon: s.opts.abandonTime(),
		Scope: func(path string) error {
			return s.tracker.WorkspaceView().Scope(context.Background(), path)
		},
		OnAbandon: func(callID string, def tools.Definition) {
			s.log.Error("a call does not end", zap.String("call", callID), zap.String("tool", string(def.Name)))
			if def.Runs == tools.PlaceSandbox {
				s.sandbox.KillCurrent()
			}
		},
		Logger: s.log,
	}
}

func (s *Session) newDispatcher() (*dispatch.Dispatcher, error) {
	d, err := dispatch.New(s.dispatcherOptions())
	if err != nil {
		return nil, err
	}
	all, err := toolset{s, s.tracker.WorkspaceView()}.listFactories()
	if err != nil {
		return nil, err
	}
	s.events.direct = map[tools.Name]bool{}
	own := len(all) - len(s.opts.Tools)
	for i, f := range all {
		if err := d.Register(f); err != nil {
			return nil, err
		}
		if def := f().Definition(); i >= own || def.Runs != tools.PlaceSandbox {
			s.events.direct[def.Name] = true
		}
	}
	return d, nil
}

// closeTools ends tools that still run. After it, nothing uses the sandbox.
func (s *Session) closeTools() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.opts.abandonTime()+livesandbox.DestroyTime, errSlow)
	defer cancel()
	if err := s.tools.Close(ctx); err != nil {
		s.log.Error("close tools", zap.Error(err))
	}
}

// mayUse reports whether the turn may use a tool: it is permitted, and built-in or loaded. A
// user's calls need no loading.
func (s *Session) mayUse(def tools.Definition) bool {
	return s.permits(def) && (len(s.opts.Profiles) == 0 || s.turns.isDirect() || s.loaded.Has(def.Name))
}

// permits reports whether the turn's user may use a tool and the loaded skills allow it.
func (s *Session) permits(def tools.Definition) bool {
	return s.turns.currentUser().MayUse(def) && s.skills.Allows(def.Name)
}

func (s *Session) newCreated(defs []tools.Definition) record.SessionCreated {
	o := s.opts
	p := record.SessionCreated{
		WorkspaceID: overlay.IdentifyDir(o.Workspace.Dir), Profile: o.profileName(),
		Version: o.Version, Task: o.Task, Workspace: o.Workspace.Path, WorkspaceTarget: s.opts.mountPoint(), WorkspaceMode: s.opts.workspaceMode(), Git: string(cmp.Or(o.Git, sandbox.GitReadOnly)),
		Backend: o.Choice, Image: cmp.Or(o.ImageName, string(o.Image.Scheme)), Root: string(cmp.Or(o.Root, sandbox.RootReadOnly)), UserPolicy: string(cmp.Or(o.Setup.User, sandbox.UserOwner)), Model: o.modelInfo(), Policy: o.Policy.Name, OnPrompt: string(o.OnPrompt), Client: o.User.Name,
		Resources: record.NewResources(o.Resources), Service: recordService(o.Service), Mounts: recordMounts(o.Mounts), Caches: recordCaches(o.Caches), Egress: recordEgress(o, s.network), Env: variableNames(o.Env), Budget: record.NewBudget(o.Budget), SessionBudget: record.NewBudget(o.SessionBudget), Tools: []record.OfferedTool{},
		Configuration: record.NonNil(o.Sources), Ignored: append(o.Ignored, s.prompt.ignored...),
		FilesLoaded: record.NonNil(s.prompt.loaded), Skills: recordSkills(s.skills), MCPServers: recordMCPServers(s.servers), MCPSkipped: record.NonNil(o.MCP.Skipped), Removed: o.Removed,
	}
	if o.from != nil {
		p.Parent = &o.from.parent
	}
	for _, d := range defs {
		p.Tools = append(p.Tools, record.OfferedTool{Name: d.Name, Class: d.Class, Runs: d.Runs})
	}
	return p
}

// sessionRoom measures the room for commands: the least on the file systems that they write
// to. In overlay and copy mode, the session's directory stands for the workspace's. cached are
// the mounts of the caches.
func (o Options) sessionRoom(dir string, cached []sandbox.Mount) func() diskwatch.Room {
	rooms := []func() diskwatch.Room{diskwatch.RoomAt(dir)}
	if !o.isOverlay() {
		rooms[0] = diskwatch.RoomOn(o.Workspace.Dir)
	}
	for _, m := range slices.Concat(o.Mounts, cached) {
		if !m.ReadOnly && m.Layers == "" {
			rooms = append(rooms, diskwatch.RoomOn(m.Dir))
		}
	}
	return func() diskwatch.Room { return diskwatch.Least(rooms) }
}
