// Package harden defines the hardening of every container, whichever backend
// makes it: the guest's capabilities and environment, the seccomp profile, the
// hidden paths of /proc and /sys, the tmpfs mounts and the process limits.
//
// Package sandbox/oci turns them into a bundle and sandbox/docker into a
// request to the engine. The conformance suite checks them from inside. See
// docs/design/guest.md#system-calls for the profile.
package harden
