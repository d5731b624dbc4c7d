package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// TestRestarts has a server that dies after each call: it is started again with
// growing pauses, and given up in the end.
func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, map[string]serverFunc{"a": rawServer(func(*rawConn, message) error {
			return errors.New("signal: killed")
		})}, nil)
		for i := range maxRestarts + 1 {
			_, err := h.call(t.Context(), "a/t", `{}`) // waits for the restart
			if err == nil || !strings.Contains(err.Error(), "signal: killed") {
				t.Fatalf("call %d: %v", i, err)
			}
			synctest.Wait()
		}
		began := time.Now()
		_, err := h.call(t.Context(), "a/t", `{}`)
		if err == nil || !strings.Contains(err.Error(), "not started again") || !strings.Contains(err.Error(), "signal: killed") || time.Since(began) > 0 {
			t.Errorf("call of a server that was given up, after %v: %v", time.Since(began), err)
		}
		var waits []time.Duration
		for _, e := range eventsOf[ServerRestarting](h) {
			waits = append(waits, e.Wait)
		}
		if want := []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9}; !slices.Equal(waits, want) {
			t.Errorf("pauses %v, want %v", waits, want)
		}
		started := eventsOf[ServerStarted](h)
		if len(started) != maxRestarts+1 || started[maxRestarts].Restarts != maxRestarts {
			t.Errorf("%d starts: %+v", len(started), started)
		}
		if stopped := eventsOf[ServerStopped](h); !stopped[maxRestarts].GivenUp || stopped[0].GivenUp {
			t.Errorf("stopped: %+v", stopped)
		}
	})
}

// TestGoodRunsRestart: a server that dies now and then is started again for ever.
func TestGoodRunsRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
			if m.Method == "tools/call" {
				return true, errors.New("crash")
			}
			return false, nil
		})}, nil)
		for range 3 * maxRestarts {
			time.Sleep(2 * goodRun)
			if _, err := h.call(t.Context(), "a/t", `{}`); err == nil || strings.Contains(err.Error(), "not started again") {
				t.Fatalf("call: %v", err)
			}
			synctest.Wait()
		}
	})
}

// TestFinalLaunchError: what can't be launched at first is not tried again; what ran
// before is, because its sandbox may be replaced meanwhile.
func TestFinalLaunchError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the sandbox is being replaced")
		var broken atomic.Bool
		h := newHarness(t, map[string]serverFunc{"a": rawServer(func(*rawConn, message) error { return gone })}, func(o *Options) {
			launch := o.Launch
			o.Launch = func(ctx context.Context, s Server, stderr io.Writer) (Process, error) {
				if broken.Load() {
					return nil, gone
				}
				return launch(ctx, s, stderr)
			}
			o.Servers = append(o.Servers, Server{Name: "missing", Command: "missing"})
		})
		h.Start(t.Context())
		if failed := eventsOf[ServerFailed](h); len(failed) != 1 || !failed[0].GivenUp || failed[0].Server != "missing" {
			t.Errorf("failed: %+v", failed)
		}
		broken.Store(true)
		_, _ = h.call(t.Context(), "a/t", `{}`)
		time.Sleep(1500 * time.Millisecond)
		broken.Store(false)
		time.Sleep(3 * time.Second)
		if h.startsOf("a") != 2 {
			t.Errorf("started %d times, want 2", h.startsOf("a"))
		}
		if err := h.WaitServer(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

// TestStuckInput has a server that stops reading: what is written to it is bounded in
// time.
func TestStuckInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, _ message) error {
			<-c.ctx.Done()
			return nil
		})}, nil)
		first := make(chan error, 1)
		go func() {
			_, err := h.call(t.Context(), "a/t", `{}`)
			first <- err
		}()
		synctest.Wait()
		began := time.Now()
		_, err := h.call(t.Context(), "a/t", `{"x":"`+strings.Repeat("x", 1<<20)+`"}`)
		if took := time.Since(began); took != writeTime {
			t.Errorf("the call took %v, want %v", took, writeTime)
		}
		for _, err := range []error{err, <-first} {
			var failed *tools.Error
			if !errors.As(err, &failed) || !isTimeout("reading of its input")(err) {
				t.Errorf("call: %v", err)
			}
		}
	})
}

// TestCloseIsBounded has a process that can't be stopped.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := startHarness(t, map[string]serverFunc{
			"deaf": func(ctx context.Context, in io.Reader, out io.WriteCloser, stderr io.Writer) error {
				err := rawServer(nil)(ctx, in, out, stderr)
				<-release
				return err
			},
			"ok": rawServer(nil),
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := h.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("Close after %v: %v", time.Since(began), err)
		}
		if err := h.Close(context.Background()); err != nil || time.Since(began) > 2*stopTime {
			t.Errorf("second Close after %v: %v", time.Since(began), err)
		}
		if stopped := eventsOf[ServerStopped](h); len(stopped) != 2 {
			t.Errorf("stopped: %+v", stopped)
		}
		close(release)
	})
}

// TestLateAnswer: an answer after the timeout is dropped, and the server goes on.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
			if first {
				first = false
				time.Sleep(DefaultCallTimeout + time.Second)
				return c.reply(m, `{"content":[{"type":"text","text":"late"}]}`)
			}
			return c.reply(m, doneResult)
		})}, nil)
		began := time.Now()
		_, err := h.call(t.Context(), "a/t", `{}`)
		var failed *tools.Error
		if !errors.As(err, &failed) || failed.Class != tools.ErrorTimeout || time.Since(began) != DefaultCallTimeout {
			t.Errorf("call after %v: %v", time.Since(began), err)
		}
		out, err := h.call(t.Context(), "a/t", `{}`)
		if err != nil || outputText(out) != "done" {
			t.Errorf("next call: %q, %v", outputText(out), err)
		}
		if stopped := eventsOf[ServerStopped](h); len(stopped) > 0 {
			t.Errorf("stopped: %+v", stopped)
		}
	})
}

// TestCancel: the end of a call's context reaches the server.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := make(chan string, 1)
		h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(_ *rawConn, m message) (bool, error) {
			if m.Method == "notifications/cancelled" {
				cancelled <- string(m.Params)
			}
			return m.Method == "tools/call", nil
		})}, nil)
		cause := errors.New("the user pressed a key")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		began := time.Now()
		if _, err := h.call(ctx, "a/t", `{}`); !errors.Is(err, cause) || time.Since(began) != time.Second {
			t.Errorf("call after %v: %v", time.Since(began), err)
		}
		synctest.Wait()
		if got := <-cancelled; !strings.Contains(got, "requestId") {
			t.Errorf("notification: %s", got)
		}
	})
}

// TestProgress: progress is shown and extends the timeout, up to a bound, and only
// while it advances.
func TestProgress(t *testing.T) {
	send := func(c *rawConn, m message, progress int, text string) error {
		_, rest, _ := strings.Cut(string(m.Params), `"progressToken":`)
		token, _, _ := strings.Cut(rest, "}")
		quoted, _ := json.Marshal(text)
		return c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":9,"message":%s}}`, token, progress, quoted))
	}
	for _, test := range []struct {
		name    string
		advance int
		rounds  int
		want    time.Duration
		answers bool
	}{
		{"advances", 1, 4, 4 * time.Minute, true},
		{"stands still", 0, 4, DefaultCallTimeout + time.Minute, false}, // the first is an advance
		{"for ever", 1, 1000, MaxCallTime, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHarness(t, map[string]serverFunc{"a": rawServer(func(c *rawConn, m message) error {
					for i := range test.rounds {
						select {
						case <-time.After(time.Minute):
						case <-c.ctx.Done():
							return nil
						}
						if err := send(c, m, 1+i*test.advance, "step\x1b[2J"); err != nil {
							return err
						}
					}
					return c.reply(m, doneResult)
				})}, nil)
				var mu sync.Mutex
				var shown []string
				began := time.Now()
				out, err := h.callWith(t.Context(), "a/t", `{}`, func(stream, text string) {
					mu.Lock()
					defer mu.Unlock()
					shown = append(shown, stream+": "+text)
				})
				synctest.Wait()
				if took := time.Since(began); took != test.want || (err == nil) != test.answers {
					t.Errorf("call after %v, want %v: %q, %v", took, test.want, outputText(out), err)
				}
				if len(shown) == 0 || shown[0] != "progress: 1/9 step\\x1b[2J\n" {
					t.Errorf("shown: %q", shown)
				}
			})
		})
	}
}

// TestListChanged: a server changes its tools while it runs.
func TestListChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var round atomic.Int32
		lists := atomic.Int32{}
		h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
			switch m.Method {
			case "tools/list":
				lists.Add(1)
				if round.Load() == 0 {
					return true, c.reply(m, toolsResult("kept", "removed", "changed"))
				}
				return true, c.reply(m, strings.Replace(toolsResult("kept", "changed", "added"), `"changed","description":"d"`, `"changed","description":"other"`, 1))
			case "tools/call":
				round.Store(1)
				if err := c.reply(m, doneResult); err != nil {
					return true, err
				}
				for range 20 {
					if err := c.send(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`); err != nil {
						return true, err
					}
				}
				return true, nil
			}
			return false, nil
		})}, nil)
		old, _ := h.registry.Find("a/changed")
		if _, err := h.call(t.Context(), "a/kept", `{}`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got, want := h.names(), []string{"a/added", "a/changed", "a/kept"}; !slices.Equal(got, want) {
			t.Errorf("tools %q, want %q", got, want)
		}
		changes := eventsOf[ToolsChanged](h)
		if len(changes) != 1 || len(changes[0].Added) != 1 || len(changes[0].Removed) != 1 || len(changes[0].Changed) != 1 {
			t.Errorf("changes: %+v", changes)
		}
		if n := lists.Load(); n > 3 {
			t.Errorf("20 notifications at once led to %d lists", n)
		}
		// A call that was approved with the definition of before must not run.
		_, err := old.New().Execute(t.Context(), &tools.Call{Input: []byte(`{}`), Delta: func(string, string) {}})
		var failed *tools.Error
		if !errors.As(err, &failed) || failed.Reason != reasonChanged {
			t.Errorf("call of the old definition: %v", err)
		}
	})
}

// TestListChangedForEver: a server that reports changes all the time is listed ever
// more rarely.
func TestListChangedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists atomic.Int32
		h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
			if m.Method != "tools/list" {
				return false, nil
			}
			if err := c.reply(m, toolsResult(fmt.Sprintf("t%d", lists.Add(1)))); err != nil {
				return true, err
			}
			return true, c.send(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		})}, nil)
		time.Sleep(time.Hour)
		if n := lists.Load(); n < 10 || n > 75 {
			t.Errorf("%d lists in an hour", n)
		}
		if names := h.names(); len(names) != 1 {
			t.Errorf("tools: %q", names)
		}
	})
}

// TestSlowStartsDontBlockOthers: servers that hang while they start keep the others
// waiting for a turn, and no longer.
func TestSlowStartsDontBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hanging, working = 10, 10
		servers := map[string]serverFunc{}
		for i := range working {
			servers[fmt.Sprintf("work%d", i)] = rawServer(nil)
		}
		for i := range hanging {
			servers[fmt.Sprintf("hang%d", i)] = func(_ context.Context, in io.Reader, _ io.WriteCloser, _ io.Writer) error {
				_, err := io.Copy(io.Discard, in)
				return err
			}
		}
		h := newHarness(t, servers, nil)
		h.turns = make(chan struct{}, 1)
		began := time.Now()
		go h.Start(t.Context())
		for i := range working {
			if err := h.WaitServer(t.Context(), fmt.Sprintf("work%d", i)); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > hanging*startTurn {
			t.Errorf("started after %v", took)
		}
	})
}

// TestModernServer: a server that refuses the handshake of old is started again.
func TestModernServer(t *testing.T) {
	var methods []string
	h := startHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
		methods = append(methods, m.Method)
		switch m.Method {
		case "initialize":
			return true, c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"use server/discover"}}`, m.ID))
		case "server/discover":
			return true, c.reply(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"public"}`)
		case "tools/list":
			return true, c.reply(m, strings.TrimSuffix(toolsResult("t"), "}")+`,"ttlMs":0,"cacheScope":"public"}`)
		}
		return false, nil
	})}, nil)
	started := eventsOf[ServerStarted](h)
	if len(started) != 1 || started[0].Protocol != "2026-07-28" || methods[0] != "initialize" {
		t.Fatalf("started: %+v, failed: %+v, methods %q", started, eventsOf[ServerFailed](h), methods)
	}
	if out, err := h.call(t.Context(), "a/t", `{}`); err != nil || outputText(out) != "done" {
		t.Errorf("call = %q, %v", outputText(out), err)
	}
}
