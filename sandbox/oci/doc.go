// Package oci makes sandboxes with an OCI runtime alone, without an engine or
// daemon. [GVisor] runs runsc, which is built with Caisson and needs no
// privileges; [Runc] runs runc or a compatible runtime.
//
// A sandbox is a bundle (config.json over a shared skeleton of mount points) in
// the directory of the session's files, started by `run --detach` with pipes as
// its standard streams. Its PID 1 is the guest, which ends when its stdin does,
// so a container never outlives the Caisson that made it. A [container]
// implements the steps; package sandbox/internal/lifecycle has their order.
//
//	<StateDir>/oci/gvisor, oci/runc       the runtimes' own state (--root)
//	<StateDir>/cache/guest-<sha256>       the guest's binary, never changed
//	<StateDir>/cache/rootfs-<sha256>      an image's mount points, symlinks, synthetic files
//	<Spec.Dir>/container/config.json      what was requested
//	<Spec.Dir>/container/nonce            by which the guest proves this directory
//	<Spec.Dir>/mounts                     the workspace's staging mounts (workmount)
//
// One driver serves both kinds; the table in kind.go has the differences. A
// container is attested from three sides: by the guest inside, by the runtime,
// and by the kernel (cgroup files, namespaces of the process). One that shows
// less than was requested is destroyed, and the error wraps
// sandbox.ErrUnavailable.
package oci
