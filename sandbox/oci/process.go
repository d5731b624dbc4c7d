package oci

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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

// hostProcess is a process of the host that is no child of ours, held by a
// descriptor so that its number can't become another's. It is not safe for
// concurrent use with close.
type hostProcess struct {
	pid int
	fd  int
}

// openProcess opens a process by its number. The caller must know that the
// number is right.
func openProcess(pid int) (*hostProcess, error) {
	if pid <= 1 {
		return nil, fmt.Errorf("open process %d: no container has it", pid)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &hostProcess{pid: pid, fd: fd}, nil
}

// sendKill sends SIGKILL. A process that has ended is not an error.
func (p *hostProcess) sendKill() {
	_ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) // what survives is found by wait
}

// waitFor waits for the end and reports whether it came in time.
func (p *hostProcess) waitFor(most time.Duration) bool {
	deadline := time.Now().Add(most)
	for {
		left := time.Until(deadline)
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(left.Milliseconds(), 0)))
		if n > 0 {
			return true
		}
		if !errors.Is(err, unix.EINTR) || left <= 0 {
			return false
		}
	}
}

func (p *hostProcess) close() {
	_ = unix.Close(p.fd) // only waited on
}
