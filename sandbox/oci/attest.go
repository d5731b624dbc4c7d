package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Attest adds what the kernel shows of the process, and refuses a container
// that is weaker than requested.
func (c *container) Attest(ctx context.Context, conn *guest.Conn, a *sandbox.Attestation) error {
	v, err := c.backend.runtime.queryVersion(ctx)
	if err != nil {
		return err
	}
	hello := conn.Hello()
	private := []string{} // a hosted sandbox is in ours, and its /proc/PID/ns can't be read
	a.Isolation = sandbox.IsolationProcess
	if !c.hosted {
		a.Isolation = sandbox.IsolationNamespaces
		if private, err = privateNamespaces(c.process.pid); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
	}
	a.Runtime, a.RuntimeVersion, a.Rootless, a.Namespaces = v.name, v.number, c.backend.rootless, private
	if !c.plan.traits.ownKernel {
		a.SeccompProfile = c.plan.seccomp.SHA256
	}
	if c.plan.cgroup.isLimited() {
		l := c.cgroup.readLimits()
		a.Limits.MemoryBytes, a.Limits.PIDs, a.Limits.MilliCPUs = l.MemoryBytes, l.PIDs, l.MilliCPUs
	}
	if c.job != nil {
		l := c.job.readLimits()
		a.Limits.MemoryBytes, a.Limits.MilliCPUs = l.MemoryBytes, l.MilliCPUs
	}
	if c.plan.traits.ownKernel {
		a.Limits.PIDs = max(hello.Limits.UserPIDs, 0)
	}
	if c.hasMountFlags(hello) {
		a.Lost = slices.DeleteFunc(a.Lost, func(text string) bool { return text == workmount.LostFlags })
	}
	if c.prep.Spec.Root == sandbox.RootEphemeral {
		a.Mounts = append(a.Mounts, c.attestedRoot())
	}
	a.Lost = slices.Concat(a.Lost, c.lost, c.backend.listLost(a.Isolation))
	return c.verifyContainer(hello, private)
}

// hasMountFlags reports whether all mounted directories have nosuid and nodev.
// The runtime sets them even where workmount could not.
func (c *container) hasMountFlags(hello wire.Hello) bool {
	directories := slices.Concat([]wire.Mount{hello.Workspace}, hello.Submounts, hello.Further)
	return !slices.ContainsFunc(directories, func(m wire.Mount) bool {
		// gVisor serves no host devices and does not show nodev.
		return !slices.Contains(m.Options, "nosuid") || !c.plan.traits.ownKernel && !slices.Contains(m.Options, "nodev")
	})
}

// verifyContainer returns every way in which the container is weaker than
// requested.
func (c *container) verifyContainer(hello wire.Hello, private []string) error {
	if err := errors.Join(c.verifyNamespaces(private), c.verifyKernel(hello), c.verifyLimits(hello), c.verifyProcess()); err != nil {
		return lifecycle.WeakError(err)
	}
	return nil
}

func (c *container) verifyNamespaces(private []string) error {
	if c.hosted {
		return nil
	}
	want := c.plan.traits.namespaces
	if c.plan.identity.user != nil {
		want = append([]string{"user"}, want...)
	}
	for _, kind := range want {
		if !slices.Contains(private, kind) {
			return fmt.Errorf("it shares the %s namespace of the host", kind)
		}
	}
	return nil
}

func (c *container) verifyKernel(hello wire.Hello) error {
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		return err
	}
	same := strings.TrimSpace(hello.Kernel) == strings.TrimSpace(string(host))
	switch {
	case c.plan.traits.ownKernel && (same || !lifecycle.IsGVisor(hello)):
		return fmt.Errorf("its kernel is %q, not gVisor", hello.Kernel)
	case !c.plan.traits.ownKernel && !same:
		return fmt.Errorf("its kernel %q is not the host's", hello.Kernel)
	}
	return nil
}

func (c *container) verifyLimits(hello wire.Hello) error {
	r := c.plan.resources
	var errs []error
	if n := hello.Limits.UserPIDs; c.plan.traits.ownKernel && n != r.PIDs {
		errs = append(errs, fmt.Errorf("its limit of processes is %d, not %d", n, r.PIDs))
	}
	if !c.plan.cgroup.isLimited() {
		return errors.Join(errs...)
	}
	got := c.cgroup.readLimits()
	for _, l := range []struct {
		name      string
		got, want int64
	}{
		{"memory", got.MemoryBytes, r.MemoryBytes},
		{"processes", got.PIDs, harden.HostPIDs(r.PIDs, c.plan.traits.ownKernel)},
		{"CPU time", got.MilliCPUs, r.MilliCPUs},
	} {
		// The kernel rounds memory down to whole pages.
		if l.got <= 0 || l.got > l.want {
			errs = append(errs, fmt.Errorf("its limit of %s is %d, not %d", l.name, l.got, l.want))
		}
	}
	if swap := c.cgroup.readSwap(); c.plan.cgroup.swap && swap > r.MemoryBytes {
		errs = append(errs, fmt.Errorf("its limit of memory and swap is %d, not %d", swap, r.MemoryBytes))
	}
	return errors.Join(errs...)
}

// verifyProcess checks the process from the host's side: the container's PID 1,
// or gVisor's kernel, which has more capabilities in its own user namespace.
func (c *container) verifyProcess() error {
	fields := [][2]string{{"NoNewPrivs", "1"}, {"Seccomp", "2"}}
	if !c.plan.traits.ownKernel {
		var caps uint64
		for _, name := range harden.ContainerCapabilities(c.plan.identity.root) {
			caps |= 1 << capabilityNumber[name]
		}
		fields = append(fields, [2]string{"CapBnd", fmt.Sprintf("%016x", caps)})
	}
	var errs []error
	for _, f := range fields {
		got, err := statusField(c.process.pid, f[0])
		switch {
		case err != nil:
			errs = append(errs, err)
		case got != f[1]:
			errs = append(errs, fmt.Errorf("its %s is %q, not %q", f[0], got, f[1]))
		}
	}
	return errors.Join(errs...)
}

var capabilityNumber = map[string]uint{
	"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8,
	"CAP_NET_BIND_SERVICE": 10,
}

// attestedRoot describes the layer of an ephemeral root: with gVisor a tmpfs of
// its own kernel, otherwise a directory.
func (c *container) attestedRoot() sandbox.AttestedMount {
	if c.plan.traits.ownKernel {
		return sandbox.AttestedMount{Target: "/", Type: sandbox.MountTmpfs, Bytes: sandbox.RootBytes}
	}
	return sandbox.AttestedMount{Target: "/", Type: sandbox.MountScratch, Path: c.root.Layer, Bytes: sandbox.RootBytes}
}
