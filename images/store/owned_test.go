package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// Files have their image's owners and modes where requested, but no
// set-user-ID, beside a tree without owners. For an ordinary user, all files
// are that user's.
func TestOwnedRootFS(t *testing.T) {
	item := func(it imagetest.Item, mode int64, uid, gid int) imagetest.Item {
		it.Mode, it.Uid, it.Gid = mode, uid, gid
		return it
	}
	dir := writeLayout(t, map[string]v1.Image{"x": simple(t,
		item(imagetest.Directory("home/user"), 0o700, 1000, 1001), item(imagetest.File("home/user/key", "x"), 0o600, 1000, 1001),
		item(imagetest.File("usr/bin/su", "x"), 0o4755, 0, 0), item(imagetest.Directory("srv/shared"), 0o3777, 0, 33),
		item(imagetest.Symlink("home/link", "user"), 0o777, 1000, 1000), item(imagetest.Directory("bin"), 0o750, 0, 0),
	)})
	ref := mustParse(t, "oci-layout:"+dir+":x")
	s := openStore(t, storeDir(t))
	plain, releasePlain := rootfs(t, s, ref)
	owned, release, err := s.OwnedRootFS(t.Context(), ref)
	must(t, err)
	if owned.Digest != plain.Digest || owned.Dir == plain.Dir {
		t.Errorf("%s in %s, and %s in %s", plain.Digest, plain.Dir, owned.Digest, owned.Dir)
	}
	for name, want := range map[string][2]string{
		"home/user":     {"0:0 drwxr-xr-x", "1000:1001 drwx------"},
		"home/user/key": {"0:0 -rw-r--r--", "1000:1001 -rw-------"},
		"usr/bin/su":    {"0:0 -rwxr-xr-x", "0:0 -rwxr-xr-x"},
		"srv/shared":    {"0:0 drwxr-xr-x", "0:33 dtrwxrwxrwx"},
		"home/link":     {"0:0 Lrwxrwxrwx", "1000:1000 Lrwxrwxrwx"},
		"bin":           {"0:0 drwxr-xr-x", "0:0 drwxr-x---"}, // of a lower layer too
	} {
		if uid := os.Geteuid(); uid != 0 {
			for i := range want {
				_, mode, _ := strings.Cut(want[i], " ")
				want[i] = fmt.Sprintf("%d:%d %s", uid, os.Getegid(), mode)
			}
		}
		if got := [2]string{ownerAndMode(t, plain.Dir, name), ownerAndMode(t, owned.Dir, name)}; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// Either tree keeps an image from a prune.
	releasePlain()
	if done, err := s.Prune(t.Context(), 0); err != nil || len(done.Kept) != 1 {
		t.Errorf("prune: %+v, %v", done, err)
	}
	release()
	if done, err := s.Prune(t.Context(), 0); err != nil || len(done.Images) != 1 {
		t.Errorf("prune: %+v, %v", done, err)
	}
	for _, root := range []*images.RootFS{plain, owned} {
		if pathExists(root.Dir) {
			t.Errorf("%s is left", root.Dir)
		}
	}
}

func ownerAndMode(t *testing.T, dir, name string) string {
	t.Helper()
	info, err := os.Lstat(filepath.Join(dir, name))
	must(t, err)
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d %v", st.Uid, st.Gid, info.Mode())
}
