package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/workspace"
)

// session is one session under way. It belongs to the goroutine of Run.
type session struct {
	opts    Options
	begun   time.Time
	dir     string
	log     *zap.Logger
	logFile io.Closer
	rec     *Recorder
	journal *journal
	reader  *workspace.Reader
	box     *container
	tools   *tools.Dispatcher
	exec    *executor

	// before is the workspace as it was; looked is closed when it is there.
	before *snapshot
	looked chan struct{}
	moved  quarantine
}

// open makes the session's folder, its log and its trace.
func open(o Options) (_ *session, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &session{opts: o, begun: time.Now(), looked: make(chan struct{})}
	if s.dir, err = makeSessionDir(o.StateDir, o.Session); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(s.dir, sandboxDir), 0o700); err != nil {
		return nil, stateError(s.dir, "can't be written: "+err.Error(), err)
	}
	redact := newRedactor(o.Secrets)
	if err := s.openLog(redact); err != nil {
		return nil, stateError(s.dir, "can't be written: "+err.Error(), err)
	}
	s.rec, err = NewRecorder(RecorderOptions{Dir: s.dir, Session: o.Session, Secrets: o.Secrets, Mirror: o.Mirror})
	if err != nil {
		return nil, errors.Join(stateError(s.dir, "can't be written: "+err.Error(), err), s.logFile.Close())
	}
	s.journal = newJournal(s.rec, o.Live)
	s.reader, err = workspace.NewReader(o.Workspace.Dir, workspace.ReaderOptions{
		HostPath: o.Workspace.Path, ContainerPath: sandbox.WorkspaceDir, MaxEntries: snapshotEntries,
	})
	if err != nil {
		s.release()
		return nil, inputError("the workspace "+o.Workspace.Path+" can't be read", "Name another folder with --workspace.", err)
	}
	return s, nil
}

// validate reports the first option that is missing.
func (o Options) validate() error {
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Session", o.Session == ""},
		{"Task", o.Task == ""},
		{"Workspace", o.Workspace == nil},
		{"StateDir", o.StateDir == ""},
		{"Backend", o.Backend == nil},
		{"Model", o.Model == nil},
	} {
		if f.missing {
			return fmt.Errorf("run session: Options.%s is missing", f.name)
		}
	}
	if err := o.Resources.Validate(); err != nil {
		return &Error{Status: ExitConfig, Problem: Problem{Cause: err.Error(), Mend: "Change the resource limits."}, Err: err}
	}
	return nil
}

// openLog tees the caller's log into the session's folder, without secrets.
func (s *session) openLog(redact *redactor) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "log.jsonl"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(conf), zapcore.AddSync(redact.writer(f)), zapcore.DebugLevel)
	if s.opts.Logger != nil {
		core = zapcore.NewTee(s.opts.Logger.Core(), core)
	}
	s.log, s.logFile = zap.New(core), f
	return nil
}

// sandboxDir is where the backend keeps bundles and mount points, below the
// session's folder.
const sandboxDir = "sandbox"

func (s *session) release() {
	// Only while it is empty: what a backend could not remove, it reported.
	_ = os.Remove(filepath.Join(s.dir, sandboxDir))
	_ = s.rec.Close()
	_ = s.log.Sync()
	_ = s.logFile.Close()
}

func (s *session) spec() sandbox.Spec {
	return sandbox.Spec{
		Session: s.opts.Session, Image: s.opts.Image, Workspace: s.opts.Workspace.spec(s.opts.Submounts),
		Git: s.opts.Git, Resources: s.opts.Resources, Dir: filepath.Join(s.dir, sandboxDir),
		Grace: s.opts.Grace, AllowOwnerRunner: s.opts.AllowOwnerRunner,
	}
}

// dispatcher makes the dispatcher with the built-in tools.
func (s *session) dispatcher() (*tools.Dispatcher, error) {
	d, err := tools.New(tools.Options{
		Session: s.opts.Session, Workspace: s.opts.Workspace.Path, Mount: sandbox.WorkspaceDir,
		Policy: s.opts.Policy, Approver: s.opts.Approver, OnPrompt: s.opts.OnPrompt,
		Emit: s.journal.toolEvent,
		Scope: func(path string) error {
			return s.reader.Scope(context.Background(), path)
		},
		OnAbandon: func(callID string, def tools.Definition) {
			s.log.Error("a call does not end", zap.String("call", callID), zap.String("tool", string(def.Name)))
			if def.Runs == tools.PlaceSandbox {
				s.box.kill()
			}
		},
		Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	s.exec = &executor{box: s.box, spill: newSpiller(s.dir), env: environment(s.opts.SearchPath), ready: s.looked, fresh: s.fresh, after: s.quarantineAfterCommand}
	sh, err := shell.New(s.exec, shell.Options{
		Timeout: s.opts.Resources.CommandTime, Mount: sandbox.WorkspaceDir, HostRoot: s.opts.Workspace.Path,
	})
	if err != nil {
		return nil, err
	}
	files, err := file.Factories(file.Options{Reader: s.reader, Applier: s.exec, Logger: s.log})
	if err != nil {
		return nil, err
	}
	for _, f := range append(files, sh) {
		if err := d.Register(f); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// drain ends what tools still do. After it nothing uses the container.
func (s *session) drain() {
	if s.tools == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), destroyTime, errSlow)
	defer cancel()
	if err := s.tools.Close(ctx); err != nil {
		s.log.Error("close tools", zap.Error(err))
	}
}

// created says what was asked for.
func (s *session) created(defs []tools.Definition) SessionCreated {
	o := s.opts
	name := o.ImageName
	if name == "" {
		name = string(o.Image.Scheme)
	}
	git := o.Git
	if git == "" {
		git = sandbox.GitReadOnly
	}
	p := SessionCreated{
		Version: o.Version, Task: o.Task, Workspace: o.Workspace.Path, WorkspaceMode: "bind", Git: string(git),
		Backend: o.Choice, Image: name, Model: o.Model.Info(), Policy: o.Policy.Name, OnPrompt: string(o.OnPrompt),
		Resources: wireResources(o.Resources), Budget: wireBudget(o.Budget), Tools: []OfferedTool{},
		Configuration: listed(o.Sources), Ignored: append(o.Ignored, s.untrusted()...),
		FilesLoaded: []string{}, MCPServers: []string{}, MCPSkipped: []Ignored{}, Removed: o.Removed,
	}
	for _, d := range defs {
		p.Tools = append(p.Tools, OfferedTool{Name: d.Name, Class: d.Class, Runs: d.Runs})
	}
	return p
}

// untrusted lists the workspace's own settings, which do not count.
func (s *session) untrusted() []Ignored {
	var out []Ignored
	for _, name := range []string{".caisson/config.yaml", ".mcp.json"} {
		// A path that leads outside is not looked at, and does not count either.
		if there, err := s.reader.Exists(context.Background(), name); err == nil && there {
			out = append(out, Ignored{Name: name, Why: "the workspace is not trusted"})
		}
	}
	return out
}
