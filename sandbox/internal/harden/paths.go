package harden

// MaskedPaths returns the files and directories in /proc and /sys that are
// empty in a container: the list of Docker 29 and containerd 2 plus what older
// engines (20.10) lack. Runtimes skip paths that the kernel lacks. gVisor has
// none of them.
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

// ReadonlyPaths returns the paths in /proc that are read-only in a container,
// whatever their modes.
func ReadonlyPaths() []string {
	return []string{
		"/proc/bus",
		"/proc/fs",
		"/proc/irq",
		"/proc/sys",
		"/proc/sysrq-trigger",
	}
}
