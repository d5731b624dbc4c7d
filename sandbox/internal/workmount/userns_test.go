package workmount

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// TestNamespacesAreKept checks that one namespace serves every workspace of an
// owner and no other owner's.
func TestNamespacesAreKept(t *testing.T) {
	needRoot(t)
	var kept UserNamespaces
	t.Cleanup(kept.Close)
	inodes := map[int]uint64{}
	for _, uid := range []int{1000, 1001, 1000, 1001} {
		f := newFixture(t, uid, uid)
		f.UserNamespaces = &kept
		p := f.prepare(t)
		if !p.IDMapped {
			t.Skip("needs id-mapped mounts")
		}
		info, err := os.Stat(p.Binds[0].Source)
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != sandbox.CommandUID || st.Gid != sandbox.CommandGID {
			t.Errorf("the directory of %d is seen as %d:%d", uid, st.Uid, st.Gid)
		}
		namespace, err := kept.openFor("/nonexistent", idMaps{owner: ids{uid, uid}})
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Fstat(int(namespace.Fd()), &st))
		must(t, namespace.Close())
		if have, ok := inodes[uid]; ok && have != st.Ino {
			t.Errorf("another namespace for the same owner")
		}
		inodes[uid] = st.Ino
	}
	if inodes[1000] == inodes[1001] {
		t.Error("two owners share a namespace")
	}
	holder, err := os.Executable()
	must(t, err)
	for uid := range 2 * maxNamespaces {
		f, err := kept.openFor(holder, idMaps{owner: ids{3000 + uid, 3000}})
		must(t, err)
		must(t, f.Close())
	}
	if len(kept.kept) > maxNamespaces {
		t.Errorf("%d namespaces are kept", len(kept.kept))
	}
	before := openFiles(t)
	kept.Close()
	if after := openFiles(t); after >= before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	return len(names)
}
