package sandbox

import (
	"strconv"

	"github.com/caisson-run/caisson/images"
)

// MaxIdentity is the largest [Command.Identity]. A [Service] uses
// [ServiceIdentity].
const MaxIdentity = 15

// IdentityDir is the directory of the homes of identities other than 0, in
// which only the guest can make anything.
const IdentityDir = "/run/identity"

// IdentityBase returns the number to which an identity other than 0 is added
// for its user and its group, in a container where the agent's commands run as
// uid and gid. The identities lie above the numbers that useradd gives (to 60000), which
// goes on from the largest that is taken, and below those that systemd gives (from 61184).
// They leave out uid and gid.
func IdentityBase(uid, gid int) int {
	base := 61000
	for inRange(uid, base) || inRange(gid, base) {
		base += MaxIdentity + 1
	}
	return base
}

func inRange(id, base int) bool { return id > base && id <= base+MaxIdentity }

// IdentityHome returns the home directory of an identity. That of 0 is
// [HomeDir]. The guest makes another one before the first command of the
// identity; it belongs to the identity and is closed to all others.
func IdentityHome(identity int) string {
	if identity == 0 {
		return HomeDir
	}
	return IdentityRoot(identity) + "/home"
}

// IdentityRoot returns the directory of an identity other than 0, with its home and its
// temporary files.
func IdentityRoot(identity int) string { return IdentityDir + "/" + strconv.Itoa(identity) }

// IdentityTmp returns the directory for temporary files of an identity: /tmp of
// 0, and otherwise a directory beside its home.
func IdentityTmp(identity int) string {
	if identity == 0 {
		return "/tmp"
	}
	return IdentityRoot(identity) + "/tmp"
}

// IdentityAccounts returns the users of the identities other than 0, in a container
// where the agent's commands run as uid and gid.
func IdentityAccounts(uid, gid int) []images.Account {
	var list []images.Account
	for n := 1; n <= MaxIdentity; n++ {
		id := IdentityBase(uid, gid) + n
		list = append(list, images.Account{Name: identityName(n), UID: id, GID: id, Home: IdentityHome(n)})
	}
	return list
}

func identityName(identity int) string { return "identity" + strconv.Itoa(identity) }

// IdentityVariables returns the variables of the environment that differ for an
// identity: its name and its directories.
func IdentityVariables(identity int) []string {
	if identity == 0 {
		return nil
	}
	name, home := identityName(identity), IdentityHome(identity)
	return []string{"USER=" + name, "LOGNAME=" + name, "HOME=" + home, "PWD=" + home, "TMPDIR=" + IdentityTmp(identity)}
}
