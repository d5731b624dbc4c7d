package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MountPoint returns the mount point in the container.
func (w Workspace) MountPoint() string { return cmp.Or(w.Target, WorkspaceDir) }

// maxTargetBytes leaves most of PATH_MAX for paths in the workspace.
const maxTargetBytes = 1024

// CheckTarget returns an error that wraps [ErrInvalid] if a workspace can't be
// mounted at target. It refuses paths that are not absolute and in their
// shortest form, paths that the sandbox itself uses, and paths where the
// workspace would replace the image's programs, libraries or accounts, on which
// others than the agent's commands rely. [Creator.Create] also refuses symlinks
// in the image.
func CheckTarget(target string) error {
	switch {
	case len(target) > maxTargetBytes:
		return fmt.Errorf("%w: mount point of %d bytes: want at most %d", ErrInvalid, len(target), maxTargetBytes)
	case !utf8.ValidString(target) || strings.ContainsFunc(target, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%w: mount point %q: want printable UTF-8", ErrInvalid, target)
	case !path.IsAbs(target) || path.Clean(target) != target:
		return fmt.Errorf("%w: mount point %q: want an absolute path without . or .. or a slash at its end", ErrInvalid, target)
	}
	isIn := func(dir string) bool { return target == dir || strings.HasPrefix(target, dir+"/") }
	contains := func(dir string) bool { return target == "/" || dir == target || strings.HasPrefix(dir, target+"/") }
	switch {
	case slices.ContainsFunc(ownDirs, isIn) || contains(HomeDir):
		return fmt.Errorf("%w: mount point %q: the sandbox has directories of its own there", ErrInvalid, target)
	case slices.ContainsFunc(programDirs, isIn) || slices.ContainsFunc(programDirs, contains) || slices.Contains(sharedDirs, target):
		return fmt.Errorf("%w: mount point %q: it would replace programs or system files of the image", ErrInvalid, target)
	}
	return nil
}

// CheckMountTarget returns an error that wraps [ErrInvalid] if a [Mount] can't
// be at target. workspace is the workspace's mount point; empty means
// [WorkspaceDir]. It refuses paths that engines do not accept, and paths that
// are, contain or (mostly) lie in something that the sandbox itself mounts.
// [Creator.Create] also refuses a target inside a directory of the image or
// another mount that does not have it.
func CheckMountTarget(target, workspace string) error {
	if err := checkMountPath(target, workspace); err != nil {
		return &MountError{fmt.Errorf("mount at %q: %w: %w", target, ErrInvalid, err)}
	}
	return nil
}

func checkMountPath(target, workspace string) error {
	workspace = cmp.Or(workspace, WorkspaceDir)
	switch {
	case !path.IsAbs(target) || path.Clean(target) != target || len(target) > maxTargetBytes:
		return errors.New("the target must be an absolute path in its shortest form, such as /data")
	case target == "/":
		return errors.New("the root belongs to the image")
	case !utf8.ValidString(target) || strings.ContainsFunc(target, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(`\:,"`, r) }):
		return errors.New(`the target contains a control character or one of \ : , "`)
	}
	for _, own := range append([]string{workspace, "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}, ownDirs...) {
		if own == target || strings.HasPrefix(own, target+"/") {
			return fmt.Errorf("the sandbox mounts %s itself: use a directory that neither is nor contains it", own)
		}
	}
	for _, closed := range []string{workspace, "/.caisson", "/dev", "/proc", "/sys"} {
		if strings.HasPrefix(target, closed+"/") {
			return fmt.Errorf("nothing can be mounted in %s", closed)
		}
	}
	return nil
}

var (
	// ownDirs are directories in which the sandbox itself mounts file systems.
	// Commands can change everything in /tmp and the home, so a mount point
	// there could be moved away.
	ownDirs     = []string{"/.caisson", "/dev", "/proc", "/sys", "/run", "/tmp", HomeDir}
	programDirs = []string{
		"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin",
		"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/libx32", "/usr/sbin",
		"/usr/local/bin", "/usr/local/lib", "/usr/local/sbin",
	}
	sharedDirs = []string{"/usr/share", "/usr/local/share", "/var", "/var/cache", "/var/lib", "/var/tmp"}
)
