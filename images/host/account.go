package host

import (
	"fmt"

	"github.com/caisson-run/caisson/images"
)

// accountFiles returns the synthetic files of /etc: root, the accounts and the user
// "nobody", no password, nothing of the host's users or names.
func accountFiles(accounts []images.Account) []images.File {
	users, groups := []byte("root:x:0:0:root:/root:/usr/sbin/nologin\n"), []byte("root:x:0:\n")
	for _, a := range accounts {
		users = fmt.Appendf(users, "%s:x:%d:%d:%s:%s:/bin/sh\n", a.Name, a.UID, a.GID, a.Name, a.Home)
		groups = fmt.Appendf(groups, "%s:x:%d:\n", a.Name, a.GID)
	}
	return []images.File{
		{Path: "/etc/passwd", Content: append(users, "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"...)},
		{Path: "/etc/group", Content: append(groups, "nogroup:x:65534:\n"...)},
		{Path: "/etc/hosts", Content: []byte(images.Hosts)},
		{Path: "/etc/hostname", Content: []byte(images.Hostname + "\n")},
	}
}
