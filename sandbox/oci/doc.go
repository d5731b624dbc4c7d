// Package oci makes sandboxes with an OCI runtime and nothing else: no engine,
// no daemon. [GVisor] runs runsc, which is built with Caisson and needs no
// privilege; [Runc] runs runc or what behaves like it.
//
// A sandbox is a bundle (config.json over a shared skeleton of mount points) below the
// session's own folder, started by `run --detach` with pipes as its standard
// streams. Its PID 1 is the guest, which ends when its stdin does, so that a
// container never outlives the Caisson that made it; what then remains of it
// (runtime state, cgroup, folders) is noted in a journal before it is made and
// removed by [Backend.Sweep].
//
//	<StateDir>/oci/gvisor, oci/runc      the runtimes' own state (--root)
//	<StateDir>/oci/guest-<sha256>        the guest's binary, never changed
//	<StateDir>/oci/rootfs-<sha256>       an image's mount points, links, synthetic files
//	<Spec.Dir>/bundle/config.json        what was asked for
//	<Spec.Dir>/bundle/nonce              by which the guest proves this folder
//	<Spec.Dir>/mounts                    the workspace's staging mounts (workmount)
//
// One driver serves both kinds; what differs between them is the table in
// kind.go. What runs is attested from three sides: by the guest from inside,
// from the runtime's `state`, and from the kernel (cgroup files, namespaces of
// the process). A container that shows less than was asked for is destroyed,
// and the error wraps sandbox.ErrUnavailable.
package oci
