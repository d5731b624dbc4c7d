package docker

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// isRemapped reports whether an engine runs with userns-remap: its containers
// have user namespaces, all with the same range of IDs.
func isRemapped(info system.Info) bool {
	return slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return o == "name=userns" || strings.HasPrefix(o, "name=userns,") })
}

// findBase returns where the user namespaces of a remapping engine's containers
// begin. The engine names its data directory after it
// (/var/lib/docker/300000.300000). verifyBase compares it with each container.
func findBase(f facts, local bool) (workmount.Base, error) {
	refuse := func(format string, args ...any) (workmount.Base, error) {
		return workmount.Base{}, fmt.Errorf("%w: it remaps user ids (userns-remap), and "+format, append([]any{sandbox.ErrUnsupported}, args...)...)
	}
	switch {
	case !local || os.Geteuid() != 0:
		return refuse("only root of its machine can map the files of a workspace to them: run as root there, use an engine without remapping, or the gvisor backend")
	case f.runtime.ownKernel():
		return refuse("its runtime %s is gVisor: use its runtime runc (docker.runtime), an engine without remapping, or the gvisor backend", f.runtime.name)
	}
	uid, gid, _ := strings.Cut(path.Base(f.info.DockerRootDir), ".")
	first, err := strconv.ParseUint(uid, 10, 31)
	firstGroup, gidErr := strconv.ParseUint(gid, 10, 31)
	if err != nil || gidErr != nil {
		return refuse("its data directory %q does not name the range: use an engine without remapping, or the gvisor backend", f.info.DockerRootDir)
	}
	base := workmount.Base{UID: int(first), GID: int(firstGroup)}
	if err := base.Check(); err != nil {
		return refuse("%w", err)
	}
	return base, nil
}

// verifyBase returns an error unless a remapping engine's container is in the
// user namespace that the guest observes, with the maps that the host shows.
// The guest's observation has already been compared with the range.
func (c *engineContainer) verifyBase(hello wire.Hello, got container.InspectResponse) error {
	if !c.facts.base.IsNamespace() {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/", got.State.Pid)
	namespace, err := os.Readlink(dir + "ns/user")
	if err != nil {
		return fmt.Errorf("%w: the engine remaps ids, and this process does not see the container's: run on the engine's machine, in its PID namespace: %w", sandbox.ErrUnavailable, err)
	}
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if want := fmt.Sprintf("user:[%d]", hello.Namespaces["user"]); namespace != want || namespace == own {
		return fmt.Errorf("%w: the container's process is in the user namespace %s, the guest in %s, and Caisson in %s", sandbox.ErrUnavailable, namespace, want, own)
	}
	for name, observed := range map[string][]wire.IDRange{"uid_map": hello.UIDMap, "gid_map": hello.GIDMap} {
		text, err := os.ReadFile(dir + name)
		if err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
		if seen := wire.ParseIDMap(string(text)); !slices.Equal(seen, observed) {
			return fmt.Errorf("%w: the container's %s is %v, but the guest observes %v", sandbox.ErrUnavailable, name, seen, observed)
		}
	}
	return nil
}
