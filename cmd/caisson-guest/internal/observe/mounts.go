package observe

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// mountinfo is the mount table, in the kernel's order: the last of several
// mounts on a path is visible.
type mountinfo []mountLine

// mountLine is one line of /proc/self/mountinfo (proc(5)).
type mountLine struct {
	root, path, kind string
	options          []string // of the mount and of the file system
}

// readMounts returns the mount table, or nil if it can't be read.
func readMounts() mountinfo {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseMounts(string(data))
}

// MountPoints returns the mount points of this sandbox, including files. An
// empty list is an error, because every sandbox has a root.
func MountPoints() (points []string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mounts of the sandbox: %w", err)
	}
	for _, m := range parseMounts(string(data)) {
		points = append(points, m.path)
	}
	if points == nil {
		err = errors.New("the sandbox's list of mounts is empty")
	}
	return points, err
}

func parseMounts(text string) mountinfo {
	var table mountinfo
	for line := range strings.Lines(text) {
		own, fs, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields, rest := strings.Fields(own), strings.Fields(fs)
		if !ok || len(fields) < 6 || len(rest) < 1 {
			continue
		}
		m := mountLine{
			root: unescape(fields[3]), path: unescape(fields[4]), kind: rest[0],
			options: strings.Split(fields[5], ","),
		}
		if len(rest) > 2 {
			for o := range strings.SplitSeq(rest[2], ",") {
				if !slices.Contains(m.options, o) {
					m.options = append(m.options, o)
				}
			}
		}
		table = append(table, m)
	}
	return table
}

// unescape undoes mountinfo's octal escapes of space, tab, newline and
// backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountAt returns the visible mount at path, or one without a type.
func (t mountinfo) mountAt(path string) wire.Mount {
	out := wire.Mount{Path: path}
	for _, m := range t {
		if m.path == path {
			out.Type, out.Options = m.kind, m.options
		}
	}
	return withFileSystem(out)
}

func (t mountinfo) mountsBelow(path string) []wire.Mount {
	return t.listWhere(func(m mountLine) bool { return strings.HasPrefix(m.path, strings.TrimSuffix(path, "/")+"/") })
}

func (t mountinfo) ofType(kind string) []wire.Mount {
	return t.listWhere(func(m mountLine) bool { return m.kind == kind })
}

func (t mountinfo) listWhere(wanted func(mountLine) bool) []wire.Mount {
	var out []wire.Mount
	for _, m := range t {
		if wanted(m) {
			out = append(out, withFileSystem(wire.Mount{Path: m.path, Type: m.kind, Options: m.options}))
		}
	}
	return out
}

// maxMounts bounds the reported mounts: a container has some thirty.
const maxMounts = 512

func (t mountinfo) paths() []string {
	var out []string
	for _, m := range t {
		if len(out) == maxMounts {
			break
		}
		out = append(out, m.path)
	}
	return out
}

// withFileSystem adds the file system's properties. It asks only a tmpfs for
// its size: statfs can hang on a network file system.
func withFileSystem(m wire.Mount) wire.Mount {
	var st unix.Stat_t
	if unix.Lstat(m.Path, &st) == nil {
		m.Device, m.Inode = uint64(st.Dev), st.Ino //nolint:unconvert // 32 bits on some systems
	}
	var fs unix.Statfs_t
	if m.Type == "tmpfs" && unix.Statfs(m.Path, &fs) == nil {
		m.Bytes = int64(fs.Blocks) * int64(fs.Bsize) //nolint:unconvert // 32 bits on some systems
	}
	return m
}

// Volumes are the container's writable file systems in memory. They are found
// once. Only a tmpfs counts: others, such as the workspace's, may hang when asked.
type Volumes []string

// OpenVolumes finds the volumes, except in homes, the directory of the
// identities' homes: a full one concerns no other command.
func OpenVolumes(homes string) Volumes { return readMounts().volumes(homes) }

// volumes returns the file systems in memory, except a runtime's own: /dev, the
// cgroups, the masks over files of /proc and /sys.
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

// Full returns the volumes without a free page or inode.
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
