package oci

import (
	"fmt"

	"github.com/caisson-run/caisson/sandbox"
)

// Kind is the kind of runtime of a [Backend].
type Kind string

// The kinds, which are also the backends' names.
const (
	// GVisor is runsc with the systrap platform: a kernel in user space.
	GVisor Kind = "gvisor"
	// Runc is runc or a drop-in (crun): Linux namespaces.
	Runc Kind = "runc"
)

type traits struct {
	// binary is the runtime's name beside our executable or on PATH.
	binary string
	// flags returns what goes before the subcommand.
	flags func(runtimeFlags) []string
	// ownKernel reports that the container has the runtime's kernel: limits
	// inside are that kernel's, and reaching a limit of the host ends the
	// sandbox.
	ownKernel bool
	// namespaces are those that the process must not share with the host, as
	// /proc/PID/ns calls them, apart from a user namespace.
	namespaces  []string
	procOptions []string
	inodes      bool
	// cgroupMount reports that /sys/fs/cgroup shows the container's own cgroup.
	// The guest reads the counters of out-of-memory kills there.
	cgroupMount bool
}

type runtimeFlags struct {
	root    string // --root
	log     string // file for the runtime's own messages
	cgroups bool
	// hosted starts gVisor in our own namespaces. Its kernel then reports this
	// much memory, and uses this many processors, at most; 0 means the
	// machine's.
	hosted     bool
	memory     int64
	processors int
	// layer is the directory for the file with what is written to the root; ""
	// if the root is read-only.
	layer string
}

func traitsOf(k Kind) (traits, bool) {
	switch k {
	case GVisor:
		return traits{
			binary: "runsc", flags: runscFlags, ownKernel: true,
			// runsc makes no cgroup namespace for its sandbox. Commands see the
			// cgroups of its own kernel.
			namespaces: []string{"ipc", "mnt", "net", "pid", "user", "uts"},
		}, true
	case Runc:
		return traits{
			binary: "runc", flags: runcFlags, inodes: true, cgroupMount: true,
			namespaces: []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"},
			// The guest has gid 0 and sees every process. A command sees its
			// own uid's.
			procOptions: []string{"hidepid=2", "gid=0"},
		}, true
	}
	return traits{}, false
}

// runscFlags returns every flag that the isolation depends on, including
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
		"--host-settings=ignore",
		"--watchdog-action=panic", // a stuck kernel is a lost sandbox, not a silent one
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	if !f.cgroups {
		flags = append(flags, "--ignore-cgroups")
	}
	if f.hosted {
		return append(flags, "--host-namespaces", "--directfs=false", "--gofer-network-namespace=host", fmt.Sprintf("--host-memory-limit=%d", f.memory), fmt.Sprintf("--host-cpu-limit=%d", f.processors))
	}
	return append(flags, "--gofer-network-namespace=new") // "null" leaves a mount behind in --root
}

// overlayFlag returns the value of --overlay2. gVisor's own kernel keeps the
// layer, with the files' content in one nameless file, so no name, owner or
// mode that commands choose reaches the host's file system.
func overlayFlag(layer string) string {
	if layer == "" {
		return "none"
	}
	return fmt.Sprintf("root:dir=%s,size=%d", layer, int64(sandbox.RootBytes))
}

func runcFlags(f runtimeFlags) []string {
	return []string{"--root", f.root, "--log", f.log, "--log-format", "json"}
}
