package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

func mountChecks() []check {
	return []check{
		{name: "further mounts are what was asked for", run: checkFurtherMounts},
		{name: "a copy-on-write mount leaves its directory alone", run: checkLayeredMount},
		{name: "mounts that lead elsewhere are refused", run: checkRefusedMounts},
	}
}

type hostDir struct {
	path string
	file *os.File
}

// makeHostDir makes a directory with one file beside the workspace, with the
// same owner.
func makeHostDir(e *env, name, content string) (hostDir, error) {
	d := hostDir{path: filepath.Join(e.base, name)}
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return d, err
	}
	file := filepath.Join(d.path, "content")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		return d, err
	}
	err := giveToOwner(d.path, file)
	if err == nil {
		d.file, err = os.Open(d.path)
	}
	return d, err
}

func (d hostDir) makeRepository() error {
	for _, name := range []string{".git", ".caisson", "sub", "sub/.git"} {
		dir := filepath.Join(d.path, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), giveToOwner(dir)); err != nil {
			return err
		}
	}
	return nil
}

func (d hostDir) mountAt(target string, readOnly bool) sandbox.Mount {
	return sandbox.Mount{Target: target, Path: d.path, Dir: d.file, ReadOnly: readOnly}
}

const (
	readOnlyTarget = "/further-read-only"
	writableTarget = "/further/writable"
	swappedTarget  = "/further/swapped"
	guardedTarget  = "/further/guarded"
	tmpfsTarget    = "/further/tmpfs"
	scratchTarget  = sandbox.HomeDir + "/a/scratch"
	homeTarget     = sandbox.HomeDir + "/b/c/bind"
)

// checkFurtherMounts starts a sandbox with one mount of each kind and checks
// all of them from both sides.
func checkFurtherMounts(ctx context.Context, e *env) (err error) {
	other := newEnv(e.target, filepath.Join(e.base, "further"))
	dirs := map[string]hostDir{}
	defer func() {
		for _, d := range dirs {
			err = errors.Join(err, d.file.Close())
		}
	}()
	for _, name := range []string{"read-only", "writable", "swapped", "guarded", "in-home"} {
		if dirs[name], err = makeHostDir(other, name, name); err != nil {
			return err
		}
	}
	if err := dirs["guarded"].makeRepository(); err != nil {
		return err
	}
	guarded := dirs["guarded"].mountAt(guardedTarget, false)
	guarded.Guarded, guarded.Repositories = true, []string{"sub/.git"}
	// The open directory counts, wherever its path leads by now.
	if err := errors.Join(
		os.Rename(dirs["swapped"].path, dirs["swapped"].path+"-moved"), os.Symlink("/etc", dirs["swapped"].path),
		os.Symlink("/etc", filepath.Join(dirs["writable"].path, "link")),
	); err != nil {
		return err
	}
	other.mounts = []sandbox.Mount{
		guarded,
		dirs["in-home"].mountAt(homeTarget, false),
		dirs["read-only"].mountAt(readOnlyTarget, true), dirs["writable"].mountAt(writableTarget, false), dirs["swapped"].mountAt(swappedTarget, true),
		{Target: tmpfsTarget, Type: sandbox.MountTmpfs, Bytes: 4 << 20},
		{Target: scratchTarget, Type: sandbox.MountScratch, Bytes: 1 << 30},
	}
	if err := other.start(ctx, nil); err != nil {
		return err
	}
	state := other.stateDir()
	err = errors.Join(checkContents(ctx, other, dirs), checkWrites(ctx, other, dirs), checkAttestedMounts(other))
	err = errors.Join(err, other.close(ctx))
	if left, globErr := filepath.Glob(filepath.Join(state, "*")); globErr != nil || len(left) > 0 {
		err = errors.Join(err, globErr, fmt.Errorf("left in the session's directory: %q", left))
	}
	if names, readErr := os.ReadDir(dirs["in-home"].path); readErr != nil || len(names) != 2 {
		err = errors.Join(err, readErr, fmt.Errorf("the mounted directory has %v, want its own file and the command's", names))
	}
	return err
}

func checkContents(ctx context.Context, e *env, dirs map[string]hostDir) error {
	for target, want := range map[string]string{readOnlyTarget: "read-only", writableTarget: "writable", swappedTarget: "swapped", homeTarget: "in-home"} {
		if got, err := e.expectOutput(ctx, "read", target+"/content"); err != nil || got != want {
			return errorf("%s: %q, %w; want %q", target, got, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dirs["writable"].path, "content"), []byte("changed outside"), 0o644); err != nil {
		return err
	}
	if got, err := e.expectOutput(ctx, "read", writableTarget+"/content"); err != nil || got != "changed outside" {
		return errorf("%s after a change of the host: %q, %w", writableTarget, got, err)
	}
	return nil
}

// checkWrites writes into each mount. What commands make in a host directory
// belongs to the workspace's owner. The home, and the directories made in it
// for mount points, belong to commands.
func checkWrites(ctx context.Context, e *env, dirs map[string]hostDir) error {
	for _, dir := range []string{sandbox.HomeDir, sandbox.HomeDir + "/b", sandbox.HomeDir + "/b/c", writableTarget, tmpfsTarget, scratchTarget, homeTarget, guardedTarget, guardedTarget + "/sub"} {
		if _, err := e.expectOutput(ctx, "touch", dir+"/by-command"); err != nil {
			return err
		}
	}
	for _, target := range []string{readOnlyTarget, swappedTarget, guardedTarget + "/.git", guardedTarget + "/.caisson", guardedTarget + "/sub/.git"} {
		r, err := e.runProbe(ctx, "touch", target+"/by-command")
		if err != nil {
			return err
		}
		if r.Status.Success() {
			return fmt.Errorf("a command writes to %s, which is read-only", target)
		}
	}
	want, err := ownerOf(e.workspace)
	if err != nil {
		return err
	}
	for _, name := range []string{"writable", "in-home"} {
		if got, err := ownerOf(filepath.Join(dirs[name].path, "by-command")); err != nil || got != want {
			return errorf("what a command made in a mount belongs to %s (%w), want the workspace's owner %s", got, err, want)
		}
	}
	return nil
}

func checkAttestedMounts(e *env) error {
	want := []string{
		"/further-read-only bind true", "/further/guarded bind false", "/further/swapped bind true", "/further/tmpfs tmpfs false", "/further/writable bind false",
		"/home/agent scratch false", "/home/agent/a/scratch scratch false", "/home/agent/b/c/bind bind false",
	}
	var got []string
	for _, m := range e.sb.Attestation().Mounts {
		got = append(got, fmt.Sprintf("%s %s %v", m.Target, m.Type, m.ReadOnly))
		if m.Type == sandbox.MountTmpfs && (m.Bytes <= 0 || m.Bytes > 4<<20) {
			return fmt.Errorf("%s is attested with %d bytes", m.Target, m.Bytes)
		}
		if (m.Path != "") != (m.Type != sandbox.MountTmpfs) {
			return fmt.Errorf("%s is attested with host path %q", m.Target, m.Path)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("attested mounts %q, want %q", got, want)
	}
	return nil
}

// checkLayeredMount starts a sandbox with a copy-on-write mount, which is
// refused if this process can't mount an overlay.
func checkLayeredMount(ctx context.Context, e *env) (err error) {
	other := newEnv(e.target, filepath.Join(e.base, "layered"))
	remove, err := addLayered(other)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	err = other.start(ctx, nil)
	if e.target.NoLayeredMounts {
		return other.expectRefused(ctx, err, sandbox.ErrUnsupported, "")
	}
	if err != nil {
		return err
	}
	return errors.Join(checkLayered(ctx, other), other.close(ctx))
}

func addLayered(e *env) (remove func() error, err error) {
	dir, err := makeHostDir(e, "lower", "lower")
	if err != nil {
		return nil, err
	}
	m := dir.mountAt(writableTarget, false)
	m.Layers = filepath.Join(e.target.StateDir, "layers-"+ulid.Make().String())
	layers, err := overlay.Create(m.Layers, overlay.CreateOptions{Session: e.session, Path: dir.path, Workspace: dir.file})
	if err != nil {
		return nil, errors.Join(err, dir.file.Close())
	}
	e.mounts = append(e.mounts, m)
	return func() error { return errors.Join(dir.file.Close(), layers.Close(), os.RemoveAll(m.Layers)) }, nil
}

func checkLayered(ctx context.Context, e *env) error {
	m := e.mounts[len(e.mounts)-1]
	if got, err := e.expectOutput(ctx, "read", writableTarget+"/content"); err != nil || got != "lower" {
		return errorf("%q, %w; want lower", got, err)
	}
	for _, name := range []string{"content", "by-command"} {
		if _, err := e.expectOutput(ctx, "touch", writableTarget+"/"+name); err != nil {
			return err
		}
	}
	kept, readErr := os.ReadFile(filepath.Join(m.Layers, "upper/by-command"))
	content, err := os.ReadFile(filepath.Join(m.Path, "content"))
	if err := errors.Join(err, readErr); err != nil || string(content) != "lower" || string(kept) != "x" {
		return errorf("the directory has %q, the layers %q: %w", content, kept, err)
	}
	if _, err := os.Lstat(filepath.Join(m.Path, "by-command")); !errors.Is(err, os.ErrNotExist) {
		return errorf("a command's file is in the directory itself: %w", err)
	}
	return nil
}

// checkRefusedMounts asks for mounts through which commands would reach what
// they must not. The control is checkFurtherMounts.
func checkRefusedMounts(ctx context.Context, e *env) error {
	own, err := makeHostDir(e, "refused", "x")
	if err != nil {
		return err
	}
	defer own.file.Close()
	list := map[string]sandbox.Mount{
		"no directory":        {Target: "/x"},
		"unknown type":        {Target: "/x", Type: "nfs"},
		"tmpfs without size":  {Target: "/x", Type: sandbox.MountTmpfs},
		"read-only scratch":   {Target: "/x", Type: sandbox.MountScratch, Bytes: 1 << 30, ReadOnly: true},
		"bind with a size":    {Target: "/x", Path: own.path, Dir: own.file, Bytes: 1 << 30},
		"read-only guarded":   {Target: "/x", Path: own.path, Dir: own.file, ReadOnly: true, Guarded: true},
		"relative layers":     {Target: "/x", Path: own.path, Dir: own.file, Layers: "x"},
		"tmpfs of a host dir": {Target: "/x", Type: sandbox.MountTmpfs, Bytes: 1 << 30, Path: own.path, Dir: own.file},
	}
	for _, target := range []string{
		"", "x", "/", "/x/", "/x/../etc", "/x:y", "/x\n", "/workspace", "/workspace/x", "/.caisson", "/.caisson/x", "/proc/x", "/sys", "/dev/x", "/home",
		sandbox.HomeDir, "/tmp", "/run", "/etc", "/bin/x", "/usr/no-such-directory-of-the-image",
	} {
		list["target "+target] = own.mountAt(target, true)
	}
	for _, path := range []string{
		"/", "/proc", "/proc/self", "/sys/kernel", "/dev", "/dev/shm", e.stateDir(), filepath.Dir(e.stateDir()), e.workspace, filepath.Dir(e.workspace),
		filepath.Join(e.workspace, "inside"), filepath.Join(own.path, "content"), filepath.Join(own.path, "gone"),
	} {
		if name := filepath.Base(path); name == "inside" || name == "gone" {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
		}
		dir, err := os.Open(path)
		if err != nil {
			return err
		}
		defer dir.Close()
		list["directory "+path] = sandbox.Mount{Target: "/x", Path: path, Dir: dir, ReadOnly: true}
	}
	if err := os.Remove(filepath.Join(own.path, "gone")); err != nil {
		return err
	}
	for name, m := range list {
		if err := expectMountsRefused(ctx, e, m); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.Join(
		expectMountsRefused(ctx, e, own.mountAt("/x", true), own.mountAt("/x", true)),
		expectMountsRefused(ctx, e, own.mountAt("/x", false), own.mountAt("/y", false)),
	)
}

func expectMountsRefused(ctx context.Context, e *env, mounts ...sandbox.Mount) error {
	other := newEnv(e.target, e.base)
	other.mounts = mounts
	return other.expectRefused(ctx, other.start(ctx, nil), sandbox.ErrInvalid, "mount")
}
