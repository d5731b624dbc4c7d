package harden

// MaskedPaths returns the files and folders of /proc and /sys that a container
// sees empty. It is the engine's list of Docker 29 and containerd 2 with the
// entries that older engines (20.10) miss; a path that the kernel lacks is
// skipped by every runtime. gVisor has none of them and ignores the list.
func MaskedPaths() []string {
	return []string{
		"/proc/acpi",
		"/proc/asound",
		"/proc/interrupts",
		"/proc/kcore",
		"/proc/keys",
		"/proc/latency_stats",
		"/proc/sched_debug",
		"/proc/scsi",
		"/proc/timer_list",
		"/proc/timer_stats",
		"/sys/devices/virtual/powercap",
		"/sys/firmware",
	}
}

// ReadonlyPaths returns the folders of /proc that a container can't write,
// whatever their modes say.
func ReadonlyPaths() []string {
	return []string{
		"/proc/bus",
		"/proc/fs",
		"/proc/irq",
		"/proc/sys",
		"/proc/sysrq-trigger",
	}
}
