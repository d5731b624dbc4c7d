// Package warm makes all threads that the guest will ever need before the first
// command runs. At the limit of processes no thread can be made, and the Go
// runtime dies of that; with idle threads it makes none.
package warm

import (
	"runtime"
	"sync"
)

// Threads is how many are made, besides the eleven that the guest has by then.
// Busy at once are at most the spawner, two appliers, four streams, one scan,
// one frame that is read and one that is written, signals, the poller and the
// runtime's own three; the rest is reserve for short calls of many commands. An
// idle one costs 20 KiB. MinPIDs in package limits leaves room for all.
const Threads = 12

// Up makes n goroutines hold a thread each at the same time. When they end, the
// runtime keeps the threads, idle.
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
