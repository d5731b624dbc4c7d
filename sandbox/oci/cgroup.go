package oci

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/caisson-run/caisson/sandbox"
)

// cgroupPrefix begins the name of every cgroup of Caisson. The session ID
// follows.
const cgroupPrefix = "caisson-"

// cgroupPlan describes a container's future cgroup. The zero value is no cgroup
// and no limits.
type cgroupPlan struct {
	// path is the cgroup given to the runtime. On cgroup v1 it is relative to
	// our own, so that Caisson's limits include its sandboxes. On v2 it is
	// beside our own, where a cgroup with processes can have no limited
	// children.
	path string
	// swap reports whether memory and swap can be bounded together.
	swap bool
	// crowded is the v2 cgroup that would contain the container's but has
	// processes itself, and so can have no limited children. "" if it has none.
	crowded string
	// dirs are the absolute paths of the directories that the runtime makes.
	dirs []string
	// made reports that Caisson, for an ordinary user, makes dirs and starts
	// the runtime inside; path is then empty.
	made bool
	// own is the directory of this process's cgroup in one of the limiting
	// hierarchies, joined the directory of the container's. Both are absolute.
	own, joined string
}

func (p cgroupPlan) isLimited() bool { return p.path != "" || p.made }

type tree struct {
	mount string
	root  string // the cgroup that is mounted there
	// controllers are a v1 hierarchy's. Nil means v2.
	controllers []string
}

var needed = []string{"cpu", "memory", "pids"}

func planCgroup(session string, rootless bool, t traits) (cgroupPlan, []string) {
	lost := "Limits of memory, pids and CPU time: "
	if t.ownKernel {
		lost = "Limits of memory and CPU time: " // it counts processes itself
	}
	trees, own, err := readCgroups("self")
	if err != nil {
		return cgroupPlan{}, []string{lost + err.Error()}
	}
	p, missing := planCgroupIn(trees, own, session, rootless)
	if missing != "" {
		return p, []string{lost + missing}
	}
	return p, p.lostSwap()
}

// planCgroupIn is planCgroup for the given hierarchies and a process in the
// given cgroups. missing says why there are no limits.
func planCgroupIn(trees []tree, own map[string]string, session string, rootless bool) (_ cgroupPlan, missing string) {
	p, have := layOutFor(rootless)(trees, own, cgroupPrefix+session)
	if p.crowded != "" {
		// runc makes its directory there nevertheless.
		return cgroupPlan{dirs: p.dirs}, fmt.Sprintf("the cgroup %s holds processes itself, and version 2 limits nothing below such a one.", p.crowded)
	}
	for _, c := range needed {
		if slices.Contains(have, c) {
			continue
		}
		if rootless {
			return cgroupPlan{}, fmt.Sprintf("no cgroup with the controller %s is delegated to this user, as in a scope of systemd's user instance with Delegate=yes.", c)
		}
		return cgroupPlan{}, fmt.Sprintf("the cgroup controller %s is missing, or its directory can't be written.", c)
	}
	return p, ""
}

func (p cgroupPlan) lostSwap() []string {
	if p.swap {
		return nil
	}
	return []string{"The limit of swap: this kernel does not account for it."}
}

// layOutFor returns layOut, or its counterpart for an ordinary user.
func layOutFor(rootless bool) func(trees []tree, own map[string]string, name string) (cgroupPlan, []string) {
	if rootless {
		return planDelegated
	}
	return layOut
}

// layOut plans a cgroup of this name and returns the available controllers.
func layOut(trees []tree, own map[string]string, name string) (cgroupPlan, []string) {
	p := cgroupPlan{path: name, swap: true}
	var have []string
	for _, t := range trees {
		at, ok := t.dirOf(own)
		if t.isV2() && len(trees) > 1 {
			if !ok {
				at = t.mount
			}
			p.dirs = append(p.dirs, hybridDirs(t.mount, at, name)...)
			continue
		}
		if !ok {
			continue
		}
		current := at
		if t.isV2() {
			if at != t.mount {
				at = filepath.Dir(at)
			}
			p.path = path.Join("/", path.Dir(own[""]), name)
			if isCrowded(at) {
				p.crowded, p.dirs = at, append(p.dirs, filepath.Join(at, name))
				continue
			}
		}
		if !isWritable(at) {
			continue
		}
		have = append(have, t.listControllers()...)
		p.own, p.joined = current, filepath.Join(at, name)
		p.dirs = append(p.dirs, p.joined)
		if slices.Contains(t.controllers, "memory") {
			_, err := os.Stat(filepath.Join(at, "memory.memsw.limit_in_bytes"))
			p.swap = err == nil
		}
	}
	return p, have
}

// hybridDirs returns the directories that a runtime may make in a hybrid host's
// v2 tree, where nothing is limited. runc makes one at the tree's root,
// wherever our own cgroup is (opencontainers/cgroups, v1_utils.go,
// GetOwnCgroupPath, as of runc 1.0 to 1.5), although its path is relative to
// ours in every other tree. Another runtime may use the path literally. Listing
// a directory that was not made does no harm.
func hybridDirs(mount, at, name string) []string {
	var dirs []string
	for _, parent := range slices.Compact([]string{mount, at}) {
		if isWritable(parent) {
			dirs = append(dirs, filepath.Join(parent, name))
		}
	}
	return dirs
}

// isCrowded reports whether a v2 cgroup contains processes itself, like ours in
// a container, where it is the visible root. The kernel then enables no memory
// controller below it ("no internal process constraint", cgroup-v2.rst). Only
// the hierarchy's own root is exempt and has no cgroup.type.
func isCrowded(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	return err == nil && readText(dir, "cgroup.procs") != ""
}

func (t tree) isV2() bool { return t.controllers == nil }

func (t tree) listControllers() []string {
	if !t.isV2() {
		return t.controllers
	}
	data, err := os.ReadFile(filepath.Join(t.mount, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

// dirOf returns the directory in this tree of the process whose cgroups are
// groups, as from processCgroups.
func (t tree) dirOf(groups map[string]string) (string, bool) {
	keys := t.controllers // with other options of the mount, such as seclabel
	if t.isV2() {
		keys = []string{""}
	}
	for _, key := range keys {
		if group, ok := groups[key]; ok {
			// In a container without a cgroup namespace, the mount shows only a part.
			rel, ok := strings.CutPrefix(group, strings.TrimSuffix(t.root, "/"))
			return filepath.Join(t.mount, rel), ok
		}
	}
	return "", false
}

func cgroupTrees() ([]tree, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	var trees []tree
	for _, m := range mounts {
		t := tree{mount: m.Mountpoint, root: m.Root}
		if m.FSType == "cgroup" {
			t.controllers = slices.DeleteFunc(strings.Split(m.VFSOptions, ","), func(o string) bool {
				return o == "rw" || o == "ro" || o == "xattr" || o == "clone_children"
			})
			if len(t.controllers) == 0 {
				continue
			}
		}
		trees = append(trees, t)
	}
	return trees, nil
}

// readCgroups returns the mounted hierarchies, and a process's cgroups in them
// as from processCgroups.
func readCgroups(pid string) ([]tree, map[string]string, error) {
	trees, err := cgroupTrees()
	if err != nil {
		return nil, nil, err
	}
	groups, err := processCgroups(pid)
	return trees, groups, err
}

// processCgroups reads /proc/PID/cgroup. The keys are controllers, "name=…" for
// a named v1 hierarchy, and "" for v2.
func processCgroups(pid string) (map[string]string, error) {
	data, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return nil, err
	}
	return parseCgroups(string(data)), nil
}

func parseCgroups(text string) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			groups[c] = parts[2]
		}
	}
	return groups
}

// CgroupInfo describes this machine's cgroups as the runtimes that Caisson
// starts itself can use them.
type CgroupInfo struct {
	// Version is "v1", "v2", "hybrid" (v1 for limits, v2 beside it) or "none".
	Version string
	// Missing lists which of cpu, memory and pids can't be limited: the
	// controller does not exist, this process can't write its directory, or it
	// is not delegated to an ordinary user.
	Missing []string
	// Crowded is the v2 cgroup that would contain a sandbox's but has processes
	// itself, so that nothing can be limited below it. Otherwise it is "".
	Crowded string
	// Swap reports whether memory and swap can be bounded together.
	Swap bool
	// Job are the limits that already hold for this process and everything else
	// in its container. Without a cgroup, a sandbox of
	// sandbox.IsolationProcess has no others.
	Job sandbox.AttestedLimits
}

// Cgroups reads the mounted hierarchies and this process's place in them. It
// fails only if /proc can't be read.
func Cgroups() (CgroupInfo, error) {
	trees, own, err := readCgroups("self")
	if err != nil {
		return CgroupInfo{}, err
	}
	info := describeCgroups(trees, own, os.Geteuid() != 0)
	info.Job = jobIn(trees, own).readLimits()
	return info, nil
}

func describeCgroups(trees []tree, own map[string]string, rootless bool) CgroupInfo {
	info := CgroupInfo{Version: "none"}
	v2 := slices.ContainsFunc(trees, tree.isV2)
	switch {
	case v2 && len(trees) > 1:
		info.Version = "hybrid"
	case v2:
		info.Version = "v2"
	case len(trees) > 0:
		info.Version = "v1"
	}
	plan, have := layOutFor(rootless)(trees, own, cgroupPrefix)
	info.Swap, info.Crowded = plan.swap && len(have) > 0, plan.crowded
	for _, c := range needed {
		if !slices.Contains(have, c) {
			info.Missing = append(info.Missing, c)
		}
	}
	return info
}
