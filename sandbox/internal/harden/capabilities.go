package harden

// HostName is the name that every container sees; nothing of the host's name
// gets in.
const HostName = "caisson"

// GuestCapabilities returns the whole capability set of the guest, in every
// backend and in the bounding set too: SETUID and SETGID to become the
// command's identity, KILL to signal what has it, SETPCAP to empty the
// bounding set of a command before its program runs. Commands have none.
func GuestCapabilities() []string {
	return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}
}

// GuestEnv returns the guest's own environment. It names a PATH because
// runtimes add one where there is none; the guest looks nothing up in it, and
// commands inherit nothing from it.
func GuestEnv() []string {
	return []string{"PATH=/.caisson"}
}
