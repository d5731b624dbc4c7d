package docker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

func (c *engineContainer) isRoot() bool { return c.prep.Spec.User == sandbox.UserRoot }

// checkRoot returns an IncapableError unless commands can be root in a
// container without being root on the engine's machine. The guest verifies it
// from inside.
func (b *Backend) checkRoot(f facts) error {
	err := &sandbox.IncapableError{Request: "user root"}
	switch {
	case f.base.IsNamespace():
		return nil
	case !f.runtime.ownKernel():
		err.Reason = fmt.Sprintf("root in a container of the engine's runtime %s would be root of its machine to the kernel", f.runtime.name)
		err.Hint = "use the gvisor or the runc backend, a runtime of the engine that is gVisor's runsc (docker.runtime), or an engine with userns-remap"
	case !b.endpoint.isLocal() || os.Geteuid() != 0:
		// gVisor's gofer is root on the host and acts with the commands' IDs.
		err.Reason = "files that root makes would be those of root of the engine's machine, because only root of that machine can map ids"
		err.Hint = "use the gvisor or the runc backend, or run as root on the engine's machine"
	default:
		return nil
	}
	return err
}

// verifyRoot returns an error if commands are root but the guest sees neither
// its own kernel nor a user namespace.
func (c *engineContainer) verifyRoot(hello wire.Hello) error {
	if !c.isRoot() || c.facts.base.IsNamespace() { // verified for every container
		return nil
	}
	host, err := os.ReadFile("/proc/version")
	if err == nil && (!lifecycle.IsGVisor(hello) || strings.TrimSpace(hello.Kernel) == strings.TrimSpace(string(host))) {
		err = errors.New("commands in the container would be root of the machine: it has its kernel")
	}
	return err
}

// ownsCgroups reports whether root inside could write to the container's
// cgroups. gVisor mounts its own ones writable, whatever it is asked for. A
// remapping engine asks for writable ones: version 1's directory, a tmpfs
// without a size, and version 2's belong to root of the user namespace.
func (c *engineContainer) ownsCgroups() bool {
	return c.facts.runtime.ownKernel() || c.facts.base.IsNamespace()
}

// stageBinds replaces the image's binds, if any, by mounts with other owners if
// necessary. In the image host, which has this machine's files, root reads only
// what all users may; gVisor's gofer, which is root on the host, would read
// more. Other images belong to root inside, which takes a map if the engine
// remaps IDs.
func (c *engineContainer) stageBinds() error {
	if c.prep.Image == nil {
		return nil
	}
	isHost := c.prep.Image.Reference.Scheme == images.SchemeHost
	if isHost && !c.isRoot() || !isHost && !c.facts.base.IsNamespace() {
		return nil
	}
	if c.binds == nil {
		owners := func() (*os.File, error) { return workmount.HideOwners(c.prep.Guest.Path) }
		if !isHost {
			owners = func() (*os.File, error) { return workmount.ShiftOwners(c.prep.Guest.Path, c.facts.base) }
		}
		userns, err := owners()
		if err != nil {
			return err
		}
		defer func() { _ = userns.Close() }()
		var sources []string
		for _, b := range c.image.binds {
			sources = append(sources, b.Source)
		}
		o := workmount.RootOptions{Dir: c.prep.Spec.Dir, Cleanup: c.prep.Cleanup, UserNamespace: userns}
		if c.binds, err = workmount.StageImage(o, sources); err != nil {
			return err
		}
	}
	c.image.binds = slices.Clone(c.image.binds)
	for i := range c.image.binds {
		c.image.binds[i].Source = c.binds.Paths[i]
	}
	return nil
}
