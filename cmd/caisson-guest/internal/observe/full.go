package observe

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Volumes are the container's writable file systems in memory. They are found
// once; the workspace is not among them, since its file system may be one that
// hangs when it is asked.
type Volumes []string

// OpenVolumes finds them, but not those in homes, the directory of the homes of
// identities: that one of them is full concerns no other command.
func OpenVolumes(homes string) Volumes { return readMounts().volumes(homes) }

// volumes returns the file systems in memory, without those that a runtime
// mounts for itself: /dev, the directory of cgroups, the masks over files of
// /proc and /sys.
func (t mountinfo) volumes(homes string) Volumes {
	var out Volumes
	for _, m := range t {
		own := m.path == "/dev" || strings.HasPrefix(m.path, "/proc/") || strings.HasPrefix(m.path, "/sys/") || strings.HasPrefix(m.path, homes+"/")
		if m.kind == "tmpfs" && m.root == "/" && !own && m.options[0] == "rw" && !slices.Contains(out, m.path) {
			out = append(out, m.path)
		}
	}
	return out
}

// Full returns those that have no page or no inode left.
func (v Volumes) Full() []string {
	var out []string
	for _, path := range v {
		var fs unix.Statfs_t
		if unix.Statfs(path, &fs) == nil && fs.Blocks > 0 && (fs.Bavail == 0 || fs.Files > 0 && fs.Ffree == 0) {
			out = append(out, path)
		}
	}
	return out
}
