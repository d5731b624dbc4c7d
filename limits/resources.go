package limits

import (
	"fmt"
	"time"
)

// Resources bounds one sandbox. Every field must be positive: a zero limit is
// invalid, never "unlimited". Start from [DefaultResources] and change what
// differs.
type Resources struct {
	// MemoryBytes bounds memory plus swap of everything in the sandbox,
	// tmpfs pages included. At least [MinMemoryBytes].
	MemoryBytes int64
	// PIDs bounds processes and threads together, the guest's own included.
	// At least [MinPIDs].
	PIDs int64
	// MilliCPUs is processor time per wall time in thousandths; 1000 is one CPU.
	MilliCPUs int64
	// TmpBytes is the size of the tmpfs at /tmp, which is mounted with exec
	// because builds run programs there. Where /tmp, home and /dev/shm are
	// together more than three quarters of MemoryBytes, each is made smaller by
	// the same factor; what they are is attested.
	TmpBytes int64
	// HomeBytes is the size of the tmpfs that is the commands' home folder.
	HomeBytes int64
	// ShmBytes is the size of the tmpfs at /dev/shm.
	ShmBytes int64
	// OpenFiles is RLIMIT_NOFILE, soft and hard, of every process.
	OpenFiles int64
	// CommandTime bounds the wall time of one command that asks for no
	// shorter bound of its own.
	CommandTime time.Duration
}

// Smallest values that a sandbox can start with.
const (
	// MinMemoryBytes leaves room for the guest and one small command; gVisor
	// charges its own kernel (about 17 MB idle) to the same limit.
	MinMemoryBytes = 64 << 20
	// MinPIDs leaves room for the guest's warmed threads (see cmd/caisson-guest).
	MinPIDs = 64
)

// DefaultResources returns the limits of a session that names none.
func DefaultResources() Resources {
	return Resources{
		MemoryBytes: 2 << 30,
		PIDs:        256,
		MilliCPUs:   2000,
		TmpBytes:    512 << 20,
		HomeBytes:   256 << 20,
		ShmBytes:    64 << 20,
		OpenFiles:   4096,
		CommandTime: 10 * time.Minute,
	}
}

// Validate reports the first field that is out of bounds, by name.
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

// ResourceError is a field of [Resources] that is too small.
type ResourceError struct {
	// Field is its name in words, such as "open files".
	Field string
	// Got and Min are in the field's unit: bytes, nanoseconds or thousandths of a
	// processor.
	Got, Min int64
}

// Error implements error.
func (e *ResourceError) Error() string {
	return fmt.Sprintf("resource %s is %d, must be at least %d", e.Field, e.Got, e.Min)
}
