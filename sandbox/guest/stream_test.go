package guest

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestFramesAfterLoss checks that a lost stream's end is not processed again if
// its frame was on the way.
func TestFramesAfterLoss(t *testing.T) {
	c := &Conn{}
	p := &process{
		c: c, answered: true, started: true, stdin: wire.NewCredit(), done: make(chan struct{}), watch: time.NewTimer(time.Hour),
	}
	for i := range p.out {
		p.out[i] = newSink(nil, func(uint32) {})
		p.out[i].start()
	}
	for name, stream := range map[string]call{
		"command": p,
		"change":  newExchange(c, "a change", wire.MaxChange, checkApplied),
	} {
		cause := errors.New("lost")
		stream.connectionLost(cause)
		end := "{}"
		if name == "command" {
			none := `{"total":0,"live":0,"sha256":"` + strings.Repeat("00", 32) + `"}`
			end = `{"code":0,"stdout":` + none + `,"stderr":` + none + `}`
		}
		for _, f := range []wire.Frame{
			{Type: wire.TypeEOF, Channel: wire.Stdout},
			{Type: wire.TypeEOF, Channel: wire.Stderr},
			{Type: wire.TypeEnd, Payload: []byte(end)},
		} {
			if last, err := stream.takeFrame(f); last || err != nil {
				t.Errorf("%s, frame type %d: %t, %v", name, f.Type, last, err)
			}
		}
		stream.connectionLost(errors.New("again"))
	}
	if _, err := p.Wait(); err == nil || err.Error() != "wait for command: lost" {
		t.Errorf("the command's error is %v", err)
	}
}

// TestWatchAfterTheEnd checks that a caller's context is no longer watched if
// the process ended before that began.
func TestWatchAfterTheEnd(t *testing.T) {
	for _, ended := range []bool{true, false} {
		stopped := false
		p := &process{ended: ended}
		p.watchContext(func() bool {
			stopped = true
			return true
		})
		if stopped != ended {
			t.Errorf("ended %t: stopped %t", ended, stopped)
		}
	}
}

// heard is a stream that keeps the errors of its losses.
type heard struct{ errs []error }

func (*heard) takeFrame(wire.Frame) (bool, error) { return false, nil }

func (h *heard) connectionLost(err error) { h.errs = append(h.errs, err) }

// TestOpenTooLarge checks that a request that fits no frame loses only its own
// stream.
func TestOpenTooLarge(t *testing.T) {
	c := &Conn{writer: wire.NewWriter(io.Discard), calls: map[uint32]call{}, nextID: 1}
	h := &heard{}
	large := wire.Open{Exec: &wire.Exec{Dir: make([]byte, wire.MaxControl)}}
	err := c.openStream(large, func(uint32) call { return h })
	if !errors.Is(err, sandbox.ErrInvalid) || len(h.errs) != 1 || !errors.Is(h.errs[0], sandbox.ErrInvalid) || len(c.calls) != 0 {
		t.Errorf("error %v, the stream hears %v, open are %v", err, h.errs, c.calls)
	}
	var got uint32
	if err := c.openStream(wire.Open{}, func(id uint32) call { got = id; return h }); err != nil || got != 3 || len(c.calls) != 1 {
		t.Errorf("the next: stream %d, %v", got, err)
	}
}
