package boot

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// mountLayered makes the mounts of Config.Layered, unmounts what they are made
// of, so that no command can reach it, and drops the capabilities for that. It
// is for gVisor, whose overlays need no work directory.
func mountLayered(c wire.Config) error {
	if len(c.Layered) == 0 {
		return nil
	}
	for _, l := range c.Layered {
		if err := mountOne(l); err != nil {
			return fmt.Errorf("mount at %s: %w", l.Target, err)
		}
	}
	for _, l := range c.Layered {
		for _, place := range l.Places() {
			if err := unix.Unmount(place, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount layer: %w", err)
			}
			removeMountPoint(place)
		}
	}
	keep := uint64(0)
	if c.Root {
		keep = wire.RootCapabilities
	}
	for n := range uintptr(64) {
		if wire.LayerCapabilities&^keep&(1<<n) == 0 {
			continue
		}
		if err := identity.DropCapability(n); err != nil {
			return err
		}
	}
	return nil
}

func mountOne(l wire.Layered) error {
	if l.Source != "" {
		return unix.Mount(l.Source, l.Target, "", unix.MS_BIND, "")
	}
	if err := os.MkdirAll(l.Target, 0o755); err != nil { // in a writable root
		return err
	}
	options := "userxattr,upperdir=" + l.Upper + ",lowerdir=" + strings.Join(l.Lowers, ":")
	return unix.Mount("overlay", l.Target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// removeMountPoint removes a file or directory that is no mount any more, and
// those above it that are empty then. An error leaves an empty one.
func removeMountPoint(place string) {
	if unix.Rmdir(place) != nil {
		_ = unix.Unlink(place)
	}
	for dir := path.Dir(place); strings.HasPrefix(dir, wire.LayersDir) && unix.Rmdir(dir) == nil; {
		dir = path.Dir(dir)
	}
}
