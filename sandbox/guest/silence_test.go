package guest_test

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestBeat checks that a guest that ends if its host is silent gets a ping in
// each third of that time, whether it answers or not, and any other guest none.
func TestBeat(t *testing.T) {
	for _, tt := range []struct {
		name    string
		silence time.Duration
		answers bool
		pings   int
	}{
		{"silence ends it", 30 * time.Second, false, 6},
		{"silence ends it, answers", 30 * time.Second, true, 6},
		{"silence doesn't", 0, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, far := net.Pipe()
				pings := make(chan int, 1)
				go func() {
					frames := wire.NewReader(far)
					n := 0
					defer func() { pings <- n }()
					if _, err := frames.Next(); err != nil {
						return
					}
					w := wire.NewWriter(far)
					_ = w.SendJSON(0, wire.TypeHello, wire.Hello{Protocol: wire.Version})
					for {
						f, err := frames.Next()
						if err != nil {
							return
						}
						if f.Type == wire.TypePing {
							n++
						}
						if tt.answers {
							_ = w.Send(wire.Frame{Type: wire.TypePong, Payload: f.Payload})
						}
					}
				}()
				config := guest.NewConfig(sandbox.Spec{})
				config.SilenceMS = tt.silence.Milliseconds()
				c, err := guest.Dial(t.Context(), guest.Options{Conn: host, Config: config})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute + time.Second)
				if err := c.Err(); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if got := <-pings; got != tt.pings {
					t.Errorf("%d pings in a minute, want %d", got, tt.pings)
				}
			})
		})
	}
}
