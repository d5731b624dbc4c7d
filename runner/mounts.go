package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// UserMount names a directory of this machine to mount in the sandbox.
type UserMount struct {
	// From is the absolute path of the directory, To its path in the sandbox.
	From, To string
	ReadOnly bool
}

// MountError reports a user's directory that can't be mounted.
type MountError struct {
	From string
	// Err is often a [ProtectedError], a [SystemDirError] or a [workspace.Error].
	Err error
}

func (e *MountError) Error() string {
	if reason, ok := errors.AsType[*workspace.Error](e.Err); ok {
		return fmt.Sprintf("the mount of %v", reason)
	}
	return "the mount of " + e.From + " " + e.Err.Error()
}

func (e *MountError) Unwrap() error { return e.Err }

// OpenMounts opens the user's directories for a session on the workspace w, mounted at target
// in the given mode. It refuses directories that can't be a workspace, that are in
// Caisson's own directories, or that belong to the kernel or to engines. It also refuses any
// that shares files with the workspace or with a writable mount, and writable ones in overlay
// and copy mode. The error is a [MountError]. The caller closes the directories after the
// session.
func OpenMounts(list []UserMount, w *Workspace, target string, mode sandbox.WorkspaceMode, p Protected) (_ []sandbox.Mount, err error) {
	var out []sandbox.Mount
	defer func() {
		if err != nil {
			err = errors.Join(err, CloseMounts(out))
		}
	}()
	for _, m := range list {
		if err := checkWritable(m.From, m.ReadOnly, mode); err != nil {
			return nil, err
		}
		opened, err := openMount(m, w, target, p)
		if err != nil {
			return nil, &MountError{From: m.From, Err: err}
		}
		out = append(out, opened)
		for _, other := range out[:len(out)-1] {
			switch {
			case other.Target == opened.Target:
				return nil, &MountError{From: m.From, Err: fmt.Errorf("and that of %s are both at %s", other.Path, m.To)}
			case overlaps(opened.Path, other.Path) && !(opened.ReadOnly && other.ReadOnly):
				return nil, &MountError{From: m.From, Err: fmt.Errorf("shares files with the mount of %s, and one of them is writable", other.Path)}
			}
		}
	}
	return out, nil
}

func (o SandboxOptions) checkMounts() error {
	for _, m := range o.Mounts {
		if err := checkWritable(m.Path, m.ReadOnly, o.Mode); err != nil {
			return err
		}
	}
	return nil
}

// checkWritable refuses a writable mount in overlay and copy mode: changes there would take
// effect at once instead of waiting to be applied.
func checkWritable(from string, readOnly bool, mode sandbox.WorkspaceMode) error {
	if mode.KeepsChanges() && !readOnly {
		return &MountError{From: from, Err: ErrWritableMount}
	}
	return nil
}

// ErrWritableMount is the reason of a [MountError] about a writable mount.
var ErrWritableMount = errors.New("is writable, and in overlay and copy mode commands change no directory of this machine")

func recordMounts(list []sandbox.Mount) []record.Mount {
	var out []record.Mount
	for _, m := range list {
		out = append(out, record.Mount{From: m.Path, To: m.Target, ReadOnly: m.ReadOnly})
	}
	return out
}

// writableDirs returns the directories of this machine that commands can write to.
func (s *Session) writableDirs() []string {
	dirs := []string{s.opts.Workspace.Path}
	for _, m := range slices.Concat(s.opts.Mounts, s.caches.Mounts) {
		if !m.ReadOnly {
			dirs = append(dirs, m.Path)
		}
	}
	return dirs
}

// CloseMounts closes the directories of [OpenMounts].
func CloseMounts(list []sandbox.Mount) error {
	var errs []error
	for _, m := range list {
		errs = append(errs, m.Dir.Close())
	}
	return errors.Join(errs...)
}

func openMount(m UserMount, w *Workspace, target string, p Protected) (_ sandbox.Mount, err error) {
	if err := sandbox.CheckMountTarget(m.To, target); err != nil {
		return sandbox.Mount{}, fmt.Errorf("can't be made: %w", err)
	}
	dir, err := workspace.OpenDir(m.From)
	if err != nil {
		return sandbox.Mount{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Close())
		}
	}()
	// Any symlinks left in the path are the system's: OpenDir refuses others.
	path, err := filepath.EvalSymlinks(m.From)
	if err != nil {
		return sandbox.Mount{}, err
	}
	own, err := dir.Stat()
	if err != nil {
		return sandbox.Mount{}, err
	}
	if !isSameFile(own, path) {
		return sandbox.Mount{}, errors.New("was replaced while it was opened")
	}
	if err := p.checkMount(own, path, m.ReadOnly); err != nil {
		return sandbox.Mount{}, err
	}
	work, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		return sandbox.Mount{}, err
	}
	if overlaps(path, work) {
		return sandbox.Mount{}, errors.New("is, holds or lies in the workspace, whose protection it would evade")
	}
	return sandbox.Mount{Target: m.To, Path: path, Dir: dir, ReadOnly: m.ReadOnly, Guarded: !m.ReadOnly}, nil
}

// kernelDirs have the kernel's files, engineDirs the sockets and state of engines.
var (
	kernelDirs = []string{"/proc", "/sys", "/dev"}
	engineDirs = []string{"/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}
)

func (p Protected) checkMount(own os.FileInfo, path string, readOnly bool) error {
	caissons := p.caissonDirs()
	if err := relate(own, path, slices.Concat(p.userDirs(), caissons), caissons); err != nil {
		return err
	}
	var system []protectedDir
	for _, dir := range kernelDirs {
		system = append(system, protectedDir{dir, dir + ", which is the kernel's"})
	}
	for _, dir := range engineDirs {
		system = append(system, protectedDir{dir, dir + ", by which engines of this machine can be controlled"})
	}
	if err := relate(own, path, system, system); err != nil && !strings.HasPrefix(path, "/run/media/") {
		return err
	}
	if !readOnly && !p.AcceptSystem {
		return refuseSystem(own, path)
	}
	return nil
}

func overlaps(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+string(filepath.Separator)) || strings.HasPrefix(b, a+string(filepath.Separator))
}
