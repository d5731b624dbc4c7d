package harden

import (
	"fmt"

	"github.com/caisson-run/caisson/limits"
)

// RunBytes is the size of the tmpfs at /run, which only the guest's uid can
// write: programs expect the folder, none of ours needs room there.
const RunBytes = 16 << 20

// Tmpfs is one in-memory file system of a container. It is always nosuid and
// nodev, and its pages count against the container's memory.
type Tmpfs struct {
	Path string // absolute in the container
	// Bytes and Inodes bound it; an inode costs about 1 KiB of kernel memory
	// that no file size shows, so it is bounded too.
	Bytes, Inodes int64
	Mode          uint32 // permission bits and sticky
	UID, GID      int    // owner of its root folder, in the container
	Exec          bool
}

// TmpfsMounts returns the tmpfs mounts of a session with these resources,
// whose commands run as uid and gid. /tmp and the home folder allow exec:
// compilers, test runners and package managers run what they put there.
func TmpfsMounts(r limits.Resources, uid, gid int) []Tmpfs {
	r = withinMemory(r)
	list := []Tmpfs{
		{Path: "/tmp", Bytes: r.TmpBytes, Mode: 0o1777, Exec: true},
		{Path: "/home/agent", Bytes: r.HomeBytes, Mode: 0o700, UID: uid, GID: gid, Exec: true},
		{Path: "/run", Bytes: RunBytes, Mode: 0o755},
		{Path: "/dev/shm", Bytes: r.ShmBytes, Mode: 0o1777},
	}
	for i := range list {
		list[i].Inodes = max(list[i].Bytes/4096, 1024)
	}
	return list
}

// withinMemory makes the places that commands can fill smaller, all by the same
// factor, where together they are more than three quarters of the memory limit.
// Their pages count as memory that no kill gives back: filled beyond the limit
// they would take the guest's own with them, and with it the sandbox.
func withinMemory(r limits.Resources) limits.Resources {
	total, most := r.TmpBytes+r.HomeBytes+r.ShmBytes, r.MemoryBytes/4*3
	if total <= most {
		return r
	}
	for _, size := range []*int64{&r.TmpBytes, &r.HomeBytes, &r.ShmBytes} {
		part := float64(*size) / float64(total) * float64(most)
		*size = max(int64(part)&^(1<<20-1), 1<<20) // whole MiB
	}
	return r
}

// Options gives the mount options in the words that runtimes and the engine's
// tmpfs setting share, exec or noexec always spelled out because Docker adds
// noexec where nothing is said.
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
