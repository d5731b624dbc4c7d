package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/caisson-run/caisson/tools"
)

// unlimited are limits that nothing in these tests reaches: the control that a limit,
// and not something else, stopped a server.
var unlimited = frameLimits{
	lineBytes: 1 << 30, depth: 1 << 30, values: 1 << 30, noiseLines: 1 << 30, noiseBytes: 1 << 30,
	lines: pace{rate.Inf, 0}, bytes: pace{rate.Inf, 0}, unanswered: 1 << 30,
}

const doneResult = `{"content":[{"type":"text","text":"done"}]}`

// TestFloods has servers that break the framing or the protocol during a call. The
// call fails, the server is stopped, and a call of the server beside it works. With
// the limit gone, the same server is not stopped.
func TestFloods(t *testing.T) {
	repeat := func(c *rawConn, n int, line string) error {
		chunk := strings.Repeat(line+"\n", 1000)
		for range n / 1000 {
			if _, err := io.WriteString(c.out, chunk); err != nil {
				return err
			}
		}
		return nil
	}
	for _, test := range []struct {
		name string
		send func(c *rawConn, m message) error // before the answer
		want string                            // of the problem; "" means that the call works
		// limited: a limit stops the server, so that without limits the call works.
		limited bool
	}{
		{name: "control", send: func(*rawConn, message) error { return nil }},
		{name: "no newline", want: "a line of more than", limited: true, send: func(c *rawConn, _ message) error {
			for range 9 {
				if _, err := io.WriteString(c.out, strings.Repeat("x", 1<<20)); err != nil {
					return err
				}
			}
			return c.send("")
		}},
		{name: "valid line of 1 MB", send: func(c *rawConn, m message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", 1<<20) + `"}}`)
		}},
		{name: "invalid UTF-8", want: "UTF-8", send: func(c *rawConn, _ message) error {
			return c.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/\xff\"}")
		}},
		{name: "not JSON", want: "not valid JSON", send: func(c *rawConn, _ message) error { return c.send(`{"jsonrpc":"2.0",`) }},
		{name: "trailing data", want: "not valid JSON", send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/x"} {}`)
		}},
		{name: "empty object", send: func(c *rawConn, _ message) error { return c.send(`{}`) }},
		{name: "log lines", send: func(c *rawConn, _ message) error {
			return c.send("starting…\n[info] ready\n{\"level\":\"info\"}\n42\n\n[1,2]\n{not json}")
		}},
		{name: "log lines that quote messages", send: func(c *rawConn, m message) error {
			quoted := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			for _, format := range []string{"[DEBUG] <- %s", "{1} <- %s", `{"time":1} <- %s`, `{"received":%s}`, `["received",%s]`, "[2026-11-20 10:00:00,123] INFO \xff %s", "[%s] was received", `{"received":%s`} {
				if err := c.send(fmt.Sprintf(format, quoted)); err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "log lines for ever", want: "no message", limited: true, send: func(c *rawConn, _ message) error { return repeat(c, 3000, "[info] hello") }},
		{name: "long log lines for ever", want: "no message", limited: true, send: func(c *rawConn, _ message) error { return repeat(c, 3000, strings.Repeat("x", 1000)) }},
		{name: "batch", want: "batch", send: func(c *rawConn, _ message) error {
			return c.send(`[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}]`)
		}},
		{name: "no method and no id", want: "malformed", send: func(c *rawConn, _ message) error { return c.send(`{"jsonrpc":"2.0"}`) }},
		{name: "id of a wrong type", want: "malformed", send: func(c *rawConn, _ message) error { return c.send(`{"jsonrpc":"2.0","id":{},"result":{}}`) }},
		{name: "wrong id", want: "no open request", send: func(c *rawConn, _ message) error { return c.send(`{"jsonrpc":"2.0","id":99999,"result":{}}`) }},
		{name: "answered id", want: "no open request", send: func(c *rawConn, _ message) error { return c.send(`{"jsonrpc":"2.0","id":1,"result":{}}`) }},
		{name: "id as string", want: "no open request", send: func(c *rawConn, m message) error {
			return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s","result":%s}`, m.ID, doneResult))
		}},
		{name: "duplicate answer", want: "no open request", send: func(c *rawConn, m message) error {
			// The second answer of this one is the test's own.
			return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":5}`, m.ID))
		}},
		{name: "error without id", send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`)
		}},
		{name: "deep JSON", want: "nested deeper", limited: true, send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"x":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}}`)
		}},
		{name: "deeper JSON", want: "nested deeper", send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"x":` + strings.Repeat("[", 1e5) + strings.Repeat("]", 1e5) + `}}`)
		}},
		{name: "many values", send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"x":[` + strings.Repeat("0,", 199_000) + `0]}}`)
		}},
		{name: "too many values", want: "more than 200000 values", limited: true, send: func(c *rawConn, _ message) error {
			return c.send(`{"jsonrpc":"2.0","method":"notifications/unknown","params":{"x":[` + strings.Repeat("[],", 100_000) + `0]}}`)
		}},
		{name: "notifications", want: "faster", limited: true, send: func(c *rawConn, _ message) error {
			return repeat(c, 12_000, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
		}},
		{name: "pings without reading", want: "without taking the responses", limited: true, send: func(c *rawConn, _ message) error {
			for i := range 200 {
				if err := c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i)); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		run := func(t *testing.T, limits frameLimits, want string) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, map[string]serverFunc{
					"bad": rawServer(func(c *rawConn, m message) error {
						if err := test.send(c, m); err != nil {
							return err
						}
						return c.reply(m, doneResult)
					}),
					"ok": rawServer(nil),
				}, nil)
				h.limits = limits
				h.Start(t.Context())
				began := time.Now()
				out, err := h.call(t.Context(), "bad/t", `{}`)
				if took := time.Since(began); took > 0 {
					t.Errorf("the call took %v, want it to end at once", took)
				}
				if out, err := h.call(t.Context(), "ok/t", `{}`); err != nil || outputText(out) != "done" {
					t.Errorf("call of the other server: %q, %v", outputText(out), err)
				}
				synctest.Wait()
				stopped := eventsOf[ServerStopped](h)
				if want == "" {
					if err != nil || outputText(out) != "done" || len(stopped) > 0 {
						t.Errorf("call = %q, %v; stopped %+v; want an answer", outputText(out), err, stopped)
					}
					return
				}
				var failed *tools.Error
				if !errors.As(err, &failed) || !failed.Visible {
					t.Errorf("call = %q, %v; want a visible error", outputText(out), err)
				}
				var violation *ProtocolError
				if len(stopped) != 1 || !errors.As(stopped[0].Err, &violation) || !strings.Contains(violation.Problem, want) {
					t.Errorf("stopped: %+v, want a ProtocolError with %q", stopped, want)
				}
			})
		}
		t.Run(test.name, func(t *testing.T) { run(t, defaultFrameLimits, test.want) })
		if test.limited {
			t.Run(test.name+" unlimited", func(t *testing.T) { run(t, unlimited, "") })
		}
	}
}

// TestStderrFlood has a server that writes 256 MiB to its standard error.
func TestStderrFlood(t *testing.T) {
	const size = 256 << 20
	h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
		chunk := []byte(strings.Repeat("noise\n", 1<<20/6))
		for n := 0; n < size; n += len(chunk) {
			if _, err := c.stderr.Write(chunk); err != nil {
				return err
			}
		}
		_, _ = io.WriteString(c.stderr, "last \x1b[31mwords\n")
		return c.reply(m, doneResult)
	})}, nil)
	if out, err := h.call(t.Context(), "a/t", `{}`); err != nil || outputText(out) != "done" {
		t.Fatalf("call = %q, %v", outputText(out), err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := eventsOf[ServerStopped](h)[0]
	if stopped.StderrBytes < size || len(stopped.Stderr) > shownStderr+64 || !strings.HasSuffix(stopped.Stderr, "last \\x1b[31mwords\n") {
		t.Errorf("stderr: %d bytes, %d kept, ends %q", stopped.StderrBytes, len(stopped.Stderr), stopped.Stderr[max(0, len(stopped.Stderr)-40):])
	}
}

// TestHangsAndDeaths has servers that hang or die, beside one that works.
func TestHangsAndDeaths(t *testing.T) {
	for _, test := range []struct {
		name   string
		server serverFunc
		// starts reports whether the first start works.
		starts bool
		reason string        // of the call's error
		within time.Duration // of the call
		why    func(err error) bool
	}{
		{
			name: "never answers initialize", within: DefaultStartTimeout * 10,
			server: func(ctx context.Context, in io.Reader, _ io.WriteCloser, _ io.Writer) error {
				_, err := io.Copy(io.Discard, in)
				return err
			},
			why: isTimeout("start"),
		},
		{
			name:   "never lists its tools",
			server: rawServerWith(func(_ *rawConn, m message) (bool, error) { return m.Method == "tools/list", nil }),
			why:    isTimeout("start"),
		},
		{
			name: "exits at once",
			server: func(context.Context, io.Reader, io.WriteCloser, io.Writer) error {
				return errors.New("exit status 3")
			},
			why: func(err error) bool {
				var ended *EndedError
				return errors.As(err, &ended) && strings.Contains(err.Error(), "exit status 3")
			},
		},
		{
			name: "exits during the call", starts: true, reason: reasonServer, within: time.Second,
			server: rawServer(func(*rawConn, message) error { return errors.New("exit status 4") }),
			why:    func(err error) bool { return strings.Contains(err.Error(), "exit status 4") },
		},
		{
			name: "closes its output only", starts: true, reason: reasonServer, within: 2 * drainTime,
			server: rawServer(func(c *rawConn, _ message) error {
				_ = c.out.Close()
				<-c.ctx.Done()
				return nil
			}),
			why: func(err error) bool {
				var ended *EndedError
				return errors.As(err, &ended) && ended.Closed == "output"
			},
		},
		{
			name: "reads its input no more", starts: true, reason: reasonTimeout, within: DefaultCallTimeout,
			server: rawServer(func(c *rawConn, _ message) error {
				<-c.ctx.Done()
				return nil
			}),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHarness(t, map[string]serverFunc{"bad": test.server, "ok": rawServer(nil)}, nil)
				call := func(name string) (tools.Output, error) { return h.call(t.Context(), name, `{}`) }
				if out, err := call("ok/t"); err != nil || outputText(out) != "done" {
					t.Errorf("call of the other server: %q, %v", outputText(out), err)
				}
				if !test.starts {
					failed := eventsOf[ServerFailed](h)
					if len(failed) != 1 || !test.why(failed[0].Err) || failed[0].GivenUp {
						t.Errorf("failed starts: %+v", failed)
					}
					time.Sleep(time.Hour)
					failed = eventsOf[ServerFailed](h)
					if len(failed) != maxRestarts+1 || !failed[maxRestarts].GivenUp {
						t.Errorf("%d failed starts, want %d: %+v", len(failed), maxRestarts+1, failed)
					}
					var gaveUp *ServerError
					if err := h.WaitServer(t.Context(), "bad"); !errors.As(err, &gaveUp) || !gaveUp.GivenUp || !test.why(err) {
						t.Errorf("WaitServer: %v", err)
					}
					return
				}
				began := time.Now()
				_, err := call("bad/t")
				var failed *tools.Error
				if !errors.As(err, &failed) || failed.Reason != test.reason || !failed.Visible {
					t.Errorf("call: %v, want an error with reason %q", err, test.reason)
				}
				if took := time.Since(began); took > test.within {
					t.Errorf("the call took %v, want at most %v", took, test.within)
				}
				if test.why == nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
				stopped := eventsOf[ServerStopped](h)
				if len(stopped) != 1 || !test.why(stopped[0].Err) || stopped[0].GivenUp {
					t.Fatalf("stopped: %+v", stopped)
				}
				// It is started again, and a call waits for that.
				_, _ = call("bad/t")
				if n := h.startsOf("bad"); n != 2 {
					t.Errorf("started %d times, want 2", n)
				}
			})
		})
	}
}

func isTimeout(op string) func(error) bool {
	return func(err error) bool {
		var timeout *TimeoutError
		return errors.As(err, &timeout) && timeout.Op == op
	}
}
