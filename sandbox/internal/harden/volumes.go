package harden

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// VolumeBytes is the size of the tmpfs in the place of an image's VOLUME:
// enough for a program that wants the folder, too little to work in.
const VolumeBytes = 16 << 20

// maxVolumes bounds the VOLUMEs of an image: each is a mount of every start.
const maxVolumes = 64

// ownDirs are the folders of a container that no image mounts in: what belongs to
// the workspace, the guest and the kernel.
var ownDirs = []string{"/.caisson", "/dev", "/proc", "/sys", "/workspace"}

// VolumeMounts returns the tmpfs mounts in the place of the folders that an
// image declares as VOLUME, for commands that run as uid and gid, parents
// first. taken are folders that are mounted anyway and need none. It fails for
// a VOLUME that would lie over or in what is the sandbox's own.
func VolumeMounts(volumes, taken []string, uid, gid int) ([]Tmpfs, error) {
	if len(volumes) > maxVolumes {
		return nil, fmt.Errorf("it declares %d VOLUMEs, at most %d are taken", len(volumes), maxVolumes)
	}
	var list []Tmpfs
	for _, v := range volumes {
		target := path.Clean("/" + v)
		if slices.Contains(taken, target) || slices.Contains(ownDirs, target) || slices.ContainsFunc(list, func(t Tmpfs) bool { return t.Path == target }) {
			continue
		}
		if target == "/" || strings.ContainsAny(target, "\x00:,") || slices.ContainsFunc(ownDirs, func(o string) bool { return strings.HasPrefix(target, o+"/") }) {
			return nil, fmt.Errorf("it declares VOLUME %q, which is no place for one in a sandbox", v)
		}
		list = append(list, Tmpfs{Path: target, Bytes: VolumeBytes, Inodes: VolumeBytes / 4096, Mode: 0o755, UID: uid, GID: gid})
	}
	slices.SortFunc(list, func(a, b Tmpfs) int { return cmp.Compare(a.Path, b.Path) })
	return list, nil
}
