package oci

import (
	"fmt"
	"os"
	"strings"
)

// privateNamespaces returns the kinds of namespace that a process does not
// share with us.
func privateNamespaces(pid int) ([]string, error) {
	var private []string
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return nil, fmt.Errorf("read namespaces of process %d: %w", pid, err)
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return nil, fmt.Errorf("read our namespaces: %w", err)
		}
		if theirs != ours {
			private = append(private, kind)
		}
	}
	return private, nil
}

// statusField reads one field of /proc/PID/status on the host.
func statusField(pid int, name string) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("process %d: status has no %s", pid, name)
}
