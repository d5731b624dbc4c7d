package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Root and an ordinary user can remove a tree with directories, at any depth, that
// their owner may not enter.
func TestRemoveHostileTree(t *testing.T) {
	for name, uid := range map[string]int{"caller": os.Geteuid(), "user": 4242} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && uid != os.Geteuid() {
				t.Skip("needs root: another user")
			}
			base := t.TempDir()
			must(t, os.Chmod(filepath.Dir(base), 0o755))
			must(t, os.Chown(base, uid, -1))
			errs := make(chan error)
			go func() {
				runtime.LockOSThread() // it ends with the goroutine, and the identity with it
				if uid != os.Geteuid() {
					if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); err != 0 {
						errs <- err
						return
					}
				}
				errs <- removeHostileTree(base)
			}()
			must(t, <-errs)
			if _, err := os.Lstat(filepath.Join(base, "tree")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the tree is still there: %v", err)
			}
		})
	}
}

// removeHostileTree makes a tree in base and removes it.
func removeHostileTree(base string) error {
	dir, err := os.Open(base)
	if err != nil {
		return err
	}
	defer dir.Close()
	const levels = 400 // paths end at some 100
	at, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	for i := 0; i < levels && err == nil; i++ {
		name := fmt.Sprintf("a-directory-with-a-longer-name-%d", i)
		if i == 0 {
			name = "tree"
		}
		if err = unix.Mkdirat(at, name, 0o700); err != nil {
			break
		}
		next, openErr := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err = openErr; err != nil {
			break
		}
		for _, make := range []func() error{
			func() error { return unix.Mkdirat(next, ".removed-1", 0) },
			func() error { return unix.Symlinkat("/", next, "link") },
			func() error { return unix.Mknodat(next, "pipe", unix.S_IFIFO, 0) },
		} {
			err = errors.Join(err, make())
		}
		if i > 0 {
			err = errors.Join(err, unix.Fchmod(at, uint32(i%2)*0o500))
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if err != nil {
		return err
	}
	return RemoveTreeAt(dir, "tree")
}

// A directory with a mount in it is not removed: the mount may be the user's
// workspace.
func TestRemoveTreeEntersNoMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	base := t.TempDir()
	precious := filepath.Join(base, "precious")
	must(t, os.MkdirAll(precious, 0o755))
	must(t, os.WriteFile(filepath.Join(precious, "work"), []byte("x"), 0o644))
	point := filepath.Join(base, "session/mounts/1")
	must(t, os.MkdirAll(point, 0o755))
	must(t, unix.Mount(precious, point, "", unix.MS_BIND, ""))
	defer unix.Unmount(point, unix.MNT_DETACH)
	// Positive control: the mount shows the file where a removal would find it.
	if _, err := os.Stat(filepath.Join(point, "work")); err != nil {
		t.Fatalf("control: %v", err)
	}
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	if err := RemoveTreeAt(dir, "session"); err == nil {
		t.Error("the tree was removed with a mount in it")
	}
	if _, err := os.Stat(filepath.Join(precious, "work")); err != nil {
		t.Fatalf("the mounted directory lost its file: %v", err)
	}
	must(t, unix.Unmount(point, 0))
	must(t, RemoveTreeAt(dir, "session"))
	if _, err := os.Stat(filepath.Join(precious, "work")); err != nil {
		t.Errorf("the mounted directory lost its file: %v", err)
	}
}

func TestRemoveTreeFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "directory"), 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "canary"), []byte("x"), 0o644))
	must(t, os.MkdirAll(filepath.Join(base, "state/session"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(base, "state/session/link")))
	must(t, os.Symlink(outside, filepath.Join(base, "state/shortcut")))
	dir, err := os.Open(filepath.Join(base, "state"))
	must(t, err)
	defer dir.Close()
	if err := RemoveTreeAt(dir, "shortcut/directory"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
	if err := RemoveTreeAt(dir, "../outside"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("out of the directory: %v", err)
	}
	must(t, RemoveTreeAt(dir, "session"))
	for _, name := range []string{"canary", "directory"} {
		if _, err := os.Stat(filepath.Join(outside, name)); err != nil {
			t.Errorf("outside: %v", err)
		}
	}
}

// Commands may have made the tree: deeper than any path, with more entries than are
// read at once, and with directories that their owner can't enter.
func TestRemoveTreeOfCommands(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "directory"), 0o755))
	tree := filepath.Join(base, "tree")
	for _, name := range []string{".removed-1", "closed/inside", "many"} {
		must(t, os.MkdirAll(filepath.Join(tree, name), 0o755))
	}
	for i := range 3 * 1024 {
		must(t, os.WriteFile(filepath.Join(tree, "many", strconv.Itoa(i)), nil, 0o600))
	}
	must(t, os.Link(filepath.Join(tree, "many/0"), filepath.Join(tree, "closed/link")))
	must(t, os.Chmod(filepath.Join(tree, "closed"), 0))
	at, err := unix.Open(tree, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 100)
	for range 5 * 64 { // 32 kB of path
		must(t, unix.Mkdirat(at, name, 0o755))
		must(t, unix.Symlinkat(outside, at, "link"))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	must(t, RemoveTreeAt(dir, "tree"))
	if _, err := os.Lstat(tree); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "directory")); err != nil {
		t.Errorf("outside: %v", err)
	}
}

// TestRemoveTreeHoldsFewNames tests that the memory of a removal does not grow with
// the names in the directories on the way down.
func TestRemoveTreeHoldsFewNames(t *testing.T) {
	const levels, links = 30, 400
	const most = levels * links * 255 / 8
	base := t.TempDir()
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	must(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(base, "tree"), 0o700))
	at, err := unix.Open(filepath.Join(base, "tree"), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range levels {
		must(t, unix.Mkdirat(at, "directory", 0o700))
		for j := range links {
			must(t, unix.Linkat(int(dir.Fd()), "file", at, fmt.Sprintf("%0255d", i*links+j), 0))
		}
		next, err := unix.Openat(at, "directory", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peak uint64
	r := removal{parent: int(dir.Fd()), path: "tree", most: levels * (links + 1)}
	r.open = func(parent int, name string) (int, statResult, error) {
		runtime.GC()
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapAlloc)
		return openToRemove(parent, name)
	}
	must(t, r.removeTree(t.Context(), "tree"))
	if held := int64(peak) - int64(before.HeapAlloc); held > most {
		t.Errorf("%d bytes held on the way down, want at most %d", held, most)
	}
	if r.removed != levels*(links+1)+1 {
		t.Errorf("removed %d", r.removed)
	}
}

// TestRemoveTreeReadsOn tests that a removal reads a directory once and then looks
// for names that were added meanwhile.
func TestRemoveTreeReadsOn(t *testing.T) {
	base := t.TempDir()
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(base, fmt.Sprintf("%0200d", i)), nil, 0o600))
	}
	fd, err := unix.Open(base, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	r := removal{dir: fd, most: 1000}
	seen := map[string]bool{}
	for len(seen) < 200 {
		names, err := r.readNames(t.Context())
		must(t, err)
		for _, e := range names {
			if seen[e.name] {
				t.Fatalf("a name is read again after %d of 200", len(seen))
			}
			seen[e.name] = true
			must(t, os.Remove(filepath.Join(base, e.name)))
		}
	}
	must(t, os.WriteFile(filepath.Join(base, "added"), nil, 0o600))
	if names, err := r.readNames(t.Context()); err != nil || len(names) != 1 || names[0].name != "added" {
		t.Errorf("at the end: %v, %v", names, err)
	}
	must(t, os.Remove(filepath.Join(base, "added")))
	if names, err := r.readNames(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("in the empty directory: %v, %v", names, err)
	}
}

// TestRemoveTreeOfDirectories tests that a removal that returns from a subdirectory
// continues with the names that it has read.
func TestRemoveTreeOfDirectories(t *testing.T) {
	base := t.TempDir()
	const count = 1000
	for i := range count {
		must(t, os.MkdirAll(filepath.Join(base, "tree", fmt.Sprint(i), "d"), 0o700))
	}
	dir, err := os.Open(base)
	must(t, err)
	defer dir.Close()
	r := removal{parent: int(dir.Fd()), path: "tree", most: 3 * count}
	reads, left := 0, 0
	r.open = func(parent int, name string) (int, statResult, error) {
		if len(r.frames) == 1 {
			if len(r.left) >= left {
				reads++
			}
			left = len(r.left)
		}
		return openToRemove(parent, name)
	}
	must(t, r.removeTree(t.Context(), "tree"))
	if reads > count/20 || r.removed != 2*count+1 {
		t.Errorf("%d reads of %d names, %d removed", reads, count, r.removed)
	}
}
