package ownership

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}

func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, start, err := parseStat(string(data))
	return start, err
}

// processFate asks the kernel first: with hidepid, the process of another user
// has no directory in /proc but kill(2) returns EPERM.
func processFate(pid int, start uint64) Fate {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return Dead
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Unknown
	}
	state, now, err := parseStat(string(data))
	switch {
	case err != nil:
		return Unknown
	case now != start:
		return Dead
	case state == 'Z' || state == 'X':
		// Killed and not yet waited for. A Go program's first thread ends with
		// the process only, so that a zombie holds nothing any more.
		return Dead
	}
	return Alive
}
