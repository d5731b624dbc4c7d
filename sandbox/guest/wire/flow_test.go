package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

func TestCredit(t *testing.T) {
	c := NewCredit()
	if n := c.Take(Window+1, nil); n != Window {
		t.Errorf("first take gives %d", n)
	}
	if err := c.Grant(10); err != nil {
		t.Fatal(err)
	}
	if n := c.Take(4, nil); n != 4 {
		t.Errorf("take of 4 gives %d", n)
	}
	for _, n := range []uint32{Window - 5, Window + 1, 1<<32 - 1} {
		if err := c.Grant(n); !errors.Is(err, ErrProtocol) {
			t.Errorf("grant of %d on top of 6: %v", n, err)
		}
	}
	if n := c.Take(100, nil); n != 6 {
		t.Errorf("after refused grants take gives %d", n)
	}
}

func TestCreditWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCredit()
		c.Take(Window, nil)
		got := make(chan int)
		take := func(stop chan struct{}) { go func() { got <- c.Take(8, stop) }() }
		waits := func() {
			synctest.Wait()
			select {
			case n := <-got:
				t.Errorf("took %d of nothing", n)
			default:
			}
		}
		take(nil)
		waits()
		if err := c.Grant(3); err != nil {
			t.Fatal(err)
		}
		if n := <-got; n != 3 {
			t.Errorf("granted 3, took %d", n)
		}
		stop := make(chan struct{})
		take(stop)
		waits()
		close(stop)
		if n := <-got; n != 0 {
			t.Errorf("stopped, took %d", n)
		}
		take(nil)
		waits()
		c.Close()
		if n := <-got; n != 0 {
			t.Errorf("closed, took %d", n)
		}
		if n := c.Take(1, nil); n != 0 {
			t.Errorf("after close took %d", n)
		}
	})
}

func TestQueueRefuses(t *testing.T) {
	q := NewQueue()
	if err := q.Push(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	if err := q.Push([]byte{1}); !errors.Is(err, ErrProtocol) {
		t.Errorf("one byte over the window: %v", err)
	}
	q = NewQueue()
	if err := q.End(); err != nil {
		t.Fatal(err)
	}
	if err := q.Push([]byte{1}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a byte after the end: %v", err)
	}
	if err := q.End(); !errors.Is(err, ErrProtocol) {
		t.Errorf("a second end: %v", err)
	}
}

func TestQueueBreak(t *testing.T) {
	q := NewQueue()
	if err := q.Push([]byte("came")); err != nil {
		t.Fatal(err)
	}
	q.Break()
	if err := q.Push([]byte("late")); err != nil {
		t.Errorf("what is on its way when a stream is given up: %v", err)
	}
	if b := q.Next(); string(b) != "came" {
		t.Errorf("first %q", b)
	}
	if b := q.Next(); b != nil {
		t.Errorf("then %q", b)
	}
	if grant := q.Done(Window); grant != 0 {
		t.Errorf("a queue that is given up grants %d", grant)
	}
}

// TestFlow couples a sender and a receiver by their credit: all bytes arrive in
// order, whatever the sizes, and the receiver never holds more than the window.
func TestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := make([]byte, 5*Window+123)
		source := rand.NewChaCha8([32]byte{1})
		_, _ = source.Read(want)
		c, q := NewCredit(), NewQueue()
		go func() {
			for rest := want; len(rest) > 0; {
				n := c.Take(min(len(rest), 1+int(source.Uint64()%MaxData)), nil)
				if err := q.Push(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			if err := q.End(); err != nil {
				t.Error(err)
			}
		}()
		var got []byte
		for b := q.Next(); b != nil; b = q.Next() {
			if len(b) > Window {
				t.Errorf("the queue held %d bytes", len(b))
			}
			got = append(got, b...)
			if grant := q.Done(len(b)); grant > 0 {
				if err := c.Grant(grant); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came of %d, or others", len(got), len(want))
		}
		if total, ended := q.Total(); total != int64(len(want)) || !ended {
			t.Errorf("total is %d, ended %v", total, ended)
		}
	})
}
