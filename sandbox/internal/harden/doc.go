// Package harden defines the hardening of every container of Caisson, whichever
// backend makes it: the guest's capabilities, the seccomp profile, the hidden
// paths of /proc and /sys, the tmpfs mounts, the resource limits of processes
// and the guest's environment.
//
// It holds facts, not mechanism. Package sandbox/oci turns them into a bundle
// and sandbox/docker into a request to the engine. Both attest them by the same
// names and hashes. The conformance suite checks all of them from inside. See
// docs/design/guest.md#system-calls for the profile.
package harden
