package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// TestIdentities checks that a command of another identity has only its own
// user and group, and a home that no other identity can use.
func TestIdentities(t *testing.T) {
	s, dir := newSpawner(t, true)
	env := []string{"PATH=/usr/bin:/bin"}
	sh := func(n int, in, script string) string {
		t.Helper()
		out, errs, _ := run(t, s, Request{Argv: []string{"sh", "-c", script}, Env: env, Group: 30000, Identity: n, Dir: in}, "")
		return out + errs
	}
	if n := s.Identities(); n != 16 {
		t.Fatalf("there are %d identities, lost %q", n, s.Lost())
	}
	home := func(n int) string { return filepath.Join(dir, "identities", fmt.Sprint(n), "home") }
	for range 2 { // its home is made once
		for _, n := range []int{1, 15} {
			id := uint32(50000 + n)
			p := identity.Parse([]byte(sh(n, "", "cat /proc/self/status")))
			if p.UID != [4]uint32{id, id, id, id} || p.GID != [4]uint32{id, id, id, id} || fmt.Sprint(p.Groups) != "[30000]" ||
				p.Permitted|p.Effective|p.Bounding|p.Inheritable|p.Ambient != 0 || !p.NoNewPrivs || p.Seccomp != 2 {
				t.Errorf("a command of identity %d is %+v", n, p)
			}
			want := fmt.Sprintf("%s\n700 %d %d\n700 %d %d\n", home(n), id, id, id, id)
			if out := sh(n, "", "pwd; stat -c '%a %u %g' . ../tmp; touch f ../tmp/f"); out != want {
				t.Errorf("the home of identity %d: %q, want %q", n, out, want)
			}
		}
	}
	for _, n := range []int{0, 2} {
		if out := sh(n, "", "ls "+home(1)+"; touch "+filepath.Dir(home(1))+"/x; mv "+home(1)+" y; ls "+filepath.Dir(home(1))); strings.Count(out, "denied") != 4 {
			t.Errorf("identity %d and the home of another one: %q", n, out)
		}
	}
	// Others' bits decide about the workspace, also as a working directory.
	if out := sh(1, ".", "pwd; touch x"); !strings.HasPrefix(out, dir+"\n") || !strings.Contains(out, "denied") {
		t.Errorf("in the workspace: %q", out)
	}
	if _, err := s.Spawn(Request{Argv: []string{"true"}, Env: env, Identity: 1, Dir: "own"}); !errors.Is(err, ErrDir) {
		t.Errorf("in a directory that is the agent's alone: %v", err)
	}
	if out := sh(0, "own", "touch x && echo made"); out != "made\n" {
		t.Errorf("the agent there: %q", out)
	}
	if who, err := os.ReadFile("/proc/thread-self/status"); err != nil || identity.Parse(who).UID != [4]uint32{} {
		t.Errorf("the test's own thread is changed: %s, %v", who, err)
	}
	s.thread.Do(func() {
		if uid, gid := unix.Geteuid(), unix.Getegid(); uid != 0 || gid != 0 {
			t.Errorf("the spawner is user %d and group %d", uid, gid)
		}
	})
}

// TestNoIdentities checks that there is only one identity, and a report, if the
// thread can't take the users of others.
func TestNoIdentities(t *testing.T) {
	for name, tt := range map[string]struct {
		o      Options
		filter []unix.SockFilter
		want   int
		lost   string
	}{
		"all":      {o: Options{Commands: identity.Commands{Separate: true}, IdentityBase: 50000, IdentityCount: 2}, want: 3},
		"none":     {o: Options{Commands: identity.Commands{Separate: true}}, want: 1},
		"one user": {o: Options{IdentityBase: 50000, IdentityCount: 2}, want: 1},
		"no users": {o: Options{Commands: identity.Commands{Separate: true}, IdentityBase: 50000, IdentityCount: 2}, filter: filtertest.Refuse(unix.EINVAL, unix.SYS_SETRESUID, 1<<32-1, 50002), want: 1, lost: "uid 50002"},
	} {
		s := &Spawner{o: tt.o}
		var filters [][]unix.SockFilter
		if tt.filter != nil {
			filters = append(filters, tt.filter)
		}
		n, uid, gid := 0, -1, -1
		onThread(t, all, func() { n, uid, gid = s.countIdentities(), unix.Geteuid(), unix.Getegid() }, filters...)
		if lost := strings.Join(s.Lost(), ""); n != tt.want || uid != 0 || gid != 0 || (lost == "") != (tt.lost == "") || !strings.Contains(lost, tt.lost) {
			t.Errorf("%s: %d identities, want %d; then %d:%d; lost %q", name, n, tt.want, uid, gid, lost)
		}
	}
}
