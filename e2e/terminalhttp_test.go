package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-run/caisson/runner/server"
)

// webTerminal is a terminal over HTTP.
type webTerminal struct {
	conn *websocket.Conn
	text strings.Builder // since the last wait
}

// openWebTerminal runs a shell with a prompt that no output has.
func openWebTerminal(t *testing.T, api apiClient, id, key string) *webTerminal {
	t.Helper()
	header := http.Header{"Authorization": {"Bearer " + api.token}, "Idempotency-Key": {key}}
	conn, _, err := websocket.Dial(t.Context(), api.base+"/sandboxes/"+id+"/terminal", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	c := &webTerminal{conn: conn}
	c.send(t, websocket.MessageText, `{"argv":["sh","-c","PS1='go'': ' ENV= exec sh -i"],"env":["TERM=xterm-256color"],"rows":30,"columns":100}`)
	if e := c.next(t); e == nil || e.Started == nil {
		t.Fatalf("the first event is %+v", e)
	}
	return c
}

func (c *webTerminal) send(t *testing.T, kind websocket.MessageType, text string) {
	t.Helper()
	if err := c.conn.Write(t.Context(), kind, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// next returns the next event, or nil after a piece of output.
func (c *webTerminal) next(t *testing.T) *server.TerminalEvent {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), deadline, errors.New("no message comes"))
	defer cancel()
	kind, p, err := c.conn.Read(ctx)
	if err != nil {
		t.Fatalf("%v, after %q", err, c.text.String())
	}
	if kind == websocket.MessageBinary {
		c.text.Write(p)
		return nil
	}
	e := parse[server.TerminalEvent](t, p)
	return &e
}

func (c *webTerminal) waitFor(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(c.text.String(), text) {
		if e := c.next(t); e != nil {
			t.Fatalf("waiting for %q: %+v", text, e)
		}
	}
	c.text.Reset()
}

// TestTerminalOverHTTP types into a shell over a WebSocket on each backend: its size, resizes, keys and
// status. A cut connection ends all that the shell has started; with a key, it goes on.
func TestTerminalOverHTTP(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		serve, address := m.servingSandboxes(t, backend)
		api := apiClient{t: t, base: "http://" + address, token: m.token()}
		sandbox := api.id(api.do(http.MethodPost, "/sandboxes", struct{}{}, http.StatusCreated))
		c := openWebTerminal(t, api, sandbox, "")
		c.waitFor(t, "go: ")
		c.send(t, websocket.MessageBinary, "stty size; echo $TERM\r")
		c.waitFor(t, "30 100\r\nxterm-256color\r\ngo: ")
		c.send(t, websocket.MessageText, `{"rows":41,"columns":111}`)
		c.send(t, websocket.MessageBinary, "until stty size | grep '41 111'; do :; done; sh -c \"echo re''ady; exec cat\"\r")
		c.waitFor(t, "\n41 111\r\nready\r\n")
		c.send(t, websocket.MessageBinary, "\x03")
		c.waitFor(t, "go: ")
		c.send(t, websocket.MessageBinary, "echo $((100+31)); exit 5\r")
		c.waitFor(t, "131\r\n")
		for e := c.next(t); ; e = c.next(t) {
			if e != nil {
				if e.Exit == nil || e.Exit.Status != 5 || e.Exit.Cancelled {
					t.Errorf("ended with %+v", e)
				}
				break
			}
		}

		// What a shell started runs on the terminal, beside it, and in a session of its own.
		started := func(key string, number int) *webTerminal {
			c := openWebTerminal(t, api, sandbox, key)
			c.waitFor(t, "go: ")
			c.send(t, websocket.MessageBinary, fmt.Sprintf("trap '' TERM HUP; sleep %d & setsid sleep %[1]d & sleep 1; echo sta''rted; sleep %[1]d\r", number))
			c.waitFor(t, "started\r\n")
			return c
		}
		running := func(number int) int {
			list := api.do(http.MethodPost, "/sandboxes/"+sandbox+"/exec", server.NewExec{Argv: []string{"sh", "-c", `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '`}}, http.StatusOK)
			return strings.Count(string(list), fmt.Sprintf("sleep %d ", number))
		}
		cut, kept := started("", 54321), started("key", 65432)
		if a, b := running(54321), running(65432); a < 3 || b < 3 {
			t.Errorf("%d and %d processes run: the test sees nothing", a, b)
		}
		_, _ = cut.conn.CloseNow(), kept.conn.CloseNow()
		eventually(t, "all processes are killed", time.Minute, func() bool { return running(54321) == 0 })
		if n := running(65432); n < 3 {
			t.Errorf("%d processes of the command with a key run", n)
		}
		back := openWebTerminal(t, api, sandbox, "key")
		back.waitFor(t, "started\r\n")
		back.send(t, websocket.MessageBinary, "\x03")
		back.waitFor(t, "go: ")
		serve.signal(t, syscall.SIGTERM)
		serve.wait(t, deadline).want(t, 0)
		m.wantNothingLeft(t, sandbox)
	})
}
