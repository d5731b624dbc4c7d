package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// TestChangeFrames checks that each channel of a change goes one way.
func TestChangeFrames(t *testing.T) {
	c := newChange(nil, 1, 50)
	for _, tt := range []struct {
		name string
		f    wire.Frame
		ok   bool
	}{
		{"data on stdin", on(1, wire.TypeData, wire.Stdin, "x"), true},
		{"data on stdout", on(1, wire.TypeData, wire.Stdout, "x"), false},
		{"end of stdout", on(1, wire.TypeEOF, wire.Stdout, ""), false},
		{"end of stdin", on(1, wire.TypeEOF, wire.Stdin, ""), true},
		{"data after the end", on(1, wire.TypeData, wire.Stdin, "x"), false},
		{"another end", on(1, wire.TypeEOF, wire.Stdin, ""), false},
		{"credit on stdin", on(1, wire.TypeCredit, wire.Stdin, "\x00\x00\x00\x00"), false},
		{"credit on stdout", on(1, wire.TypeCredit, wire.Stdout, "\x00\x00\x00\x00"), true},
		{"more credit than ever", on(1, wire.TypeCredit, wire.Stdout, "\x00\x00\x00\x01"), false},
		{"stop of stdout", on(1, wire.TypeStop, wire.Stdout, ""), true},
	} {
		err := deliverFrame(c, tt.f)
		if tt.ok != (err == nil) || err != nil && !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if n := c.credit.Take(1, nil); n != 0 {
		t.Errorf("after a stop %d bytes may be sent", n)
	}
}

// TestLongChange checks that a change is sent whole, even if its last frame has
// one byte.
func TestLongChange(t *testing.T) {
	change := workspace.Change{Kind: workspace.OpMkdir}
	text, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	change.Path = strings.Repeat("x", wire.MaxData+1-len(text))
	h := serveHost(t, func(o *Options) {
		o.Appliers = applier(func(context.Context, workspace.Op) (workspace.Change, error) { return change, nil })
	})
	h.send(openFrame(1, `{"apply":{"size":2}}`), on(1, wire.TypeData, 0, "{}"), on(1, wire.TypeEOF, 0, ""))
	var got []byte
	for f := h.next(); f.Type == wire.TypeData; f = h.next() {
		got = append(got, f.Payload...)
	}
	want, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != wire.MaxData+1 || string(got) != string(want) {
		t.Errorf("%d bytes come, want %d", len(got), len(want))
	}
}

// TestMemoryOfAChange checks that a long operation's memory is given back at
// once.
func TestMemoryOfAChange(t *testing.T) {
	forces := func(size int64) bool {
		s := New(Options{Writer: wire.NewWriter(io.Discard)})
		defer s.idle.Stop()
		c := newChange(s, 1, size)
		c.cancel(wire.Cancel{})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.run()
		runtime.ReadMemStats(&after)
		return after.NumForcedGC > before.NumForcedGC
	}
	if !forces(wire.MaxData + 1) {
		t.Error("memory of a long operation is kept")
	}
	always := true // sessions of other tests may become idle meanwhile
	for range 10 {
		always = always && forces(wire.MaxData)
	}
	if always {
		t.Error("memory is given back after each short operation")
	}
}
