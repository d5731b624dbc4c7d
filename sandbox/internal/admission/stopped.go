package admission

import (
	"bytes"
	"fmt"
	"os"
)

// isStopped reports whether a process is stopped (T) or traced (t), by the
// third field of /proc/PID/stat; see proc(5). The second field is the program's
// name in parentheses and may contain any character.
func isStopped(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
	return ok && len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't')
}
