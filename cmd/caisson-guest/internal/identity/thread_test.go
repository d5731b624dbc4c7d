package identity

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// group is one that all threads of the tests have, if they run as root.
const group = 10004

func TestMain(m *testing.M) {
	if os.Getuid() == 0 {
		if err := syscall.Setgroups([]int{group}); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// thread returns what /proc says about the calling thread.
func thread(t *testing.T) Process {
	t.Helper()
	p, err := Read("/proc/thread-self/status")
	if err != nil {
		t.Error(err)
	}
	return p
}

// onThread runs f on a thread of its own, as root.
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

// TestSetEffective: only the effective ids change, with them the effective
// capabilities, and all of it comes back. No other thread notices.
func TestSetEffective(t *testing.T) {
	onThread(t, func() {
		before := thread(t).Identity
		if err := SetEffective(10001, 10002); err != nil {
			t.Error(err)
		}
		p := thread(t).Identity
		if p.UID != [4]uint32{0, 10001, 0, 10001} || p.GID != [4]uint32{0, 10002, 0, 10002} || p.Effective != 0 || p.Permitted != before.Permitted {
			t.Errorf("changed to %+v", p)
		}
		if unix.Gettid() == unix.Getpid() {
			t.Error("it runs on the main thread")
		}
		if main, err := Read("/proc/self/status"); err != nil || main.Identity.UID != [4]uint32{} {
			t.Errorf("the main thread: %+v, %v", main.Identity, err)
		}
		if err := SetEffective(0, 10003); err == nil {
			t.Error("without capabilities another group can be had")
		}
		if err := Restore(0, 0); err != nil {
			t.Error(err)
		}
		if p := thread(t).Identity; p.UID != [4]uint32{} || p.GID != [4]uint32{} || p.Effective != before.Effective || before.Effective == 0 {
			t.Errorf("restored to %+v", p)
		}
	})
}

// TestRestrictions: each takes from the calling thread what it says.
func TestRestrictions(t *testing.T) {
	onThread(t, func() {
		raise(t)
		before := thread(t).Identity
		if len(before.Groups) != 1 || before.Inheritable == 0 || before.Ambient == 0 || before.Bounding == 0 || before.NoNewPrivs || before.Seccomp != 0 {
			t.Errorf("before it is %+v: this test proves little", before)
		}
		if err := ClearGroups(); err != nil || len(thread(t).Identity.Groups) != 0 {
			t.Errorf("groups are %v, %v", thread(t).Identity.Groups, err)
		}
		ClearAmbient()
		if got := thread(t).Identity; got.Ambient != 0 || got.Inheritable == 0 {
			t.Errorf("ambient set: %+v", got)
		}
		if err := DropBounding(); err != nil || thread(t).Identity.Bounding != 0 {
			t.Errorf("bounding set is %x, %v", thread(t).Identity.Bounding, err)
		}
		wanted := Capabilities(unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHECKPOINT_RESTORE)
		if err := LimitCapabilities(wanted); err != nil {
			t.Error(err)
		}
		if got := thread(t).Identity; got.Permitted != wanted&before.Permitted || got.Effective != got.Permitted || got.Inheritable != 0 || got.Permitted == 0 {
			t.Errorf("of %x are left %+v", before.Permitted, got)
		}
		if err := NoNewPrivileges(); err != nil || !thread(t).Identity.NoNewPrivs {
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
		if got := thread(t).Identity; got.Seccomp != 2 || got.Filters != 2 {
			t.Errorf("filters: %+v", got)
		}
		none := []unix.SockFilter{{Code: 0xffff}}
		if err := SetFilter(none); err == nil {
			t.Error("a filter that is none is installed")
		}
		if _, err := SetFilterWithListener(none); err == nil {
			t.Error("a filter that is none is installed with a listener")
		}
		if err := DropBounding(); err == nil {
			t.Error("the bounding set is reduced without the capability")
		}
		if err := ClearGroups(); err != nil {
			t.Errorf("with its capability: %v", err)
		}
		if err := LimitCapabilities(0); err != nil {
			t.Error(err)
		}
		if err := ClearGroups(); err == nil {
			t.Error("groups are dropped without the capability")
		}
	})
	if p := thread(t).Identity; p.NoNewPrivs || p.Permitted == 0 || p.Seccomp != 0 {
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

// TestPool: calls are made side by side, by threads with the commands' identity
// and no groups, or the guest's own where they are not apart.
func TestPool(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, separate := range []bool{true, false} {
		const threads = 3
		pool, err := NewPool(PoolOptions{UID: 10001, GID: 10002, Separate: separate, Threads: threads})
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
					p := thread(t).Identity
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

// TestPoolFails: a thread that can't get the commands' identity does no work.
func TestPoolFails(t *testing.T) {
	for name, capabilities := range map[string]uint64{"groups": 0, "ids": Capabilities(unix.CAP_SETGID)} {
		onThread(t, func() {
			if err := LimitCapabilities(capabilities); err != nil {
				t.Error(err)
			}
			p := &Pool{work: make(chan func(), 1)}
			p.work <- func() { t.Errorf("without %s it works", name) }
			ready := make(chan error, 1)
			p.run(PoolOptions{UID: 10001, GID: 10002, Separate: true, Threads: 1}, ready)
			if err := <-ready; err == nil {
				t.Errorf("without %s: no error", name)
			}
		})
	}
}
