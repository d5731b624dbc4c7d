package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	must(t, os.MkdirAll(to, 0o755))
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// settle returns a time between past and future writes: files get the time of
// the kernel's last tick, up to 10 ms before.
func settle() time.Time {
	time.Sleep(20 * time.Millisecond)
	now := time.Now()
	time.Sleep(20 * time.Millisecond)
	return now
}

// withoutTimes removes directories' times from lines of describe: making a file
// anew changes them.
func withoutTimes(lines []string) []string {
	for i, l := range lines {
		if before, _, ok := strings.Cut(l, " drwx"); ok {
			lines[i] = before + " " + strings.Fields(l)[1]
		}
	}
	return lines
}

// TestChanges checks that any changes of a tree make its copy the same.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		top := t.TempDir()
		from, to := filepath.Join(top, "from"), filepath.Join(top, "copies", strings.TrimPrefix(filepath.Join(top, "from"), "/"))
		must(t, os.Mkdir(from, 0o755))
		names := rapid.SampledFrom([]string{"a", "b", "c", "d/a", "d/b", "d/e/a", "d/e", "f/g/h"})
		change := func() {
			name := filepath.Join(from, names.Draw(rt, "name"))
			switch rapid.IntRange(0, 5).Draw(rt, "change") {
			case 0:
				_ = os.RemoveAll(name)
			case 1:
				_ = os.MkdirAll(name, 0o755)
			case 2:
				_ = os.Symlink("a", name)
			case 3:
				_ = os.Chmod(name, 0o700)
			case 4:
				if info, err := os.Lstat(filepath.Join(from, "b")); err == nil && info.Mode().IsRegular() {
					_ = os.Link(filepath.Join(from, "b"), name)
				}
			default:
				if os.MkdirAll(filepath.Dir(name), 0o755) == nil {
					_ = os.WriteFile(name, []byte(rapid.SampledFrom([]string{"", "x", "yy"}).Draw(rt, "content")), 0o644)
				}
			}
		}
		for range rapid.IntRange(0, 8).Draw(rt, "before") {
			change()
		}
		copyTree(t, from, to)
		since := settle()
		for range rapid.IntRange(0, 8).Draw(rt, "after") {
			change()
		}
		var b bytes.Buffer
		must(t, PackChanges(&b, []string{from}, since, PackOptions{}))
		must(t, UnpackWith(&b, filepath.Join(top, "copies"), UnpackOptions{Changes: true}))
		if d := gocmp.Diff(withoutTimes(describe(t, from)), withoutTimes(describe(t, to))); d != "" {
			rt.Errorf("changed (-from +to):\n%s", d)
		}
	})
}

// mountOverlay mounts an overlay of a directory, with a new layer, until the
// test ends, or skips the test.
func mountOverlay(t testing.TB, lower string) (merged string) {
	t.Helper()
	top := t.TempDir()
	merged = filepath.Join(top, "merged")
	for _, name := range []string{"upper", "work", "merged"} {
		must(t, os.Mkdir(filepath.Join(top, name), 0o755))
	}
	options := fmt.Sprintf("userxattr,index=off,metacopy=off,lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, top, top)
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Skipf("needs an overlay: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(merged, 0)) })
	return merged
}

// TestChangesInEarlyDirectories checks that a directory of the upper layer is
// entered even if it was made before the time of the changes.
func TestChangesInEarlyDirectories(t *testing.T) {
	lower := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(lower, "old"), 0o755))
	layer := settle()
	merged := mountOverlay(t, lower)
	must(t, os.MkdirAll(filepath.Join(merged, "early/in"), 0o755))
	since := settle()
	must(t, os.WriteFile(filepath.Join(merged, "early/in/file"), nil, 0o644))
	for _, c := range []struct {
		layer time.Time
		found bool
	}{{layer, true}, {since, false}} {
		var b bytes.Buffer
		must(t, PackChanges(&b, []string{merged}, since, PackOptions{LayerSince: c.layer}))
		if found := bytes.Contains(b.Bytes(), []byte("early/in/file")); found != c.found || bytes.Contains(b.Bytes(), []byte("early/names")) {
			t.Errorf("layer since %s: %t\n%s", c.layer, found, &b)
		}
	}
}

// TestChangesOfOverlay checks that all changes in an overlay are packed, though
// only changed directories are entered.
func TestChangesOfOverlay(t *testing.T) {
	lower := t.TempDir()
	for _, name := range []string{"written", "appended", "shrunk", "mode", "owner", "times", "attribute", "removed", "renamed", "replaced", "linked", "swapped", "mapped", "kept"} {
		must(t, os.MkdirAll(filepath.Join(lower, "in", name, "deep/down"), 0o755))
		must(t, os.WriteFile(filepath.Join(lower, "in", name, "deep/down/file"), []byte(name), 0o644))
		must(t, os.WriteFile(filepath.Join(lower, "in", name, "deep/down/other"), []byte(name), 0o644))
	}
	must(t, os.Link(filepath.Join(lower, "in/linked/deep/down/file"), filepath.Join(lower, "in/linked/deep/second")))
	copies := t.TempDir()
	since := settle()
	merged := mountOverlay(t, lower)
	to := filepath.Join(copies, strings.TrimPrefix(merged, "/"))
	copyTree(t, lower, to)
	script := `set -e
echo x > written/deep/down/file
echo x >> appended/deep/down/file
: > shrunk/deep/down/file
chmod 600 mode/deep/down/file
chown 7:7 owner/deep/down/file
touch -d @1 times/deep/down/file
rm removed/deep/down/file
mv renamed/deep/down/file renamed/deep/down/new
mv renamed renamed-away
rm -r replaced/deep; mkdir -p replaced/deep/down; echo new > replaced/deep/down/file
echo x > linked/deep/second
rm -r swapped/deep/down; ln -s / swapped/deep/down
dd if=/dev/zero of=mapped/deep/down/file bs=1 count=1 seek=2 conv=notrunc 2>/dev/null
mkdir -p made/a/b/c; echo x > made/a/b/c/file
`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = filepath.Join(merged, "in")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var b bytes.Buffer
	entered := map[string]bool{}
	must(t, PackChanges(&b, []string{merged}, since, PackOptions{Skip: func(path string) bool {
		entered[filepath.Dir(path)] = true
		return false
	}}))
	must(t, UnpackWith(&b, copies, UnpackOptions{Changes: true}))
	lines := func(dir string) []string { // without other names of a file: a copy-up makes them two files, of which one keeps the count
		list := withoutTimes(describe(t, dir))
		for i, l := range list {
			list[i], _, _ = strings.Cut(l, " = ")
		}
		return list
	}
	if d := gocmp.Diff(lines(merged), lines(to)); d != "" {
		t.Errorf("changed (-from +to):\n%s", d)
	}
	for dir, want := range map[string]bool{"in": true, "in/written/deep/down": true, "in/kept": false, "in/kept/deep/down": false} {
		if got := entered[filepath.Join(merged, dir)]; got != want {
			t.Errorf("%s was entered: %t", dir, got)
		}
	}
}

// TestPackChangesLeavesOut checks that unchanged files are not packed, even if
// their modification time is set to now or later.
func TestPackChangesLeavesOut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"old", "new", "touched", "forged"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	must(t, os.Chtimes(filepath.Join(dir, "old"), time.Time{}, time.Now().Add(time.Hour)))
	since := settle()
	must(t, os.WriteFile(filepath.Join(dir, "new"), []byte("changed"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "forged"), []byte("forged!"), 0o644))
	must(t, os.Chtimes(filepath.Join(dir, "forged"), time.Unix(1, 0), time.Unix(1, 0))) // hides nothing
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	for _, name := range []string{namesDir, "sub/" + namesDir, "sub/others"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name, "evil"), nil, 0o644))
	}
	var b bytes.Buffer
	must(t, PackChanges(&b, []string{dir, filepath.Join(dir, "absent")}, since, PackOptions{}))
	var got []string
	in := tar.NewReader(&b)
	for h, err := in.Next(); err == nil; h, err = in.Next() {
		if h.Typeflag != tar.TypeDir && ChangedDirectory(h.Name) == "" {
			got = append(got, filepath.Base(h.Name))
		}
	}
	slices.Sort(got)
	if want := []string{"evil", "forged", "new"}; !gocmp.Equal(got, want) {
		t.Errorf("packed %q, want %q", got, want)
	}
	if err := PackChanges(&b, []string{filepath.Join(dir, "old")}, since, PackOptions{}); !errors.Is(err, ErrNoDirectory) {
		t.Errorf("of a file: %v", err)
	}
}

// TestUnpackChangesRefuses checks that hostile names remove nothing outside.
func TestUnpackChangesRefuses(t *testing.T) {
	names := func(name, content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}
	}
	for name, text := range map[string][]byte{
		"dots":      write(t, names(namesDir+"/../outside/names", "y")),
		"a symlink": write(t, names(namesDir+"/existing/names", "y")),
		"its own":   write(t, link("l", "../outside"), names(namesDir+"/l/names", "y")),
		"a file":    write(t, names(namesDir+"/mine/names", "y")),
	} {
		top, to := place(t)
		before := describe(t, filepath.Join(top, "outside"))
		if err := UnpackWith(bytes.NewReader(text), to, UnpackOptions{Changes: true}); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
		if d := gocmp.Diff(before, describe(t, filepath.Join(top, "outside"))); d != "" {
			t.Errorf("%s changed what is outside:\n%s", name, d)
		}
	}
	top, to := place(t) // a symlink that goes is not followed
	must(t, UnpackWith(bytes.NewReader(write(t, names(namesDir+"/names", "y"))), to, UnpackOptions{Changes: true}))
	if n := len(describe(t, filepath.Join(top, "outside"))); n != 2 || len(describe(t, to)) != 1 {
		t.Errorf("%d names outside, and inside %q", n, describe(t, to))
	}
	// To Unpack such entries are files.
	_, to = place(t)
	must(t, Unpack(bytes.NewReader(write(t, names(namesDir+"/names", "y"))), to, Bounds{}))
	if len(describe(t, to)) != 5 {
		t.Error(fmt.Sprint(describe(t, to)))
	}
}

// TestChangesOfAUser checks that an ordinary user's changes in closed
// directories are made in their copy, and removed files are removed.
func TestChangesOfAUser(t *testing.T) {
	top := t.TempDir()
	from, to := filepath.Join(top, "from"), filepath.Join(top, "copies", strings.TrimPrefix(filepath.Join(top, "from"), "/"))
	for _, name := range []string{"kept/in", "changed/in", "entered/in", "gone/in/deep"} {
		must(t, os.MkdirAll(filepath.Join(from, name), 0o755))
		must(t, os.WriteFile(filepath.Join(from, name, "file"), []byte("old"), 0o644))
	}
	closed := []string{"kept/in", "changed/in", "changed", "entered/in", "entered", "gone/in/deep", "gone/in", "gone"}
	chmod := func(mode os.FileMode) {
		for _, name := range closed {
			must(t, os.Chmod(filepath.Join(from, name), mode))
		}
	}
	chmod(0o555)
	copyTree(t, from, to)
	since := settle()
	for _, name := range []string{"changed", "changed/in", "gone", "gone/in", "gone/in/deep"} {
		must(t, os.Chmod(filepath.Join(from, name), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(from, "changed/in/new"), []byte("new"), 0o644))
	must(t, os.Chmod(filepath.Join(from, "changed/in"), 0o500))
	must(t, os.Chmod(filepath.Join(from, "changed"), 0o555))
	must(t, os.RemoveAll(filepath.Join(from, "gone")))
	must(t, os.WriteFile(filepath.Join(from, "entered/in/file"), []byte("newer"), 0o644))
	var b bytes.Buffer
	must(t, PackChanges(&b, []string{from}, since, PackOptions{}))
	if os.Geteuid() == 0 {
		must(t, exec.Command("chown", "-R", "4242:4242", filepath.Join(top, "copies")).Run())
		must(t, os.Chmod(filepath.Dir(top), 0o755))
	}
	must(t, asUser(t, 4242, func() error { return UnpackWith(&b, filepath.Join(top, "copies"), UnpackOptions{Changes: true}) }))
	if d := gocmp.Diff(withoutTimes(describe(t, from)), withoutTimes(describe(t, to))); d != "" {
		t.Errorf("changed (-from +to):\n%s", d)
	}
}

// TestChangesKeepOwners checks that root restores owners, and all bits of
// directories except set-user-ID. An ordinary user restores only the bits.
// Neither changes the directory to unpack to.
func TestChangesKeepOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: several owners")
	}
	top := t.TempDir()
	must(t, os.Chmod(filepath.Dir(top), 0o755))
	from := filepath.Join(top, "from")
	must(t, os.MkdirAll(filepath.Join(from, "was"), 0o755))
	since := settle()
	cmd := exec.Command("sh", "-ec", `mkdir -p shared/in private sticky; touch shared/in/file private/key set; ln -s key private/link; truncate -s 3M private/holes
chgrp 11 shared shared/in shared/in/file; chown -h 7:8 private private/key private/link private/holes; chown 9:10 was
chmod 2775 shared shared/in; chmod 700 private; chmod 1777 sticky; chmod 6755 set; chmod 7777 was`)
	cmd.Dir = from
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var changes bytes.Buffer
	must(t, PackChanges(&changes, []string{from}, since, PackOptions{}))
	for user, want := range map[int]map[string]string{
		0: {
			"was": "9:10 dgtrwxrwxrwx", "shared": "0:11 dgrwxrwxr-x", "shared/in": "0:11 dgrwxrwxr-x", "shared/in/file": "0:11 -rw-r--r--", "private": "7:8 drwx------",
			"private/key": "7:8 -rw-r--r--", "private/link": "7:8 Lrwxrwxrwx", "private/holes": "7:8 -rw-r--r--", "sticky": "0:0 dtrwxrwxrwx", "set": "0:0 -rwxr-xr-x",
		},
		4242: {
			"was": "4242:4242 dgtrwxrwxrwx", "shared": "4242:4242 dgrwxrwxr-x", "private": "4242:4242 drwx------", "private/key": "4242:4242 -rw-r--r--",
			"private/link": "4242:4242 Lrwxrwxrwx", "sticky": "4242:4242 dtrwxrwxrwx", "set": "4242:4242 -rwxr-xr-x",
		},
	} {
		to := t.TempDir()
		must(t, os.Chmod(filepath.Dir(to), 0o755))
		must(t, os.MkdirAll(filepath.Join(to, from, "was"), 0o755))
		must(t, exec.Command("chown", "-R", fmt.Sprintf("%d:%d", user, user), to).Run())
		must(t, asUser(t, user, func() error { return UnpackWith(bytes.NewReader(changes.Bytes()), to, UnpackOptions{Changes: true}) }))
		for name, want := range want {
			info, err := os.Lstat(filepath.Join(to, from, name))
			must(t, err)
			o := ownerOf(info)
			if got := fmt.Sprintf("%d:%d %v", o.uid, o.gid, info.Mode()); got != want {
				t.Errorf("by user %d: %s is %s, want %s", user, name, got, want)
			}
		}
	}
	_, to := place(t)
	before, err := os.Lstat(to)
	must(t, err)
	must(t, UnpackWith(bytes.NewReader(write(t, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o3777, Uid: 12, Gid: 12})), to, UnpackOptions{Changes: true}))
	info, err := os.Lstat(to)
	must(t, err)
	if ownerOf(info).uid != 0 || info.Mode() != before.Mode() {
		t.Errorf("the directory itself is %d's, %v", ownerOf(info).uid, info.Mode())
	}
}

// asUser calls a function on a thread of another user, if the test is root.
func asUser(t testing.TB, uid int, f func() error) error {
	t.Helper()
	result := make(chan error)
	go func() {
		if os.Geteuid() == 0 {
			runtime.LockOSThread() // it ends with the goroutine, and the identity with it
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
				if _, _, err := unix.RawSyscall(call, uintptr(uid), uintptr(uid), uintptr(uid)); err != 0 {
					result <- err
					return
				}
			}
		}
		result <- f()
	}()
	return <-result
}
