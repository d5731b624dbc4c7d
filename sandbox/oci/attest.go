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
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// attest puts together what the guest observed and what the kernel says of
// the process, and refuses a container that is weaker than it must be.
func (c *container) attest(ctx context.Context, spec sandbox.Spec) error {
	v, err := c.backend.runtime.version(ctx)
	if err != nil {
		return err
	}
	hello := c.conn.Hello()
	private, err := privateNamespaces(c.process.pid)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	a := guest.Attest(hello)
	a.Backend, a.Runtime, a.RuntimeVersion, a.Container = c.backend.Name(), v.name, v.number, c.id
	a.Image, a.ImageDigest, a.GuestSHA256 = spec.Image.String(), c.plan.image.Digest, c.guestSHA256
	a.Rootless, a.Namespaces = c.backend.rootless, private
	a.Workspace, a.WorkspaceMode, a.IDMapped = c.prepared.Path, string(c.prepared.Mode), c.prepared.IDMapped
	a.WorkspaceOwner = fmt.Sprintf("%d:%d", c.prepared.OwnerUID, c.prepared.OwnerGID)
	a.Git = string(spec.Git)
	if a.Git == "" {
		a.Git = string(sandbox.GitReadOnly)
	}
	if !c.plan.traits.ownKernel {
		a.SeccompProfile = c.plan.seccomp.SHA256
	}
	if c.plan.cgroup.path != "" {
		l := c.cgroup.limits()
		a.Limits.MemoryBytes, a.Limits.PIDs, a.Limits.MilliCPUs = l.MemoryBytes, l.PIDs, l.MilliCPUs
	}
	if c.plan.traits.ownKernel {
		a.Limits.PIDs = max(hello.Limits.UserPIDs, 0)
	}
	a.Lost = slices.Concat(a.Lost, c.lost, c.workspaceLost(hello), c.backend.lost())
	c.attested = a
	return c.verify(hello, private)
}

// workspaceLost is what the workspace's mounts lack. The runtime sets the flags
// also where workmount could not.
func (c *container) workspaceLost(hello wire.Hello) []string {
	return slices.DeleteFunc(slices.Clone(c.prepared.Lost), func(text string) bool {
		return text == workmount.LostFlags && !slices.ContainsFunc(workspaceMounts(hello), func(m wire.Mount) bool {
			// gVisor serves no device of the host's, and does not show nodev.
			return !slices.Contains(m.Options, "nosuid") || !c.plan.traits.ownKernel && !slices.Contains(m.Options, "nodev")
		})
	})
}

// workspaceMounts are the mounts of the workspace and in it, as seen inside.
func workspaceMounts(hello wire.Hello) []wire.Mount {
	return append([]wire.Mount{hello.Workspace}, hello.Submounts...)
}

// verify joins every way in which the container is weaker than was asked.
func (c *container) verify(hello wire.Hello, private []string) error {
	weak := []error{
		guest.VerifyHardening(hello, c.expectation()),
		c.verifyNamespaces(private),
		c.verifyKernel(hello),
		c.verifyWorkspace(hello),
		c.verifyLimits(hello),
		c.verifyProcess(),
	}
	if err := errors.Join(weak...); err != nil {
		return fmt.Errorf("%w: the container is weaker than it must be: %w", sandbox.ErrUnavailable, err)
	}
	return nil
}

func (c *container) expectation() guest.Expectation {
	id := c.plan.identity
	e := guest.Expectation{UID: uint32(id.commandUID), GID: uint32(id.commandGID), SingleUID: id.single, Filters: 1, Probe: c.backend.options.Probe}
	if !c.plan.traits.ownKernel {
		e.Filters, e.HostNamespaces = 2, guest.HostNamespaces()
	}
	switch {
	case id.single:
		// What one id can do to another process of its own; attested as lost.
		e.Accepted = []string{"kill-guest", "list-guest-descriptors", "setuid-root"}
	case id.guest != 0:
		// gVisor makes the folder when the guest still has the commands' uid:
		// it shows how many descriptors there are, and refuses each of them.
		e.Accepted = []string{"list-guest-descriptors"}
	}
	for _, b := range c.prepared.Binds {
		if b.Target != sandbox.WorkspaceDir && b.Inside() {
			e.Submounts = append(e.Submounts, b.Target)
		}
	}
	return e
}

func (c *container) verifyNamespaces(private []string) error {
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

// verifyKernel says whether the kernel inside is the one that was asked for.
func (c *container) verifyKernel(hello wire.Hello) error {
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		return err
	}
	same := strings.TrimSpace(hello.Kernel) == strings.TrimSpace(string(host))
	switch {
	case c.plan.traits.ownKernel && (same || !strings.Contains(hello.Kernel, "gVisor") && !strings.Contains(hello.Kernel, "gvisor")):
		return fmt.Errorf("its kernel is %q, not gVisor", hello.Kernel)
	case !c.plan.traits.ownKernel && !same:
		return fmt.Errorf("its kernel %q is not the host's", hello.Kernel)
	}
	return nil
}

// verifyWorkspace says whether the guest sees this host's folder.
func (c *container) verifyWorkspace(hello wire.Hello) error {
	if hello.Nonce != c.bundle.nonce {
		return errors.New("it does not see this host's files: the nonce differs")
	}
	for _, b := range c.prepared.Binds {
		if !b.Inside() {
			continue // the guest tells of the workspace's mounts
		}
		device, inode, err := c.seenAt(b, hello)
		if err != nil {
			return err
		}
		if device != b.Device || inode != b.Inode {
			return fmt.Errorf("at %s it has another file than the one that was opened: the path was changed while it started", b.Target)
		}
	}
	return nil
}

// seenAt says which file a bind turned out to be: as the guest sees it, or by
// its path on the host for gVisor, which numbers devices and inodes itself.
// Staged mounts have a path that nobody else can change.
func (c *container) seenAt(b workmount.Bind, hello wire.Hello) (device, inode uint64, err error) {
	if c.plan.traits.ownKernel {
		if c.prepared.Staged {
			return b.Device, b.Inode, nil
		}
		return fileIdentity(b.Source)
	}
	for _, m := range workspaceMounts(hello) {
		if m.Path == b.Target {
			return m.Device, m.Inode, nil
		}
	}
	return 0, 0, fmt.Errorf("nothing is mounted at %s", b.Target)
}

// verifyLimits compares what was asked with what the kernel holds.
func (c *container) verifyLimits(hello wire.Hello) error {
	r := c.plan.resources
	var errs []error
	if n := hello.Limits.UserPIDs; c.plan.traits.ownKernel && n != r.PIDs {
		errs = append(errs, fmt.Errorf("its limit of processes is %d, not %d", n, r.PIDs))
	}
	if c.plan.cgroup.path == "" {
		return errors.Join(errs...)
	}
	got := c.cgroup.limits()
	for _, l := range []struct {
		name      string
		got, want int64
	}{
		{"memory", got.MemoryBytes, r.MemoryBytes},
		{"processes", got.PIDs, c.plan.traits.hostPIDs(r.PIDs)},
		{"CPU time", got.MilliCPUs, r.MilliCPUs},
	} {
		// The kernel rounds memory down to whole pages.
		if l.got <= 0 || l.got > l.want {
			errs = append(errs, fmt.Errorf("its limit of %s is %d, not %d", l.name, l.got, l.want))
		}
	}
	if swap := c.cgroup.swap(); c.plan.cgroup.swap && swap > r.MemoryBytes {
		errs = append(errs, fmt.Errorf("its limit of memory and swap is %d, not %d", swap, r.MemoryBytes))
	}
	return errors.Join(errs...)
}

// verifyProcess looks at the process from the host's side: the container's
// PID 1, or gVisor's kernel, which has more capabilities in a user namespace
// of its own.
func (c *container) verifyProcess() error {
	fields := [][2]string{{"NoNewPrivs", "1"}, {"Seccomp", "2"}}
	if !c.plan.traits.ownKernel {
		var caps uint64
		for _, name := range harden.GuestCapabilities() {
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

// capabilityNumber holds the numbers of linux/capability.h for the guest's
// capabilities.
var capabilityNumber = map[string]uint{"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8}
