package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/workspace"
)

// trustFile and approvalsFile have lasting decisions of the user.
const (
	trustFile     = "trust.json"
	approvalsFile = "approvals.json"
)

func (e environ) trustStore() *approval.Trust {
	return approval.NewTrust(filepath.Join(e.stateDir(), trustFile))
}

func (e environ) grantStore() *approval.Grants {
	return approval.NewGrants(filepath.Join(e.stateDir(), approvalsFile))
}

// projectFiles returns the files of a workspace that take effect once it is trusted.
// Adding a file here ends the trust in workspaces that have it.
func projectFiles() []string { return []string{config.ProjectPath, config.MCPPath} }

// ownSettings are a workspace's own settings, read once.
type ownSettings struct {
	// config and servers are nil if missing.
	config, servers *config.ProjectFile
	// files are the existing ones, in the order of projectFiles.
	files []approval.TrustedFile
}

// readOwn reads a workspace's own settings without parsing them.
func readOwn(w *runner.Workspace) (ownSettings, error) {
	var own ownSettings
	r, err := workspace.NewReader(w.Dir, workspace.ReaderOptions{HostPath: w.Path})
	if err != nil {
		return own, projectError(w, err)
	}
	for _, name := range projectFiles() {
		text, err := readOwnFile(r, name)
		if err != nil {
			return own, projectError(w, err)
		}
		if text == nil {
			continue
		}
		f := config.ProjectFile{Path: name, Text: text}
		own.files = append(own.files, approval.TrustedFile{Path: name, SHA256: f.SHA256()})
		if name == config.ProjectPath {
			own.config = &f
		} else {
			own.servers = &f
		}
	}
	return own, nil
}

// readOwnFile reads a file without following links. It returns nil if the file is missing.
func readOwnFile(r *workspace.Reader, name string) ([]byte, error) {
	ctx := context.Background() // the Reader has its own deadline
	for _, way := range []struct {
		path string
		want workspace.Type
	}{{path.Dir(name), workspace.TypeDir}, {name, workspace.TypeFile}} {
		info, err := r.Lstat(ctx, way.path)
		if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindNotFound {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if info.Type != way.want {
			return nil, fmt.Errorf("%s is a %s, and must be a %s", way.path, info.Type, way.want)
		}
	}
	f, err := r.ReadFile(ctx, name, 0, config.MaxProjectBytes+1)
	if err != nil {
		return nil, err
	}
	if len(f.Data) > config.MaxProjectBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, config.MaxProjectBytes)
	}
	return append([]byte{}, f.Data...), nil
}

// ownError is a fault of a workspace's own settings, not of the user's.
type ownError struct{ err error }

func (o *ownError) Error() string { return o.err.Error() }
func (o *ownError) Unwrap() error { return o.err }

func projectError(w *runner.Workspace, err error) error {
	return &ownError{newFailure(exitConfig, err, "the own settings of "+w.Path+" can't be used: "+err.Error(), "Fix the file, or remove it.")}
}

// untrustedError reports an untrusted workspace if trust is required.
type untrustedError struct{ path, why string }

func (e *untrustedError) Error() string {
	return "the workspace " + e.path + " is not trusted (" + e.why + ")"
}

// checkStartable refuses valid settings with which no session would start.
func checkStartable(c *config.Config) error {
	_, resources := c.SandboxResources()
	_, policy := c.ToolPolicy("default")
	_, fetching := c.FetchOptions()
	_, _, egress := c.EgressOptions()
	return cmp.Or(resources, policy, fetching, egress)
}

// checkStartable refuses settings with which no session would start. The error is an
// [ownError] if the workspace's own settings are to blame.
func (s *settings) checkStartable(w *runner.Workspace) error {
	err := checkStartable(&s.conf)
	if err == nil {
		return nil
	}
	others := &settings{deps: s.deps, environ: s.environ, flags: s.flags, profile: s.profile, shared: s.shared, workspaceDir: s.workspaceDir}
	if loadErr := others.load(config.File{}); loadErr != nil || checkStartable(&others.conf) != nil {
		return err
	}
	return projectError(w, err)
}

// useProject uses the workspace's own settings if it is trusted, and otherwise notes
// why not. It must be called before anything is started.
func (s *settings) useProject(w *runner.Workspace, o projectOptions) error {
	own, err := readOwn(w)
	if err != nil && o.Require {
		return err
	}
	if err != nil {
		s.ignoreProject("the workspace's own settings", err.Error())
		return nil
	}
	if err := needState(s.environ); err != nil {
		return err
	}
	entry, known, storeErr := s.environ.trustStore().Find(w.Path)
	trusted := known && entry.Covers(own.files)
	if storeErr != nil {
		s.ignored = append(s.ignored, record.Ignored{Name: "trusted workspaces", Why: storeErr.Error()})
	}
	why := "the workspace is not trusted"
	if known && !trusted {
		why = "it is not as it was when the workspace was trusted"
	}
	if !trusted && o.Require {
		return &untrustedError{w.Path, why}
	}
	if trusted && !o.Ignore {
		s.instructions = entry.Instructions
	}
	whyNot := ""
	switch {
	case !trusted && s.forClients:
		whyNot = why
	case !trusted:
		whyNot = why + "; caisson trust --dry-run shows what it would do"
	case o.Ignore && s.forClients:
		whyNot = "this server does not use them"
	case o.Ignore:
		whyNot = "--ignore-project-config"
	}
	s.ignoreFile(config.ProjectPath, own.config, whyNot, entry, "what it tightened is not tightened now")
	s.ignoreFile(config.MCPPath, own.servers, whyNot, entry, "its servers are not there now")
	if whyNot != "" || len(own.files) == 0 {
		return nil
	}
	s.project, s.projectServers = own.config, own.servers
	if err := s.load(config.File{}); err != nil {
		return &ownError{err}
	}
	for _, skipped := range s.conf.SkippedServers {
		s.ignoreProject(config.MCPPath+": server "+skipped.Name, skipped.Why)
	}
	return nil
}

// ignoreFile notes why one of the workspace's own files is not used, unless why is "". If
// the file was removed since the workspace was trusted, it notes the consequence, gone.
func (s *settings) ignoreFile(name string, file *config.ProjectFile, why string, trusted approval.TrustedWorkspace, gone string) {
	wasThere := slices.ContainsFunc(trusted.Files, func(f approval.TrustedFile) bool { return f.Path == name })
	switch {
	case file == nil && wasThere:
		s.ignoreProject(name, "it was there when the workspace was trusted, and is gone: "+gone)
	case file != nil && why != "":
		s.ignoreProject(name, why)
	}
}

func (s *settings) ignoreProject(name, why string) {
	s.ignored = append(s.ignored, record.Ignored{Name: name, Why: why})
}

// workspaceFor opens the directory that a command is about. "" is the working
// directory.
func workspaceFor(env environ, directory string) (*runner.Workspace, error) {
	if directory == "" {
		directory = "."
	}
	protected := env.protectedDirs()
	protected.AcceptSystem = true // nothing runs in it, or a run has accepted it
	return runner.OpenWorkspace(directory, protected)
}

// needState refuses to work without a state directory, or with one that others can
// write: Caisson trusts its content.
func needState(env environ) error {
	dir, err := findState(env)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // it is made when something is stored
	}
	return state.CheckDir(dir)
}

// namedWorkspace returns the path of a workspace that need not exist.
func namedWorkspace(env environ, folder string) (string, error) {
	w, err := workspaceFor(env, folder)
	if err == nil {
		return w.Path, w.Close()
	}
	if folder != "" && filepath.IsAbs(folder) {
		return filepath.Clean(folder), nil
	}
	return "", err
}

// warnCorrupt warns about a file of answers that was moved aside, and returns nil. It
// explains any other error.
func warnCorrupt(a *app, err error) error {
	if err == nil {
		return nil
	}
	corrupt, ok := errors.AsType[*approval.CorruptError](err)
	if !ok {
		return stateProblem(err)
	}
	reportError(a, record.Problem{Cause: corrupt.Error(), Hint: "It counts as empty. Look at what was moved aside, and answer again."})
	return nil
}

// stateProblem explains that a file of answers can't be read or written.
func stateProblem(err error) error {
	return newFailure(exitConfig, err, "", "Look at the state directory, $XDG_STATE_HOME/caisson; nothing was stored.")
}
