package egress

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// TestPanics checks that a panic, wherever something of a program is served, ends that
// connection alone: it is reported once, the counts are right, another connection works
// and Close returns.
func TestPanics(t *testing.T) {
	const connect = "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\n\r\n"
	const get = "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"
	var inject bool // whether the options panic
	for name, tc := range map[string]struct {
		rule, send string
		word       string                          // which makes reading from the program panic
		edit       func(o *Options)                // before the server is made
		damage     func(s *Server) (repair func()) // of its state
		closed     string                          // the ending of the connection to the host; "" for none
	}{
		"read of the first bytes": {rule: "tcp://HOST", send: connect, word: "CONNECT"},
		"read of a relay":         {rule: "tcp://HOST", send: connect + "boom", word: "boom", closed: EndingFailed},
		"read of a body":          {rule: "http://HOST/ POST,GET", send: "POST http://HOST/ HTTP/1.1\r\nHost: HOST\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("x", 150_000) + "boom", word: "boom", closed: "any"},
		"decision": {rule: "tcp://HOST", send: connect, damage: func(s *Server) func() {
			p := s.policy
			s.policy = nil
			return func() { s.policy = p }
		}},
		"dial of a tunnel":  {rule: "tcp://HOST", send: connect, closed: EndingFailed, damage: damageDial},
		"dial of a request": {rule: "http://HOST/", send: get, closed: EndingFailed, damage: damageDial},
		"record of the opening": {rule: "tcp://HOST", send: connect, edit: func(o *Options) {
			o.Opened = func(Opened) error {
				if inject {
					panic("injected")
				}
				return nil
			}
		}},
		"question": {rule: "tcp://other.test:1", send: connect, edit: func(o *Options) {
			o.Ask = func(context.Context, Question) (Answer, error) {
				if inject {
					panic("injected")
				}
				return Answer{Verdict: VerdictAlways}, nil
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(startHTTP(t, answerHello).addr)
			if err != nil {
				t.Fatal(err)
			}
			fill := strings.NewReplacer("HOST", rule.HostName+":"+port)
			failures := make(chan error, 16)
			f := newFixture(t, func(o *Options) {
				o.Guard, o.Failed = allowLoopback(t), func(err error) { failures <- err }
				if tc.edit != nil {
					tc.edit(o)
				}
			}, fill.Replace(tc.rule))
			exchange := func(text, word string) string {
				c := f.connectTo(proxyAddr, func(c *testConn) { c.panicAt = word })
				head, rest, _ := strings.Cut(text, "\r\n\r\n")
				sent := make(chan struct{})
				go func() { // the rest is not read together with the head
					defer close(sent)
					_, _ = io.WriteString(c, head+"\r\n\r\n")
					time.Sleep(100 * time.Millisecond)
					_, _ = io.WriteString(c, rest) // may be reset
				}()
				answer := make([]byte, 12)
				n, _ := io.ReadFull(c, answer)
				<-sent
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
				f.wg.Wait()
				return string(answer[:n])
			}
			inject = true
			repair := func() {}
			if tc.damage != nil {
				repair = tc.damage(f.Server)
			}
			exchange(fill.Replace(tc.send), tc.word)
			inject = false
			repair()
			if n := len(failures); n != 1 {
				t.Errorf("%d panics were reported", n)
			}
			if open, taken := f.openNow(), len(f.slots); open != 0 || taken != 0 {
				t.Errorf("%d connections are counted as open, %d as served", open, taken)
			}
			f.mu.Lock()
			if (tc.closed != "") != (len(f.closed) == 1) || tc.closed != "" && tc.closed != "any" && f.closed[0].Ending != tc.closed {
				t.Errorf("the ends are %+v, want %q", f.closed, tc.closed)
			}
			f.mu.Unlock()
			again := connect
			if strings.HasPrefix(tc.rule, "http:") {
				again = get
			}
			if got := exchange(fill.Replace(again), ""); got != "HTTP/1.1 200" {
				t.Errorf("another connection is answered with %q", got)
			}
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				f.Close()
			}()
			select {
			case <-closed:
			case <-time.After(10 * time.Second):
				t.Fatal("Close does not return")
			}
		})
	}
}

// damageDial makes the server panic when it connects.
func damageDial(s *Server) (repair func()) {
	guard, resolver := s.opts.Guard, s.opts.Resolver
	s.opts.Guard, s.opts.Resolver = nil, nil
	return func() { s.opts.Guard, s.opts.Resolver = guard, resolver }
}

// TestPanicOfLookup checks that a panic fails a lookup, not the process.
func TestPanicOfLookup(t *testing.T) {
	failures := 0
	f := newFixture(t, func(o *Options) { o.Failed = func(error) { failures++ } }, "tls://a.test")
	policy := f.policy
	f.policy = nil
	if addr, ok := f.LookupName(t.Context(), "a.test"); ok || failures != 1 {
		t.Errorf("the lookup returned %s, with %d panics reported", addr, failures)
	}
	f.policy = policy
	if _, ok := f.LookupName(t.Context(), "a.test"); !ok {
		t.Error("another lookup fails")
	}
}
