package tools

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is a clock that nobody sets and that goes on while the machine
// sleeps (CLOCK_BOOTTIME, clock_gettime(2)); Go's own monotonic clock stands
// still then.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // never on Linux 2.6.39 and later: the other clock still counts
	}
	return time.Duration(t.Nano())
}
