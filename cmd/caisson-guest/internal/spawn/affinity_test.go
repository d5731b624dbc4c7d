package spawn

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWindow(t *testing.T) {
	a := &affinity{list: []int{1, 3, 5, 70}, n: 2}
	for cpu, want := range map[int][]int{1: {1, 3}, 5: {5, 70}, 70: {70, 1}, 2: {1, 3}} {
		set := a.cpuWindow(cpu)
		if set.Count() != 2 || !set.IsSet(want[0]) || !set.IsSet(want[1]) {
			t.Errorf("from %d on: %v", cpu, set)
		}
	}
}

// TestAffinity checks that the calling thread is restricted and restored, and
// untouched if the limit is not below the number of processors.
func TestAffinity(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, during, after unix.CPUSet
	count := func(set *unix.CPUSet) int {
		if err := unix.SchedGetaffinity(0, set); err != nil {
			t.Fatal(err)
		}
		return set.Count()
	}
	have := count(&before)
	for _, milli := range []int64{0, -1, int64(have) * 1000, int64(have)*1000 - 500, 1 << 40} {
		if a := newAffinity(milli); a != nil {
			t.Errorf("%d thousandths of %d CPUs: %+v", milli, have, a)
		}
	}
	if have < 2 {
		t.Skip("needs two processors")
	}
	if a := newAffinity(1); a == nil || a.n != 1 {
		t.Errorf("a thousandth of a CPU: %+v", a)
	}
	a := newAffinity(int64(have-1)*1000 - 1)
	a.restrictThread()
	n := count(&during)
	a.restoreThread()
	if n != have-1 || count(&after) != have || after != before {
		t.Errorf("of %d processors %d, then %d", have, n, after.Count())
	}
	// The limit is compared with the thread's own processors.
	var one unix.CPUSet
	last := a.list[len(a.list)-1]
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	a, cpu := newAffinity(1), currentCPU()
	if err := unix.SchedSetaffinity(0, &before); err != nil {
		t.Error(err)
	}
	if a != nil || cpu != last {
		t.Errorf("of processor %d alone: %+v, and it runs on %d", last, a, cpu)
	}
}
