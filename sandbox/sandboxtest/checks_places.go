package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

type mountLine struct {
	root, point, kind string
	options, super    []string
}

// hasOption reports whether the mount or its file system has an option.
func (m mountLine) hasOption(option string) bool {
	return slices.Contains(m.options, option) || slices.Contains(m.super, option)
}

func parseMounts(text string) ([]mountLine, error) {
	var list []mountLine
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			return nil, fmt.Errorf("mount table has %q", line)
		}
		list = append(list, mountLine{root: f[3], point: f[4], kind: g[0], options: strings.Split(f[5], ","), super: strings.Split(g[2], ",")})
	}
	return list, nil
}

// kernelMounts are the kinds of the kernel's own file systems.
var kernelMounts = map[string][]string{
	"/proc": {"proc"}, "/dev": {"tmpfs", "dev"}, "/dev/pts": {"devpts"}, "/dev/mqueue": {"mqueue"}, "/sys": {"sysfs"},
	"/sys/fs/cgroup": {"tmpfs", "cgroup2", "cgroup"},
}

// checkMounts compares every line of the mount table with the plan. What is not
// planned must be a read-only part of the image. The control is the workspace,
// which must be there and writable.
func checkMounts(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "read", "/proc/self/mountinfo")
	if err != nil {
		return err
	}
	list, err := parseMounts(out)
	if err != nil {
		return err
	}
	tmpfs := map[string]harden.Tmpfs{}
	for _, t := range harden.TmpfsMounts(limits.DefaultResources(), sandbox.CommandUID, sandbox.CommandGID) {
		tmpfs[t.Path] = t
	}
	var wrong []error
	seen := map[string]bool{}
	for _, m := range list {
		seen[m.point] = true
		var err error
		if t, ok := tmpfs[m.point]; ok {
			err = sameTmpfs(e, m, t)
		} else {
			err = sameMount(e, m)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("mount at %s (%s %v %v): %w", m.point, m.kind, m.options, m.super, err))
		}
	}
	for _, point := range []string{"/", "/proc", "/dev", "/tmp", "/run", "/dev/shm", sandbox.HomeDir, sandbox.WorkspaceDir, sandbox.GuestPath} {
		if !seen[point] {
			wrong = append(wrong, fmt.Errorf("nothing is mounted at %s", point))
		}
	}
	return errors.Join(wrong...)
}

// sameMount asserts that a mount other than our tmpfs is planned, and has the
// planned options.
func sameMount(e *env, m mountLine) error {
	kinds, kernel := kernelMounts[m.point]
	switch {
	case strings.Contains(m.point+m.root, "docker.sock") || strings.Contains(m.point+m.root, "containerd.sock"):
		return errors.New("an engine's socket")
	case (m.point == sandbox.WorkspaceDir || m.point == sandbox.HomeDir) && slices.Contains(e.sb.Attestation().Lost, workmount.LostFlags):
		return nil // for users who may not mount, an engine mounts it without flags
	case m.point == sandbox.WorkspaceDir || m.point == sandbox.HomeDir:
		return checkMountOptions(e, m, "rw")
	case kernel && !slices.Contains(kinds, m.kind):
		return fmt.Errorf("a file system of kind %s", m.kind)
	case m.point == "/dev" && e.target.SingleUID:
		return checkMountOptions(e, m, "ro")
	case m.point == "/sys/fs/cgroup":
		return checkMountOptions(e, m) // the directory of the controllers, which are themselves read-only
	case m.point == "/dev" || m.point == "/proc" || m.point == "/dev/pts" || m.point == "/dev/mqueue":
		return checkMountOptions(e, m, "rw")
	case strings.HasPrefix(m.point, "/dev/"):
		return sameDevice(m)
	case slices.Contains(harden.MaskedPaths(), m.point) && m.root == "/null":
		return nil // the empty device
	case (e.target.OwnKernel || e.target.Remapped) && m.kind == "cgroup" && strings.HasPrefix(m.point, "/sys/fs/cgroup/"):
		// An engine asks for cgroup mounts. gVisor's are its own kernel's and
		// show no options, and in user namespaces they are writable.
		// checkPlaces shows that commands can't write there.
		return nil
	case !m.hasOption("ro"):
		return errors.New("is writable, and not planned to be")
	}
	return nil
}

// sameDevice accepts only harmless devices: an ordinary user's runtime can't
// make them, and binds the host's.
func sameDevice(m mountLine) error {
	if !slices.Contains([]string{"null", "zero", "full", "random", "urandom", "tty", "console"}, path.Base(m.point)) {
		return errors.New("a device that is not planned")
	}
	return nil
}

// checkMountOptions asserts nosuid, nodev and the given options. gVisor serves
// no host devices and does not show nodev; a /dev has devices.
func checkMountOptions(e *env, m mountLine, options ...string) error {
	options = append(options, "nosuid")
	if !e.target.OwnKernel && m.point != "/dev" && m.point != "/dev/pts" {
		options = append(options, "nodev")
	}
	for _, o := range options {
		if !m.hasOption(o) {
			return fmt.Errorf("is not %s", o)
		}
	}
	return nil
}

func sameTmpfs(e *env, m mountLine, t harden.Tmpfs) error {
	options := []string{"rw"}
	if !t.Exec {
		options = append(options, "noexec")
	}
	if m.kind != "tmpfs" {
		return errors.New("no tmpfs")
	}
	i := slices.IndexFunc(m.super, func(o string) bool { return strings.HasPrefix(o, "size=") })
	if i < 0 {
		return errors.New("has no size")
	}
	size, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(m.super[i], "size="), "k"), 10, 64)
	if err != nil || size<<10 != t.Bytes {
		return fmt.Errorf("size %s, want %d bytes", m.super[i], t.Bytes)
	}
	return checkMountOptions(e, m, options...)
}

func smallPlaces(r *limits.Resources) { r.TmpBytes, r.ShmBytes = 8<<20, 8<<20 }

// checkPlaces finds every writable directory outside the workspace, fills it
// with bytes and with files until it refuses, and frees it. The runner bounds
// the workspace and the home, which are the host's directories.
func checkPlaces(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "find-writable")
	if err != nil {
		return err
	}
	planned := []string{"/tmp", sandbox.HomeDir, "/dev/shm"}
	places := strings.Fields(out)
	for _, p := range planned {
		if !slices.Contains(places, p) {
			return fmt.Errorf("positive control: %s is not found to be writable: %q", p, places)
		}
	}
	for _, p := range places {
		if !slices.Contains(planned, p) && p != "/dev/mqueue" && !(e.target.SingleUID && p == "/run") {
			return fmt.Errorf("%s is writable, and not planned to be", p)
		}
		if p == sandbox.HomeDir {
			continue
		}
		if err := checkBounded(ctx, e, p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return e.expectWorking(ctx)
}

// checkBounded fills a place twice: freed space must be usable again.
func checkBounded(ctx context.Context, e *env, place string) error {
	for range 2 {
		out, err := e.expectOutput(ctx, "fill", place+"/big", strconv.Itoa(64<<20))
		if err != nil && place != "/dev/mqueue" {
			return err
		}
		var wrote int64
		var answer string
		if _, err := fmt.Sscan(out, &wrote, &answer); err == nil && (wrote > 17<<20 || answer == "none") {
			return fmt.Errorf("%d bytes could be written: %s", wrote, answer)
		}
	}
	// An engine's /dev/shm and gVisor's tmpfs don't count files. They are
	// charged to the memory limit, so a few show that the place goes on working.
	counted := !e.target.OwnKernel && place != "/dev/shm"
	many := 20_000
	if !counted {
		many = 1_000
	}
	out, err := e.expectOutput(ctx, "fill-files", place, strconv.Itoa(many))
	if err != nil && place != "/dev/mqueue" {
		return err
	}
	if strings.HasPrefix(out, strconv.Itoa(many)) && counted {
		return fmt.Errorf("%d files could be made", many)
	}
	return nil
}
