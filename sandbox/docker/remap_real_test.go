package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

const remapFirst = 300_000

func TestConformanceRemapped(t *testing.T) {
	t.Parallel()
	e := privateengine.NewRemapped(t, remapFirst)
	if e == nil {
		return // the other process tests it
	}
	b := privateBed(t, e, Options{Logger: zap.NewNop()})
	target := b.target()
	_, writable := importImageInto(t, e.Host(), treeTar(t, sandboxtest.WriteOpenTree))
	target.WritableImage = images.Reference{Scheme: images.SchemeName, Value: writable}
	users := treeTar(t, sandboxtest.WriteUserTree)
	target.UserImage = func(user string) images.Reference {
		var changes []string
		if user != "" {
			changes = []string{"USER " + user}
		}
		_, name := importImageInto(t, e.Host(), users, changes...)
		return images.Reference{Scheme: images.SchemeName, Value: name}
	}
	target.Brief, target.NoPrograms, target.Remapped, target.RootRefused, target.SameInside = true, true, true, false, true
	sandboxtest.Run(t, target)
	t.Run("root has the owner's files", func(t *testing.T) { testRemappedFiles(t, e) })
	t.Run("root has the image's files", func(t *testing.T) { testRemappedImage(t, e) })
	t.Run("another range is refused", func(t *testing.T) { testOtherRange(t, e) })
}

// Root inside can change files of the workspace's owner and of other users
// inside, but no others.
func testRemappedFiles(t *testing.T, e *privateengine.Engine) {
	b := privateBed(t, e, Options{})
	const owner, text = 4242, "original"
	must(t, os.Chown(b.workspace, owner, owner))
	files := map[string]int{
		"owner": owner, "inside": workmount.FirstID + 33, "root": 0, "user": 1000, "number": 33, "command": sandbox.CommandUID, "nobody": 65534,
		"engine-root": remapFirst, "engine-user": remapFirst + 33, "engine-command": remapFirst + sandbox.CommandUID, "engine-last": remapFirst + workmount.IDCount - 1,
	}
	for name, id := range files {
		path := filepath.Join(b.workspace, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		must(t, os.Chown(path, id, id))
	}
	spec := b.spec(t, newSession())
	spec.User = sandbox.UserRoot
	s := b.create(t, spec)
	out, _ := worktest.Shell(t, s, `exec 2>/dev/null
for f in *; do
	cat $f && echo read $f; echo changed > $f; chmod 4777 $f; chown 7:7 $f; setfattr -n security.capability -v 0x0100000202000000000000000000000000000000 $f
done
echo new > new; chown 33:44 new; echo last > last; chown 65535 last; chown 65536 last; chown 4242 owner
mkdir 'dir' && mknod device c 1 3; mknod block b 8 0
for d in /sys/fs/cgroup /sys/fs/cgroup/*; do
	mkdir $d/made && echo made $d; for f in cgroup.procs tasks devices.allow memory.limit_in_bytes pids.max release_agent; do echo 0 > $d/$f && echo wrote $d/$f; done
done; true`)
	for _, word := range []string{"made ", "wrote "} {
		if strings.Contains(out, word) {
			t.Errorf("root inside changed cgroups: %q", out)
		}
	}
	for name, id := range files {
		isOpen := name == "owner" || name == "inside"
		if isOpen != strings.Contains(out, "read "+name+"\n") {
			t.Errorf("file %s of uid %d: read %v, want %v", name, id, !isOpen, isOpen)
		}
		data, err := os.ReadFile(filepath.Join(b.workspace, name))
		must(t, err)
		info, err := os.Stat(filepath.Join(b.workspace, name))
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		unchanged := string(data) == text && int(st.Uid) == id && int(st.Gid) == id && info.Mode() == 0o600
		if isOpen == unchanged || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("file %s of uid %d: %q, %v, %d:%d", name, id, data, info.Mode(), st.Uid, st.Gid)
		}
		if attribute := make([]byte, 100); isOpen {
			if n, err := syscall.Getxattr(filepath.Join(b.workspace, name), "security.capability", attribute); err == nil {
				t.Errorf("file %s has capabilities: %x", name, attribute[:n])
			}
		}
	}
	for name, want := range map[string][2]uint32{
		"new": {workmount.FirstID + 33, workmount.FirstID + 44}, "last": {workmount.FirstID + 65535, owner}, "dir": {owner, owner},
		"inside": {workmount.FirstID + 7, workmount.FirstID + 7},
	} {
		info, err := os.Stat(filepath.Join(b.workspace, name))
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d on the host, want %v", name, st.Uid, st.Gid, want)
		}
	}
	for _, name := range []string{"device", "block"} {
		if _, err := os.Lstat(filepath.Join(b.workspace, name)); err == nil {
			t.Errorf("root inside made the device %s", name)
		}
	}
}

// Root's files belong to root inside in a directory that is the image, and to
// nobody in the image host. All are read-only.
func testRemappedImage(t *testing.T, e *privateengine.Engine) {
	root := t.TempDir()
	unpack(t, shellTar(t), root)
	must(t, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	for name, id := range map[string]int{"of-root": 0, "of-33": 33} {
		path := filepath.Join(root, "usr", name)
		must(t, os.WriteFile(path, []byte("secret"), 0o600))
		must(t, os.Chown(path, id, id))
	}
	for _, tt := range []struct {
		user   sandbox.UserPolicy
		script string
	}{
		{sandbox.UserRoot, "read x </usr/of-root; read y </usr/of-33; test $x$y = secretsecret && ! true >/usr/of-root"},
		{sandbox.UserOwner, "test -e /usr/of-33 && ! true </usr/of-root && ! true </usr/of-33"},
	} {
		b := privateBed(t, e, Options{})
		spec := b.spec(t, newSession())
		spec.User, spec.Image = tt.user, images.Reference{Scheme: images.SchemeRootFS, Value: root}
		if out, exit := worktest.Shell(t, b.create(t, spec), tt.script); !exit.Status.Success() {
			t.Errorf("user %s: exit code %d, %s", tt.user, exit.Status.Code, out)
		}
	}
	b := privateBed(t, e, Options{})
	spec := b.spec(t, newSession())
	spec.User = sandbox.UserRoot
	if out, exit := worktest.Shell(t, b.create(t, spec), "test $(stat -c %u:%g /usr/bin) = 65534:65534 && ! touch /usr/made"); !exit.Status.Success() {
		t.Errorf("image host: exit code %d, %s", exit.Status.Code, out)
	}
}

// A container is refused before its first command if its user namespace isn't
// the one of its mounts. So is a workspace of the engine's own IDs.
func testOtherRange(t *testing.T, e *privateengine.Engine) {
	b := privateBed(t, e, Options{})
	_, _, err := b.backend.connect(t.Context())
	must(t, err)
	for _, user := range []sandbox.UserPolicy{sandbox.UserOwner, sandbox.UserRoot} {
		b.backend.facts.base = workmount.Base{UID: 2 * remapFirst, GID: 2 * remapFirst}
		spec := b.spec(t, newSession())
		spec.User = user
		if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "one range of 65536 ids") {
			t.Errorf("user %s in another range: %v", user, err)
		}
		b.nothingLeft(t, spec.Session)
	}
	b.backend.facts.base = workmount.Base{UID: remapFirst, GID: remapFirst}
	must(t, os.Chown(b.workspace, remapFirst+5, 1000))
	spec := b.spec(t, newSession())
	if _, err := b.backend.Create(t.Context(), spec); !errors.As(err, new(*sandbox.IncapableError)) || !strings.Contains(err.Error(), "give the directory to another user") {
		t.Errorf("a workspace of the engine's ids: %v", err)
	}
	b.nothingLeft(t, spec.Session)
}
