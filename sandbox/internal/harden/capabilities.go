package harden

import "slices"

// GuestCapabilities returns the capabilities of the guest, in every backend and
// in the bounding set too. SETUID and SETGID let it take the command's
// identity, KILL lets it signal processes of that identity, and SETPCAP lets it
// empty the bounding set of a command before its program runs. Commands have no
// capabilities, unless they are root in the container.
func GuestCapabilities() []string {
	return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}
}

// RootCapabilities returns the capabilities of commands that are root in the
// container, which package managers and su need: wire.RootCapabilities. Of what
// Docker grants by default, it lacks what leads to the kernel or the network
// (NET_RAW, MKNOD, SYS_CHROOT, AUDIT_WRITE), what the guest alone needs (SETPCAP),
// and what would keep set-user-ID bits or file capabilities (FSETID, SETFCAP).
func RootCapabilities() []string {
	return []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"}
}

// ContainerCapabilities returns the capabilities of a container's first process:
// the guest's, and those that root commands get from it.
func ContainerCapabilities(root bool) []string {
	list := GuestCapabilities()
	if !root {
		return list
	}
	for _, c := range RootCapabilities() {
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// GuestEnv returns the guest's own environment. It sets PATH because runtimes
// add one if it is missing. The guest looks up nothing in it, and commands
// inherit nothing from it.
func GuestEnv() []string {
	return []string{"PATH=/.caisson"}
}
