// Package harden holds what every container of Caisson is asked to be,
// whichever backend makes it: the guest's capabilities, the seccomp profile,
// the paths of /proc and /sys that are hidden, the tmpfs mounts, the resource
// limits of processes and the guest's environment.
//
// It is facts, not mechanism: sandbox/oci turns them into a bundle and
// sandbox/docker into an engine's request, and both attest them by the same
// names and hashes. Everything here is asserted from inside by the conformance
// suite; see docs/decisions/0020-seccomp-profile.md for the profile.
package harden
