package harden

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// RunBytes is the size of the tmpfs at /run, which only the guest's UID can
// write. Programs expect the directory to exist. It has the homes of identities
// other than the agent's, except those with their own size.
const RunBytes = 16 << 20

// Tmpfs is an in-memory file system of a container. It is always nosuid and
// nodev, and counts against the container's memory.
type Tmpfs struct {
	Path string // absolute path in the container
	// An inode takes about 1 KiB of kernel memory that no file size includes.
	Bytes, Inodes int64
	Mode          uint32 // permission bits and the sticky bit
	UID, GID      int    // of its root directory, in the container
	Exec          bool
}

// TmpfsMounts returns the tmpfs mounts for commands that run as uid and gid:
// those of every container, then the further ones. One without a Mode is given
// to the commands. The mount at /tmp allows exec, because compilers, test
// runners and package managers run programs there.
func TmpfsMounts(r limits.Resources, uid, gid int, further ...Tmpfs) []Tmpfs {
	list := []Tmpfs{
		{Path: "/tmp", Bytes: r.TmpBytes, Mode: 0o1777, Exec: true},
		{Path: "/dev/shm", Bytes: r.ShmBytes, Mode: 0o1777},
	}
	for _, t := range further {
		if t.Mode == 0 {
			t.Mode, t.UID, t.GID, t.Exec = 0o700, uid, gid, true
		}
		list = append(list, t)
	}
	shrinkTo(r.MemoryBytes/4*3, list)
	list = slices.Insert(list, 1, Tmpfs{Path: "/run", Bytes: RunBytes, Mode: 0o755})
	for i := range list {
		list[i].Inodes = max(list[i].Bytes/4096, 1024)
	}
	return list
}

// shrinkTo shrinks the tmpfs mounts that commands can fill, all by the same
// factor, to most bytes. Killing processes does not free the pages of their
// files, so full file systems would otherwise get the guest killed, and the
// sandbox with it.
func shrinkTo(most int64, list []Tmpfs) {
	var total int64
	for _, t := range list {
		total += t.Bytes
	}
	if total <= most {
		return
	}
	for i := range list {
		part := float64(list[i].Bytes) / float64(total) * float64(most)
		list[i].Bytes = max(int64(part)&^(1<<20-1), 1<<20) // whole MiB
	}
}

// Options returns the mount options in the form that both runtimes and engines
// take. It always includes exec or noexec, because Docker defaults to noexec.
func (t Tmpfs) Options() []string {
	exec := "noexec"
	if t.Exec {
		exec = "exec"
	}
	return []string{
		"rw", "nosuid", "nodev", exec,
		fmt.Sprintf("size=%d", t.Bytes),
		fmt.Sprintf("nr_inodes=%d", t.Inodes),
		fmt.Sprintf("mode=%04o", t.Mode),
		fmt.Sprintf("uid=%d", t.UID),
		fmt.Sprintf("gid=%d", t.GID),
	}
}

// VolumeBytes is the size of the tmpfs that replaces an image's VOLUME: enough
// for programs that need the directory to exist, too small to work in.
const VolumeBytes = 16 << 20

// maxVolumes bounds an image's VOLUMEs, since each one costs a mount per start.
const maxVolumes = 64

// ownDirs are the guest's and the kernel's, so images can't mount over them.
var ownDirs = []string{"/.caisson", "/dev", "/proc", "/sys"}

// VolumeMounts returns the tmpfs mounts that replace an image's VOLUMEs, for
// commands that run as uid and gid, parents first. Directories in taken and the
// workspace's mount point have a mount already and get none. VolumeMounts
// returns an error for a VOLUME inside one of the sandbox's own directories, or
// inside or above the workspace.
func VolumeMounts(volumes, taken []string, workspace string, uid, gid int) ([]Tmpfs, error) {
	ownDirs := append([]string{workspace}, ownDirs...)
	if len(volumes) > maxVolumes {
		return nil, fmt.Errorf("it declares %d VOLUMEs, at most %d are taken", len(volumes), maxVolumes)
	}
	var list []Tmpfs
	for _, v := range volumes {
		target := path.Clean("/" + v)
		if slices.Contains(taken, target) || slices.Contains(ownDirs, target) || slices.ContainsFunc(list, func(t Tmpfs) bool { return t.Path == target }) {
			continue
		}
		if target == "/" || strings.HasPrefix(workspace, target+"/") || strings.ContainsAny(target, "\x00:,") || slices.ContainsFunc(ownDirs, func(o string) bool { return strings.HasPrefix(target, o+"/") }) {
			return nil, fmt.Errorf("it declares VOLUME %q, which is no place for one in a sandbox", v)
		}
		list = append(list, Tmpfs{Path: target, Bytes: VolumeBytes, Inodes: VolumeBytes / 4096, Mode: 0o755, UID: uid, GID: gid})
	}
	slices.SortFunc(list, func(a, b Tmpfs) int { return cmp.Compare(a.Path, b.Path) })
	return list, nil
}
