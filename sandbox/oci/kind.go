package oci

// Kind is which runtime a [Backend] drives.
type Kind string

// The kinds; each is the backend's name too.
const (
	// GVisor is runsc with the systrap platform: a kernel in user space.
	GVisor Kind = "gvisor"
	// Runc is runc or a drop-in (crun): Linux namespaces.
	Runc Kind = "runc"
)

// traits is what differs between the kinds.
type traits struct {
	// binary is the runtime's name beside our executable and on PATH.
	binary string
	// flags go before the subcommand.
	flags func(runtimeFlags) []string
	// ownKernel says that the container's kernel is the runtime's: limits
	// inside are its own, and reaching a limit of the host ends the sandbox.
	ownKernel bool
	// threads is what the runtime itself needs of the host's pids limit.
	threads int64
	// procOptions are added to the mount of /proc.
	procOptions []string
	// inodes says that a tmpfs takes nr_inodes.
	inodes bool
	// cgroupMount says that /sys/fs/cgroup shows the container's own cgroup,
	// in which the guest reads the counters of out-of-memory kills.
	cgroupMount bool
}

// runtimeFlags is what the flags of a runtime depend on.
type runtimeFlags struct {
	root string // --root
	log  string // file for the runtime's own messages
	// cgroups says that limits can be set by cgroups.
	cgroups bool
}

// kinds is the table of what differs.
func kinds(k Kind) (traits, bool) {
	switch k {
	case GVisor:
		return traits{
			binary: "runsc", flags: runscFlags, ownKernel: true, threads: gvisorThreads,
		}, true
	case Runc:
		return traits{
			binary: "runc", flags: runcFlags, inodes: true, cgroupMount: true,
			// The guest has gid 0 and sees every process; a command sees those
			// of its own uid.
			procOptions: []string{"hidepid=2", "gid=0"},
		}, true
	}
	return traits{}, false
}

// gvisorThreads is added to the pids limit of gVisor's cgroup, which holds the
// threads of sentry and gofer and one stub thread for each task inside. The
// asked limit itself holds inside, by RLIMIT_NPROC of the commands' uid; the
// cgroup's is the second line. docs/decisions/0022 has the measurement.
const gvisorThreads = 512

// runscFlags states every flag that the isolation rests on, defaults too.
func runscFlags(f runtimeFlags) []string {
	flags := []string{
		"--root=" + f.root,
		"--log=" + f.log, "--log-format=json",
		"--platform=systrap",
		"--network=none",
		"--host-uds=none",
		"--host-fifo=none",
		"--character-device-policy=emulated-only",
		"--file-access=exclusive",
		"--file-access-mounts=shared", // a host's write is seen inside at once
		"--overlay2=none",
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

func runcFlags(f runtimeFlags) []string {
	return []string{"--root", f.root, "--log", f.log, "--log-format", "json"}
}
