package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

func withEgress(o *guest.Options) {
	o.Config.Egress = &wire.Egress{Port: 61080, Names: true, Capture: []int{22, 443}}
	o.Plan = &sandbox.EgressPlan{}
}

// echo sends everything back, and knows one name.
type echo struct{}

func (echo) ServeEgress(_ context.Context, c sandbox.EgressConn) {
	if _, err := io.Copy(c, c); err == nil {
		_ = c.CloseWrite()
	}
}

func (echo) LookupName(_ context.Context, name string) (netip.Addr, bool) {
	return sandbox.NameAddr(1), name == "example.com"
}

type handler struct {
	serve  func(ctx context.Context, c sandbox.EgressConn)
	lookup func(ctx context.Context, name string) (netip.Addr, bool)
}

func (h handler) ServeEgress(ctx context.Context, c sandbox.EgressConn) { h.serve(ctx, c) }

func (h handler) LookupName(ctx context.Context, name string) (netip.Addr, bool) {
	return h.lookup(ctx, name)
}

// stuck returns a handler that only waits for the end of its context.
func stuck() handler {
	return handler{
		serve: func(ctx context.Context, _ sandbox.EgressConn) { <-ctx.Done() },
		lookup: func(ctx context.Context, _ string) (netip.Addr, bool) {
			<-ctx.Done()
			return netip.Addr{}, false
		},
	}
}

// playEgress connects to a played guest with listeners.
func playEgress(t testing.TB, h sandbox.EgressHandler) (*guest.Conn, *liar) {
	t.Helper()
	host, far := net.Pipe()
	c, l := playOver(t, host, far, withEgress)
	c.Serve(h)
	return c, l
}

func (l *liar) accept(stream uint32, local string) {
	l.json(stream, wire.TypeOpen, wire.Open{Accept: &wire.Accept{Local: netip.MustParseAddrPort(local), UID: new(uint32(10001))}})
}

func (l *liar) lookup(stream uint32, name string) {
	l.json(stream, wire.TypeOpen, wire.Open{Lookup: &wire.Lookup{Name: name}})
}

const proxyAddr = "127.80.0.1:61080"

// TestForgedRelays checks that each violation is the loss of the sandbox, and
// that its allowed neighbours are not.
func TestForgedRelays(t *testing.T) {
	window := strings.Repeat("x", wire.MaxData)
	fill := func(l *liar) {
		for range wire.RelayWindow / wire.MaxData {
			l.frame(2, wire.TypeData, 1, window)
		}
	}
	for name, tt := range map[string]struct {
		lie     func(l *liar)
		allowed bool
	}{
		"proxy":           {func(l *liar) { l.accept(2, proxyAddr) }, true},
		"captured ports":  {func(l *liar) { l.accept(2, "127.96.0.1:443"); l.accept(4, "127.255.0.1:22") }, true},
		"another port":    {func(l *liar) { l.accept(2, "127.80.0.1:80") }, false},
		"port of names":   {func(l *liar) { l.accept(2, "127.0.0.1:53") }, false},
		"another address": {func(l *liar) { l.accept(2, "10.0.0.1:61080") }, false},
		"IPv6":            {func(l *liar) { l.accept(2, "[::1]:61080") }, false},
		"zone":            {func(l *liar) { l.accept(2, "[fe80::1%"+strings.Repeat("\x1b[2J", 1000)+"]:61080") }, false},
		"mapped":          {func(l *liar) { l.accept(2, "[::ffff:127.80.0.1]:61080") }, false},
		"odd id":          {func(l *liar) { l.accept(3, proxyAddr) }, false},
		"ids with gaps":   {func(l *liar) { l.accept(4, proxyAddr); l.accept(100, proxyAddr) }, true},
		"same id":         {func(l *liar) { l.accept(2, proxyAddr); l.accept(2, proxyAddr) }, false},
		"lower id":        {func(l *liar) { l.accept(4, proxyAddr); l.accept(2, proxyAddr) }, false},
		"nothing":         {func(l *liar) { l.json(2, wire.TypeOpen, wire.Open{}) }, false},
		"a command":       {func(l *liar) { l.json(2, wire.TypeOpen, wire.Open{Exec: &wire.Exec{}}) }, false},
		"two things": {func(l *liar) {
			l.frame(2, wire.TypeOpen, 0, `{"accept":{"local":"`+proxyAddr+`"},"lookup":{"name":"a"}}`)
		}, false},
		"unknown field":        {func(l *liar) { l.frame(2, wire.TypeOpen, 0, `{"accept":{"local":"`+proxyAddr+`","rule":"x"}}`) }, false},
		"negative user":        {func(l *liar) { l.frame(2, wire.TypeOpen, 0, `{"accept":{"local":"`+proxyAddr+`","uid":-1}}`) }, false},
		"most connections":     {func(l *liar) { l.acceptMany(wire.MaxRelays) }, true},
		"too many connections": {func(l *liar) { l.acceptMany(wire.MaxRelays + 1) }, false},
		"most lookups":         {func(l *liar) { l.lookupMany(wire.MaxLookups) }, true},
		"too many lookups":     {func(l *liar) { l.lookupMany(wire.MaxLookups + 1) }, false},
		"no name":              {func(l *liar) { l.lookup(2, "") }, false},
		"upper case":           {func(l *liar) { l.lookup(2, "Example.com") }, false},
		"line in a name":       {func(l *liar) { l.lookup(2, "a\nb") }, false},
		"dot at the end":       {func(l *liar) { l.lookup(2, "example.com.") }, false},
		"long name":            {func(l *liar) { l.lookup(2, strings.Repeat("a.", 127)) }, false},
		"data on a lookup":     {func(l *liar) { l.lookup(2, "a"); l.frame(2, wire.TypeData, 1, "x") }, false},
		"whole credit":         {func(l *liar) { l.accept(2, proxyAddr); fill(l) }, true},
		"beyond credit":        {func(l *liar) { l.accept(2, proxyAddr); fill(l); l.frame(2, wire.TypeData, 1, "x") }, false},
		"end twice": {func(l *liar) {
			l.accept(2, proxyAddr)
			l.frame(2, wire.TypeEOF, 1, "")
			l.frame(2, wire.TypeEOF, 1, "")
		}, false},
		"data after its end": {func(l *liar) {
			l.accept(2, proxyAddr)
			l.frame(2, wire.TypeEOF, 1, "")
			l.frame(2, wire.TypeData, 1, "x")
		}, false},
		"data of the host": {func(l *liar) { l.accept(2, proxyAddr); l.frame(2, wire.TypeData, 0, "x") }, false},
		"data on stderr":   {func(l *liar) { l.accept(2, proxyAddr); l.frame(2, wire.TypeData, 2, "x") }, false},
		"too much credit": {func(l *liar) {
			l.accept(2, proxyAddr)
			_ = l.writer.SendCredit(2, 0, 1)
		}, false},
		"credit for output": {func(l *liar) { l.accept(2, proxyAddr); _ = l.writer.SendCredit(2, 1, 1) }, false},
		"starts":            {func(l *liar) { l.accept(2, proxyAddr); l.json(2, wire.TypeStarted, wire.Started{}) }, false},
		"cancels":           {func(l *liar) { l.accept(2, proxyAddr); l.json(2, wire.TypeCancel, wire.Cancel{}) }, false},
		"end": {func(l *liar) {
			l.accept(2, proxyAddr)
			l.frame(2, wire.TypeEOF, 1, "")
			l.json(2, wire.TypeEnd, wire.RelayEnd{})
		}, true},
		"end before eof": {func(l *liar) { l.accept(2, proxyAddr); l.json(2, wire.TypeEnd, wire.RelayEnd{}) }, false},
		"reset":          {func(l *liar) { l.accept(2, proxyAddr); l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true}) }, true},
		"frame after the end": {func(l *liar) {
			l.accept(2, proxyAddr)
			l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true})
			l.frame(2, wire.TypeData, 1, "x")
		}, false},
		"never opened": {func(l *liar) { l.frame(2, wire.TypeData, 1, "x") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := playEgress(t, stuck())
			lied := make(chan struct{})
			go func() {
				defer close(lied)
				tt.lie(l)
			}()
			go func() {
				for f := l.next(); f.Type != 0; f = l.next() {
					if f.Type == wire.TypePing {
						<-lied
						l.frame(0, wire.TypePong, 0, string(f.Payload))
					}
				}
			}()
			pinged := make(chan error, 1)
			go func() { pinged <- c.Ping(t.Context()) }()
			if tt.allowed {
				if err := <-pinged; err != nil {
					t.Errorf("what is allowed: %v", err)
				}
				return
			}
			if err := <-pinged; err == nil {
				t.Fatal("it was taken")
			}
			if err := c.Err(); !errors.Is(err, sandbox.ErrLost) || !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("error is %v, want one of ErrLost and ErrProtocol", err)
			}
		})
	}
}

// TestRelayCountsHandlers checks that a connection counts until its handler has
// returned.
func TestRelayCountsHandlers(t *testing.T) {
	release := make(chan struct{})
	c, l := playEgress(t, handler{serve: func(context.Context, sandbox.EgressConn) { <-release }})
	defer close(release)
	l.acceptMany(wire.MaxRelays)
	l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true})
	go l.accept(1000, proxyAddr)
	<-c.Done()
	if err := c.Err(); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("error is %v", err)
	}
}

func (l *liar) acceptMany(n int) {
	for i := range n {
		l.accept(uint32(2*i+2), proxyAddr)
	}
}

func (l *liar) lookupMany(n int) {
	for i := range n {
		l.lookup(uint32(2*i+2), "a")
	}
}

// TestNoEgress checks that a guest has no listeners unless asked.
func TestNoEgress(t *testing.T) {
	for name, lie := range map[string]func(l *liar){
		"connection": func(l *liar) { l.accept(2, proxyAddr) },
		"lookup":     func(l *liar) { l.lookup(2, "example.com") },
	} {
		c, l := play(t)
		c.Serve(echo{})
		lie(l)
		<-c.Done()
		if err := c.Err(); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// expect reads the host's next frame except credit, and fails unless it has
// this type and stream.
func (l *liar) expect(typ wire.Type, stream uint32) wire.Frame {
	l.t.Helper()
	f := l.next()
	if f.Type != typ || f.Stream != stream {
		l.t.Fatalf("frame type %d of stream %d with %q, want type %d of stream %d", f.Type, f.Stream, f.Payload, typ, stream)
	}
	return f
}

// TestRelay checks that bytes go both ways, each direction ends by itself, and
// the host ends the stream when guest and handler have.
func TestRelay(t *testing.T) {
	_, l := playEgress(t, echo{})
	l.accept(2, proxyAddr)
	l.frame(2, wire.TypeData, 1, "first")
	if f := l.expect(wire.TypeData, 2); string(f.Payload) != "first" || f.Channel != wire.Stdin {
		t.Errorf("echo is %+v", f)
	}
	l.frame(2, wire.TypeEOF, 1, "")
	l.expect(wire.TypeEOF, 2)
	if f := l.expect(wire.TypeCancel, 2); string(f.Payload) != "{}" {
		t.Errorf("after both ends: %s", f.Payload)
	}
	l.json(2, wire.TypeEnd, wire.RelayEnd{})
	l.expect(wire.TypeEnd, 2)
	for stream, tt := range map[uint32]struct{ name, want string }{4: {"example.com", `{"address":"127.96.0.1"}`}, 6: {"example.org", `{}`}} {
		if stream == 6 {
			continue // in order
		}
		l.lookup(stream, tt.name)
		if f := l.expect(wire.TypeEnd, stream); string(f.Payload) != tt.want {
			t.Errorf("%s is %s", tt.name, f.Payload)
		}
	}
	l.lookup(6, "example.org")
	if f := l.expect(wire.TypeEnd, 6); string(f.Payload) != "{}" {
		t.Errorf("a name that is none is %s", f.Payload)
	}
}

// TestRelayWithoutHandler checks that connections are reset and names unknown
// without a handler, and that one that is set later is asked.
func TestRelayWithoutHandler(t *testing.T) {
	c, l := playEgress(t, nil)
	l.accept(2, proxyAddr)
	if f := l.expect(wire.TypeCancel, 2); string(f.Payload) != `{"kill":true}` {
		t.Errorf("without a handler: %s", f.Payload)
	}
	l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true})
	l.expect(wire.TypeEnd, 2)
	l.lookup(4, "example.com")
	if f := l.expect(wire.TypeEnd, 4); string(f.Payload) != "{}" {
		t.Errorf("without a handler a name is %s", f.Payload)
	}
	c.Serve(echo{})
	l.lookup(6, "example.com")
	if f := l.expect(wire.TypeEnd, 6); string(f.Payload) == "{}" {
		t.Error("the handler is not asked")
	}
}

// TestRelayEnds checks that the end of a relay ends its handler's context,
// reads and writes.
func TestRelayEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(c *guest.Conn, l *liar)
		want error
	}{
		"reset":   {func(_ *guest.Conn, l *liar) { l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true}) }, syscall.ECONNRESET},
		"loss":    {func(_ *guest.Conn, l *liar) { _ = l.raw.Close() }, sandbox.ErrLost},
		"destroy": {func(c *guest.Conn, _ *liar) { _ = c.Close() }, sandbox.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			result := make(chan [2]error, 1)
			entered := make(chan struct{})
			c, l := playEgress(t, handler{serve: func(ctx context.Context, conn sandbox.EgressConn) {
				close(entered)
				<-ctx.Done()
				_, readErr := conn.Read(make([]byte, 1))
				_, writeErr := conn.Write([]byte("x"))
				result <- [2]error{readErr, writeErr}
			}})
			l.accept(2, proxyAddr)
			<-entered
			go l.drain()
			tt.end(c, l)
			for _, err := range <-result {
				if !errors.Is(err, tt.want) {
					t.Errorf("error is %v, want one of %v", err, tt.want)
				}
			}
		})
	}
}

// TestRelayClose checks that Close resets, unless the host had ended its
// direction.
func TestRelayClose(t *testing.T) {
	for name, tt := range map[string]struct {
		close func(c sandbox.EgressConn)
		want  []wire.Type
		kill  string
	}{
		"close":       {func(c sandbox.EgressConn) { _ = c.Close() }, nil, `{"kill":true}`},
		"after write": {func(c sandbox.EgressConn) { _, _ = c.Write([]byte("x")); _ = c.Close(); _ = c.Close() }, []wire.Type{wire.TypeData}, `{"kill":true}`},
		"after end":   {func(c sandbox.EgressConn) { _ = c.CloseWrite(); _ = c.CloseWrite(); _ = c.Close() }, []wire.Type{wire.TypeEOF}, "{}"},
	} {
		closed := make(chan error, 3)
		_, l := playEgress(t, handler{serve: func(_ context.Context, c sandbox.EgressConn) {
			tt.close(c)
			_, err := c.Write([]byte("x"))
			closed <- err
			_, err = c.Read(make([]byte, 1))
			closed <- err
			closed <- c.CloseWrite()
		}})
		l.accept(2, proxyAddr)
		for _, typ := range tt.want {
			l.expect(typ, 2)
		}
		if f := l.expect(wire.TypeCancel, 2); string(f.Payload) != tt.kill {
			t.Errorf("%s: cancel %s, want %s", name, f.Payload, tt.kill)
		}
		for range 2 {
			if err := <-closed; !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: after Close: %v", name, err)
			}
		}
		l.json(2, wire.TypeEnd, wire.RelayEnd{Reset: true})
		l.expect(wire.TypeEnd, 2)
	}
}

// TestRelayEndIsLast checks that the host's end of a relay is its last frame,
// whoever closes the connection meanwhile. A later one would be forged to the
// guest, which is then lost.
func TestRelayEndIsLast(t *testing.T) {
	_, l := playEgress(t, handler{serve: func(ctx context.Context, conn sandbox.EgressConn) {
		go func() { _ = conn.Close() }() // as at the end of a command
		<-ctx.Done()
	}})
	for i := range uint32(2000) {
		stream := 2*i + 2
		l.accept(stream, proxyAddr)
		l.json(stream, wire.TypeEnd, wire.RelayEnd{Reset: true})
		for f := l.next(); f.Type != wire.TypeEnd; f = l.next() {
			if f.Stream != stream {
				go l.drain()
				t.Fatalf("frame type %d of stream %d after its end", f.Type, f.Stream)
			}
		}
	}
}

// TestRelayOfCommand checks that a connection to a running command's address
// belongs to the command and ends with it.
func TestRelayOfCommand(t *testing.T) {
	conns := make(chan sandbox.EgressConn, 4)
	ended := make(chan error, 4)
	c, l := playEgress(t, handler{serve: func(ctx context.Context, conn sandbox.EgressConn) {
		conns <- conn
		<-ctx.Done()
		ended <- context.Cause(ctx)
	}})
	number := 0
	started := make(chan struct{})
	go func() {
		defer close(started)
		var open wire.Open
		_ = wire.Decode(l.next().Payload, &open)
		if want := fmt.Sprintf("HTTP_PROXY=http://%v:61080", sandbox.CommandAddr(number)); !slices.ContainsFunc(open.Exec.Env, func(v []byte) bool { return string(v) == want }) {
			t.Errorf("no %s in %q", want, open.Exec.Env)
		}
		l.json(1, wire.TypeStarted, wire.Started{PID: 7})
	}()
	p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}, NotifyNumber: func(n int) { number = n }})
	<-started
	if err != nil || number == 0 {
		t.Fatalf("number %d, %v", number, err)
	}
	l.accept(2, netip.AddrPortFrom(sandbox.CommandAddr(number), 61080).String())
	mine := <-conns
	l.accept(4, netip.AddrPortFrom(sandbox.CommandAddr(number+1), 61080).String())
	other := <-conns
	l.accept(6, "127.96.0.1:443")
	captured := <-conns
	if mine.Command() != number || other.Command() != 0 || captured.Command() != 0 {
		t.Errorf("connections of commands %d, %d, %d, want %d, 0, 0", mine.Command(), other.Command(), captured.Command(), number)
	}
	if uid, known := mine.UID(); uid != 10001 || !known || mine.LocalAddr().Port() != 61080 {
		t.Errorf("user %d %t at %v", uid, known, mine.LocalAddr())
	}
	l.end(func(*wire.Exit) {})
	if f := l.expect(wire.TypeCancel, 2); string(f.Payload) != `{"kill":true}` {
		t.Errorf("cancel %s", f.Payload)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if cause := <-ended; cause == nil || !strings.Contains(cause.Error(), "command is over") {
		t.Errorf("the handler's context ended with %v", cause)
	}
	select {
	case cause := <-ended:
		t.Errorf("another handler's context ended: %v", cause)
	case <-time.After(50 * time.Millisecond):
	}
	go l.drain()
}

// TestUnreadAnswers checks that a guest that opens streams and reads no answer
// is lost before the host keeps more than it counts.
func TestUnreadAnswers(t *testing.T) {
	for name, open := range map[string]func(l *liar, id uint32){
		"lookups": func(l *liar, id uint32) { l.lookup(id, "example.com") },
		"connections": func(l *liar, id uint32) {
			l.accept(id, proxyAddr)
			l.json(id, wire.TypeEnd, wire.RelayEnd{Reset: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := playEgress(t, handler{
				serve:  func(ctx context.Context, _ sandbox.EgressConn) { <-ctx.Done() },
				lookup: func(context.Context, string) (netip.Addr, bool) { return netip.Addr{}, false },
			})
			const most = 1000
			n := 0
			for ; n < most && c.Err() == nil; n++ {
				open(l, uint32(2*n+2))
				time.Sleep(100 * time.Microsecond) // for the handler
			}
			if n == most {
				t.Fatalf("%d streams with unread answers are open", n)
			}
			<-c.Done()
			if err := c.Err(); !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// TestRealRelays checks that programs' concurrent connections to a real guest
// carry their bytes, belong to their command and user, and never exceed their
// bound.
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
	// 200 at once send 64 KiB each, read them, and then to the end; 20 more
	// close with unread bytes.
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

// TestLocalRequests checks that a request to the proxy for another loopback
// address reaches the sandbox's server and never the host, and that requests
// for the guest's own listeners and other hosts do reach the host.
func TestLocalRequests(t *testing.T) {
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		t.Skip("needs python3")
	}
	c, _ := dial(t, guesttest.Options{}, func(o *guest.Options) {
		withEgress(o)
		o.Config.Egress = &wire.Egress{Port: 61080}
	})
	var mu sync.Mutex
	var lines []string
	c.Serve(handler{serve: func(_ context.Context, conn sandbox.EgressConn) {
		buf := make([]byte, 1<<10)
		n, _ := conn.Read(buf)
		line, _, _ := strings.Cut(string(buf[:n]), "\r\n")
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, line)
	}})
	r := start(t.Context(), t, c, sandbox.Command{Argv: []string{python, "-c", `
import http.server, os, socket, threading, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])) + b" " + (self.path + " " + self.headers["connection"]).encode()
        self.send_response(200); self.end_headers(); self.wfile.write(body[-100:])
s = http.server.ThreadingHTTPServer(("0.0.0.0", 0), H); port = s.server_address[1]
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.1.2.3:{port}/a?b", b"x" * 1000000 + b"end", timeout=20).read().decode()[-30:])
host, proxy = os.environ["HTTP_PROXY"][7:].split(":")
def ask(text):
    c = socket.create_connection((host, int(proxy)), 20); c.sendall(text.encode()); out = b""
    try:
        while b := c.recv(1 << 16): out += b
    except ConnectionResetError: pass
    return out.decode().replace("\r", "").split("\n")
print(ask(f"CONNECT 127.1.2.3:{port} HTTP/1.1\r\n\r\nPOST /c HTTP/1.0\r\nContent-Length: 1\r\nConnection: k\r\n\r\nz")[-1])
s.shutdown(); s.server_close()
print(ask(f"GET http://127.1.2.3:{port}/ HTTP/1.1\r\n\r\n")[-2].split(": ")[1])
for to in "127.1.2.3:61080", "127.80.0.9:61080", "example.com", "10.0.0.1": ask(f"GET http://{to}/ HTTP/1.1\r\n\r\n")
`}})()
	if want := "end /a?b close\nz /c k\nconnection refused\n"; !strings.HasSuffix(strings.ReplaceAll(r.stdout, "x", ""), want) || !r.Status.Success() {
		t.Errorf("%s: %q, %q", r.Status, r.stdout, r.stderr)
	}
	want := "GET http://127.1.2.3:61080/ HTTP/1.1\nGET http://127.80.0.9:61080/ HTTP/1.1\nGET http://example.com/ HTTP/1.1\nGET http://10.0.0.1/ HTTP/1.1"
	if err := c.Ping(t.Context()); err != nil { // the host has seen everything
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("the host was asked for\n%s", got)
	}
}
