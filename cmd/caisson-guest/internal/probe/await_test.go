package probe

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAwaitEventDespiteSignals checks that signals neither end a wait nor extend it.
func TestAwaitEventDespiteSignals(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
			}
		}
	}()
	began := time.Now()
	if errno := awaitEvent(pair[0], unix.POLLIN, 100); errno != unix.ETIMEDOUT {
		t.Errorf("without an event: %v", errno)
	}
	if took := time.Since(began); took < 90*time.Millisecond || took > 10*time.Second {
		t.Errorf("a wait of 100 ms took %v", took)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		_, _ = unix.Write(pair[1], []byte("x"))
	}()
	if errno := awaitEvent(pair[0], unix.POLLIN, 10_000); errno != 0 {
		t.Errorf("with an event: %v", errno)
	}
	close(stop)
	<-stopped
}
