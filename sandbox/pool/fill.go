package pool

import (
	"time"

	"go.uber.org/zap"
)

// takeReady removes the oldest ready sandbox from a bucket and returns it, or
// nil if there is none.
func (p *Pool) takeReady(b *bucket) *readySandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(b.ready) == 0 {
		return nil
	}
	r := b.ready[0]
	b.ready = b.ready[1:]
	return r
}

// discardReady destroys a sandbox in the background.
func (p *Pool) discardReady(r *readySandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discardReadyLocked(r)
}

func (p *Pool) discardReadyLocked(r *readySandbox) {
	p.runLocked(func() {
		if err := r.destroy(); err != nil {
			p.recordStuck(r, err)
		}
	})
}

// recordStuck records a sandbox that could not be destroyed, so that it is
// tried again.
func (p *Pool) recordStuck(r *readySandbox, err error) {
	p.opts.Logger.Warn("a ready sandbox could not be destroyed and is tried again", zap.String("session", r.spec.Session), zap.Error(err))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = append(p.stuck, r)
}

// retryStuck tries again to destroy the recorded sandboxes.
func (p *Pool) retryStuck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	stuck := p.stuck
	p.stuck = nil
	for _, r := range stuck {
		p.discardReadyLocked(r)
	}
}

// runLocked runs f in the background. If the pool is closing, it runs f at
// once, because Close waits for it.
func (p *Pool) runLocked(f func()) {
	if p.closed {
		p.mu.Unlock()
		defer p.mu.Lock()
		f()
		return
	}
	p.work.Go(f)
}

// refillDelay is the time after which the pool replaces a sandbox that Create
// returned. A start takes all processors, which the session's first commands
// need.
const refillDelay = 100 * time.Millisecond

// fillBucket starts sandboxes for a bucket after a delay, until the pool is
// full. If the pool is full of other sandboxes, it evicts one of the least
// recently used bucket.
func (p *Pool) fillBucket(b *bucket, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if len(b.ready)+b.starting == 0 && p.countLocked() >= p.opts.Size {
		p.evictOldestLocked(b)
	}
	for p.countLocked() < p.opts.Size {
		b.starting++
		p.starting++
		p.work.Go(func() { p.addReady(b, delay) })
	}
}

func (p *Pool) countLocked() int {
	n := p.starting
	for _, b := range p.buckets {
		n += len(b.ready)
	}
	return n
}

// evictOldest frees resources of the machine for a session's start that waits,
// since a ready sandbox holds memory. Each call evicts one sandbox. A start
// that keeps waiting notifies again.
func (p *Pool) evictOldest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.evictOldestLocked(nil)
	}
}

// evictOldestLocked discards a ready sandbox of the least recently used bucket
// other than except.
func (p *Pool) evictOldestLocked(except *bucket) {
	var victim *bucket
	for _, b := range p.buckets {
		if b != except && len(b.ready) > 0 && (victim == nil || b.lastUsed.Before(victim.lastUsed)) {
			victim = b
		}
	}
	if victim != nil {
		p.discardReadyLocked(victim.ready[0])
		victim.ready = victim.ready[1:]
	}
}

// addReady starts a sandbox and adds it to its bucket. A failed start is not
// repeated until the next Create, which returns the error to its session.
func (p *Pool) addReady(b *bucket, delay time.Duration) {
	select {
	case <-time.After(delay):
	case <-p.ctx.Done(): // startReady fails at once
	}
	p.startSlots <- struct{}{}
	r, err := p.startReady(b.spec)
	<-p.startSlots
	p.mu.Lock()
	defer p.mu.Unlock()
	b.starting--
	p.starting--
	if err != nil {
		if !p.closed {
			p.opts.Logger.Warn("no sandbox could be started ahead", zap.Error(err))
		}
		return
	}
	b.ready = append(b.ready, r) // a closing pool destroys it too, since Close waits for this goroutine
	if !p.closed {
		p.work.Go(func() { p.watchReady(b, r) })
	}
}

// watchReady discards a ready sandbox as soon as it is lost, so that Create
// does not have to detect that.
func (p *Pool) watchReady(b *bucket, r *readySandbox) {
	select {
	case <-p.ctx.Done():
		return
	case <-r.sandbox.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, have := range b.ready {
		if have == r { // otherwise Create returned it, and its session owns it
			b.ready = append(b.ready[:i:i], b.ready[i+1:]...)
			p.discardReadyLocked(r)
			return
		}
	}
}

// runMaintenance replaces old sandboxes and removes buckets that are not used
// any more.
func (p *Pool) runMaintenance() {
	tick := time.NewTicker(maxAge / 4)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		p.retryStuck()
		for _, b := range p.discardOld() {
			p.fillBucket(b, 0)
			p.releaseBucket(b)
		}
	}
}

// discardOld discards old sandboxes and returns the buckets that need new ones.
// The caller must release these buckets.
func (p *Pool) discardOld() (need []*bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, b := range p.buckets {
		unused := now.Sub(b.lastUsed) > forgetTime
		old := 0
		for old < len(b.ready) && (unused || now.Sub(b.ready[old].started) > maxAge*3/4) {
			p.discardReadyLocked(b.ready[old])
			old++
		}
		b.ready = b.ready[old:]
		switch {
		case unused && b.isIdle():
			b.closeDir()
			delete(p.buckets, name)
		case old > 0 && !unused:
			b.users++
			need = append(need, b)
		}
	}
	return need
}
