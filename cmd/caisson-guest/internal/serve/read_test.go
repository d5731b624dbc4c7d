package serve

import (
	"errors"
	"testing"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestReadFrames checks that a read takes no input, and can be stopped and
// cancelled.
func TestReadFrames(t *testing.T) {
	l := newRead(nil, 1, wire.ReadRequest{})
	for _, tt := range []struct {
		name string
		f    wire.Frame
		ok   bool
	}{
		{"data", on(1, wire.TypeData, wire.Stdin, "x"), false},
		{"end", on(1, wire.TypeEOF, wire.Stdin, ""), false},
		{"credit on stdin", on(1, wire.TypeCredit, wire.Stdin, "\x00\x00\x00\x00"), false},
		{"credit on stdout", on(1, wire.TypeCredit, wire.Stdout, "\x00\x00\x00\x00"), true},
		{"more credit than ever", on(1, wire.TypeCredit, wire.Stdout, "\x00\x00\x00\x01"), false},
		{"stop", on(1, wire.TypeStop, wire.Stdout, ""), true},
		{"cancel", on(1, wire.TypeCancel, 0, "{}"), true},
		{"another cancel", on(1, wire.TypeCancel, 0, "{}"), true},
	} {
		err := deliverFrame(l, tt.f)
		if tt.ok != (err == nil) || err != nil && !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if n := l.credit.Take(1, nil); n != 0 {
		t.Errorf("after a stop %d bytes may be sent", n)
	}
	if l.ctx.Err() == nil {
		t.Error("it is not cancelled")
	}
}
