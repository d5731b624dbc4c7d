package serve

import (
	"sync"
	"time"
)

// stuckTime is when a start is taken for stuck: another command of the same
// identity can stop a child between its change of identity and its exec, and
// the guest would wait for it. Waking it is harmless.
const stuckTime = time.Second

// clock bounds a command's time, and first watches over its start. It is one
// timer for both, because each new one may wake the runtime's poller.
type clock struct {
	// expired is closed when the command's time is over.
	expired chan struct{}

	mu       sync.Mutex
	timer    *time.Timer
	timeout  time.Duration
	began    time.Time
	starting bool
	over     bool
}

// newClock starts a clock. Wake is called as long as the start is stuck.
func newClock(timeout time.Duration, wake func()) *clock {
	c := &clock{expired: make(chan struct{}), timeout: timeout, began: time.Now(), starting: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(stuckTime, func() { c.fireAfter(wake) })
	return c
}

func (c *clock) fireAfter(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.starting:
		c.timer.Reset(stuckTime)
		go wake()
	case !c.over && time.Since(c.began) >= c.timeout: // not a late call from before launched
		c.over = true
		close(c.expired)
	}
}

// startTimeout records that the start is over: from now on the command's
// timeout counts.
func (c *clock) startTimeout() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting {
		c.starting = false
		c.timer.Reset(max(0, c.timeout-time.Since(c.began)))
	}
}

func (c *clock) stop() { c.timer.Stop() }
