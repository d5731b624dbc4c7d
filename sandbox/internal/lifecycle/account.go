package lifecycle

import (
	"cmp"
	"fmt"
	"os/user"
	"strconv"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// SetAccount looks up the image's USER in its account files, and sets Account.
// hasDir reports whether the image has a directory with this name.
func (p *Preparation) SetAccount(files images.AccountFiles, hasDir func(name string) (bool, error)) error {
	account, err := images.FindAccount(p.Config.User, files)
	if err != nil {
		return p.accountError(err)
	}
	for _, id := range append([]int{account.UID, account.GID}, account.Groups...) {
		if isReservedID(id) {
			return p.accountError(&images.UserError{
				User: p.Config.User, Reason: fmt.Sprintf("the number %d is one that the sandbox uses itself", id), Hint: "use another one, or user owner",
			})
		}
	}
	for _, id := range account.Groups {
		if id >= workmount.IDCount {
			return p.accountError(&images.UserError{
				User: p.Config.User, Reason: fmt.Sprintf("the number of its group %d is too high", id), Hint: fmt.Sprintf("want less than %d, or name one group after a colon", workmount.IDCount),
			})
		}
	}
	if account.Home != "" {
		exists, err := hasDir(account.Home)
		if err != nil {
			return err
		}
		if !exists {
			account.Home = ""
		}
	}
	p.Account = account
	return nil
}

func (p *Preparation) accountError(err error) error {
	return sandbox.ImageError(fmt.Errorf("image %s: %w", p.Spec.Image, err))
}

// firstReservedID is the first of the ids that mark commands, in all backends,
// and that root inside has on the host.
const firstReservedID = 1 << 30

// isReservedID reports whether the sandbox uses id itself: for another identity
// of commands, or from firstReservedID on.
func isReservedID(id int) bool {
	base := sandbox.IdentityBase(0, 0)
	return id >= firstReservedID || id > base && id <= base+sandbox.MaxIdentity
}

// ImageIdentity returns the identity to make the workspace's mounts for if
// commands run as the image's user, or a zero Identity otherwise. It replaces
// group 0 by sandbox.CommandGID.
func (p *Preparation) ImageIdentity() workmount.Identity {
	if p.Spec.User != sandbox.UserImage {
		return workmount.Identity{}
	}
	a := p.Account
	return workmount.Identity{UID: a.UID, GID: cmp.Or(a.GID, sandbox.CommandGID), Groups: a.Groups}
}

func (p *Preparation) groups() []uint32 {
	var list []uint32
	for _, g := range p.ImageIdentity().Groups {
		list = append(list, uint32(g))
	}
	return list
}

// commandEnv returns the commands' environment: the image's, with their user's
// name and, unless the root is read-only, home.
func (p *Preparation) commandEnv() []string {
	name, home := "", ""
	switch {
	case p.Identity.Root:
		name, home = "root", "/root"
	case p.Spec.User == sandbox.UserImage:
		name, home = cmp.Or(p.Account.Name, strconv.Itoa(p.Account.UID)), p.Account.Home
	default:
		return p.Env
	}
	names := []string{"USER=" + name, "LOGNAME=" + name}
	if p.Spec.Root == sandbox.RootEphemeral && home != "" {
		names = append(names, "HOME="+home)
	}
	return sandbox.SetVariables(p.Env, names)
}

// attestAccount adds the commands' groups except mark, which the guest finds its
// own command by. If commands run on the host's kernel with the uid of a user of
// this machine, it adds what that user can do to them.
func (o *observation) attestAccount(a *sandbox.Attestation, mark uint32) {
	for _, g := range o.hello.Command.Groups {
		if g != mark {
			a.Groups = append(a.Groups, g)
		}
	}
	if o.prep.Spec.User != sandbox.UserImage || IsGVisor(o.hello) || !o.prep.Mounts.IDMapped {
		return
	}
	uid := o.prep.Identity.Workspace.Base.UID + o.prep.Account.UID
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		a.Lost = append(a.Lost, fmt.Sprintf("commands run as uid %d, who is user %s of this machine and can read their memory and signal them", uid, u.Username))
	}
}
