package store

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/layer"
)

var accountName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
})

func validateAccount(a images.Account) error {
	if !accountName().MatchString(a.Name) || a.UID < 0 || a.GID < 0 || !path.IsAbs(a.Home) || strings.ContainsAny(a.Home, ":\n\x00") {
		return fmt.Errorf("%w: invalid account %q, %d:%d, home %q", images.ErrInvalid, a.Name, a.UID, a.GID, a.Home)
	}
	return nil
}

func accountFiles(accounts []images.Account) []layer.FileRewrite {
	return []layer.FileRewrite{
		{Path: "etc/passwd", Rewrite: func(old []byte) []byte { return passwdFile(accounts, old) }},
		{Path: "etc/group", Rewrite: func(old []byte) []byte { return groupFile(accounts, old) }},
		{Path: "etc/hosts", Rewrite: func([]byte) []byte { return []byte(images.Hosts) }},
		{Path: "etc/hostname", Rewrite: func([]byte) []byte { return []byte(images.Hostname + "\n") }},
	}
}

// passwdFile and groupFile put the accounts before the image's own: programs
// use the first line with a number or name.
func passwdFile(accounts []images.Account, has []byte) []byte {
	var out []byte
	for _, a := range accounts {
		out = fmt.Appendf(out, "%s:x:%d:%d:%s:%s:/bin/sh\n", a.Name, a.UID, a.GID, a.Name, a.Home)
	}
	if len(has) == 0 {
		has = []byte("root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
	}
	return append(out, has...)
}

func groupFile(accounts []images.Account, has []byte) []byte {
	var out []byte
	for _, a := range accounts {
		out = fmt.Appendf(out, "%s:x:%d:\n", a.Name, a.GID)
	}
	if len(has) == 0 {
		has = []byte("root:x:0:\nnogroup:x:65534:\n")
	}
	return append(out, has...)
}
