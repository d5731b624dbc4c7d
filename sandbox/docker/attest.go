package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Attest compares what the engine made with the request, and describes it.
func (c *engineContainer) Attest(ctx context.Context, conn *guest.Conn, a *sandbox.Attestation) error {
	hello := conn.Hello()
	got, err := c.remote.inspectContainer(ctx, c.id)
	if err != nil {
		return err
	}
	if err := checkVolume(ctx, c.prep.Mounts.Volume, conn); err != nil {
		return err
	}
	if err := errors.Join(readBack(c.asked, got), checkKernel(c.facts.runtime, hello), c.verifyRoot(hello), c.verifyBase(hello, got), c.checkLimits(hello)); err != nil {
		return lifecycle.WeakError(err)
	}
	c.describe(a, hello, got)
	return needShell(ctx, c, conn)
}

// checkLimits compares the limits that can be read inside with the requested
// ones: an engine may accept a limit that its kernel does not enforce. gVisor
// shows its own cgroups, which enforce nothing; there the limits that the
// engine returns count.
func (c *engineContainer) checkLimits(hello wire.Hello) error {
	type limit struct {
		name        string
		least       int64 // 0 if it may be unreadable
		got, atMost int64
	}
	r, l := c.prep.Spec.Resources, hello.Limits
	list := []limit{{"open files", 1, l.OpenFiles, r.OpenFiles}}
	if c.facts.runtime.ownKernel() {
		list = append(list, limit{"processes of a user", 1, l.UserPIDs, r.PIDs})
	} else {
		list = append(list, limit{"memory", 0, l.MemoryBytes, r.MemoryBytes}, limit{"pids", 0, l.PIDs, r.PIDs}, limit{"CPU time", 0, l.MilliCPUs, r.MilliCPUs})
	}
	var errs []error
	for _, l := range list {
		if l.got < l.least || l.got > l.atMost {
			errs = append(errs, fmt.Errorf("%w: its limit of %s is %d, not %d", sandbox.ErrUnavailable, l.name, l.got, l.atMost))
		}
	}
	return errors.Join(errs...)
}

func (c *engineContainer) describe(a *sandbox.Attestation, hello wire.Hello, got container.InspectResponse) {
	a.Runtime, a.RuntimeVersion, a.EngineVersion = got.HostConfig.Runtime, c.facts.runtime.version, c.facts.version
	a.Isolation = sandbox.IsolationNamespaces
	a.ImageDigest = c.image.digest
	if !lifecycle.IsGVisor(hello) { // gVisor loads no host profile, see docs/design/guest.md#gvisor-loads-no-profile
		a.SeccompProfile = c.seccomp.SHA256
	}
	// The engine takes no such flags for a bind. A staged mount's flags work
	// with the host's kernel, but a runtime's own kernel does not see them.
	lost := slices.ContainsFunc(append(hello.Further, hello.Workspace), func(m wire.Mount) bool { return !slices.Contains(m.Options, "nosuid") })
	if lost && !slices.Contains(a.Lost, workmount.LostFlags) {
		a.Lost = append(a.Lost, workmount.LostFlags)
	}
	if !c.facts.info.SwapLimit {
		a.Lost = append(a.Lost, lostSwap)
	}
	if c.prep.Spec.Root == sandbox.RootEphemeral {
		if layer := rootLayer(got); layer != "" {
			a.Mounts = append(a.Mounts, sandbox.AttestedMount{Target: "/", Type: sandbox.MountScratch, Path: layer, Bytes: sandbox.RootBytes})
		} else {
			a.Lost = append(a.Lost, lostRoot)
		}
	}
	for _, limit := range []struct {
		attested *int64
		engine   int64
	}{
		{&a.Limits.MemoryBytes, got.HostConfig.Memory},
		{&a.Limits.PIDs, c.prep.Spec.Resources.PIDs}, // just compared
		{&a.Limits.MilliCPUs, got.HostConfig.NanoCPUs / 1e6},
	} {
		if *limit.attested <= 0 {
			*limit.attested = limit.engine
		}
	}
}

// rootLayer returns the engine's directory for what is written to a container's
// root, or "" if this process can't read it.
func rootLayer(got container.InspectResponse) string {
	path := got.GraphDriver.Data["UpperDir"]
	if f, err := os.Open(path); path != "" && err == nil {
		_ = f.Close() // it was only opened
		return path
	}
	return ""
}

const lostRoot = "what commands write to the root has no bound, because the engine's directory of it can't be read"

const lostSwap = "swap is not limited, because the engine's kernel does not count it"

func checkKernel(r runtimeFacts, hello wire.Hello) error {
	if r.ownKernel() && !lifecycle.IsGVisor(hello) {
		return fmt.Errorf("%w: runtime %s is gVisor, but the kernel in the container is %.80q", sandbox.ErrUnavailable, r.name, hello.Kernel)
	}
	return nil
}
