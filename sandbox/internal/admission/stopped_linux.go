package admission

import (
	"bytes"
	"fmt"
	"os"
)

// isStopped reads a process's state, the third field of /proc/PID/stat: T is
// stopped, t traced; see proc(5). The second field is a name that may hold
// anything, in brackets.
func isStopped(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
	return ok && len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't')
}
