package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	testPasswd = `agent:x:10001:10001:agent:/home/agent:/bin/sh
agent:x:1500:1501:the image's own:/home/its:/bin/sh
root:x:0:0:root:/root:/bin/bash
toor:x:0:0::/root:/bin/sh
# a comment
broken:x:12
text:x:abc:5::/:/bin/sh
plus:x:+7:7::/:/bin/sh
huge:x:4294967296:7::/:/bin/sh
app:x:1000:1000:app,,,:/home/app:/bin/sh
app:x:0:0:a second line:/root:/bin/sh
staff:x:1001:50::/home/../etc:/bin/sh
roots:x:1002:0::/:/bin/sh
relative:x:1003:1003::home:/bin/sh
short:x:1004:1004
a b:x:1005:1005::/home/x:/bin/sh
`
	testGroup = `agent:x:10001:app
agent:x:1501:
root:x:0:app
sudo:x:27:other,app
video:x:44:app
video:x:45:app
application:x:1000:app
staff:x:50:roots,relative
again:x:27:app
bad:x:xyz:app
none:x:99
`
)

func TestFindAccount(t *testing.T) {
	files := AccountFiles{Passwd: []byte(testPasswd), Group: []byte(testGroup), Added: []string{"agent"}}
	app := UserAccount{Name: "app", UID: 1000, GID: 1000, Groups: []int{27, 44, 45}, Home: "/home/app"}
	for text, want := range map[string]UserAccount{
		"app": app, "1000": app, "+1000": app, "01000": app,
		"app:50":     {Name: "app", UID: 1000, GID: 50, Home: "/home/app"},
		"app:video":  {Name: "app", UID: 1000, GID: 44, Home: "/home/app"},
		"1000:1000":  {Name: "app", UID: 1000, GID: 1000, Home: "/home/app"},
		"app:0":      {Name: "app", UID: 1000, Home: "/home/app"},
		"app:root":   {Name: "app", UID: 1000, Home: "/home/app"},
		"agent":      {Name: "agent", UID: 1500, GID: 1501, Home: "/home/its"},
		"staff":      {Name: "staff", UID: 1001, GID: 50},
		"roots":      {Name: "roots", UID: 1002, Groups: []int{50}},
		"relative":   {Name: "relative", UID: 1003, GID: 1003, Groups: []int{50}},
		"short":      {Name: "short", UID: 1004, GID: 1004},
		"1005":       {UID: 1005},
		"4711":       {UID: 4711},
		"4711:4712":  {UID: 4711, GID: 4712},
		"2147483647": {UID: 2147483647},
	} {
		got, err := FindAccount(text, files)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("FindAccount(%q): %v (-want +got):\n%s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"": "is root", "root": "is root", "0": "is root", "0:0": "is root", "00": "is root", "+0": "is root", "-0": "is root", "toor": "is root", "root:app": "is root", "000:27": "is root",
		"-1": "out of range", "2147483648": "out of range", "4294967295": "out of range", "4294967296": "out of range", "99999999999999999999": "out of range", "app:4294967295": "out of range", "app:-5": "out of range",
		"nobody": "no user", "broken": "no user", "text": "no user", "plus": "no user", "huge": "no user", "0x0": "no user", "#": "no user", "a": "no user", "app2": "no user",
		"app:wheel": "no group", "app:bad": "no group", "a:b:c": "not a user", "a b": "not a user", "app:": "not a user", "../app": "not a user",
	} {
		got, err := FindAccount(text, files)
		e, ok := errors.AsType[*UserError](err)
		if !ok || !errors.Is(err, ErrInvalid) || !strings.Contains(e.Reason, want) || e.Hint == "" || e.User != text {
			t.Errorf("FindAccount(%q) = %+v, %v, want a UserError with %q", text, got, err, want)
		}
	}
}

func TestAccountBounds(t *testing.T) {
	long := AccountFiles{Passwd: []byte("x:" + strings.Repeat("x", maxAccountLine) + "\napp:x:1000:1000::/:\n")}
	if _, err := FindAccount("app", long); !errors.Is(err, ErrInvalid) {
		t.Errorf("a long line: %v", err)
	}
	var many strings.Builder
	for i := range maxGroups + 1 {
		fmt.Fprintf(&many, "g%d:x:%d:app\n", i, i+1)
	}
	files := AccountFiles{Passwd: []byte("app:x:1000:1000::/:\n"), Group: []byte(many.String())}
	if _, err := FindAccount("app", files); !errors.Is(err, ErrInvalid) {
		t.Errorf("%d groups: %v", maxGroups+1, err)
	}
	if _, err := FindAccount("app:g1", files); err != nil {
		t.Errorf("with a group of its own: %v", err)
	}
}

func TestReadAccountFiles(t *testing.T) {
	const secret = "app:x:1:1::/:\n"
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		make func(etc string) error
		want string // of the error, or of passwd
		ok   bool
	}{
		"file":        {func(etc string) error { return os.WriteFile(etc+"/passwd", []byte(secret), 0o600) }, secret, true},
		"none":        {func(string) error { return nil }, "", true},
		"no etc":      {os.Remove, "", true},
		"symlink out": {func(etc string) error { return os.Symlink(outside, etc+"/passwd") }, "no regular file", false},
		"symlink in":  {func(etc string) error { return os.Symlink("group", etc+"/passwd") }, "no regular file", false},
		"directory":   {func(etc string) error { return os.Mkdir(etc+"/passwd", 0o700) }, "no regular file", false},
		"etc is a symlink": {func(etc string) error {
			return errors.Join(os.Remove(etc), os.Symlink(filepath.Dir(outside), etc))
		}, "no regular file", false},
		"huge": {func(etc string) error {
			return errors.Join(os.WriteFile(etc+"/passwd", nil, 0o600), os.Truncate(etc+"/passwd", MaxAccountFile+1))
		}, "more than", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(dir+"/etc", 0o700), tt.make(dir+"/etc")); err != nil {
				t.Fatal(err)
			}
			got, err := ReadAccountFiles(&RootFS{Dir: dir, Added: []string{"agent"}}, "app")
			if tt.ok && (err != nil || string(got.Passwd) != tt.want || len(got.Added) != 1) {
				t.Errorf("got %q, %v, want %q", got.Passwd, err, tt.want)
			}
			if !tt.ok && (!errors.As(err, new(*UserError)) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %q, %v, want a UserError with %q", got.Passwd, err, tt.want)
			}
		})
	}
}

func TestHasDir(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/usr/home/app", 0o755), os.Symlink("usr/home", dir+"/home"), os.Symlink("/tmp", dir+"/out"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	root := &RootFS{Dir: dir}
	for name, want := range map[string]bool{"/home/app": true, "/usr": true, "/out": false, "/file": false, "/none": false, "/../../tmp": false} {
		if got := root.HasDir(name); got != want {
			t.Errorf("HasDir(%q) = %t", name, got)
		}
	}
}

// Whatever the files say, an account is never root, and its IDs and groups are
// never out of range.
func FuzzFindAccount(f *testing.F) {
	f.Add("app", []byte(testPasswd), []byte(testGroup))
	f.Add("1000:27", []byte("\x00:::\n:"), []byte("::::,,\n\xff"))
	f.Add("+0", []byte("x:x:0:0"), []byte(nil))
	f.Fuzz(func(t *testing.T, text string, passwd, group []byte) {
		a, err := FindAccount(text, AccountFiles{Passwd: passwd, Group: group, Added: []string{"agent"}})
		if err != nil {
			if !errors.As(err, new(*UserError)) {
				t.Errorf("the error %v is no UserError", err)
			}
			return
		}
		if a.UID <= 0 || a.UID > maxID || a.GID < 0 || a.GID > maxID || len(a.Groups) > maxGroups {
			t.Errorf("%q is %+v", text, a)
		}
		last := 0
		for _, g := range a.Groups {
			if g <= last || g > maxID || g == a.GID {
				t.Errorf("%q has the groups %v", text, a.Groups)
			}
			last = g
		}
		if strings.ContainsAny(a.Name+a.Home, "\x00\n:") {
			t.Errorf("%q is %q at %q", text, a.Name, a.Home)
		}
	})
}
