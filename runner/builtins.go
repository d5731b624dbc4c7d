package runner

import (
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/shell"
)

// builtins gives the tools of every session, in the order in which models are
// offered them.
func (s *Session) builtins() ([]tools.Factory, error) {
	s.exec.patches = &patchMarker{dir: s.dir, workspace: s.opts.Workspace.Path, mode: s.mode(), log: s.log}
	all, err := file.Factories(file.Options{Reader: s.reader, Applier: s.exec, MarkPatch: s.exec.patches.mark, Logger: s.log})
	if err != nil {
		return nil, err
	}
	o := shell.Options{
		Timeout: s.opts.Resources.CommandTime, Grace: s.opts.Grace, Mount: sandbox.WorkspaceDir, HostRoot: s.opts.Workspace.Path,
		Background: s.exec.background, View: s.reader,
	}
	for _, make := range []func() (tools.Factory, error){
		func() (tools.Factory, error) { return shell.New(s.exec, o) },
		func() (tools.Factory, error) { return shell.NewOutput(s.exec, o) },
		func() (tools.Factory, error) { return shell.NewKill(o) },
	} {
		f, err := make()
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	checks, err := s.verifyTools()
	if err != nil {
		return nil, err
	}
	fetched, err := s.fetchTool()
	if err != nil {
		return nil, err
	}
	all = append(append(append(all, checks...), fetched), s.memoryTools()...)
	for _, d := range s.opts.Declared {
		f, err := shell.NewDeclared(s.exec, d, o)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return append(all, s.opts.Tools...), nil
}
