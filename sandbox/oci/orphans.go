package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gVisor's processes are orphans once the runtime has started them. Without a
// PID namespace of their own, they stay as zombies where PID 1 does not wait for
// orphans, as in many container jobs, and count for the job's limit of
// processes. So this process becomes their parent and waits for them.

// adoptOrphans makes this process the parent of its descendants without one.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // since Linux 3.4

// findGroups returns the process groups of a gVisor sandbox: its kernel's, whose
// number is pid, its file server's, and the group of the processes in which
// commands run.
func (r *runtimeClient) findGroups(id string, pid int) []int {
	groups := []int{pid}
	if state, ok := r.readRunscState(id); ok && state.Gofer > 1 {
		groups = append(groups, state.Gofer)
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return groups
	}
	for _, file := range lists {
		for child := range strings.FieldsSeq(readText(filepath.Dir(file), "children")) {
			n, err := strconv.Atoi(child)
			if err != nil {
				continue
			}
			if group, err := unix.Getpgid(n); err == nil && group > 1 {
				return append(groups, group)
			}
		}
	}
	return groups
}

// reapGroups waits, a limited time, for all processes of groups that are
// children of this process. Their numbers can't be reused before that.
func reapGroups(groups []int) {
	deadline := time.Now().Add(settleTime)
	for _, g := range groups {
		for time.Now().Before(deadline) {
			n, err := unix.Wait4(-g, nil, unix.WNOHANG, nil)
			if err != nil && !errors.Is(err, unix.EINTR) {
				break // none is left
			}
			if n == 0 {
				pauseBriefly() // it is about to end
			}
		}
	}
}
