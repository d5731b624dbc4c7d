package harden

// HostName is the host name of every container. Containers never see the host's
// own name.
const HostName = "caisson"

// GuestCapabilities returns the capabilities of the guest, in every backend and
// in the bounding set too. SETUID and SETGID let it take the command's
// identity, KILL lets it signal processes of that identity, and SETPCAP lets it
// empty the bounding set of a command before its program runs. Commands have no
// capabilities.
func GuestCapabilities() []string {
	return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}
}

// GuestEnv returns the guest's own environment. It sets PATH because runtimes
// add one if it is missing. The guest looks up nothing in it, and commands
// inherit nothing from it.
func GuestEnv() []string {
	return []string{"PATH=/.caisson"}
}
