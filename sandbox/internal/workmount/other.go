//go:build !linux

package workmount

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Volume is an overlay that an engine mounts, on Linux.
type Volume struct{ Options string }

// Clean reports true: there is nothing to remove.
func (*Volume) Clean() bool { return true }

// Check checks nothing.
func (*Volume) Check(context.Context, workspace.View, bool) error { return nil }

// MountNamespace starts a runtime in a user and mount namespace in which an
// overlay is mounted: the guest's binary mounts it there and becomes the
// runtime (see its package enter). No process stays for it.
type MountNamespace struct{}

// WrapCommand changes a command that was not started so that it runs in the
// namespace. It must have no ExtraFiles. Call WaitMounted after its start.
func (*MountNamespace) WrapCommand(*exec.Cmd) {}

// WaitMounted waits until the overlay is mounted, and keeps its root for View.
// It returns ErrUnsupported if the kernel or this user can't mount it. Call it
// once the wrapped command was started. Cancelling ctx ends it.
func (*MountNamespace) WaitMounted(context.Context) error { return nil }

// The names that a host reads in a workspace on its own account.
const gitName, mercurialName, ownConfig = ".git", ".hg", ".caisson"

// LayoutOf returns the current layout of a workspace: its guards are an
// existing .git, .hg and .caisson. It returns an error if the workspace can't
// be found.
func LayoutOf(w sandbox.Workspace, git sandbox.GitMode) (Layout, error) {
	path, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		return Layout{}, fmt.Errorf("resolve workspace: %w", err)
	}
	l := Layout{dir: fmt.Sprintf("%q %s", path, git)}
	for _, name := range []string{".", gitName, mercurialName, ownConfig} {
		if info, err := os.Lstat(filepath.Join(path, name)); err == nil {
			l.guards = append(l.guards, guardState{name: name, fileID: fmt.Sprintf("%+v", info.Sys())})
		}
	}
	return l, nil
}

// PrivateMounts are for Linux alone.
type PrivateMounts struct{}

// ShiftOwners returns ErrUnsupported.
func ShiftOwners(string, Base) (*os.File, error) {
	return nil, fmt.Errorf("map owners: %w", sandbox.ErrUnsupported)
}

// HideOwners returns ErrUnsupported.
func HideOwners(string) (*os.File, error) {
	return nil, fmt.Errorf("map owners: %w", sandbox.ErrUnsupported)
}

// Add returns ErrUnsupported.
func (p *PrivateMounts) Add(string, *os.File) (string, error) {
	return "", fmt.Errorf("mount image: %w", sandbox.ErrUnsupported)
}

// AddWritable returns ErrUnsupported.
func (p *PrivateMounts) AddWritable(string) (string, error) {
	return "", fmt.Errorf("mount image: %w", sandbox.ErrUnsupported)
}

// Start starts the command.
func (p *PrivateMounts) Start(cmd *exec.Cmd) error { return cmd.Start() }

// Close does nothing.
func (p *PrivateMounts) Close() {}

// Root is the ephemeral root of one container.
type Root struct{ Path, Layer string }

// StageRoot returns ErrUnsupported: overlays need Linux.
func StageRoot(RootOptions) (*Root, error) {
	return nil, fmt.Errorf("root: %w: an ephemeral root needs Linux, or the docker backend", sandbox.ErrUnsupported)
}

// PlanRoot returns ErrUnsupported.
func (p *Mounts) PlanRoot(RootOptions, string) (*Root, error) { return StageRoot(RootOptions{}) }

// RemoveStaging does nothing.
func (*Root) RemoveStaging() error { return nil }

// Close does nothing.
func (*Root) Close() error { return nil }

// ImageBinds are mounts of an image's files with other owners.
type ImageBinds struct{ Paths []string }

// StageImage returns ErrUnsupported: id-mapped mounts need Linux.
func StageImage(RootOptions, []string) (*ImageBinds, error) {
	return nil, fmt.Errorf("mount image: %w: other owners need Linux", sandbox.ErrUnsupported)
}

// RemoveStaging does nothing.
func (*ImageBinds) RemoveStaging() error { return nil }

// Close does nothing.
func (*ImageBinds) Close() error { return nil }
