package pool

import (
	"time"

	"go.uber.org/zap"
)

// take removes the oldest ready sandbox of a kind that lives; nil is none.
func (p *Pool) take(k *kind) *ready {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(k.ready) == 0 {
		return nil
	}
	r := k.ready[0]
	k.ready = k.ready[1:]
	return r
}

// discard destroys a sandbox in the background.
func (p *Pool) discard(r *ready) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.discardLocked(r)
}

func (p *Pool) discardLocked(r *ready) {
	p.goLocked(func() {
		if err := r.destroy(); err != nil {
			p.keep(r, err)
		}
	})
}

// keep notes what could not be destroyed, to be tried again.
func (p *Pool) keep(r *ready, err error) {
	p.o.Logger.Warn("a ready sandbox could not be destroyed and is tried again", zap.String("session", r.spec.Session), zap.Error(err))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = append(p.stuck, r)
}

// retry tries to destroy once more what could not be.
func (p *Pool) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	stuck := p.stuck
	p.stuck = nil
	for _, r := range stuck {
		p.discardLocked(r)
	}
}

// goLocked does something in the background, at once if the pool is closing:
// whoever closes it waits.
func (p *Pool) goLocked(f func()) {
	if p.closed {
		p.mu.Unlock()
		defer p.mu.Lock()
		f()
		return
	}
	p.work.Go(f)
}

// restTime is how long the pool waits before it replaces a sandbox that was given
// out: a start takes all processors, which the session's first commands need.
const restTime = 100 * time.Millisecond

// fill starts sandboxes for a kind, after a rest, until the pool is full. Where it is full of
// others, one of the kind that was used longest ago makes room for one.
func (p *Pool) fill(k *kind, rest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if len(k.ready)+k.starting == 0 && p.countLocked() >= p.o.Size {
		p.evictLocked(k)
	}
	for p.countLocked() < p.o.Size {
		k.starting++
		p.starting++
		p.work.Go(func() { p.startOne(k, rest) })
	}
}

func (p *Pool) countLocked() int {
	n := p.starting
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// evict makes room on the machine for a session's start that waits: what nobody
// uses yet holds memory for as long as it is ready. Each call discards one; a
// start that goes on to wait says so anew.
func (p *Pool) evict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.evictLocked(nil)
	}
}

// evictLocked discards a ready sandbox of the kind that was used longest ago.
func (p *Pool) evictLocked(except *kind) {
	var victim *kind
	for _, k := range p.kinds {
		if k != except && len(k.ready) > 0 && (victim == nil || k.used.Before(victim.used)) {
			victim = k
		}
	}
	if victim != nil {
		p.discardLocked(victim.ready[0])
		victim.ready = victim.ready[1:]
	}
}

// startOne starts one and puts it with the others. A start that fails is not
// tried again before somebody asks: the session then says why.
func (p *Pool) startOne(k *kind, rest time.Duration) {
	select {
	case <-time.After(rest):
	case <-p.ctx.Done(): // start fails at once
	}
	p.ahead <- struct{}{}
	r, err := p.start(k.spec)
	<-p.ahead
	p.mu.Lock()
	defer p.mu.Unlock()
	k.starting--
	p.starting--
	if err != nil {
		if !p.closed {
			p.o.Logger.Warn("no sandbox could be started ahead", zap.Error(err))
		}
		return
	}
	k.ready = append(k.ready, r) // Close destroys it, too, as it waits for us
	if !p.closed {
		p.work.Go(func() { p.watch(k, r) })
	}
}

// watch discards a ready sandbox that is lost, so that it is not found only
// when somebody waits.
func (p *Pool) watch(k *kind, r *ready) {
	select {
	case <-p.ctx.Done():
		return
	case <-r.box.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, have := range k.ready {
		if have == r { // otherwise it was given out and is not ours any more
			k.ready = append(k.ready[:i:i], k.ready[i+1:]...)
			p.discardLocked(r)
			return
		}
	}
}

// tend replaces what has become old and forgets what nobody asks for.
func (p *Pool) tend() {
	tick := time.NewTicker(max(p.o.MaxAge/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		p.retry()
		for _, k := range p.renew() {
			p.fill(k, 0)
			p.leave(k)
		}
	}
}

// renew discards what is old, and returns the kinds that need new ones, which
// the caller gives back with leave.
func (p *Pool) renew() (need []*kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, k := range p.kinds {
		unused := now.Sub(k.used) > p.o.Forget
		old := 0
		for old < len(k.ready) && (unused || now.Sub(k.ready[old].started) > p.o.MaxAge*3/4) {
			p.discardLocked(k.ready[old])
			old++
		}
		k.ready = k.ready[old:]
		switch {
		case unused && k.idle():
			k.close()
			delete(p.kinds, name)
		case old > 0 && !unused:
			k.users++
			need = append(need, k)
		}
	}
	return need
}
