package store

import (
	"fmt"
	"path"
	"regexp"
	"slices"
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

// accountFiles puts the accounts before the image's own: programs use the first
// line with a number or name.
func accountFiles(accounts []images.Account) []layer.FileRewrite {
	passwd, group := images.AccountLines(accounts)
	before := func(lines []byte, fallback string) func(old []byte) []byte {
		return func(old []byte) []byte {
			if len(old) == 0 {
				old = []byte(fallback)
			}
			return slices.Concat(lines, old)
		}
	}
	return []layer.FileRewrite{
		{Path: "etc/passwd", Rewrite: before(passwd, "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")},
		{Path: "etc/group", Rewrite: before(group, "root:x:0:\nnogroup:x:65534:\n")},
		{Path: "etc/hosts", Rewrite: func([]byte) []byte { return []byte(images.Hosts) }},
		{Path: "etc/hostname", Rewrite: func([]byte) []byte { return []byte(images.Hostname + "\n") }},
	}
}
