//go:build !linux

package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// cleanup removes what Prepare made.
type cleanup struct{}

func (*cleanup) removeStaging() error { return nil }

func (*cleanup) closeAll(context.Context) error { return nil }

func (*cleanup) overlayRoot() (*os.File, workspace.Layers) { return nil, workspace.Layers{} }

// prepareMounts returns the directory's own path: the engine runs in a virtual
// machine, whose file sharing presents every file as the user's. Only an
// existing .git, .hg and .caisson are guarded.
func prepareMounts(_ context.Context, o Options) (*Mounts, error) {
	if slices.ContainsFunc(o.Further, func(m sandbox.Mount) bool { return m.Type != sandbox.MountTmpfs }) {
		return nil, fmt.Errorf("%w: only Linux mounts further directories: use tmpfs", sandbox.ErrUnsupported)
	}
	if o.Workspace.Mode.KeepsChanges() {
		return nil, fmt.Errorf("workspace %s: %w: mode %s needs Linux: use bind mode", o.Workspace.Path, sandbox.ErrUnsupported, o.Workspace.Mode)
	}
	held, err := o.Workspace.Dir.Stat()
	if err != nil {
		return nil, fmt.Errorf("examine workspace: %w", err)
	}
	path, err := filepath.EvalSymlinks(o.Workspace.Path)
	if err != nil {
		return nil, fmt.Errorf("resolve workspace: %w", err)
	}
	now, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("resolve workspace: %w", err)
	}
	if !os.SameFile(held, now) || !now.IsDir() {
		return nil, fmt.Errorf("workspace %s: %w: it is not the directory that was opened", path, sandbox.ErrInvalid)
	}
	if err := checkPlace(path, o); err != nil {
		return nil, err
	}
	if o.Git == sandbox.GitCommit {
		return nil, fmt.Errorf("workspace %s: %w: git mode commit needs Linux", path, sandbox.ErrUnsupported)
	}
	command := o.Identity.command()
	p := &Mounts{
		Path: path, Target: o.Workspace.MountPoint(), CommandUID: command.uid, CommandGID: command.gid, OwnerUID: os.Getuid(), OwnerGID: os.Getgid(),
		Binds: []Bind{{Source: path, Target: o.Workspace.MountPoint(), Dir: true}}, cleanup: &cleanup{},
		Lost: []string{
			"the workspace is mounted without nosuid and nodev, which this system can't set",
			"a .git that is not there is not reserved on this system",
		},
	}
	guarded := []string{gitName, mercurialName, ownConfig}
	if o.Workspace.Unguarded {
		guarded = nil
	} else if len(o.Workspace.Repositories) > 0 {
		p.Lost = append(p.Lost, "nested repositories are not read-only on this system: what commands change in them is quarantined when the session ends")
	}
	if len(o.Workspace.Privileged) > 0 && !o.Workspace.Unguarded {
		p.Lost = append(p.Lost, "privileged files are not read-only on this system")
	}
	for _, name := range guarded {
		info, err := os.Lstat(filepath.Join(path, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("workspace %s: %w: %s is not a plain directory or file and can't be protected", path, sandbox.ErrInvalid, name)
		}
		p.Binds = append(p.Binds, Bind{Source: filepath.Join(path, name), Target: p.Target + "/" + name, ReadOnly: true, Dir: info.IsDir()})
	}
	return p, nil
}

// checkPlace refuses the root, the state directory and what contains or lies in
// them; symlinks in the paths are resolved.
func checkPlace(path string, o Options) error {
	if filepath.Dir(path) == path {
		return fmt.Errorf("workspace %s: %w: it is a root directory", path, sandbox.ErrInvalid)
	}
	for _, name := range append([]string{o.StateDir}, o.Protect...) {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue
		}
		rel, err := filepath.Rel(path, real)
		if err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("workspace %s: %w: it is or holds %s: use a directory of its own", path, sandbox.ErrInvalid, name)
		}
		rel, err = filepath.Rel(real, path)
		own, _ := filepath.Rel(sandbox.WorkspacesDir(real), path)
		if name == o.StateDir && err == nil && filepath.IsLocal(rel) && (own == "." || !filepath.IsLocal(own)) {
			return fmt.Errorf("workspace %s: %w: it lies in the state directory %s", path, sandbox.ErrInvalid, name)
		}
	}
	return nil
}

// FileIdentity is for Linux.
func FileIdentity(string) (device, inode uint64, err error) { return 0, 0, sandbox.ErrUnsupported }

// UserNamespaces keeps nothing: there are no id maps.
type UserNamespaces struct{}

// Close does nothing.
func (*UserNamespaces) Close() {}
