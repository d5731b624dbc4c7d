package sandbox

import (
	"strconv"

	"github.com/caisson-run/caisson/images"
)

// MaxIdentity is the largest [Command.Identity].
const MaxIdentity = 15

// IdentityDir contains the homes of identities other than 0. Only the guest can
// create anything in it.
const IdentityDir = "/run/identity"

// IdentityBase returns the number that plus an identity other than 0 gives its
// user and group ID, in a container where the agent's commands run as uid and
// gid. The IDs lie above those that useradd gives (up to 60000), because it
// continues from the largest taken, and below those that systemd gives (from
// 61184). They never include uid or gid.
func IdentityBase(uid, gid int) int {
	base := 61000
	for inRange(uid, base) || inRange(gid, base) {
		base += MaxIdentity + 1
	}
	return base
}

func inRange(id, base int) bool { return id > base && id <= base+MaxIdentity }

// IdentityHome returns an identity's home directory, [HomeDir] for 0. The guest
// makes the others before an identity's first command; only the identity can
// enter its own.
func IdentityHome(identity int) string {
	if identity == 0 {
		return HomeDir
	}
	return IdentityRoot(identity) + "/home"
}

// IdentityRoot returns the directory with an identity's home and temporary
// files. The identity must not be 0.
func IdentityRoot(identity int) string { return IdentityDir + "/" + strconv.Itoa(identity) }

// IdentityTmp returns an identity's directory for temporary files, /tmp for 0.
func IdentityTmp(identity int) string {
	if identity == 0 {
		return "/tmp"
	}
	return IdentityRoot(identity) + "/tmp"
}

// IdentityAccounts returns the users of the identities other than 0, in a
// container where the agent's commands run as uid and gid.
func IdentityAccounts(uid, gid int) []images.Account {
	var list []images.Account
	for n := 1; n <= MaxIdentity; n++ {
		id := IdentityBase(uid, gid) + n
		list = append(list, images.Account{Name: identityName(n), UID: id, GID: id, Home: IdentityHome(n)})
	}
	return list
}

func identityName(identity int) string { return "identity" + strconv.Itoa(identity) }

// IdentityVariables returns the environment variables that differ for an
// identity: its name and its directories.
func IdentityVariables(identity int) []string {
	if identity == 0 {
		return nil
	}
	name, home := identityName(identity), IdentityHome(identity)
	return []string{"USER=" + name, "LOGNAME=" + name, "HOME=" + home, "PWD=" + home, "TMPDIR=" + IdentityTmp(identity)}
}
