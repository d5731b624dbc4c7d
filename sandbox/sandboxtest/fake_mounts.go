//go:build linux

package sandboxtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeMount is a further mount of a fake: a directory of the host.
type fakeMount struct {
	sandbox.Mount
	dir string
}

// makeMounts makes what stands for a spec's further mounts, and the home.
func (s *fakeSandbox) makeMounts() error {
	list := append(slices.Clone(s.spec.Mounts), sandbox.Mount{Target: sandbox.HomeDir, Type: sandbox.MountScratch, Bytes: s.spec.Resources.HomeBytes})
	slices.SortFunc(list, func(a, b sandbox.Mount) int { return strings.Compare(a.Target, b.Target) })
	for i, m := range list {
		f := fakeMount{Mount: m}
		f.Type = cmp.Or(m.Type, sandbox.MountBind)
		if m.Dir != nil {
			f.dir = fmt.Sprintf("/proc/self/fd/%d", m.Dir.Fd())
		} else {
			f.dir = filepath.Join(s.spec.Dir, "mount-"+strconv.Itoa(i))
			for _, below := range list {
				if inside, ok := strings.CutPrefix(below.Target, m.Target+"/"); ok {
					if err := os.MkdirAll(filepath.Join(f.dir, inside), 0o755); err != nil {
						return err
					}
				}
			}
			if err := os.MkdirAll(f.dir, 0o700); err != nil {
				return err
			}
		}
		s.mounts = append(s.mounts, f)
	}
	return nil
}

// removeMounts removes what makeMounts made.
func (s *fakeSandbox) removeMounts() error {
	var errs []error
	for _, m := range s.mounts {
		if m.Dir == nil && s.backend.Fault != FaultScratchLeft {
			errs = append(errs, os.RemoveAll(m.dir))
		}
	}
	return errors.Join(errs...)
}

// locate returns the host directory in which a path of the container is, and
// the path in it.
func (s *fakeSandbox) locate(name string) (dir, rel string, readOnly bool) {
	for _, m := range slices.Backward(s.mounts) {
		if inside, ok := strings.CutPrefix(name, m.Target+"/"); ok {
			first, _, _ := strings.Cut(inside, "/")
			guarded := m.Guarded && (first == ".git" || first == ".caisson" || slices.ContainsFunc(m.Repositories, func(r string) bool { return contains(r, inside) }))
			return m.dir, inside, (m.ReadOnly || guarded) && s.backend.Fault != FaultMountWritable
		}
	}
	return s.spec.Workspace.Path, name, false
}

// attestMounts returns the attested mounts.
func (s *fakeSandbox) attestMounts() []sandbox.AttestedMount {
	var list []sandbox.AttestedMount
	for _, m := range s.mounts {
		a := sandbox.AttestedMount{Target: m.Target, Type: m.Type, ReadOnly: m.ReadOnly, Path: m.Path}
		switch m.Type {
		case sandbox.MountTmpfs:
			a.Bytes = m.Bytes
		case sandbox.MountScratch:
			a.Path, a.Bytes = m.dir, m.Bytes
		}
		list = append(list, a)
	}
	return list
}

// checkMountsOf refuses mounts as a backend does.
func checkMountsOf(spec sandbox.Spec, stateDir string) error {
	targets := map[string]bool{}
	writable := map[string]bool{}
	for _, m := range spec.Mounts {
		host := m.Type == "" || m.Type == sandbox.MountBind
		sized := m.Type == sandbox.MountTmpfs || m.Type == sandbox.MountScratch
		if err := sandbox.CheckMountTarget(m.Target, spec.Workspace.Target); err != nil {
			return err
		}
		switch {
		case targets[m.Target], contains("/bin", m.Target), contains("/usr", m.Target): // the fake's image has these two
			return fmt.Errorf("mount target %q", m.Target)
		case m.ReadOnly && m.Guarded, m.Layers != "" && !filepath.IsAbs(m.Layers):
			return fmt.Errorf("mount %+v", m)
		case !host && !sized, host != (m.Dir != nil), host != (m.Bytes == 0), sized && m.ReadOnly:
			return fmt.Errorf("mount %+v", m)
		}
		targets[m.Target] = true
		if !host {
			continue
		}
		if err := checkMountDir(spec, stateDir, m); err != nil {
			return err
		}
		if writable[m.Path] {
			return fmt.Errorf("mount of %s twice", m.Path)
		}
		writable[m.Path] = !m.ReadOnly
	}
	return nil
}

func checkMountDir(spec sandbox.Spec, stateDir string, m sandbox.Mount) error {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", m.Dir.Fd()))
	if err != nil {
		return err
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return fmt.Errorf("mount of %s, which is no directory: %w", real, err)
	}
	for _, own := range []string{spec.Workspace.Path, spec.Dir, stateDir, "/proc", "/sys", "/dev"} {
		if own == "" {
			continue
		}
		if contains(real, own) || contains(own, real) {
			return fmt.Errorf("mount of %s", real)
		}
	}
	return nil
}

// contains reports whether a path is a directory or lies in it.
func contains(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// listWritable returns the paths that a command can write to.
func listWritable(c *fakeCommand) string {
	if c.sb.spec.Root == sandbox.RootEphemeral && c.sb.backend.Fault != FaultRootClosed {
		home := ""
		if c.sb.account.UID != 0 {
			home = c.sb.account.Home + "\n"
		}
		return home + openDir + "\n" + openDir + "/file\n" + sandbox.WorkspaceDir + "\n"
	}
	return sandbox.WorkspaceDir + "\n"
}

// scarRoot changes the root of the sandbox that a command runs in.
func (f *Fake) scarRoot() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scarred = true
	return "write\nremove\nreplace\nhard link\nclosed\ndeep\nmany\nsparse\n"
}

// listScars returns what is in a root. A fake without a fault forgets changes
// when they are looked at from inside once.
func (f *Fake) listScars(*fakeSandbox) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.scarred {
		return "file\nvictim\n"
	}
	f.scarred = f.Fault == FaultRootKept
	return "file: changed\n"
}

// sendCopy makes the copy of the workspace, which takes its place.
func (s *fakeSandbox) sendCopy(ctx context.Context) error {
	w := &s.spec.Workspace
	dir := filepath.Join(s.spec.Dir, "copy")
	if s.backend.Fault == FaultCopyIsNone {
		dir = w.Path
	} else {
		var tree bytes.Buffer
		if err := overlay.WriteTree(ctx, &tree, w.Layers, w.Lowers, w.Dir, overlay.DefaultCopyBounds); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := archive.Unpack(&tree, dir, archive.Bounds{}); err != nil {
			return err
		}
	}
	held, err := os.Open(dir)
	if err != nil {
		return err
	}
	r, err := workspace.NewReader(held, workspace.ReaderOptions{ContainerPath: s.mountPoint()})
	if err == nil {
		s.copy, err = overlay.OpenCopy(ctx, w.Layers, r, overlay.DefaultCopyBounds)
	}
	if err != nil {
		return errors.Join(err, held.Close())
	}
	s.view, w.Dir, w.Path = r, held, dir
	return nil
}

// removeCopy removes the copy.
func (s *fakeSandbox) removeCopy() error {
	if s.copy == nil {
		return nil
	}
	s.copy = nil
	err := s.spec.Workspace.Dir.Close()
	if s.backend.Fault != FaultCopyIsNone {
		err = errors.Join(err, os.RemoveAll(s.spec.Workspace.Path))
	}
	return err
}

// Collect collects the changes of a copy, with the fault of the fake.
func (s *fakeSandbox) Collect(ctx context.Context) error {
	if err := s.life.Require("collect", sandbox.StateRunning); err != nil {
		return err
	}
	if s.copy == nil {
		return sandbox.ErrState
	}
	if err := s.copy.Collect(ctx); err != nil {
		return err
	}
	upper := filepath.Join(s.spec.Workspace.Layers, overlay.UpperDir)
	return filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == upper {
			return err
		}
		return s.bendCollected(path, d)
	})
}

// bendCollected damages one entry of the upper layer as the fault of the fake does.
func (s *fakeSandbox) bendCollected(path string, d fs.DirEntry) error {
	switch kind := d.Type(); s.backend.Fault {
	case FaultCopyKeeps:
		if kind&fs.ModeCharDevice != 0 {
			return os.Remove(path)
		}
	case FaultCopyModes:
		if kind.IsDir() {
			return os.Chmod(path, 0o755)
		}
	case FaultCopyFollows:
		if kind == fs.ModeSymlink {
			return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o644))
		}
	case FaultCopyOpaque:
		if kind.IsDir() {
			return unix.Lsetxattr(path, "user.overlay.opaque", []byte("y"), 0)
		}
	case FaultCopyStale:
		if kind.IsRegular() {
			return os.Truncate(path, 0)
		}
	}
	return nil
}
