package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/server/internal/outputlog"
)

// NewExec is a client's request to run a command in a sandbox.
type NewExec struct {
	Argv    []string `json:"argv" minItems:"1" maxItems:"10000" nullable:"false" doc:"the program and its arguments; a program without a slash is looked up in PATH"`
	Dir     string   `json:"dir,omitempty" maxLength:"4096" doc:"working directory, at or below the workspace's path in the sandbox; by default that path"`
	Env     []string `json:"env,omitempty" maxItems:"1000" doc:"additional variables, as NAME=value"`
	Stdin   string   `json:"stdin,omitempty" doc:"standard input as text; without stdin and stdin_base64 it is empty"`
	Stdin64 string   `json:"stdin_base64,omitempty" contentEncoding:"base64" doc:"standard input as base64, for bytes that are not text"`
	Timeout int64    `json:"timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"wall time; by default, and at most, the sandbox's limit"`
}

var variable = lazyRegexp(`^[A-Za-z_][A-Za-z0-9_]*=`)

// userCommand returns the command, without its output and ID.
func (in NewExec) userCommand() (runner.UserCommand, *Problem) {
	c := runner.UserCommand{Argv: in.Argv, Dir: in.Dir, Env: in.Env, Timeout: time.Duration(in.Timeout) * time.Second}
	for i, v := range in.Env {
		if !variable().MatchString(v) {
			return c, newProblem(http.StatusUnprocessableEntity, "invalid", fmt.Sprintf("entry %d of env is not NAME=value", i), "A name has letters, digits and underscores")
		}
	}
	switch {
	case in.Stdin != "" && in.Stdin64 != "":
		return c, newProblem(http.StatusUnprocessableEntity, "invalid", "stdin and stdin_base64 are both set", "Send one of them")
	case in.Stdin64 != "":
		b, err := base64.StdEncoding.DecodeString(in.Stdin64)
		if err != nil {
			return c, newProblem(http.StatusUnprocessableEntity, "invalid", "stdin_base64 is not valid base64", "Use the standard alphabet with padding")
		}
		c.Stdin = strings.NewReader(string(b))
	case in.Stdin != "":
		c.Stdin = strings.NewReader(in.Stdin)
	}
	return c, nil
}

// ExecStarted is the event "started", the first of a command.
type ExecStarted struct {
	Exec string `json:"exec" example:"exe_01KAJ6N8YV8QZ6W4T0F6P3E9RC" doc:"the command's id, here and in the records"`
}

// Output is a piece of output, sent as the event "stdout" or "stderr". Either
// Text or Base64 has its bytes.
type Output struct {
	Text   string `json:"text,omitempty" doc:"not safe for a terminal"`
	Base64 string `json:"base64,omitempty" contentEncoding:"base64" doc:"instead of text, if the bytes are not UTF-8 or have a NUL"`
}

// ExecEnd is how a command ended, sent as the event "exit".
type ExecEnd struct {
	Exec      string     `json:"exec" example:"exe_01KAJ6N8YV8QZ6W4T0F6P3E9RC" doc:"the command's id, here and in the records"`
	Status    int        `json:"status" doc:"exit status; -1 if a signal ended it"`
	Signal    int        `json:"signal" doc:"the number of the signal that ended it, 0 for none"`
	TimedOut  bool       `json:"timed_out" doc:"it ran out of time"`
	OOMKilled bool       `json:"oom_killed" doc:"the sandbox ran out of memory while it ran"`
	Cancelled bool       `json:"cancelled" doc:"a client cancelled it, or its sandbox ended"`
	PIDsLimit bool       `json:"pids_limit_hit,omitempty" doc:"the sandbox's limit of processes was reached while it ran"`
	Full      []string   `json:"full,omitempty" doc:"directories in memory, such as /tmp, that were full when it failed"`
	Killed    int        `json:"killed" doc:"processes that had to be killed"`
	Left      int        `json:"left" doc:"processes that could not be killed; a new sandbox replaces this one"`
	Stdout    StreamSize `json:"stdout"`
	Stderr    StreamSize `json:"stderr"`
}

// StreamSize describes a stream of a command that has ended.
type StreamSize struct {
	Bytes     int64 `json:"bytes" doc:"how much the command wrote"`
	Truncated bool  `json:"truncated" doc:"only the beginning was kept"`
}

// ExecResult is how a command ended, with the beginning of its output.
type ExecResult struct {
	ExecEnd
	Output Outputs `json:"output"`
}

// Outputs is the output in an [ExecResult].
type Outputs struct {
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
	Elided bool   `json:"elided" doc:"a stream is longer than 1 MiB, and only its first 1 MiB is here; ask for events to get all that is kept"`
}

// resultBytes bounds each stream in an [ExecResult].
const resultBytes = 1 << 20

// ExecPath is the path of a command of a sandbox.
type ExecPath struct {
	SandboxPath
	Exec string `path:"exec" doc:"a command's id"`
}

type execInput struct {
	SandboxPath
	Accept      string `header:"Accept" doc:"application/json for one answer at the end, otherwise events"`
	Key         string `header:"Idempotency-Key" maxLength:"128" pattern:"^[!-~]*$" doc:"the same key joins the command that it started, or gets its result"`
	LastEventID string `header:"Last-Event-ID" maxLength:"64" doc:"the id of the last event that the client got from the command of this key"`
	Body        NewExec
}

func (in *execInput) wantsResult() bool {
	return strings.Contains(in.Accept, "application/json") && !strings.Contains(in.Accept, "text/event-stream")
}

// lastSeen returns the offset in each stream after the last event that the
// client has.
func (in *execInput) lastSeen() (at [outputlog.Streams]int64, err error) {
	if in.LastEventID == "" {
		return at, nil
	}
	first, second, _ := strings.Cut(in.LastEventID, "-")
	for i, text := range []string{first, second} {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return at, badEventID()
		}
		at[i] = int64(n)
	}
	return at, nil
}

// badEventID returns the problem of an event ID that the client can't have.
func badEventID() *Problem {
	return newProblem(http.StatusBadRequest, "event_id", "the last event id is not one of this command", "Send the id of an event that you got, or none")
}

type execsAPI struct {
	sandboxes sandboxesAPI
	streams   *streamsAPI
}

// execRoute is the route of commands. Its requests last as long as the
// commands.
const execRoute = "/sandboxes/{id}/exec"

func (a execsAPI) addOperations(o operations) {
	op := o.newOperation(http.MethodPost, execRoute, "exec", "Run a command in a sandbox",
		`Server-sent events: "started" (ExecStarted), then "stdout" and "stderr" (Output) as they come, and finally "exit" (ExecEnd), or "error" (Problem) if the command did not run, or its end is not known. Comments keep the connection alive. With Accept: application/json the answer is one ExecResult, or a problem, at the end.
Without Idempotency-Key, the command is cancelled if the connection is lost. With one it goes on, and the same request with the same key joins it, from its beginning or after Last-Event-ID, or gets its result, as long as the sandbox is live. Another body with the same key is 422.`,
		http.StatusOK, 400, 404, 409, 410, 422, 429, 503, 507)
	schemas := o.api.OpenAPI().Components.Schemas
	for name, t := range map[string]reflect.Type{"ExecStarted": reflect.TypeFor[ExecStarted](), "Output": reflect.TypeFor[Output](), "ExecEnd": reflect.TypeFor[ExecEnd]()} {
		schemas.Schema(t, true, name)
	}
	op.Responses["200"] = &huma.Response{Description: "The events, or the result", Content: map[string]*huma.MediaType{
		"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}},
		"application/json":  {Schema: schemas.Schema(reflect.TypeFor[ExecResult](), true, "ExecResult")},
	}}
	huma.Register(o.api, op, a.runCommand)
	huma.Register(o.api, o.newOperation(http.MethodDelete, execRoute+"/{exec}", "cancelExec", "Cancel a command",
		"Its processes get SIGTERM, and SIGKILL after the grace period. Answers when it has ended. Cancelling an ended command does nothing. A command without a key is unknown after its end.",
		http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *ExecPath) (*body[ExecEnd], error) {
			live, err := a.sandboxes.requireSandbox(in.ID)
			if err != nil {
				return nil, err
			}
			c := live.sandbox.commands.findCommand(in.Exec)
			if c == nil {
				return nil, newProblem(http.StatusNotFound, "no_exec", "the sandbox has no such command", "GET /sandboxes/{id} lists the running ones")
			}
			c.cancel(&runner.CancelledByUser{Client: clientOf(ctx).name()})
			if err := waitClosed(ctx, c.done); err != nil {
				return nil, err
			}
			if c.err != nil {
				return nil, live.commandProblem(c.err)
			}
			return &body[ExecEnd]{c.end()}, nil
		})
}

// runCommand runs a command, or joins the one that has the key.
func (a execsAPI) runCommand(ctx context.Context, in *execInput) (*huma.StreamResponse, error) {
	live, err := a.sandboxes.requireSandbox(in.ID)
	if err != nil {
		return nil, err
	}
	release, err := a.streams.takeStream(clientOf(ctx).label)
	if err != nil {
		return nil, err
	}
	r, err := a.beginCommand(ctx, live, in)
	if err != nil {
		release()
		return nil, err
	}
	releaseSlot(ctx)
	if !in.wantsResult() {
		return &huma.StreamResponse{Body: func(c huma.Context) {
			defer release()
			defer r.close()
			req, w := humago.Unwrap(c)
			r.events = httpserver.NewEventWriter(w, live.metrics.dropped.Inc)
			if err := r.sendAll(req.Context()); err != nil {
				live.log.Debug("stream of a command", zap.String("exec", r.command.id), zap.Error(err))
			}
		}}, nil
	}
	defer release()
	defer r.close()
	if err := waitClosed(ctx, r.command.done); err != nil {
		return nil, err
	}
	if err := r.command.err; err != nil {
		return nil, live.commandProblem(err)
	}
	result, err := r.readResult()
	if err != nil {
		return nil, live.internalProblem("read output", err)
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", "application/json")
		if err := writeJSON(c.BodyWriter(), result); err != nil {
			live.log.Debug("write answer", zap.Error(err))
		}
	}}, nil
}

func (a execsAPI) beginCommand(ctx context.Context, live *session, in *execInput) (*execReader, error) {
	at, err := in.lastSeen()
	if err != nil {
		return nil, err
	}
	c, err := live.startCommand(in.Body, in.Key, in.LastEventID != "", clientOf(ctx), nil)
	if err != nil {
		return nil, err
	}
	r := &execReader{live: live, command: c, at: at}
	if st, _ := c.log.State(); at[0] > st.Kept[0] || at[1] > st.Kept[1] {
		return nil, badEventID() // it has a key, so it goes on
	}
	if r.output, err = c.log.Open(); err != nil {
		r.close()
		return nil, sandboxEnded(live.id) // its output has been removed
	}
	return r, nil
}

// errClientGone is the cause of a command that is cancelled because its client
// left, and no other can join it.
var errClientGone = errors.New("the client that requested it went away")

type execReader struct {
	live    *session
	command *command
	output  *outputlog.Reader
	// at is the offset in each stream up to which the client has it.
	at     [outputlog.Streams]int64
	events *httpserver.EventWriter
}

// close ends the reading, and releases the command.
func (r *execReader) close() {
	if r.output != nil {
		_ = r.output.Close() // only read
	}
	r.live.sandbox.commands.releaseCommand(r.command)
}

var streamNames = [outputlog.Streams]string{"stdout", "stderr"}

// sendAll sends the output as events until the command has ended, or the client
// is gone or too slow.
func (r *execReader) sendAll(ctx context.Context) error {
	if err := r.events.Begin(); err != nil {
		return err
	}
	if err := sendEvent(r.events, "", "started", ExecStarted{Exec: r.command.id}); err != nil {
		return err
	}
	beat := time.NewTimer(httpserver.Heartbeat)
	defer beat.Stop()
	buf := make([]byte, 32<<10)
	for {
		st, changed := r.command.log.State()
		sent := false
		for i, name := range streamNames {
			n, err := r.output.ReadAt(i, buf[:min(int64(len(buf)), st.Kept[i]-r.at[i])], r.at[i])
			if err != nil {
				return err
			}
			piece, used := newOutput(buf[:n], st.Ended)
			if used == 0 {
				continue
			}
			r.at[i] += int64(used)
			sent = true
			if err := sendEvent(r.events, fmt.Sprintf("%d-%d", r.at[0], r.at[1]), name, piece); err != nil {
				return err
			}
		}
		switch {
		case sent:
			beat.Reset(httpserver.Heartbeat)
			continue
		case st.Ended:
			<-r.command.done
			if err := r.command.err; err != nil {
				return sendEvent(r.events, "", "error", r.live.commandProblem(err))
			}
			return sendEvent(r.events, "", "exit", r.command.end())
		}
		select {
		case <-changed:
		case <-beat.C:
			if err := r.events.Beat(); err != nil {
				return err
			}
			beat.Reset(httpserver.Heartbeat)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// newOutput returns bytes of a stream as a piece of output, and how many of
// them it has. A rune that is cut off at the end waits for the rest, unless
// last is true.
func newOutput(p []byte, last bool) (Output, int) {
	if isText(p) {
		return Output{Text: string(p)}, len(p)
	}
	whole := len(p)
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if tail := p[len(p)-i:]; utf8.RuneStart(tail[0]) && !utf8.FullRune(tail) {
			whole -= i
			break
		}
	}
	switch {
	case whole > 0 && isText(p[:whole]):
		return Output{Text: string(p[:whole])}, whole
	case whole == 0 && !last:
		return Output{}, 0
	}
	return Output{Base64: base64.StdEncoding.EncodeToString(p)}, len(p)
}

// isText reports whether bytes can be sent as text. NUL, which JSON escapes
// with six bytes, is a sign of binary data.
func isText(p []byte) bool { return utf8.Valid(p) && bytes.IndexByte(p, 0) < 0 }

// readResult returns how the command ended, with the beginning of its output.
func (r *execReader) readResult() (ExecResult, error) {
	st, _ := r.command.log.State()
	out := ExecResult{ExecEnd: r.command.end()}
	for i, to := range []*Output{&out.Output.Stdout, &out.Output.Stderr} {
		p := make([]byte, min(st.Kept[i], resultBytes))
		if _, err := r.output.ReadAt(i, p, 0); err != nil {
			return out, err
		}
		out.Output.Elided = out.Output.Elided || st.Kept[i] > resultBytes
		if isText(p) {
			to.Text = string(p)
		} else {
			to.Base64 = base64.StdEncoding.EncodeToString(p)
		}
	}
	return out, nil
}
