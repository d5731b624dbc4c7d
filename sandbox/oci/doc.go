// Package oci makes sandboxes with an OCI runtime and nothing else: no engine,
// no daemon. [GVisor] runs runsc, which is built with Caisson and needs no
// privilege; [Runc] runs runc or what behaves like it.
//
// A sandbox is a bundle (config.json over a shared skeleton of mount points) in
// the directory of the session's files, started by `run --detach` with pipes as
// its standard streams. Its PID 1 is the guest, which ends when its stdin does,
// so that a container never outlives the Caisson that made it. The order of
// steps from a spec to a running sandbox and back is that of package
// sandbox/internal/lifecycle, which a [container] serves.
//
//	<StateDir>/oci/gvisor, oci/runc       the runtimes' own state (--root)
//	<StateDir>/cache/guest-<sha256>       the guest's binary, never changed
//	<StateDir>/cache/rootfs-<sha256>      an image's mount points, symlinks, synthetic files
//	<Spec.Dir>/container/config.json      what was requested
//	<Spec.Dir>/container/nonce            by which the guest proves this directory
//	<Spec.Dir>/mounts                     the workspace's staging mounts (workmount)
//
// One driver serves both kinds; what differs between them is the table in
// kind.go. What runs is attested from three sides: by the guest from inside,
// from the runtime's `state`, and from the kernel (cgroup files, namespaces of
// the process). A container that shows less than was requested is destroyed,
// and the error wraps sandbox.ErrUnavailable.
package oci
