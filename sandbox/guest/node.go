package guest

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// modes are the type bits of fs.FileMode that each type of a file may have.
var modes = map[workspace.Type][]fs.FileMode{
	workspace.TypeFile:    {0},
	workspace.TypeDir:     {fs.ModeDir},
	workspace.TypeSymlink: {fs.ModeSymlink},
	workspace.TypeFIFO:    {fs.ModeNamedPipe},
	workspace.TypeSocket:  {fs.ModeSocket},
	workspace.TypeDevice:  {fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice},
	workspace.TypeMount: {
		0, fs.ModeDir, fs.ModeSymlink, fs.ModeNamedPipe, fs.ModeSocket, fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice,
	},
	workspace.TypeOther: {0},
}

// otherBits are those of a mode beside its type.
const otherBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// checkNode refuses what no file can be.
func checkNode(kind string, size int64, target []byte, mode uint32, modified *wire.Timestamp) error {
	if len(target) > workspace.MaxPathBytes || target != nil && kind != string(workspace.TypeSymlink) {
		return fmt.Errorf("%w: a %.20q has a link target, which only a symlink of a bounded length may have", wire.ErrProtocol, kind)
	}
	for _, bits := range modes[workspace.Type(kind)] {
		if modeOf(mode)&^otherBits == bits && size >= 0 {
			return checkTime(modified)
		}
	}
	return fmt.Errorf("%w: a %.20q of %d bytes with mode %o", wire.ErrProtocol, kind, size, mode)
}

// checkTime refuses what no file system can store: seconds are 64 bits at most,
// and time.Time holds some less.
func checkTime(t *wire.Timestamp) error {
	const most = 1 << 53
	if t != nil && (t[0] < -most || t[0] > most || t[1] < 0 || t[1] >= int64(time.Second)) {
		return fmt.Errorf("%w: time %v", wire.ErrProtocol, *t)
	}
	return nil
}

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode) }

func timeOf(t *wire.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Unix(t[0], t[1])
}

func infoOf(i wire.FileInfo) workspace.Info {
	return workspace.Info{Type: workspace.Type(i.Type), Size: i.Size, Target: string(i.Target), Mode: modeOf(i.Mode), ModTime: timeOf(&i.Modified), Inode: i.Inode}
}
