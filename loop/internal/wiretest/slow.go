package wiretest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/loop"
)

// TestSlow checks models with a slow server. With short timeouts, the turn ends with a
// typed failure. With long ones, it ends as soon as it is cancelled. The server sends
// answer, which has a call, in pieces. The call must not run before answer is complete.
func TestSlow(t *testing.T, a Adapter, mediaType, answer string) {
	// write reads a request's head, writes the parts with a pause after each, and
	// leaves the connection open.
	write := func(pause time.Duration, parts ...string) func(net.Conn) {
		return func(c net.Conn) {
			if r, err := http.ReadRequest(bufio.NewReader(c)); err != nil || r.Method != http.MethodPost {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for _, p := range parts {
				if _, err := io.WriteString(c, p); err != nil {
					return
				}
				<-time.After(pause)
			}
		}
	}
	send := func(status int, media string, pause time.Duration, parts ...string) func(net.Conn) {
		head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nConnection: close\r\n\r\n", status, http.StatusText(status), media)
		return write(pause, append([]string{head}, parts...)...)
	}
	bytesOf := func(text string) []string { return strings.Split(text, "") }
	short := Timeouts{Header: time.Second, Idle: 500 * time.Millisecond, Answer: time.Second}
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		class loop.ErrorClass
		words string
	}{
		"accepts":       {func(net.Conn) {}, loop.ModelNetwork, "did not begin to answer in time"},
		"reads":         {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, loop.ModelNetwork, "did not begin to answer in time"},
		"half a header": {write(0, "HTTP/1.1 200 O"), loop.ModelNetwork, "did not begin to answer in time"},
		"only headers":  {send(http.StatusOK, mediaType, 0), loop.ModelNetwork, "fell silent"},
		"byte by byte":  {send(http.StatusOK, mediaType, 20*time.Millisecond, bytesOf(answer)...), loop.ModelNetwork, "did not end its answer in time"},
		"only blanks":   {send(http.StatusOK, mediaType, 20*time.Millisecond, bytesOf(strings.Repeat("\n", 10_000))...), loop.ModelNetwork, "did not end its answer in time"},
		"JSON blanks":   {send(http.StatusOK, "application/json", 20*time.Millisecond, bytesOf(strings.Repeat(" ", 10_000))...), loop.ModelNetwork, "did not end its answer in time"},
		"half a call":   {send(http.StatusOK, mediaType, 0, answer[:len(answer)/2]), loop.ModelNetwork, "fell silent"},
		"slow refusal":  {send(http.StatusBadRequest, "application/json", 20*time.Millisecond, bytesOf(strings.Repeat(" ", 10_000))...), loop.ModelInvalidRequest, "400"},
		"half refusal":  {send(http.StatusBadRequest, "application/json", 0, `{"error`), loop.ModelInvalidRequest, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := listen(t, tt.serve)
			run := func(ctx context.Context, timeouts Timeouts) *played {
				p := newPlayed()
				none := 0
				out, err := loop.Run(ctx, loop.Options{
					Profiles:   []loop.Profile{{Model: a.New(t, url, timeouts), MaxRetries: &none}},
					Dispatcher: &p.Dispatcher, Session: "ses_1", Turn: "trn_1",
					// More than a connection's buffers hold.
					Messages: []loop.Message{{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: strings.Repeat("Do it. ", 1<<17)}}}}},
					Emit:     func(loop.Event) error { return nil },
				})
				if err != nil {
					t.Fatal(err)
				}
				p.outcome = out
				if len(p.IDs) > 0 {
					t.Errorf("calls ran: %q", p.Ran)
				}
				return p
			}
			begun := time.Now()
			p := run(t.Context(), short)
			if failure := p.findFailure(t); failure == nil || failure.Class != tt.class || !strings.Contains(failure.Error(), tt.words) {
				t.Errorf("ended by %s, %v, want class %s and %q", p.outcome.Reason, p.outcome.Err, tt.class, tt.words)
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it ended after %s", took)
			}
			why := errors.New("interrupted")
			ctx, cancel := context.WithCancelCause(t.Context())
			const soon = 300 * time.Millisecond
			time.AfterFunc(soon, func() { cancel(why) })
			begun = time.Now()
			p = run(ctx, Timeouts{})
			if p.outcome.Reason != loop.StopCancelled || !errors.Is(p.outcome.Err, why) {
				t.Errorf("cancelled: ended by %s, %v", p.outcome.Reason, p.outcome.Err)
			}
			if took := time.Since(begun) - soon; took > 5*time.Second {
				t.Errorf("it ended %s after it was cancelled", took)
			}
		})
	}
}

// listen serves connections until the test ends, and returns the URL.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	accepted := make(chan net.Conn, 16)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetReadBuffer(4096) // a request doesn't fit
			accepted <- c
			serving.Go(func() { serve(c) })
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		for c := range accepted {
			_ = c.Close()
		}
		serving.Wait()
	})
	return "http://" + l.Addr().String()
}
