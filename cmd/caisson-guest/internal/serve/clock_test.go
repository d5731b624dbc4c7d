package serve

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wakes atomic.Int32
		began := time.Now()
		c := newClock(10*time.Second, func() { wakes.Add(1) })
		time.Sleep(3*stuckTime + stuckTime/2)
		synctest.Wait()
		if wakes.Load() != 3 {
			t.Errorf("a start that takes 3.5 s was woken %d times", wakes.Load())
		}
		c.startTimeout()
		c.fireAfter(nil) // late, from before launched
		select {
		case <-c.expired:
			t.Error("a late call expired it")
		default:
		}
		<-c.expired
		if took := time.Since(began); took != 10*time.Second || wakes.Load() != 3 {
			t.Errorf("expired after %v, woken %d times", took, wakes.Load())
		}
		c.fireAfter(nil) // expired once
		c.stop()
	})
}

func TestClockStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Second, func() {})
		c.startTimeout()
		c.stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case <-c.expired:
			t.Error("a stopped clock expired")
		default:
		}
	})
}

// TestClockLaunchedLate: the time was over before the command ran.
func TestClockLaunchedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Second/2, func() {})
		time.Sleep(time.Second / 4 * 3)
		c.startTimeout()
		<-c.expired
	})
}
