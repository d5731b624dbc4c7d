package guest_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestRealRelays: connections that programs make at once to a real guest carry
// their bytes, are their command's and their user's, and count at most as many as
// may be open.
func TestRealRelays(t *testing.T) {
	c, _ := dial(t, guesttest.Options{}, func(o *guest.Options) {
		withEgress(o)
		o.Config.Egress = &wire.Egress{Port: 61080}
	})
	var open, most, wrong atomic.Int64
	var number atomic.Int64
	c.Serve(handler{serve: func(_ context.Context, conn sandbox.EgressConn) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		buf := make([]byte, 64<<10)
		if _, err := io.ReadFull(conn, buf); err == nil { // or else the socket may have been gone at once
			if uid, known := conn.UID(); !known || uid != sandbox.CommandUID || int64(conn.Command()) != number.Load() {
				wrong.Add(1)
			}
			_, _ = conn.Write(buf)
			_ = conn.CloseWrite()
		}
	}})
	// 200 at once, each of which sends 64 KiB, reads them, and then to the end; 20
	// more are closed with unread bytes.
	script := `p=${HTTP_PROXY#http://}; a=/dev/tcp/${p%:*}/${p#*:}
one() { exec 3<>$a; head -c 65536 /dev/zero >&3; n=$(cat <&3 | wc -c); [ $n = 65536 ] || echo $n; }
bad() { exec 3<>$a; head -c 1000 /dev/zero >&3; exec 3>&-; }
for i in $(seq 200); do one & [ $((i % 10)) = 0 ] && bad & done; wait; echo done`
	r := start(t.Context(), t, c, sandbox.Command{
		Argv: []string{"/bin/bash", "-c", script}, NotifyNumber: func(n int) { number.Store(int64(n)) },
	})()
	if strings.TrimSpace(r.stdout) != "done" || !r.Status.Success() {
		t.Errorf("%s: %q, %q", r.Status, r.stdout, r.stderr)
	}
	if most.Load() > wire.MaxRelays || wrong.Load() > 0 {
		t.Errorf("%d were open at once, %d of another command or user", most.Load(), wrong.Load())
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(c.Hello().Egress.Listening) != "[tcp 0.0.0.0:61080]" {
		t.Errorf("listens at %q", c.Hello().Egress.Listening)
	}
}
