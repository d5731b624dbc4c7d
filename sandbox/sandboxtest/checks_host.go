package sandboxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func hostChecks() []check {
	return []check{
		{name: "an exec gains nothing", shared: true, run: checkExec},
		{name: "planted privilege gives none", fresh: true, plant: plantPrivilege, run: checkPlanted},
		{name: "the host's descriptors stay outside", fresh: true, plant: plantDescriptors, run: checkHostDescriptors},
		{name: "no program that runs can be rewritten", shared: true, run: checkPrograms},
		{name: "a working directory can't lead out", shared: true, run: checkTrickyDirs},
		{name: "sockets and FIFOs of the host", shared: true, run: checkHostSockets},
	}
}

func (e *env) checkUnprivileged(f probing.Facts) error {
	var wrong []error
	for _, id := range []int{f.UID, f.EUID, f.GID, f.EGID} {
		if id == 0 && !e.target.SingleUID {
			wrong = append(wrong, fmt.Errorf("ids %d %d %d %d", f.UID, f.EUID, f.GID, f.EGID))
		}
	}
	for name, set := range map[string]string{
		"CapInh": f.CapInh, "CapPrm": f.CapPrm, "CapEff": f.CapEff, "CapBnd": f.CapBnd, "CapAmb": f.CapAmb,
	} {
		if strings.Trim(set, "0") != "" || set == "" {
			wrong = append(wrong, fmt.Errorf("%s is %q", name, set))
		}
	}
	if f.NoNewPrivs != "1" || f.Seccomp != "2" {
		wrong = append(wrong, fmt.Errorf("NoNewPrivs %q Seccomp %q, want 1 and 2", f.NoNewPrivs, f.Seccomp))
	}
	if f.Groups != 0 {
		wrong = append(wrong, fmt.Errorf("%d supplementary groups", f.Groups))
	}
	return errors.Join(wrong...)
}

// checkExec checks the identity again after an exec, in a child and behind an
// interpreter. The control is the host's own identity.
func checkExec(ctx context.Context, e *env) error {
	script := filepath.Join(e.workspace, probeName+"-script")
	if err := WriteProgram(script, []byte("#!/workspace/"+probeName+" facts\n")); err != nil {
		return err
	}
	for name, argv := range map[string][]string{
		"exec": probeArgv("reexec", "facts"), "exec twice": probeArgv("reexec", "reexec", "facts"),
		"script": {sandbox.WorkspaceDir + "/" + probeName + "-script"},
	} {
		f, err := e.factsOf(ctx, argv)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := e.checkUnprivileged(f); err != nil {
			return fmt.Errorf("behind %s: %w", name, err)
		}
	}
	host, err := parseOutput[probing.Facts](e.runPlain(ctx, "reexec", "facts"))
	if err != nil {
		return err
	}
	if e.checkUnprivileged(host) == nil {
		return e.control(fmt.Errorf("positive control: the host's own identity passes: %+v", host))
	}
	return nil
}

func (e *env) factsOf(ctx context.Context, argv []string) (probing.Facts, error) {
	r, err := e.run(ctx, sandbox.Command{Argv: argv})
	if err == nil && !r.Status.Success() {
		err = fmt.Errorf("%s, stderr %q", r.Status, r.errOut)
	}
	return parseOutput[probing.Facts](r.out, err)
}

// plantPrivilege makes a setuid copy of the probe and one with capabilities,
// like the host's root would.
func plantPrivilege(e *env) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"-setuid", "-caps"} {
		path := filepath.Join(e.workspace, probeName+name)
		data, err := os.ReadFile(e.target.Probe)
		if err != nil {
			return err
		}
		if err := WriteProgram(path, data); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(e.workspace, probeName+"-setuid"), 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		return err
	}
	// DAC_OVERRIDE and NET_RAW, permitted and effective, version 2
	// (linux/capability.h): every root can assign them.
	caps := []byte{1, 0, 0, 2, 0x02, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return unix.Setxattr(filepath.Join(e.workspace, probeName+"-caps"), "security.capability", caps, 0)
}

// checkPlanted runs both, inside and as an ordinary user on the host.
func checkPlanted(ctx context.Context, e *env) error {
	if os.Geteuid() != 0 {
		return skipError("needs root: only root plants privileged files")
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := e.openParents(); err != nil {
		return err
	}
	for _, name := range []string{"-setuid", "-caps"} {
		f, err := e.factsOf(ctx, []string{sandbox.WorkspaceDir + "/" + probeName + name, "facts"})
		if err != nil {
			return err
		}
		if err := e.checkUnprivileged(f); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		host, err := parseOutput[probing.Facts](naiveAs(ctx, e, nobody, filepath.Join(e.workspace, probeName+name), "facts"))
		if err != nil {
			return err
		}
		if host.EUID != 0 && strings.Trim(host.CapEff, "0") == "" {
			return fmt.Errorf("positive control: %s gives nothing on the host either: %+v", name, host)
		}
	}
	return nil
}

// openParents lets every user of the host enter the directories above the
// workspace.
func (e *env) openParents() error {
	for dir := e.workspace; dir != "/" && strings.HasPrefix(dir, os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// plantDescriptors opens host files that every child inherits while the sandbox
// starts.
func plantDescriptors(e *env) error {
	for i := range 8 {
		path := filepath.Join(e.base, fmt.Sprintf("leak-%d", i))
		if err := os.WriteFile(path, []byte("leak"), 0o600); err != nil {
			return err
		}
		fd, err := unix.Open(path, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		e.leaks = append(e.leaks, fd)
	}
	return nil
}

func checkHostDescriptors(ctx context.Context, e *env) error {
	defer func() {
		for _, fd := range e.leaks {
			unix.Close(fd)
		}
	}()
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(f.FDs, []int{0, 1, 2}) {
		return fmt.Errorf("descriptors %v", f.FDs)
	}
	// The guest, and what else of the container the host can see.
	pid, err := e.target.HostProcess(ctx, e.sb)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && strings.Contains(to, "leak-") {
			return fmt.Errorf("the container's first process has %s", to)
		}
	}
	host, err := parseOutput[probing.Facts](e.runPlain(ctx, "facts"))
	if err != nil {
		return err
	}
	if len(host.FDs) < 3+len(e.leaks) {
		return fmt.Errorf("positive control: a child on the host inherits only %v", host.FDs)
	}
	return nil
}

// checkPrograms tries to open running programs for writing while commands come
// and go, among them a script that is its own interpreter (CVE-2019-5736), and
// compares the files on the host.
func checkPrograms(ctx context.Context, e *env) error {
	before, err := fileHashes(e.target.Programs)
	if err != nil {
		return err
	}
	trap := filepath.Join(e.workspace, probeName+"-itself")
	if err := WriteProgram(trap, []byte("#!/proc/self/exe\n")); err != nil {
		return err
	}
	control := filepath.Join(e.workspace, "rewritable")
	if err := os.WriteFile(control, []byte("x"), 0o666); err != nil {
		return err
	}
	if err := os.Chmod(control, 0o666); err != nil {
		return err
	}
	var wait sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wait.Go(func() {
			for range 10 {
				if _, err := e.run(ctx, sandbox.Command{Argv: []string{sandbox.WorkspaceDir + "/" + probeName + "-itself"}}); err != nil {
					errs[i] = err
				}
				out, err := e.expectOutput(ctx, "overwrite", "rewritable")
				if err == nil && out != "rewritable\n" {
					err = fmt.Errorf("can be opened for writing: %q, want only the control", out)
				}
				if err != nil {
					errs[i] = err
				}
			}
		})
	}
	wait.Wait()
	after, err := fileHashes(e.target.Programs)
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		errs = append(errs, fmt.Errorf("the programs %q changed", e.target.Programs))
	}
	return errors.Join(errs...)
}

func fileHashes(paths []string) ([]string, error) {
	var list []string
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		list = append(list, hex.EncodeToString(h.Sum(nil)))
	}
	return list, nil
}

// checkTrickyDirs asks for working directories through which a naive chdir
// would get out.
func checkTrickyDirs(ctx context.Context, e *env) error {
	outside, err := os.Open(e.base)
	if err != nil {
		return err
	}
	defer outside.Close()
	links := map[string]string{
		"to-root": "/", "to-descriptor": fmt.Sprintf("/proc/self/fd/%d", outside.Fd()), "to-cwd": "/proc/self/cwd/..",
		"to-root-of-1": "/proc/1/root", "up": "../..", "to-link": "up",
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(e.workspace, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: sandbox.WorkspaceDir + "/" + name})
		if !isInvalid(err) {
			return errorf("working directory %s (to %s): error %w, out %q; want ErrInvalid", name, to, err, r.out)
		}
	}
	for n := range 20 {
		dir := fmt.Sprintf("/proc/self/fd/%d", n)
		if _, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: dir}); !isInvalid(err) {
			return errorf("working directory %s: %w, want ErrInvalid", dir, err)
		}
	}
	if err := linkInside(ctx, e); err != nil {
		return err
	}
	// Control: the host's kernel follows the symlink.
	info, err := os.Stat(filepath.Join(e.workspace, "up"))
	if err != nil || !info.IsDir() {
		return errorf("positive control: %w", err)
	}
	return removedDir(ctx, e)
}

// linkInside asks for a working directory through a symlink inside the
// workspace: it is followed, or refused with NoLinks.
func linkInside(ctx context.Context, e *env) error {
	if err := os.MkdirAll(filepath.Join(e.workspace, "real", "deep"), 0o777); err != nil {
		return err
	}
	if err := os.Symlink("real", filepath.Join(e.workspace, "alias")); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, dir := range []string{"alias", "alias/deep", "real/../alias"} {
		cmd := sandbox.Command{Argv: probeArgv("cwd"), Dir: sandbox.WorkspaceDir + "/" + dir}
		if _, err := e.run(ctx, cmd); err != nil {
			return fmt.Errorf("positive control: working directory %s: %w", dir, err)
		}
		cmd.NoLinks = true
		if r, err := e.run(ctx, cmd); !isInvalid(err) {
			return errorf("working directory %s without links: error %w, out %q; want ErrInvalid", dir, err, r.out)
		}
	}
	for _, dir := range []string{"real/deep", "real", ""} {
		if _, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: strings.TrimSuffix(sandbox.WorkspaceDir+"/"+dir, "/"), NoLinks: true}); err != nil {
			return fmt.Errorf("working directory %s without links: %w", dir, err)
		}
	}
	return nil
}

// removedDir: a missing directory is an error, but a command may lose its
// directory.
func removedDir(ctx context.Context, e *env) error {
	gone := filepath.Join(e.workspace, "gone")
	if err := os.MkdirAll(gone, 0o777); err != nil {
		return err
	}
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("sleep", newMarker()), Dir: sandbox.WorkspaceDir + "/gone", Grace: testGrace})
	if err != nil {
		return err
	}
	if err := os.Remove(gone); err != nil {
		return err
	}
	if _, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: sandbox.WorkspaceDir + "/gone"}); !isInvalid(err) {
		return errorf("a directory that is gone: %w, want ErrInvalid", err)
	}
	cancel()
	_, err = waitProcess(ctx, p)
	return err
}

// checkHostSockets connects to what a host process serves in the workspace. A
// sandbox with its own kernel can't. With the host's kernel, a socket is a file
// like any other (docs/sandbox.md).
func checkHostSockets(ctx context.Context, e *env) error {
	socket, fifo := filepath.Join(e.workspace, "host.sock"), filepath.Join(e.workspace, "host.fifo")
	// By the descriptor: a socket's path has at most 108 bytes.
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/host.sock", e.dir.Fd()))
	if err != nil {
		return err
	}
	defer l.Close()
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		return err
	}
	defer os.Remove(fifo)
	for _, path := range []string{socket, fifo} {
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer reader.Close()
	out, err := e.expectOutput(ctx, "connect", "host.sock", "host.fifo")
	if err != nil {
		return err
	}
	if e.target.OwnKernel && out != "" {
		return fmt.Errorf("reached from inside: %q", out)
	}
	control := &env{target: e.target, base: e.workspace}
	if host, err := control.runPlain(ctx, "connect", "host.sock", "host.fifo"); err != nil || host != "host.sock\nhost.fifo\n" {
		return errorf("positive control: the host reaches %q, %w", host, err)
	}
	return nil
}
