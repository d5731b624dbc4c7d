package workmount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// scratchDir is the directory of the scratch directories, below Options.Dir.
const scratchDir = "scratch"

// makeScratch makes the scratch directories, once their directory is in the
// cleanup list, with the mount points of all further mounts that lie in them:
// a runtime would make those as root.
func (p *Mounts) makeScratch(all []sandbox.Mount) error {
	for i := range p.cleanup.further {
		m := &p.cleanup.further[i]
		if m.Type != sandbox.MountScratch {
			continue
		}
		if p.cleanup.scratch == nil {
			if err := p.cleanup.makeScratchDir(); err != nil {
				return err
			}
		}
		name := path.Join(scratchDir, strconv.Itoa(i))
		if err := p.cleanup.makeOwned(name, 0o700); err != nil {
			return err
		}
		m.source = filepath.Join(p.cleanup.base, name)
		p.scratch[m.Target] = m.source
		for _, below := range all {
			inside, ok := strings.CutPrefix(below.Target, m.Target+"/")
			if !ok {
				continue
			}
			at := name
			for part := range strings.SplitSeq(inside, "/") {
				at = path.Join(at, part)
				if err := p.cleanup.makeOwned(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
					return err
				}
			}
		}
	}
	return nil
}

// makeScratchDir makes the directory of the scratch directories.
func (u *cleanup) makeScratchDir() error {
	ids, err := u.list.Add(ownership.Entry{Kind: ownership.KindDirectory, Path: scratchDir})
	if err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	u.dirs = append(u.dirs, listedDir{id: ids[0], name: scratchDir})
	if err := unix.Mkdirat(int(u.dir.Fd()), scratchDir, 0o700); err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	u.scratch = []string{}
	return nil
}

// makeOwned makes a directory that will belong to the commands, whatever the
// umask is.
func (u *cleanup) makeOwned(name string, mode uint32) error {
	at := int(u.dir.Fd())
	err := unix.Mkdirat(at, name, mode)
	if err == nil {
		u.scratch = append(u.scratch, name)
		err = unix.Fchmodat(at, name, mode, 0)
	}
	if err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	return nil
}

// ownScratch makes what makeScratch made belong to the commands' identity in
// the container, as the host's kernel sees it: without a user namespace that is the
// same, but root commands are the first of the ids that Caisson uses. An ordinary
// user owns it already.
func (u *cleanup) ownScratch(decided identityPlan) error {
	if os.Geteuid() != 0 {
		return nil
	}
	base := decided.want.Base
	if decided.want.Root && !base.IsNamespace() { // never root of the host
		base = OwnBase
	}
	owner := ids{base.UID + decided.command.uid, base.GID + decided.command.gid}
	for _, name := range u.scratch {
		if err := unix.Fchownat(int(u.dir.Fd()), name, owner.uid, owner.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("make scratch directory: %w", err)
		}
	}
	return nil
}
