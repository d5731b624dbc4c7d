package oci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// planDelegated is layOut for an ordinary user. The cgroups lie below ours on
// cgroup v1 and beside it on v2, if this user may make directories there.
//
// Caisson makes and limits them itself, and starts the runtime inside without
// giving it a cgroup, because runtimes differ in what they do with one as an
// ordinary user.
func planDelegated(trees []tree, own map[string]string, name string) (cgroupPlan, []string) {
	layout, _ := layOut(trees, own, name)
	if layout.crowded != "" {
		return cgroupPlan{crowded: layout.crowded}, nil
	}
	p := cgroupPlan{made: true, swap: layout.swap}
	var have []string
	for _, t := range trees {
		if t.isV2() && len(trees) > 1 {
			continue
		}
		i := slices.IndexFunc(layout.dirs, func(dir string) bool { return strings.HasPrefix(dir, t.mount+"/") })
		if i < 0 {
			continue
		}
		controllers := t.controllers
		if t.isV2() {
			controllers = strings.Fields(readText(filepath.Dir(layout.dirs[i]), "cgroup.controllers"))
		}
		if slices.ContainsFunc(needed, func(c string) bool { return slices.Contains(controllers, c) }) {
			have, p.dirs = append(have, controllers...), append(p.dirs, layout.dirs[i])
		}
	}
	return p, have
}

// makeCgroups makes and limits the planned cgroups. The runtime can't make any
// below them.
func (p cgroupPlan) makeCgroups(r limits.Resources, pids int64) error {
	if !p.made {
		return nil
	}
	for _, dir := range p.dirs {
		if err := p.makeCgroup(dir, r, pids); err != nil {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
	}
	return nil
}

func (p cgroupPlan) makeCgroup(dir string, r limits.Resources, pids int64) error {
	if parent := filepath.Dir(dir); hasFile(parent, "cgroup.subtree_control") {
		if err := writeCgroup(parent, "cgroup.subtree_control", "+"+strings.Join(needed, " +")); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	memory, quota, period := strconv.FormatInt(r.MemoryBytes, 10), strconv.FormatInt(r.MilliCPUs*cpuPeriod/1000, 10), strconv.Itoa(cpuPeriod)
	for _, l := range []struct{ file, value string }{
		{"memory.limit_in_bytes", memory},
		{"memory.memsw.limit_in_bytes", memory},
		{"memory.max", memory},
		{"memory.swap.max", "0"},
		{"pids.max", strconv.FormatInt(pids, 10)},
		{"cpu.cfs_period_us", period},
		{"cpu.cfs_quota_us", quota},
		{"cpu.max", quota + " " + period},
	} {
		if !hasFile(dir, l.file) {
			continue // of another version or controller; the limits are read back
		}
		if err := writeCgroup(dir, l.file, l.value); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o555)
}

func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

func writeCgroup(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func (p cgroupPlan) startInside(cmd *exec.Cmd) error { return startInCgroups(p.dirs, cmd) }
