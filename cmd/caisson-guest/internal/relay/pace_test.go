package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{interval: 10 * time.Millisecond}
		takeTurns := func(n int) time.Duration {
			began := time.Now()
			for range n {
				time.Sleep(p.next()) // which a negative time doesn't
			}
			return time.Since(began)
		}
		if took := takeTurns(connBurst); took != 0 {
			t.Errorf("the first %d took %v", connBurst, took)
		}
		if took := takeTurns(100); took != 100*p.interval {
			t.Errorf("100 more took %v, want %v", took, 100*p.interval)
		}
		time.Sleep(50 * p.interval)
		if took := takeTurns(60); took != 10*p.interval {
			t.Errorf("60 after a rest of 50 took %v, want %v", took, 10*p.interval)
		}
		time.Sleep(time.Hour)
		if took := takeTurns(connBurst + 1); took != p.interval {
			t.Errorf("%d after a long rest took %v, want %v", connBurst+1, took, p.interval)
		}
		p.next()
		p.skip()
		if took := takeTurns(1); took != p.interval {
			t.Errorf("one after one that did not count took %v, want %v", took, p.interval)
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pause{time: pauseTime}
		began := time.Now()
		wantWait := func(moved int, want time.Duration) {
			t.Helper()
			at := time.Now()
			p.wait(moved)
			if took := time.Since(at); took != want {
				t.Errorf("after %v, %d bytes: waited %v, want %v", at.Sub(began), moved, took, want)
			}
		}
		const bulk = bulkBytes + 1
		wantWait(bulk, 0)
		p.begin()
		wantWait(bulkBytes, 0)
		time.Sleep(pauseTime / 2)
		p.begin() // changes nothing
		wantWait(bulk, pauseTime/2)
		p.begin() // comes too early
		wantWait(bulk, 0)
		time.Sleep(pauseGap)
		p.begin()
		wantWait(bulk, pauseTime)
	})
}
