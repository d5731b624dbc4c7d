package spawn

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// affinity restricts each command to as many processors as its limit of CPU
// time amounts to, so that programs which ask how many there are (nproc,
// runtime.NumCPU, sched_getaffinity) start as many threads and no more. It works
// without a cgroup, for ordinary users, and in gVisor. The time itself is bounded
// elsewhere; a command may widen its set and gains nothing.
type affinity struct {
	all  unix.CPUSet
	list []int // the processors of all
	n    int
}

// newAffinity is nil where the limit is not below what there is.
func newAffinity(milliCPUs int64) *affinity {
	a := &affinity{n: int((milliCPUs + 999) / 1000)}
	if milliCPUs <= 0 || unix.SchedGetaffinity(0, &a.all) != nil {
		return nil
	}
	for cpu := range len(a.all) * int(unsafe.Sizeof(a.all[0])) * 8 {
		if a.all.IsSet(cpu) {
			a.list = append(a.list, cpu)
		}
	}
	if a.n >= len(a.list) {
		return nil
	}
	return a
}

// restrictThread limits the calling thread, and so the next child, to the processors
// from the one on that it runs on: the kernel has just chosen that one, so that
// commands and sessions spread as the kernel spreads them. Call restore then.
func (a *affinity) restrictThread() {
	if a == nil {
		return
	}
	set := a.cpuWindow(currentCPU())
	_ = unix.SchedSetaffinity(0, &set) // a matter of speed, and of what programs see
}

// restoreThread undoes restrict.
func (a *affinity) restoreThread() {
	if a != nil {
		_ = unix.SchedSetaffinity(0, &a.all)
	}
}

// cpuWindow is n processors, from cpu on and around.
func (a *affinity) cpuWindow(cpu int) (set unix.CPUSet) {
	at := 0
	for i, c := range a.list {
		if c == cpu {
			at = i
		}
	}
	for i := range a.n {
		set.Set(a.list[(at+i)%len(a.list)])
	}
	return set
}

// currentCPU returns the processor that the calling thread runs on.
func currentCPU() int {
	var cpu uint32 // stays 0 if the call fails
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return int(cpu)
}
