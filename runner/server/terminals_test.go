package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

const terminalRequest = `{"argv":["terminal"],"rows":24,"columns":80}`

// terminalClient is a client of a terminal.
type terminalClient struct {
	t    *testing.T
	conn *websocket.Conn
	id   string
	text strings.Builder // the output
}

func (w *testEnv) dialTerminal(token, id string, header ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"Authorization": {"Bearer " + token}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return websocket.Dial(w.t.Context(), w.base+"/sandboxes/"+id+"/terminal", &websocket.DialOptions{HTTPHeader: h})
}

// openTerminal connects, and sends a first message.
func (w *testEnv) openTerminal(id, first string, header ...string) *terminalClient {
	w.t.Helper()
	conn, _, err := w.dialTerminal(aliceToken, id, header...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	c := &terminalClient{t: w.t, conn: conn}
	c.send(websocket.MessageText, first)
	return c
}

// startTerminal runs the fake sandbox's terminal.
func (w *testEnv) startTerminal(id string, header ...string) *terminalClient {
	w.t.Helper()
	c := w.openTerminal(id, terminalRequest, header...)
	e := c.next()
	if e == nil || e.Started == nil {
		w.t.Fatalf("the first event is %+v", e)
	}
	c.id = e.Started.Exec
	return c
}

func (c *terminalClient) send(kind websocket.MessageType, text string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), kind, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *terminalClient) typeIn(text string) { c.t.Helper(); c.send(websocket.MessageBinary, text) }

// next returns the next event, or nil after a piece of output.
func (c *terminalClient) next() *TerminalEvent {
	c.t.Helper()
	ctx, cancel := context.WithTimeoutCause(c.t.Context(), time.Minute, errors.New("no message comes"))
	defer cancel()
	kind, p, err := c.conn.Read(ctx)
	if err != nil {
		c.t.Fatalf("%v, after %q", err, c.text.String())
	}
	if kind == websocket.MessageBinary {
		c.text.Write(p)
		return nil
	}
	var e TerminalEvent
	if err := json.Unmarshal(p, &e); err != nil {
		c.t.Fatalf("%q: %v", p, err)
	}
	return &e
}

func (c *terminalClient) waitFor(text string) {
	c.t.Helper()
	for !strings.Contains(c.text.String(), text) {
		if e := c.next(); e != nil {
			c.t.Fatalf("waiting for %q: %+v, %+v", text, e, e.Error)
		}
	}
}

// last returns the last event, after which the server closes the connection with a status.
func (c *terminalClient) last(status websocket.StatusCode) TerminalEvent {
	c.t.Helper()
	for {
		if e := c.next(); e != nil {
			if _, _, err := c.conn.Read(c.t.Context()); websocket.CloseStatus(err) != status {
				c.t.Errorf("closed with %v, want %d", err, status)
			}
			return *e
		}
	}
}

// endOf waits for the record of a command's end.
func (w *testEnv) endOf(session, id string) record.UserCommandEnded {
	w.t.Helper()
	f := w.followEvents(session, "")
	defer f.close()
	for {
		if end := payload[record.UserCommandEnded](w.t, f.until(record.KindUserCommandEnded)); end.ExecID == id {
			return end
		}
	}
}

// TestTerminal types into a command, resizes its terminal, and gets its exit status, which is recorded
// as any other command's.
func TestTerminal(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	s := w.startSandbox(`{}`)
	c := w.startTerminal(s.ID)
	c.waitFor("on 24x80\n")
	c.typeIn("some ")
	c.typeIn("text\n")
	c.waitFor("got some text\n")
	c.send(websocket.MessageText, `{"rows":50,"columns":132}`)
	c.waitFor("size 50x132\n")
	var view Sandbox
	w.get("/sandboxes/"+s.ID).requireStatus(t, 200).decodeInto(t, &view)
	if len(view.Commands) != 1 || view.Commands[0] != c.id || view.State != StateRunning {
		t.Errorf("while it runs: %q, %s", view.Commands, view.State)
	}
	c.typeIn("exit 7\n")
	e := c.last(websocket.StatusNormalClosure)
	if want := (ExecEnd{Exec: c.id, Status: 7, Stdout: StreamSize{Bytes: int64(c.text.Len())}}); e.Exit == nil || !reflect.DeepEqual(*e.Exit, want) {
		t.Errorf("ended with %+v, want %+v", e.Exit, want)
	}
	end := w.endOf(s.ID, c.id)
	if end.Code != 7 || end.Recording == nil || end.Recording.Bytes == 0 || end.Stdout.Bytes != int64(c.text.Len()) {
		t.Errorf("recorded as %+v", end)
	}
	w.awaitNoStreams()
}

// TestTerminalIsRefused connects as who must not, and sends messages that are not in the API.
func TestTerminalIsRefused(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.Tokens, o.bodyTime = roleTokens(), time.Second })
	s := w.startSandbox(`{}`)
	for name, c := range map[string]struct {
		token, id string
		header    []string
		status    int
	}{
		"no token":         {"", s.ID, nil, 401},
		"reader":           {roleToken("reader").Value, s.ID, nil, 403},
		"approver":         {roleToken("approver").Value, s.ID, nil, 403},
		"another site":     {aliceToken, s.ID, []string{"Origin", "https://evil.test"}, 403},
		"no site":          {aliceToken, s.ID, []string{"Origin", "null"}, 403},
		"another port":     {aliceToken, s.ID, []string{"Origin", "http://127.0.0.1:1"}, 403},
		"a browser's word": {aliceToken, s.ID, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"no such sandbox":  {aliceToken, "ses_x", nil, 404},
		"control":          {roleToken("runner").Value, s.ID, []string{"Origin", w.base}, 101},
	} {
		conn, res, err := w.dialTerminal(c.token, c.id, c.header...)
		if res == nil || res.StatusCode != c.status || (err == nil) != (c.status == 101) {
			t.Errorf("%s: %v, %v, want %d", name, res, err, c.status)
		}
		if conn != nil {
			_ = conn.CloseNow()
		}
	}
	w.get("/sandboxes/"+s.ID+"/terminal").requireProblem(t, 426, "upgrade")
	for name, c := range map[string]struct{ first, code string }{
		"no argv":          {`{"rows":24,"columns":80}`, "invalid"},
		"no size":          {`{"argv":["terminal"]}`, "invalid"},
		"no rows":          {`{"argv":["terminal"],"rows":0,"columns":80}`, "invalid"},
		"a giant":          {`{"argv":["terminal"],"rows":24,"columns":65536}`, "invalid"},
		"input":            {`{"argv":["terminal"],"rows":24,"columns":80,"stdin":"x"}`, "invalid"},
		"no object":        {`[]`, "invalid"},
		"twice":            {`{"argv":["terminal"],"argv":["x"],"rows":24,"columns":80}`, "malformed"},
		"no JSON":          {`terminal`, "malformed"},
		"a variable":       {`{"argv":["terminal"],"env":["x"],"rows":24,"columns":80}`, "invalid"},
		"too long":         {`{"argv":["terminal"],"timeout_seconds":31536000,"rows":24,"columns":80}`, "refused"},
		"too large":        {`{"argv":["` + strings.Repeat("x", maxBodyBytes) + `"],"rows":24,"columns":80}`, ""},
		"nothing in time":  {"", "malformed"},
		"a binary message": {"\x00", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _, err := w.dialTerminal(aliceToken, s.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.CloseNow()
			cl := &terminalClient{t: t, conn: conn}
			switch {
			case c.first == "\x00":
				cl.typeIn(terminalRequest)
			case c.first != "":
				_ = conn.Write(t.Context(), websocket.MessageText, []byte(c.first)) // the server may close it meanwhile
			}
			if c.code == "" || c.first == "" { // the library closes the connection
				if kind, p, err := conn.Read(t.Context()); err == nil {
					t.Errorf("got %v %q", kind, p)
				}
				return
			}
			e := cl.last(websocket.StatusPolicyViolation)
			if e.Error == nil || e.Error.Code != c.code || e.Started != nil {
				t.Errorf("got %+v, %+v", e, e.Error)
			}
		})
	}
	if ran := w.backend.commands(); len(ran) != 0 {
		t.Errorf("ran %q", ran)
	}
	w.awaitNoStreams()
}

// TestTerminalMessages sends a running command's terminal what is not in the API.
func TestTerminalMessages(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	s := w.startSandbox(`{}`)
	for name, c := range map[string]struct {
		kind   websocket.MessageType
		text   string
		status websocket.StatusCode
	}{
		"no size":            {websocket.MessageText, `{"rows":0,"columns":80}`, websocket.StatusPolicyViolation},
		"another key":        {websocket.MessageText, `{"rows":1,"columns":80,"x":1}`, websocket.StatusPolicyViolation},
		"a command":          {websocket.MessageText, terminalRequest, websocket.StatusPolicyViolation},
		"no JSON":            {websocket.MessageText, `x`, websocket.StatusPolicyViolation},
		"a huge size":        {websocket.MessageText, strings.Repeat(" ", 1<<20), websocket.StatusMessageTooBig},
		"a huge message":     {websocket.MessageBinary, strings.Repeat("x", 64<<20), websocket.StatusMessageTooBig},
		"the user's goodbye": {0, "", websocket.StatusNormalClosure},
	} {
		t.Run(name, func(t *testing.T) {
			cl := w.startTerminal(s.ID)
			cl.t = t
			cl.waitFor("on ")
			if c.kind == 0 {
				_ = cl.conn.Close(websocket.StatusNormalClosure, "")
			} else {
				_ = cl.conn.Write(t.Context(), c.kind, []byte(c.text)) // the server may close it meanwhile
				if c.status == websocket.StatusPolicyViolation {
					if e := cl.last(c.status); e.Error == nil || e.Exit != nil {
						t.Errorf("got %+v", e)
					}
				} else if _, _, err := cl.conn.Read(t.Context()); err == nil {
					t.Error("it is taken")
				}
			}
			if end := w.endOf(s.ID, cl.id); !end.Cancelled {
				t.Errorf("the command ended with %+v", end.ExitStatus)
			}
		})
	}
	c := w.startTerminal(s.ID) // the control, also of its bounds
	c.waitFor("on ")
	c.typeIn(strings.Repeat("x", maxTerminalMessage-1) + "\n")
	c.waitFor("got " + strings.Repeat("x", maxTerminalMessage-1))
	for i := range 1 << 16 {
		c.send(websocket.MessageText, fmt.Sprintf(`{"rows":%d,"columns":%d}`, 1+i%999, 1+i%777))
	}
	c.send(websocket.MessageText, `{"rows":1000,"columns":1000}`)
	c.waitFor("size 1000x1000\n")
	c.typeIn("exit 0\n")
	if e := c.last(websocket.StatusNormalClosure); e.Exit == nil || e.Exit.Status != 0 {
		t.Errorf("after 65,536 sizes: %+v", e)
	}
}

// TestTerminalOverCutConnections cuts connections: the command is cancelled, but with a key it
// goes on, and the key goes back to it.
func TestTerminalOverCutConnections(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	s := w.startSandbox(`{}`)
	c := w.startTerminal(s.ID)
	c.waitFor("on ")
	_ = c.conn.CloseNow()
	if end := w.endOf(s.ID, c.id); !end.Cancelled || end.Signal != 15 {
		t.Errorf("without a key: %+v", end.ExitStatus)
	}
	for w.do(aliceToken, "DELETE", "/sandboxes/"+s.ID+"/exec/"+c.id, "").status != 404 { // it is forgotten a moment later
	}

	key := []string{"Idempotency-Key", "one"}
	c = w.startTerminal(s.ID, key...)
	c.typeIn("before\n")
	c.waitFor("got before\n")
	_ = c.conn.CloseNow()
	again := w.openTerminal(s.ID, strings.Replace(terminalRequest, "24", "25", 1), key...)
	if e := again.next(); e == nil || e.Started == nil || e.Started.Exec != c.id {
		t.Fatalf("it went back to %+v", e)
	}
	again.waitFor("got before\n")
	again.waitFor("size 25x80\n")
	again.typeIn("after\n")
	again.waitFor("got after\n")

	// A second client takes the terminal, and its programs draw again.
	third := w.startTerminal(s.ID, key...)
	third.waitFor("got after\n")
	third.waitFor("size 24x80\n")
	if e := again.last(websocket.StatusPolicyViolation); e.Error == nil || e.Error.Code != "taken" || e.Error.Status != 409 {
		t.Errorf("the one before got %+v", e.Error)
	}
	third.typeIn("third\n")
	third.waitFor("got third\n")
	if strings.Contains(again.text.String(), "third") {
		t.Error("the one before still sees the terminal")
	}

	// Another client's key is another command, another request an error, and a key of a command
	// without a terminal too.
	if other, _, err := w.dialTerminal(bobToken, s.ID, key...); err != nil {
		t.Error(err)
	} else {
		cl := &terminalClient{t: t, conn: other}
		cl.send(websocket.MessageText, terminalRequest)
		if e := cl.next(); e == nil || e.Started == nil || e.Started.Exec == c.id {
			t.Errorf("bob got alice's terminal: %+v", e)
		}
		cl.waitFor("on ")
		w.do(aliceToken, "DELETE", "/sandboxes/"+s.ID+"/exec/"+c.id+"x", "").requireProblem(t, 404, "no_exec")
		_ = other.CloseNow()
	}
	if e := w.openTerminal(s.ID, `{"argv":["hang"],"rows":24,"columns":80}`, key...).last(websocket.StatusPolicyViolation); e.Error == nil || e.Error.Code != "key_reused" {
		t.Errorf("another command with the key: %+v", e)
	}
	w.do(aliceToken, "POST", "/sandboxes/"+s.ID+"/exec", execBody("terminal"), key...).requireProblem(t, 422, "key_reused")

	third.typeIn("exit 3\n")
	if e := third.last(websocket.StatusNormalClosure); e.Exit == nil || e.Exit.Status != 3 {
		t.Errorf("ended with %+v", e)
	}
	late := w.startTerminal(s.ID, key...)
	if e := late.last(websocket.StatusNormalClosure); e.Exit == nil || e.Exit.Status != 3 || !strings.Contains(late.text.String(), "got third\n") {
		t.Errorf("after the end: %+v, %q", e.Exit, late.text.String())
	}
	if ran := w.backend.commands(); len(ran) != 3 {
		t.Errorf("ran %q", ran)
	}
}

// TestTerminalOfASilentClient leaves a client connected that answers no ping.
func TestTerminalOfASilentClient(t *testing.T) {
	// The control must answer within this time, on a busy machine too.
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.pingTime = 2 * time.Second })
	s := w.startSandbox(`{}`)
	control := w.startTerminal(s.ID)
	answers := make(chan error, 1)
	go func() { // reads, and so answers
		_, _, err := control.conn.Read(t.Context())
		for err == nil {
			_, _, err = control.conn.Read(t.Context())
		}
		answers <- err
	}()
	silent, r := w.dial("GET /sandboxes/" + s.ID + "/terminal HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + aliceToken +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	frame := append([]byte{0x81, 0x80 | byte(len(terminalRequest)), 0, 0, 0, 0}, terminalRequest...) // masked with zeros
	if _, err := silent.Write(frame); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !strings.Contains(string(text), "started") {
		t.Errorf("the connection ends with %v after %q", err, text)
	}
	var id string
	for _, r := range w.trace(s.ID) {
		// The control's may be recorded later.
		if r.Kind == record.KindUserCommandStarted && payload[record.UserCommandStarted](t, r).ExecID != control.id {
			id = payload[record.UserCommandStarted](t, r).ExecID
		}
	}
	if end := w.endOf(s.ID, id); !end.Cancelled {
		t.Errorf("ended with %+v", end.ExitStatus)
	}
	control.typeIn("exit 0\n")
	if err := <-answers; websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the client that answers pings: %v", err)
	}
}

// TestTerminalOfASlowReader floods clients that read nothing: the command is cancelled at once if
// another client asks for that, or its sandbox ends, and otherwise once the client has had its time.
func TestTerminalOfASlowReader(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.pingTime = time.Hour })
	s := w.startSandbox(`{}`)
	flood := func(header ...string) *terminalClient {
		c := w.startTerminal(s.ID, header...)
		c.waitFor("on ")
		c.typeIn("flood\n")
		return c
	}
	c := flood("Idempotency-Key", "one")
	time.Sleep(2 * time.Second) // the connection is full by then
	began := time.Now()
	var end ExecEnd
	w.do(aliceToken, "DELETE", "/sandboxes/"+s.ID+"/exec/"+c.id, "").requireStatus(t, 200).decodeInto(t, &end)
	if took := time.Since(began); !end.Cancelled || end.Signal != 15 || took > httpserver.WriteTime/2 {
		t.Errorf("cancelled after %v: %+v", took, end)
	}
	if testing.Short() {
		return
	}
	c = flood()
	began = time.Now()
	if got := w.endOf(s.ID, c.id); !got.Cancelled || time.Since(began) > 4*httpserver.WriteTime {
		t.Errorf("a client that reads nothing: %+v after %v", got.ExitStatus, time.Since(began))
	}
}

// TestTerminalOfADeafCommand cuts the connection of a client whose input waits for the command.
func TestTerminalOfADeafCommand(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.pingTime = 200 * time.Millisecond })
	s := w.startSandbox(`{}`)
	c := w.startTerminal(s.ID)
	c.waitFor("on ")
	c.typeIn("deaf\n")
	for range 4 {
		c.typeIn(strings.Repeat("x\n", 30<<10))
	}
	_ = c.conn.CloseNow()
	if end := w.endOf(s.ID, c.id); !end.Cancelled {
		t.Errorf("ended with %+v", end.ExitStatus)
	}
}

// TestTerminalsEndWithTheServer stops a server whose sandbox has a terminal.
func TestTerminalsEndWithTheServer(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	s := w.startSandbox(`{}`)
	c, kept := w.startTerminal(s.ID), w.startTerminal(s.ID, "Idempotency-Key", "one")
	c.waitFor("on ")
	kept.waitFor("on ")
	_ = kept.conn.CloseNow()
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	if e := c.last(websocket.StatusNormalClosure); e.Exit == nil || !e.Exit.Cancelled {
		t.Errorf("ended with %+v", e)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	ended := 0
	for _, r := range w.trace(s.ID) {
		if r.Kind == record.KindUserCommandEnded && payload[record.UserCommandEnded](t, r).ExitStatus == (sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}) {
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("%d commands were cancelled", ended)
	}
}
