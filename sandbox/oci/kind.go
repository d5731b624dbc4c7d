package oci

import (
	"fmt"

	"github.com/caisson-run/caisson/sandbox"
)

// Kind is the kind of runtime of a [Backend].
type Kind string

// The kinds; each is the backend's name too.
const (
	// GVisor is runsc with the systrap platform: a kernel in user space.
	GVisor Kind = "gvisor"
	// Runc is runc or a drop-in (crun): Linux namespaces.
	Runc Kind = "runc"
)

// traits are the differences between the kinds.
type traits struct {
	// binary is the runtime's name beside our executable and on PATH.
	binary string
	// flags go before the subcommand.
	flags func(runtimeFlags) []string
	// ownKernel reports that the container's kernel is the runtime's: limits
	// inside are its own, and reaching a limit of the host ends the sandbox.
	ownKernel bool
	// namespaces are those that the process on the host must have to itself,
	// as /proc/PID/ns calls them; a user namespace is added where one was
	// asked for.
	namespaces []string
	// procOptions are added to the mount of /proc.
	procOptions []string
	// inodes reports that a tmpfs accepts nr_inodes.
	inodes bool
	// cgroupMount reports that /sys/fs/cgroup shows the container's own cgroup,
	// in which the guest reads the counters of out-of-memory kills.
	cgroupMount bool
}

// runtimeFlags is the input for the flags of a runtime.
type runtimeFlags struct {
	root string // --root
	log  string // file for the runtime's own messages
	// cgroups reports that limits can be set by cgroups.
	cgroups bool
	// layer is the directory for the file that holds what is written to the
	// root; empty if the root is read-only.
	layer string
}

// traitsOf returns the traits of a kind.
func traitsOf(k Kind) (traits, bool) {
	switch k {
	case GVisor:
		return traits{
			binary: "runsc", flags: runscFlags, ownKernel: true,
			// runsc makes no cgroup namespace for its sandbox; what commands see
			// of cgroups is its own kernel's.
			namespaces: []string{"ipc", "mnt", "net", "pid", "user", "uts"},
		}, true
	case Runc:
		return traits{
			binary: "runc", flags: runcFlags, inodes: true, cgroupMount: true,
			namespaces: []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"},
			// The guest has gid 0 and sees every process; a command sees those
			// of its own uid.
			procOptions: []string{"hidepid=2", "gid=0"},
		}, true
	}
	return traits{}, false
}

// runscFlags returns every flag that the isolation rests on, including
// defaults.
func runscFlags(f runtimeFlags) []string {
	flags := []string{
		"--root=" + f.root,
		"--log=" + f.log, "--log-format=json",
		// The kernel and the gofer log to the runtime's standard error.
		"--debug-log=/proc/self/fd/2", "--debug-log-format=json", "--debug-command=boot,gofer",
		"--platform=systrap",
		"--network=none",
		"--host-uds=none",
		"--host-fifo=none",
		"--character-device-policy=emulated-only",
		"--file-access=exclusive",
		"--file-access-mounts=shared", // a host's write is seen inside at once
		"--overlay2=" + overlayFlag(f.layer),
		"--gofer-network-namespace=new", // "null" leaves a mount behind in --root
		"--host-settings=ignore",
		"--watchdog-action=panic", // a stuck kernel is a lost sandbox, not a silent one
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	if !f.cgroups {
		flags = append(flags, "--ignore-cgroups")
	}
	return flags
}

// overlayFlag returns the value of --overlay2. The layer is kept by gVisor's own
// kernel, with the content of its files in one file without a name: no name,
// owner or mode that commands choose gets to the host's file system.
func overlayFlag(layer string) string {
	if layer == "" {
		return "none"
	}
	return fmt.Sprintf("root:dir=%s,size=%d", layer, int64(sandbox.RootBytes))
}

func runcFlags(f runtimeFlags) []string {
	return []string{"--root", f.root, "--log", f.log, "--log-format", "json"}
}
