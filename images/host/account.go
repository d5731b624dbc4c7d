package host

import (
	"fmt"

	"github.com/caisson-run/caisson/images"
)

// accountFiles returns the synthetic files of /etc: three accounts, no
// password, nothing of the host's users or names.
func accountFiles(uid, gid int) []images.File {
	return []images.File{
		{Path: "/etc/passwd", Content: fmt.Appendf(nil, "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:%d:%d:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", uid, gid)},
		{Path: "/etc/group", Content: fmt.Appendf(nil, "root:x:0:\nagent:x:%d:\nnogroup:x:65534:\n", gid)},
		{Path: "/etc/hosts", Content: []byte("127.0.0.1 localhost caisson\n::1 localhost\n")},
		{Path: "/etc/hostname", Content: []byte("caisson\n")},
	}
}
