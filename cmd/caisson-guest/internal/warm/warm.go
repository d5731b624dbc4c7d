// Package warm makes the threads that the guest will ever need before the first
// command runs. At the limit of processes a thread can't be made, and the Go
// runtime dies of that; with idle threads at hand it makes none.
package warm

import (
	"runtime"
	"sync"
)

// Threads is how many threads are made. The guest was seen to use nine at once
// (the spawner, two writers, the poller, signals, the garbage collector and
// what serves frames); the rest is reserve, at 8 KiB of kernel memory each.
// MinPIDs in package limits leaves room for them.
const Threads = 6

// Up makes n goroutines hold a thread each at the same time. When they let go
// the threads stay, idle: the runtime gives none back.
func Up(n int) {
	var held sync.WaitGroup
	release := make(chan struct{})
	for range n {
		held.Add(1)
		go func() {
			runtime.LockOSThread()
			held.Done()
			<-release
			runtime.UnlockOSThread()
		}()
	}
	held.Wait()
	close(release)
}
