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
)

// scratchDir contains the scratch directories, below Options.Dir.
const scratchDir = "scratch"

// makeScratch makes the scratch directories, once their parent is in the
// cleanup list, and in them the mount points of other further mounts: a runtime
// would make those as root.
func (p *Mounts) makeScratch(all []sandbox.Mount) error {
	for i := range p.cleanup.further {
		m := &p.cleanup.further[i]
		if m.Type != sandbox.MountScratch {
			continue
		}
		if p.cleanup.scratch == nil {
			if _, err := p.cleanup.makeDir(scratchDir, 0o700); err != nil {
				return fmt.Errorf("make scratch directory: %w", err)
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

// makeOwned makes a directory for ownScratch to hand over, whatever the umask
// is.
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

// ownScratch gives what makeScratch made to the commands' identity as the
// host's kernel sees it. An ordinary user owns it already, and a runtime that
// maps owners itself needs no other owner. Root commands without a user
// namespace are the first of Caisson's ids there, never the host's root.
func (u *cleanup) ownScratch(decided identityPlan) error {
	if os.Geteuid() != 0 || decided.want.RuntimeMaps {
		return nil
	}
	base := decided.want.Base
	if decided.want.Root && !base.IsNamespace() {
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
