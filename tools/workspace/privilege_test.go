package workspace

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// anyCapability is the attribute of a file with CAP_NET_RAW, version 2.
var anyCapability = []byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// privileged returns the Privileges of a layout with a file or directory in each
// mode.
func privileged(t *testing.T, modes map[string]uint32) (*layout, *Privileges) {
	t.Helper()
	l := newLayout(t)
	for name, mode := range modes {
		if strings.HasPrefix(name, "dir") {
			l.must(os.Mkdir(l.path(name), 0o755))
		} else {
			l.file(name, name)
		}
		l.must(unix.Chmod(l.path(name), mode))
	}
	p, err := NewPrivileges(l.dir)
	l.must(err)
	return l, p
}

func (l *layout) stat(name string) (st unix.Stat_t) {
	l.t.Helper()
	l.must(unix.Lstat(l.path(name), &st))
	return st
}

// setCapabilities sets capabilities of a file, or skips the test.
func (l *layout) setCapabilities(name string) {
	l.t.Helper()
	if err := unix.Setxattr(l.path(name), capabilityAttribute, anyCapability, 0); err != nil {
		l.t.Skip("needs to give capabilities: ", err)
	}
}

func TestReadPrivileges(t *testing.T) {
	l, p := privileged(t, map[string]uint32{"plain": 0o755, "user": 0o4755, "group": 0o2755, "both": 0o6755, "dir": 0o6755, "dirplain": 0o1777})
	before := openFiles(t)
	for name, want := range map[string]PrivilegedFile{
		"plain":    {},
		"user":     {Privilege: Privilege{SetUID: true}, Sum: digest("user")},
		"group":    {Privilege: Privilege{SetGID: true}, Sum: digest("group")},
		"both":     {Privilege: Privilege{SetUID: true, SetGID: true}, Sum: digest("both")},
		"dir":      {Privilege: Privilege{SetUID: true}, Dir: true},
		"dirplain": {Dir: true},
	} {
		st := l.stat(name)
		want.Inode, want.Changed = st.Ino, st.Ctim.Nano()
		for _, withSum := range []bool{true, false} {
			if !withSum {
				want.Sum = ""
			}
			got, err := p.Read(name, withSum)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s, with sum %t: %v (-want +got):\n%s", name, withSum, err, diff)
			}
		}
	}
	l.must(unix.Mkfifo(l.path("fifo"), 0o644))
	l.link("link", "user")
	l.link("out", "../outside")
	for _, name := range []string{"fifo", "link", "missing", "../outside/canary", "out/canary"} {
		if f, err := p.Read(name, true); err == nil {
			t.Errorf("%s was read: %+v", name, f)
		}
	}
	for size, known := range map[int64]bool{MaxPrivilegedBytes: true, MaxPrivilegedBytes + 1: false} {
		l.file("large", "")
		l.must(os.Truncate(l.path("large"), size))
		l.must(unix.Chmod(l.path("large"), 0o4755))
		if f, err := p.Read("large", true); err != nil || !f.SetUID || (f.Sum != "") != known {
			t.Errorf("of %d bytes: %+v, %v", size, f, err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors are open, before it were %d", after, before)
	}
	l.setCapabilities("plain")
	if f, err := p.Read("plain", true); err != nil || f.Privilege != (Privilege{Capabilities: true}) || f.Sum != digest("plain") {
		t.Errorf("with capabilities: %+v, %v", f, err)
	}
}

func TestClearPrivileges(t *testing.T) {
	l, p := privileged(t, map[string]uint32{"plain": 0o1755, "user": 0o4711, "group": 0o2750, "both": 0o7755, "dir": 0o7755})
	for name, want := range map[string]struct {
		was  Privilege
		mode uint32
	}{
		"plain": {Privilege{}, 0o1755},
		"user":  {Privilege{SetUID: true}, 0o711},
		"group": {Privilege{SetGID: true}, 0o750},
		"both":  {Privilege{SetUID: true, SetGID: true}, 0o1755},
		"dir":   {Privilege{SetUID: true}, 0o3755},
	} {
		before := l.stat(name)
		if _, err := p.Clear(name, before.Ino+1); err == nil || l.stat(name).Mode != before.Mode {
			t.Errorf("%s: another file is cleared: %v", name, err)
		}
		was, err := p.Clear(name, before.Ino)
		if mode := l.stat(name).Mode & 0o7777; err != nil || was != want.was || mode != want.mode {
			t.Errorf("%s: it had %+v, its mode is %o, want %+v and %o, %v", name, was, mode, want.was, want.mode, err)
		}
	}
	l.link("link", "user")
	if _, err := p.Clear("link", l.stat("link").Ino); err == nil {
		t.Error("a symlink is cleared")
	}
	l.must(unix.Chmod(l.path("plain"), 0o4755))
	l.setCapabilities("plain")
	all := Privilege{SetUID: true, Capabilities: true}
	was, err := p.Clear("plain", l.stat("plain").Ino)
	if f, again := p.Read("plain", false); err != nil || again != nil || was != all || f.Any() || l.stat("plain").Mode&0o7777 != 0o755 {
		t.Errorf("it had %+v, has %+v, %v, %v", was, f, err, again)
	}
}

// TestPrivilegesThatStay: it is an error if a file keeps its privileges.
func TestPrivilegesThatStay(t *testing.T) {
	l, p := privileged(t, map[string]uint32{"mode": 0o4755, "capabilities": 0o755})
	l.setCapabilities("capabilities")
	for _, name := range []string{"mode", "capabilities"} {
		if !l.immutable(name) {
			t.Skip("needs a file system with immutable files")
		}
		if _, err := p.Clear(name, l.stat(name).Ino); err == nil {
			t.Errorf("%s: no error, though nothing was cleared", name)
		}
	}
}

func TestPrivilegesCompare(t *testing.T) {
	single := []Privilege{{SetUID: true}, {SetGID: true}, {Capabilities: true}}
	for i, p := range single {
		if !p.Any() || !p.Exceeds(Privilege{}) || (Privilege{}).Exceeds(p) || p.Exceeds(p) || !p.Exceeds(single[(i+1)%3]) {
			t.Errorf("%+v is not compared right", p)
		}
	}
	if (Privilege{}).Any() || (Privilege{}).Exceeds(Privilege{}) {
		t.Error("nothing is a privilege")
	}
}
