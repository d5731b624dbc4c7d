package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/policy"
)

type sessionBuilder struct {
	*backends
	workspace *runner.Workspace
	mounts    []sandbox.Mount // opened for the session
	// moreMounts are opened in addition to the configuration's.
	moreMounts []runner.UserMount
	// dir is the session's directory, and hidden its secrets. ends closes the directory
	// and the models.
	dir    *sessiondir.Dir
	hidden []redact.Secret
	ends   closers.Stack
	tokens []redact.Secret
	// apply is set if the run applies its changes itself.
	apply bool
	// verifies is set if the run verifies its result in a sandbox.
	verifies bool
	// reads is set if the command is not known to need a sandbox. orders is set if it
	// needs one under any policy, and itself reports programs that the image lacks.
	reads, orders bool
	// servers is set if the session has the MCP servers.
	servers bool
	// resume is the id of the session to resume, or "".
	resume string
	// chat is set if messages come later, so that no task is needed.
	chat bool
	// shared is the backend that a server's sessions share. If nil, the session chooses
	// one after cleaning up.
	shared *readyBackend
}

// openSessionBuilder reads the settings and opens the workspace. It reports a mistake
// in either before anything is started.
func openSessionBuilder(a *app, f workspaceFlags) (*sessionBuilder, error) {
	s, err := loadSettings(a, f.Settings, f.Profile)
	if err != nil {
		return nil, err
	}
	return openBuilder(s, f.Workspace, f.projectOptions)
}

// openBuilder is [openSessionBuilder] with settings that were read.
func openBuilder(s *settings, workspace string, project projectOptions) (*sessionBuilder, error) {
	w, err := s.openWorkspace(workspace)
	if err != nil {
		return nil, err
	}
	if err := s.useProject(w, project); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	bs, err := openBackends(s, w)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &sessionBuilder{backends: bs, workspace: w}, nil
}

func (s *sessionBuilder) close() {
	s.endSession()
	s.backends.close()
	_ = errors.Join(runner.CloseMounts(s.mounts), s.workspace.Close())
}

// endSession closes what was opened for one session. Another one can follow.
func (s *sessionBuilder) endSession() { _ = s.ends.Close() } // none of these errors matters

// sessionOptions makes the options of a session with models.
func (s *sessionBuilder) sessionOptions(ctx context.Context, text string, u reporter) (runner.Options, error) {
	var o runner.Options
	selected, err := s.conf.SelectModels(s.environ)
	if err != nil {
		return o, noModel(err)
	}
	asked, err := s.conf.SelectWorkers(s.environ)
	if err != nil {
		return o, err
	}
	own := len(selected)
	selected = append(selected, asked...)
	if err := s.readKeys(ctx, selected, s.workspace.Path); err != nil {
		return o, err
	}
	s.servers = true
	if err := s.openDir(ctx, selected...); err != nil {
		return o, err
	}
	profiles, counts, err := s.openModels(ctx, selected, modelSettings{stream: *s.conf.Stream, differs: u.reportDifference, logger: s.dir.Log}, &s.ends)
	if err != nil {
		return o, err
	}
	if text == "" && s.shared == nil && !s.chat && s.resume == "" {
		if text = recordedTask(profiles[0].Model); text == "" {
			return o, newUsageError("a task is needed: as the argument, by -f FILE, or - for standard input")
		}
	}
	o, err = s.sandboxOptions(ctx, u)
	o.Task, o.Profiles, o.Ledger, o.Workers = text, profiles[:own:own], counts, workerOptions(&s.conf, profiles[own:])
	return o, err
}

// modelessOptions makes the options of a session without models for calls and commands.
// task describes them.
func (s *sessionBuilder) modelessOptions(ctx context.Context, task string, u reporter) (runner.Options, error) {
	if err := s.openDir(ctx); err != nil {
		return runner.Options{}, err
	}
	o, err := s.sandboxOptions(ctx, u)
	o.Task, o.InstructionFiles, o.InstructionTexts = task, false, nil
	return o, err
}

// openDir reads the keys that commands and servers use, and makes the session's
// directory or opens the resumed one's. The records must not have keys of models.
func (s *sessionBuilder) openDir(ctx context.Context, models ...config.SelectedModel) error {
	if err := s.readEgressKeys(ctx, s.workspace.Path); err != nil {
		return err
	}
	if s.servers {
		if err := s.readServerKeys(ctx, s.workspace.Path); err != nil {
			return err
		}
	}
	s.hidden = append(s.knownSecrets(models...), s.tokens...)
	open := func() (*sessiondir.Dir, error) { return sessiondir.Create(s.environ.stateDir(), s.hidden) }
	if s.resume != "" {
		open = func() (*sessiondir.Dir, error) { return sessiondir.Reopen(s.environ.stateDir(), s.resume, s.hidden) }
	}
	dir, err := open()
	if err != nil {
		return err
	}
	s.dir = dir
	s.ends.PushFunc(func() { _ = dir.Close() }) // an empty directory does no harm
	s.host.SetLogger(dir.Log)
	return nil
}

type reporter interface {
	// printNotice tells the user. recordWarning and reportDifference also record the
	// text, once there are records.
	printNotice(text string)
	recordWarning(text string)
	reportDifference(d replay.Difference)
	// news returns the facts about this machine that the user should see.
	news(facts []string) []string
	// defaultPreset returns the policy to use if none is named.
	defaultPreset(appliedLater bool) string
}

// commonOptions returns the options that the settings give every session. preset is the
// policy to use if none is named; workspace is that of the sessions, or "" if they have
// different ones.
func (s *settings) commonOptions(image images.Reference, preset, workspace string) (o runner.Options, err error) {
	if o.Resources, err = s.conf.SandboxResources(); err != nil {
		return o, err
	}
	if o.Env, err = s.conf.Variables(s.environ.lookup); err != nil {
		return o, err
	}
	if o.Policy, err = s.conf.ToolPolicy(preset); err != nil {
		return o, err
	}
	if o.Decider, err = s.newDecider(workspace); err != nil {
		return o, err
	}
	if o.Fetch, err = s.conf.FetchOptions(); err != nil {
		return o, err
	}
	if o.InstructionTexts, err = s.conf.OperatorInstructions(s.environ.configDir()); err != nil {
		return o, err
	}
	o.Setup = s.conf.SandboxSetup(image, o.Resources)
	o.RefuseLost = *s.conf.File.RefuseLost
	o.SessionBudget = s.conf.Limits.Session.Budget()
	if most := s.conf.Requirements.Resources.CommandTime; most != nil {
		o.MaxCommandTime = time.Duration(*most)
	}
	o.User = localUser(&s.conf)
	o.Version = programVersion()
	o.Budget = s.conf.Limits.Budget()
	o.Canary = *s.conf.Canary
	o.OnPrompt = dispatch.OnPrompt(*s.conf.OnPrompt)
	o.Concurrency = int(*s.conf.Concurrency)
	o.Declared = s.conf.Tools.Declared()
	return o, nil
}

func (s *settings) parseImage() (images.Reference, error) {
	image, err := images.ParseLocalReference(*s.conf.Image)
	if err != nil {
		return image, newFailure(exitConfig, err, "the image can't be used: "+err.Error(), "Change --image, or image in the configuration.")
	}
	return image, s.allowImage(image)
}

// allowImage returns an error if the requirements don't allow an image.
func (s *settings) allowImage(image images.Reference) error {
	if s.conf.Requirements.AllowsImage(image.String()) {
		return nil
	}
	return &config.Error{Where: "requirements", Message: "image " + image.String() + " is not allowed on this machine", Hint: "choose what the administrator's file allows"}
}

// sandboxOptions makes the options of a session except its models. openDir must have
// been called.
func (s *sessionBuilder) sandboxOptions(ctx context.Context, u reporter) (runner.Options, error) {
	image, err := s.parseImage()
	if err != nil {
		return runner.Options{}, err
	}
	s.host.ReportPulls((&ui.PullProgress{Say: u.printNotice}).Report)
	o, err := s.commonOptions(image, u.defaultPreset(sandbox.WorkspaceMode(*s.conf.Mode).KeepsChanges() && !s.apply), s.workspace.Path)
	if err != nil {
		return o, err
	}
	if o.Target, err = s.mountPoint(ctx, image); err != nil {
		return o, err
	}
	if err := s.host.CheckUser(ctx, image, sandbox.UserPolicy(*s.conf.User)); err != nil {
		return o, err
	}
	if err := s.openMounts(o.Target); err != nil {
		return o, err
	}
	o.Caches = runner.CacheOptions{Store: caches.NewStore(s.environ.stateDir()), Use: caches.Use(*s.conf.CacheUse)}
	if o.Caches.Caches, err = s.conf.ParseCaches(); err != nil {
		return o, err
	}
	if o.Observe, err = s.openObserver(); err != nil {
		return o, err
	}
	if o.Egress, o.Warnings, err = s.conf.EgressOptions(); err != nil {
		return o, err
	}
	o.Egress.Secrets = s.egressKeys
	o.Egress.CacheDir = joinUnder(s.environ.cacheDir(), "egress")
	needed, err := s.mayNeedSandbox(o.Policy)
	if err != nil {
		return o, err
	}
	if o.Skills, err = skillOptions(&s.conf, s.environ); err != nil {
		return o, err
	}
	if needed && !s.orders {
		o.Warnings = append(o.Warnings, u.news(s.absentWarnings(ctx, image))...)
	}
	ready := s.shared
	if ready == nil {
		if ready, err = s.findBackend(ctx, u, needed); err != nil {
			return o, err
		}
		o.Beside = func(ctx context.Context) []string {
			return slices.Concat(s.expireChanges(), s.expireCaches(), s.pruneSessions(ctx))
		}
	}
	o.Removed = ready.removed
	if s.resume != "" {
		left := ready.left
		if s.shared != nil || !needed { // otherwise it has just been done
			o.Removed, left = s.host.Sweep(ctx)
		}
		if err := s.checkRemains(ctx, s.resume, left); err != nil {
			return o, err
		}
	}
	o.Dir = s.dir
	o.Secrets = s.hidden
	o.Workspace = s.workspace
	o.Mounts = s.mounts
	o.Backend = ready.backend
	o.Choice = ready.choice
	o.ImageName = *s.conf.Image
	o.Submounts = s.conf.Submounts
	o.Mode = sandbox.WorkspaceMode(*s.conf.Mode)
	o.CopyBytes = int64(*s.conf.CopyBytes)
	o.CopyEntries = int64(*s.conf.CopyEntries)
	o.NoCheckpoints = *s.conf.CopyCheckpoint == "never"
	o.InstructionFiles = *s.conf.File.InstructionFiles
	o.TrustedInstructions = s.instructions
	o.ConfirmTimeout = time.Duration(*s.conf.ConfirmTimeout)
	o.Grants = s.environ.grantStore()
	o.Memory = s.openMemory()
	o.Hint = sessionHint
	o.Notify = func(waiting string) { u.printNotice("the sandbox is " + waiting) }
	o.Sources = s.conf.Sources
	o.Ignored = s.ignored
	if s.servers {
		o.MCP, err = s.serverOptions(o)
	}
	return o, err
}

// openMemory returns the store of notes about the workspace, or nil if it is off.
func (s *sessionBuilder) openMemory() *memory.Store {
	if !valueOf(s.conf.MemoryTools) {
		return nil
	}
	return memory.NewStore(filepath.Join(s.environ.stateDir(), "memory"), s.workspace.Path)
}

// mayNeedSandbox reports whether a call of a session may need a sandbox.
func (s *sessionBuilder) mayNeedSandbox(policy policy.Policy) (bool, error) {
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return false, err
	}
	used, err := s.conf.UsedServers()
	inServers := slices.ContainsFunc(used, func(name string) bool {
		server := s.conf.MCP[name]
		return server.RunsInSandbox() && policy.AllowsServer(name, tools.ClassExecute, tools.PlaceSandbox, s.workspace.Path)
	})
	return s.orders || s.verifies || !s.reads && (inServers || policy.AllowsSandboxed(defs, s.workspace.Path)), err
}
