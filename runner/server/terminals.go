package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/internal/terminal"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// NewTerminal is a client's request to run a command on a terminal, its first
// message.
type NewTerminal struct {
	Argv    []string `json:"argv" minItems:"1" maxItems:"10000" nullable:"false" doc:"the program and its arguments; a program without a slash is looked up in PATH"`
	Dir     string   `json:"dir,omitempty" maxLength:"4096" doc:"working directory, at or below the workspace's path in the sandbox; by default that path"`
	Env     []string `json:"env,omitempty" maxItems:"1000" doc:"additional variables, as NAME=value; TERM is xterm if it is not among them"`
	Timeout int64    `json:"timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"wall time; by default, and at most, the sandbox's limit"`
	TerminalSize
}

// TerminalSize is the size of a client's terminal, a message when it changes.
type TerminalSize struct {
	Rows    uint16 `json:"rows" minimum:"1" maximum:"65535"`
	Columns uint16 `json:"columns" minimum:"1" maximum:"65535"`
}

// TerminalEvent is a text message of the server, with one of the fields.
type TerminalEvent struct {
	Started *ExecStarted `json:"started,omitempty" doc:"the first message: the command runs"`
	Exit    *ExecEnd     `json:"exit,omitempty" doc:"the last message: how the command ended"`
	Error   *Problem     `json:"error,omitempty" doc:"the last message: why the command did not run, why its end is not known, or why the client lost the terminal"`
}

// maxTerminalMessage bounds a message of a client after its first one.
const maxTerminalMessage = 64 << 10

// terminalRoute is the route of terminals. Its requests last as long as the
// commands.
const terminalRoute = "/sandboxes/{id}/terminal"

type terminalInput struct {
	SandboxPath
	Key string `header:"Idempotency-Key" maxLength:"128" pattern:"^[!-~]*$" doc:"the same key goes back to the terminal of the command that it started"`
}

// terminalsAPI is the operation on commands with a terminal.
type terminalsAPI struct {
	sandboxes sandboxesAPI
	streams   *streamsAPI
	// firstTime bounds the wait for a client's first message. pingTime is
	// Options.pingTime.
	firstTime, pingTime time.Duration
	schemas             map[reflect.Type]*huma.Schema
	registry            huma.Registry
}

func (a *terminalsAPI) addOperations(o operations) {
	op := o.newOperation(http.MethodGet, terminalRoute, "terminal", "Run a command on a terminal, by WebSocket",
		`A WebSocket. The client's first message is a text, NewTerminal. The answer is a text, TerminalEvent, with "started"; then binary messages are the terminal's output, and those of the client are what is typed. The client sends a text, TerminalSize, when the size changes. The last message is a text, TerminalEvent, with "exit", or with "error". Messages of the client have at most 64 KiB, the first at most 1 MiB. The server pings every 15 seconds; a client that does not answer within that time, or reads nothing for 10 seconds, is disconnected.
Without Idempotency-Key, the command is cancelled if the connection is lost. With one it goes on. Send the same first message with the same key to go back to it, as long as the sandbox is live; the size may differ. You get the last output. A client that still has the terminal gets the error taken.`,
		http.StatusSwitchingProtocols, 400, 404, 409, 410, 426, 429)
	op.Responses["101"] = &huma.Response{Description: "The WebSocket"}
	a.registry = o.api.OpenAPI().Components.Schemas
	a.schemas = map[reflect.Type]*huma.Schema{}
	for _, t := range []reflect.Type{reflect.TypeFor[NewTerminal](), reflect.TypeFor[TerminalSize](), reflect.TypeFor[TerminalEvent]()} {
		a.schemas[t] = a.registry.Schema(t, true, t.Name())
	}
	huma.Register(o.api, op, func(ctx context.Context, in *terminalInput) (*huma.StreamResponse, error) {
		live, err := a.sandboxes.requireSandbox(in.ID)
		if err != nil {
			return nil, err
		}
		release, err := a.streams.takeStream(clientOf(ctx).label)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			defer release()
			req, w := humago.Unwrap(c)
			if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
				w.Header().Set("Upgrade", "websocket")
				live.writeProblem(w, req, newProblem(http.StatusUpgradeRequired, "upgrade", "this path is a WebSocket", "Use a client for WebSockets"))
				return
			}
			conn, err := websocket.Accept(w, req, nil) // the guard has checked the origin, too
			if err != nil {
				return // Accept has answered
			}
			t := &terminalConn{api: a, live: live, conn: conn}
			t.serve(context.WithoutCancel(ctx), in.Key)
		}}, nil
	})
}

// decodeMessage decodes a message as strictly as a body.
func decodeMessage[T any](a *terminalsAPI, text []byte) (out T, _ *Problem) {
	var value any
	err := checkJSON(text)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		return out, newProblem(http.StatusBadRequest, "malformed", "the message can't be read: "+err.Error(), "/openapi.json describes it")
	}
	found, place := &huma.ValidateResult{}, huma.NewPathBuffer([]byte{}, 0)
	place.Push("message")
	huma.Validate(a.registry, a.schemas[reflect.TypeFor[T]()], place, huma.ModeWriteToServer, value, found)
	if len(found.Errors) == 0 {
		err = json.Unmarshal(text, &out)
	}
	if len(found.Errors) == 0 && err == nil {
		return out, nil
	}
	p := newProblem(http.StatusUnprocessableEntity, "invalid", "the message does not match the API", "errors lists each part; /openapi.json describes all messages")
	for _, err := range found.Errors {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
			p.Errors = append(p.Errors, Place{Location: d.Location, Message: d.Message})
		}
	}
	return out, p
}

// terminalConn is one client of a command with a terminal.
type terminalConn struct {
	api  *terminalsAPI
	live *session
	conn *websocket.Conn
}

// serve runs a command, or goes back to the one that has the key, and connects
// it with the client until one of them ends.
func (t *terminalConn) serve(ctx context.Context, key string) {
	defer func() { _ = t.conn.CloseNow() }() // Close has closed it, or the client is gone
	first, p := t.readFirst(ctx)
	if p != nil {
		t.end(ctx, TerminalEvent{Error: p})
		return
	}
	size := sandbox.TerminalSize(first.TerminalSize)
	in := NewExec{Argv: first.Argv, Dir: first.Dir, Env: first.Env, Timeout: first.Timeout}
	c, err := t.live.startCommand(in, key, false, clientOf(ctx), terminal.New(size))
	if err != nil {
		t.end(ctx, TerminalEvent{Error: t.live.asProblem("start command", err)})
		return
	}
	t.live.mu.Lock()
	sending := !t.live.ending // otherwise, finishClose may not wait for it any more
	if sending {
		t.live.follows.Add(1)
	}
	t.live.mu.Unlock()
	err = t.connect(ctx, c, size)
	last := TerminalEvent{}
	switch {
	case err == nil:
		<-c.done
		if c.err != nil {
			last.Error = t.live.commandProblem(c.err)
		} else {
			last.Exit = new(c.end())
		}
	case errors.Is(err, terminal.ErrTaken):
		last.Error = newProblem(http.StatusConflict, "taken", "another connection with this key has the terminal now", "Connect again to take it back")
	default:
		if p, ok := errors.AsType[*Problem](err); ok {
			last.Error = p
		}
		t.live.log.Debug("terminal of a command", zap.String("exec", c.id), zap.Error(err))
	}
	if last != (TerminalEvent{}) {
		err = t.send(ctx, last)
	}
	if sending {
		t.live.follows.Done()
	}
	t.live.sandbox.commands.releaseCommand(c)
	if last != (TerminalEvent{}) && err == nil {
		t.close(last)
	}
}

// readFirst reads the client's first message.
func (t *terminalConn) readFirst(ctx context.Context) (first NewTerminal, _ *Problem) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.api.firstTime, errors.New("the first message takes too long"))
	defer cancel()
	t.conn.SetReadLimit(maxBodyBytes)
	kind, text, err := t.conn.Read(ctx)
	switch {
	case err != nil:
		return first, newProblem(http.StatusBadRequest, "malformed", "the first message can't be read", "Send it at once, with at most 1 MiB")
	case kind != websocket.MessageText:
		return first, newProblem(http.StatusBadRequest, "malformed", "the first message is binary", "Send a text that says which command to run")
	}
	t.conn.SetReadLimit(maxTerminalMessage)
	return decodeMessage[NewTerminal](t.api, text)
}

// connect passes on the terminal's output and the client's messages. It returns
// nil once the command has ended and all output is sent, [terminal.ErrTaken], a
// [Problem] about the client's messages, or why the client is gone.
func (t *terminalConn) connect(ctx context.Context, c *command, size sandbox.TerminalSize) error {
	client := c.terminal.Attach(size)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends ping, at the latest when the connection is closed
	if err := t.send(ctx, TerminalEvent{Started: &ExecStarted{Exec: c.id}}); err != nil {
		client.Detach()
		return err
	}
	var refused error
	reads := make(chan struct{})
	go func() {
		defer close(reads)
		refused = t.readMessages(context.WithoutCancel(ctx), client)
		client.Detach()
	}()
	go t.ping(ctx, client)
	for {
		p, err := client.Next()
		switch {
		case errors.Is(err, terminal.ErrDetached): // by readMessages
			<-reads
			return refused
		case errors.Is(err, io.EOF):
			client.Detach()
			return nil
		case err == nil:
			err = t.write(ctx, websocket.MessageBinary, p)
		}
		if err != nil {
			client.Detach()
			return err
		}
	}
}

// readMessages reads the client's messages until it is gone, or sends a message
// that is refused.
func (t *terminalConn) readMessages(ctx context.Context, client *terminal.Client) error {
	for {
		kind, p, err := t.conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := client.Write(p); err != nil {
				return err
			}
			continue
		}
		size, problem := decodeMessage[TerminalSize](t.api, p)
		if problem != nil {
			return problem
		}
		client.Resize(sandbox.TerminalSize(size))
	}
}

// ping notices that the client's connection is cut, and then closes it. While the
// command reads no input, the client's answers aren't read either, and only a
// connection to which nothing can be sent is cut.
func (t *terminalConn) ping(ctx context.Context, client *terminal.Client) {
	beat := time.NewTicker(t.api.pingTime)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
		case <-ctx.Done():
			return
		}
		// If its context ended while a ping is sent, the connection would be closed before the
		// command's exit status is sent.
		limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), t.api.pingTime, errors.New("no answer to a ping"))
		err := t.conn.Ping(limited)
		cancel()
		if err != nil && ctx.Err() == nil && (!client.Blocked() || !errors.Is(err, context.DeadlineExceeded)) {
			t.live.metrics.dropped.Inc()
			_ = t.conn.CloseNow() // ends readMessages
			client.Detach()       // and a write of it that waits for the command
			return
		}
	}
}

// write sends a message within httpserver.WriteTime.
func (t *terminalConn) write(ctx context.Context, kind websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, httpserver.WriteTime, errors.New("the client reads nothing"))
	defer cancel()
	err := t.conn.Write(ctx, kind, p)
	if err != nil && ctx.Err() != nil {
		t.live.metrics.dropped.Inc()
	}
	return err
}

func (t *terminalConn) send(ctx context.Context, e TerminalEvent) error {
	text, err := record.MarshalSafe(e)
	if err != nil {
		return err
	}
	return t.write(ctx, websocket.MessageText, text)
}

// end sends the last message and closes the connection.
func (t *terminalConn) end(ctx context.Context, last TerminalEvent) {
	if t.send(ctx, last) == nil {
		t.close(last)
	}
}

// close closes the connection after the last message.
func (t *terminalConn) close(last TerminalEvent) {
	code, reason := websocket.StatusNormalClosure, ""
	if last.Error != nil {
		code, reason = websocket.StatusPolicyViolation, last.Error.Code
		if last.Error.Status >= http.StatusInternalServerError {
			code = websocket.StatusInternalError
		}
	}
	_ = t.conn.Close(code, reason) // the client may be gone already
}
