package identity

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// group is in all threads of the tests, if they run as root.
const group = 10004

func TestMain(m *testing.M) {
	if os.Getuid() == 0 {
		if err := syscall.Setgroups([]int{group}); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// thread returns the calling thread's entry in /proc.
func thread(t *testing.T) wire.Identity {
	t.Helper()
	p, err := Read("/proc/thread-self/status")
	if err != nil {
		t.Error(err)
	}
	return p
}

// onThread runs f on its own thread, as root.
func onThread(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	done := make(chan struct{})
	Dedicate(func() {
		defer close(done)
		f()
	})
	<-done
}

// TestSetEffective checks that only the effective ids and capabilities change,
// and come back. No other thread notices.
func TestSetEffective(t *testing.T) {
	onThread(t, func() {
		before := thread(t)
		if err := SetEffective(10001, 10002); err != nil {
			t.Error(err)
		}
		p := thread(t)
		if p.UID != [4]uint32{0, 10001, 0, 10001} || p.GID != [4]uint32{0, 10002, 0, 10002} || p.Effective != 0 || p.Permitted != before.Permitted {
			t.Errorf("changed to %+v", p)
		}
		if unix.Gettid() == unix.Getpid() {
			t.Error("it runs on the main thread")
		}
		if main, err := Read("/proc/self/status"); err != nil || main.UID != [4]uint32{} {
			t.Errorf("the main thread: %+v, %v", main, err)
		}
		if err := SetEffective(0, 10003); err == nil {
			t.Error("without capabilities another group can be had")
		}
		if err := Restore(0, 0); err != nil {
			t.Error(err)
		}
		if p := thread(t); p.UID != [4]uint32{} || p.GID != [4]uint32{} || p.Effective != before.Effective || before.Effective == 0 {
			t.Errorf("restored to %+v", p)
		}
	})
}

func TestRestrictions(t *testing.T) {
	onThread(t, func() {
		raise(t)
		before := thread(t)
		if len(before.Groups) != 1 || before.Inheritable == 0 || before.Ambient == 0 || before.Bounding == 0 || before.NoNewPrivs || before.Seccomp != 0 {
			t.Errorf("before it is %+v: this test proves little", before)
		}
		if err := SetGroups(); err != nil || len(thread(t).Groups) != 0 {
			t.Errorf("groups are %v, %v", thread(t).Groups, err)
		}
		ClearAmbient()
		if got := thread(t); got.Ambient != 0 || got.Inheritable == 0 {
			t.Errorf("ambient set: %+v", got)
		}
		if err := LimitBounding(0); err != nil || thread(t).Bounding != 0 {
			t.Errorf("bounding set is %x, %v", thread(t).Bounding, err)
		}
		wanted := uint64(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHECKPOINT_RESTORE)
		if err := LimitCapabilities(wanted); err != nil {
			t.Error(err)
		}
		if got := thread(t); got.Permitted != wanted&before.Permitted || got.Effective != got.Permitted || got.Inheritable != 0 || got.Permitted == 0 {
			t.Errorf("of %x are left %+v", before.Permitted, got)
		}
		if err := NoNewPrivileges(); err != nil || !thread(t).NoNewPrivs {
			t.Errorf("no_new_privs: %v", err)
		}
		allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
		if err := SetFilter(allow); err != nil {
			t.Error(err)
		}
		listener, err := SetFilterWithListener(allow)
		if err != nil {
			t.Error(err)
		}
		_ = unix.Close(listener)
		if got := thread(t); got.Seccomp != 2 || got.Filters != 2 {
			t.Errorf("filters: %+v", got)
		}
		none := []unix.SockFilter{{Code: 0xffff}}
		if err := SetFilter(none); err == nil {
			t.Error("a filter that is none is installed")
		}
		if _, err := SetFilterWithListener(none); err == nil {
			t.Error("a filter that is none is installed with a listener")
		}
		if err := LimitBounding(0); err == nil {
			t.Error("the bounding set is reduced without the capability")
		}
		if err := SetGroups(); err != nil {
			t.Errorf("with its capability: %v", err)
		}
		if err := LimitCapabilities(0); err != nil {
			t.Error(err)
		}
		if err := SetGroups(); err == nil {
			t.Error("groups are dropped without the capability")
		}
	})
	if p := thread(t); p.NoNewPrivs || p.Permitted == 0 || p.Seccomp != 0 {
		t.Errorf("another thread is %+v", p)
	}
}

// raise makes all permitted capabilities inheritable, and one ambient.
func raise(t *testing.T) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		t.Error(err)
	}
	for i := range data {
		data[i].Inheritable = data[i].Permitted
	}
	if err := unix.Capset(&head, &data[0]); err != nil {
		t.Error(err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SETUID, 0, 0); err != nil {
		t.Error(err)
	}
}

// TestRefused checks that the kernel's refusals are errors, and that a process
// counts as dumpable if the kernel can't tell.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		call uint32
		do   func() error
		want string
	}{
		"uid":              {unix.SYS_SETRESUID, func() error { return Restore(0, 0) }, "restore effective uid"},
		"gid":              {unix.SYS_SETRESGID, func() error { return Restore(0, 0) }, "restore effective gid"},
		"reading":          {unix.SYS_CAPGET, func() error { return LimitCapabilities(0) }, "read capabilities"},
		"capabilities":     {unix.SYS_CAPSET, func() error { return LimitCapabilities(0) }, "limit capabilities"},
		"no_new_privs":     {unix.SYS_PRCTL, NoNewPrivileges, "set no_new_privs"},
		"dumpable":         {unix.SYS_PRCTL, func() error { return SetDumpable(true) }, "set dumpable"},
		"filter":           {unix.SYS_SECCOMP, func() error { return SetFilter(filtertest.Refuse(0, 0)) }, "install seccomp filter"},
		"effective uid":    {unix.SYS_SETRESUID, func() error { return SetEffective(0, 0) }, "set effective uid"},
		"effective gid":    {unix.SYS_SETRESGID, func() error { return SetEffective(0, 0) }, "set effective gid"},
		"whether dumpable": {unix.SYS_PRCTL, func() error { return dumpable() }, ""},
		"another call":     {unix.SYS_GETCPU, func() error { return SetEffective(0, 0) }, ""},
	} {
		onThread(t, func() {
			if err := SetFilter(filtertest.Refuse(unix.EPERM, tt.call)); err != nil {
				t.Error(err)
			}
			if err := tt.do(); errors.Is(err, unix.EPERM) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error is %v, want one with %q", name, err, tt.want)
			}
		})
	}
}

// dumpable returns an error unless the process counts as dumpable.
func dumpable() error {
	if !Dumpable() {
		return errors.New("it is not dumpable")
	}
	return nil
}

// TestOldListener checks that there is a listener even if the kernel can't keep
// signals from interrupting calls.
func TestOldListener(t *testing.T) {
	onThread(t, func() {
		const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		if err := SetFilter(filtertest.Refuse(unix.EINVAL, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags)); err != nil {
			t.Error(err)
		}
		listener, err := SetFilterWithListener([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(listener); err != nil {
			t.Error(err)
		}
	})
}

// TestDedicate checks that no function runs on the main thread, even if the
// scheduler would choose it, and that the main thread works afterwards.
func TestDedicate(t *testing.T) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	// One of more locked goroutines than there are threads gets the main
	// thread, unless that waits in the kernel.
	all := len(tasks) + 4
	keep := func(start func(func())) (tids []int) {
		seen, release := make(chan int), make(chan struct{})
		for range all {
			start(func() {
				seen <- unix.Gettid()
				<-release
			})
		}
		for range all {
			tids = append(tids, <-seen)
		}
		close(release)
		return tids
	}
	for range 10 {
		if tids := keep(Dedicate); slices.Contains(tids, unix.Getpid()) {
			t.Error("a function runs on the main thread")
		}
		time.Sleep(time.Millisecond)
	}
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	for range 200 {
		tids := keep(func(f func()) {
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				f()
			}()
		})
		if slices.Contains(tids, unix.Getpid()) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the main thread is of no use any more")
}

// runAs runs the test again as another user, with one more variable.
func runAs(t *testing.T, uid, gid uint32, variable string, ambient ...uintptr) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") // by a path that any user can execute
	c.Env = append(os.Environ(), variable)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}, AmbientCaps: ambient}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Errorf("%s as %d:%d: %v\n%s", variable, uid, gid, err, out)
	}
}

// TestBecomeRoot checks that the whole process becomes root and keeps its
// permitted capabilities. It runs again as a user, or with these identities.
func TestBecomeRoot(t *testing.T) {
	const variable, uid, gid = "IDENTITY_TEST_BECOME", 10001, 10002
	ids := uint64(1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID)
	for name, tt := range map[string]struct {
		uid, gid uint32 // at the start
		ambient  []uintptr
		before   func() error // changes the ids
		want     string       // the error
		keeps    bool         // the group
	}{
		"user":           {uid: uid, gid: gid, ambient: []uintptr{unix.CAP_SETUID, unix.CAP_SETGID}},
		"no group":       {uid: uid, gid: gid, want: "become gid 0"},
		"no user":        {uid: uid, gid: gid, ambient: []uintptr{unix.CAP_SETGID}, want: "become uid 0"},
		"root":           {gid: gid, keeps: true},
		"effective root": {before: func() error { return syscall.Setresuid(uid, 0, 0) }},
		"real root":      {before: func() error { return syscall.Setresuid(0, uid, 0) }},
	} {
		switch os.Getenv(variable) {
		case "":
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			runAs(t, tt.uid, tt.gid, variable+"="+name, tt.ambient...)
			continue
		case name:
		default:
			continue
		}
		if tt.before != nil {
			if err := tt.before(); err != nil {
				t.Fatal(err)
			}
		}
		before := thread(t)
		err := BecomeRoot()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Fatalf("error is %v, want one with %q", err, tt.want)
		}
		if err != nil {
			return
		}
		for _, path := range []string{"/proc/self/status", "/proc/thread-self/status"} {
			p, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			var g uint32
			if tt.keeps {
				g = tt.gid
			}
			if p.UID != [4]uint32{} || p.GID != [4]uint32{g, g, g, g} || p.Permitted != before.Permitted || p.Permitted&ids != ids {
				t.Errorf("%s: %+v", path, p)
			}
		}
	}
}

// TestNewPoolFails checks that threads of another user need privileges.
func TestNewPoolFails(t *testing.T) {
	if os.Getuid() == 0 {
		runAs(t, 10001, 10002, "")
		return
	}
	if _, err := NewPool(Commands{UID: 10003, GID: 10003, Separate: true}, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("error is %v", err)
	}
}

func TestDumpable(t *testing.T) {
	defer func(was bool) {
		if err := SetDumpable(was); err != nil {
			t.Error(err)
		}
	}(Dumpable())
	for _, on := range []bool{false, true} {
		if err := SetDumpable(on); err != nil || Dumpable() != on {
			t.Errorf("set %t: %t, %v", on, Dumpable(), err)
		}
	}
}

// TestPool checks that calls run concurrently, with the commands' identity and
// no groups, or the guest's own if these are not separate.
func TestPool(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, separate := range []bool{true, false} {
		const threads = 3
		pool, err := NewPool(Commands{UID: 10001, GID: 10002, Separate: separate}, threads)
		if err != nil {
			t.Fatal(err)
		}
		var all, together sync.WaitGroup
		together.Add(threads)
		tids := make(chan int, threads)
		for range threads {
			all.Go(func() {
				pool.Do(func() {
					together.Done()
					together.Wait()
					p := thread(t)
					apart := p.UID == [4]uint32{0, 10001, 0, 10001} && p.GID == [4]uint32{0, 10002, 0, 10002} && p.Effective == 0 && len(p.Groups) == 0
					own := p.UID == [4]uint32{} && p.GID == [4]uint32{} && p.Effective != 0 && slices.Equal(p.Groups, []uint32{group})
					if separate && !apart || !separate && !own {
						t.Errorf("separate %t: %+v", separate, p)
					}
					tids <- unix.Gettid()
				})
			})
		}
		all.Wait()
		close(tids)
		var seen []int
		for tid := range tids {
			if slices.Contains(seen, tid) || tid == unix.Getpid() {
				t.Errorf("thread %d after %v", tid, seen)
			}
			seen = append(seen, tid)
		}
		if len(seen) != threads {
			t.Errorf("%d of %d calls were made", len(seen), threads)
		}
		close(pool.work)
	}
}

// TestPoolFails checks that a thread without the commands' identity does no
// work.
func TestPoolFails(t *testing.T) {
	for name, capabilities := range map[string]uint64{"groups": 0, "ids": 1 << unix.CAP_SETGID} {
		onThread(t, func() {
			if err := LimitCapabilities(capabilities); err != nil {
				t.Error(err)
			}
			p := &Pool{work: make(chan func(), 1)}
			p.work <- func() { t.Errorf("without %s it works", name) }
			ready := make(chan error, 1)
			p.runThread(Commands{UID: 10001, GID: 10002, Separate: true}.take, ready)
			if err := <-ready; err == nil {
				t.Errorf("without %s: no error", name)
			}
		})
	}
}
