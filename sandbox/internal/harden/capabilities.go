package harden

import "slices"

// GuestCapabilities returns the guest's capabilities, which are also its
// bounding set. SETUID and SETGID let it take a command's identity, KILL lets
// it signal that identity's processes, and SETPCAP lets it empty a command's
// bounding set before the program runs. Commands have no capabilities, unless
// they are root in the container.
func GuestCapabilities() []string {
	return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}
}

// RootCapabilities returns the capabilities of commands that are root in the
// container, which package managers and su need; the same as
// wire.RootCapabilities. Of Docker's defaults, it lacks what leads to the
// kernel or the network (NET_RAW, MKNOD, SYS_CHROOT, AUDIT_WRITE), what only
// the guest needs (SETPCAP), and what would keep set-user-ID bits or file
// capabilities (FSETID, SETFCAP).
func RootCapabilities() []string {
	return []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"}
}

// ContainerCapabilities returns the capabilities of a container's first
// process: the guest's and, if commands are root, those it gives them.
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

// LayerCapabilities returns the capabilities with which the guest mounts overlays
// in a sandbox with its own kernel; the same as wire.LayerCapabilities.
func LayerCapabilities() []string {
	return []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_SYS_ADMIN"}
}

// GuestEnv returns the guest's environment. It sets PATH because runtimes add
// one if it is missing. The guest looks up nothing in it, and commands do not
// inherit it.
func GuestEnv() []string {
	return []string{"PATH=/.caisson"}
}
