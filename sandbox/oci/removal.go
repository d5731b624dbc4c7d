package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// removeCgroup kills what is left in a cgroup, removes it, and reports whether
// it existed. It touches only directories on a cgroup file system that are
// named after the session.
func removeCgroup(dir, session string) (bool, error) {
	if filepath.Base(dir) != cgroupPrefix+session {
		return false, fmt.Errorf("remove cgroup %s: not one of session %s", dir, session)
	}
	ours, err := onCgroupFS(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("remove cgroup %s: %w", dir, err)
	case !ours:
		return false, fmt.Errorf("remove cgroup %s: not on a cgroup file system", dir)
	}
	for range removeAttempts {
		if err = os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		killCgroup(dir)
	}
	return true, fmt.Errorf("remove cgroup %s: %w", dir, err)
}

// removeAttempts bounds how often a cgroup is emptied. Once is enough unless
// its processes fork faster than they are killed.
const removeAttempts = 50

// killCgroup kills every process in a cgroup and waits for them. The kernel
// does it if it can (cgroup v2, Linux 5.14). Otherwise each is signalled by a
// descriptor that was opened before the process was seen in the cgroup, so that
// a reused number is never signalled.
func killCgroup(dir string) {
	var found []*hostProcess
	for f := range strings.FieldsSeq(readText(dir, "cgroup.procs")) {
		if f == strconv.Itoa(os.Getpid()) {
			continue // a thread of ours that is about to end, see startInCgroups
		}
		if p, err := openProcess(int(parseNumber(f))); err == nil {
			found = append(found, p)
		}
	}
	byKernel := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil
	inside := strings.Fields(readText(dir, "cgroup.procs"))
	for _, p := range found {
		if !byKernel && slices.Contains(inside, strconv.Itoa(p.pid)) {
			p.sendKill()
		}
	}
	for _, p := range found {
		p.waitFor(settleTime)
		p.close()
	}
	pauseBriefly()
}

// thawCgroups thaws cgroups: on cgroup v1 a frozen process does not even die of
// SIGKILL.
func thawCgroups(dirs []string) {
	for _, dir := range dirs {
		for name, value := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			file := filepath.Join(dir, name)
			if _, err := os.Stat(file); err == nil {
				_ = os.WriteFile(file, []byte(value), 0) // the wait for the process shows whether it worked
			}
		}
	}
}
