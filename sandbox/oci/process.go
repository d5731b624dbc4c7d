package oci

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// hostProcess is a process that is not our child, held by a descriptor so that
// its number can't be reused. Don't call close concurrently with other methods.
type hostProcess struct {
	pid int
	fd  int
}

// openProcess opens a process by its number, which the caller must know to be
// right.
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

func (p *hostProcess) sendKill() {
	_ = unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0) // what survives is found by wait
}

// waitFor waits for the process to end and reports whether it did in time.
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
