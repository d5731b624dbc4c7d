package guest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

func (l *liar) pong(number uint64) {
	l.frame(0, wire.TypePong, 0, string(binary.BigEndian.AppendUint64(nil, number)))
}

// TestPingsGivenUp checks that the answer to an abandoned ping may still come,
// once. An answer to a ping that was not sent is a lie even while such an
// answer is due.
func TestPingsGivenUp(t *testing.T) {
	for name, lie := range map[string]func(l *liar){
		"answered twice": func(l *liar) { l.pong(1); l.pong(1) },
		"not sent":       func(l *liar) { l.pong(3) },
		"no number":      func(l *liar) { l.pong(0) },
	} {
		t.Run(name, func(t *testing.T) {
			c, l := play(t)
			ctx, giveUp := context.WithCancel(t.Context())
			go func() {
				l.next() // ping 1
				giveUp()
				l.next() // ping 2
				l.pong(2)
			}()
			if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("a ping that is given up: %v", err)
			}
			if err := c.Ping(t.Context()); err != nil {
				t.Fatalf("the next: %v", err)
			}
			lie(l)
			<-c.Done()
			if err := c.Err(); !errors.Is(err, sandbox.ErrLost) || !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, l := play(t)
			ctx, giveUp := context.WithCancel(t.Context())
			go func() {
				l.next()
				giveUp()
			}()
			if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("a ping that is given up: %v", err)
			}
			l.pong(1)
			synctest.Wait()
			go func() {
				l.next()
				l.pong(2)
			}()
			if err := c.Ping(t.Context()); err != nil {
				t.Errorf("the next: %v", err)
			}
		})
	})
}

// TestPingsGivenUpAreNotKept: however many a guest leaves unanswered.
func TestPingsGivenUpAreNotKept(t *testing.T) {
	c, l := play(t)
	go l.drain()
	ctx, giveUp := context.WithCancel(t.Context())
	giveUp()
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range 20_000 {
		if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("%d bytes are held", grown)
	}
}
