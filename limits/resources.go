package limits

import (
	"fmt"
	"time"
)

// Resources bounds one sandbox. All fields must be positive: zero is invalid, not
// "unlimited". Start from [DefaultResources].
type Resources struct {
	// MemoryBytes bounds memory plus swap of the whole sandbox, including tmpfs pages.
	// It is at least [MinMemoryBytes].
	MemoryBytes int64
	// PIDs bounds processes and threads together, including the guest's. It is at least
	// [MinPIDs].
	PIDs int64
	// MilliCPUs is the processor time per wall time, in thousandths; 1000 is one CPU.
	MilliCPUs int64
	// TmpBytes is the size of the tmpfs at /tmp. It is mounted with exec, because
	// builds run programs there. If all tmpfs mounts that commands can fill exceed
	// three quarters of MemoryBytes together, all shrink by the same factor. The
	// attestation has the actual sizes.
	TmpBytes int64
	// HomeBytes bounds the commands' home directory. It is on disk, and the runner ends
	// commands that exceed the bound. With a remote engine, it is a tmpfs of this size.
	HomeBytes int64
	// ShmBytes is the size of the tmpfs at /dev/shm.
	ShmBytes int64
	// OpenFiles bounds open files per process (RLIMIT_NOFILE, soft and hard).
	OpenFiles int64
	// CommandTime is a command's longest wall time. Commands may ask for less.
	CommandTime time.Duration
}

// The smallest values with which a sandbox starts.
const (
	// MinMemoryBytes is enough for the guest and one small command. gVisor charges its
	// own kernel (about 17 MB when idle) to the same limit.
	MinMemoryBytes = 64 << 20
	// MinPIDs is enough for the threads that the guest starts in advance (see
	// cmd/caisson-guest).
	MinPIDs = 64
)

// DefaultResources is for sessions that set no resources and share their process with
// others; see [ResourcesAlone].
func DefaultResources() Resources {
	return Resources{
		MemoryBytes: 2 << 30,
		PIDs:        256,
		MilliCPUs:   2000,
		TmpBytes:    512 << 20,
		HomeBytes:   2 << 30,
		ShmBytes:    64 << 20,
		OpenFiles:   4096,
		CommandTime: 10 * time.Minute,
	}
}

// ResourcesAlone is for a session that sets no resources and is alone in its process:
// half of the machine's memory (2 to 8 GiB), half of that for /tmp, and all processors.
// memory is in bytes. Zero means unknown.
func ResourcesAlone(memory int64, processors int) Resources {
	r := DefaultResources()
	if memory > 0 {
		r.MemoryBytes = min(max(memory/2, r.MemoryBytes), 8<<30)
		r.TmpBytes = r.MemoryBytes / 2
	}
	if processors > 0 {
		r.MilliCPUs = int64(processors) * 1000
	}
	return r
}

// Validate returns a *[ResourceError] for the first field that is too small.
func (r Resources) Validate() error {
	for _, f := range []struct {
		name     string
		got, min int64
	}{
		{"memory", r.MemoryBytes, MinMemoryBytes},
		{"pids", r.PIDs, MinPIDs},
		{"cpus", r.MilliCPUs, 10},
		{"tmp", r.TmpBytes, 1 << 20},
		{"home", r.HomeBytes, 1 << 20},
		{"shm", r.ShmBytes, 1 << 12},
		{"open files", r.OpenFiles, 64},
		{"command time", int64(r.CommandTime), int64(time.Second)},
	} {
		if f.got < f.min {
			return &ResourceError{Field: f.name, Got: f.got, Min: f.min}
		}
	}
	return nil
}

// ResourceError is the error for a [Resources] field that is too small.
type ResourceError struct {
	// Field is the field's name in words, such as "open files".
	Field string
	// Got is the value and Min the smallest valid one, in the field's unit: bytes,
	// nanoseconds, thousandths of a CPU or a count.
	Got, Min int64
}

func (e *ResourceError) Error() string {
	return fmt.Sprintf("resource %s is %d, must be at least %d", e.Field, e.Got, e.Min)
}
