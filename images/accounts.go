package images

import "fmt"

// accountFiles returns the synthetic files of /etc: three accounts, no
// password, nothing of the host's users or names.
func accountFiles(uid, gid int) []File {
	return []File{
		{"/etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:%d:%d:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", uid, gid)},
		{"/etc/group", fmt.Appendf(nil, "root:x:0:\nagent:x:%d:\nnogroup:x:65534:\n", gid)},
		{"/etc/hosts", []byte("127.0.0.1 localhost caisson\n::1 localhost\n")},
		{"/etc/hostname", []byte("caisson\n")},
	}
}
