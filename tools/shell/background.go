package shell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// KillName is the canonical name of the tool that ends a background command.
const KillName tools.Name = "shell_kill"

// Background runs commands that outlive the call that started them. Methods are
// safe for concurrent use.
type Background interface {
	// Begin starts a command and returns its handle once it runs. Cancelling ctx
	// ends the command before that, and has no effect afterwards. A Command.Timeout
	// of zero means none. The error wraps [ErrTooMany] if no more commands may be
	// started.
	Begin(ctx context.Context, cmd Command) (handle string, err error)
	// End ends a command and everything that it started, with SIGTERM, the grace
	// period and SIGKILL, and waits until nothing is left. Cancelling ctx ends only
	// the wait. If the command had ended before, endedBefore is true. For an
	// unknown handle End returns [ErrNoOutput].
	End(ctx context.Context, handle string) (r Ended, endedBefore bool, err error)
	// Type types into a command's terminal and waits until it has shown nothing for a
	// while. Cancelling ctx ends only the wait. The error is [ErrNoOutput] for an
	// unknown handle, [ErrNoTerminal], or a [tools.Error].
	Type(ctx context.Context, handle string, in Typing) (Shown, error)
	// Typed returns Typing.State of the last input, the zero Typed before one and
	// for an unknown handle.
	Typed(handle string) Typed
}

// Ended is the outcome of a background command.
type Ended struct {
	Result
	// Lost means that the sandbox was lost too. There is no exit code then.
	Lost bool
	// Bytes counts what the command wrote to both streams.
	Bytes int64
}

// ErrTooMany is wrapped by [Background].Begin; the wrapping error has the maximum
// number.
var ErrTooMany = errors.New("too many background commands")

// startBackground starts a background command. shown is the command for people and
// records.
func (s *shellTool) startBackground(ctx context.Context, cmd Command, shown string) (tools.Output, error) {
	handle, err := s.opts.Background.Begin(ctx, cmd)
	switch {
	case ctx.Err() != nil && err != nil:
		return tools.Output{Command: shown}, cancelledError(ctx, "", err)
	case errors.Is(err, ErrTooMany):
		return tools.Output{}, refusalError("too_many_background", formatSentence(err.Error())+" End one with shell_kill first.")
	case err != nil:
		return tools.Output{Command: shown}, fmt.Errorf("start background command: %w", err)
	}
	text := fmt.Sprintf("started in the background: %s\n%s gives its output so far and says whether it still runs, %s ends it. It ends with the session at the latest.\n",
		handle, OutputName, KillName)
	if cmd.Terminal != nil {
		text = fmt.Sprintf("started on a terminal: %s\n%s types and shows what is new, %s ends it. It ends with the session at the latest.\n", handle, InputName, KillName)
	}
	return tools.Output{
		Content: []tools.Block{{Text: text}}, Success: true, Command: shown,
		Metadata: map[string]any{"background": handle},
	}, nil
}

func formatSentence(s string) string {
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// NewKill returns a factory for the tool that ends a background command of
// opts.Background. It uses only that option and Grace.
func NewKill(opts Options) tools.Factory {
	return tools.NewTool(killDefinition(opts.Grace), killTool{opts.Background}.execute)
}

func killDefinition(grace time.Duration) tools.Definition {
	return tools.Definition{
		Name: KillName,
		Description: "Ends a background command that shell started: everything that it started gets SIGTERM, what is left after a grace period " +
			"SIGKILL. The result says how it ended, and that nothing of it is left. Its output stays readable with shell_output.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "handle": {"type": "string", "minLength": 1, "maxLength": 200, "description": "The handle from the result of the shell call."}
  },
  "required": ["handle"],
  "additionalProperties": false
}`),
		Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Timeout: cmp.Or(grace, sandbox.DefaultGrace) + sandbox.StopTime,
		Aliases:          handleAliases(),
		Summary:          outputSummary,
		EnabledByDefault: true,
	}
}

func handleAliases() map[string]string {
	return map[string]string{"id": "handle", "shell_id": "handle", "bash_id": "handle", "job_id": "handle", "session_id": "handle", "task_id": "handle"}
}

type killTool struct{ background Background }

func (k killTool) execute(ctx context.Context, _ *tools.Call, in outputInput) (tools.Output, error) {
	r, endedBefore, err := k.background.End(ctx, in.Handle)
	switch {
	case errors.Is(err, ErrNoOutput):
		return tools.Output{}, refusalError("unknown_handle", fmt.Sprintf("This session has no background command with the handle %q.", in.Handle))
	case ctx.Err() != nil && err != nil:
		return tools.Output{}, cancelledError(ctx, "", err)
	case err != nil:
		return tools.Output{}, fmt.Errorf("end background command: %w", err)
	}
	return tools.Output{
		Content: []tools.Block{{Text: r.killText(in.Handle, endedBefore)}}, Success: r.Kill.Left == 0,
		Metadata: map[string]any{"background": in.Handle, "exit_code": r.Status.Code, "signal": r.Status.Signal, "killed": r.KilledProcesses(), "left": r.Kill.Left, "lost": r.Lost},
	}, nil
}

func (r Ended) killText(handle string, endedBefore bool) string {
	var b strings.Builder
	b.WriteString(handle)
	switch {
	case endedBefore:
		b.WriteString(" had ended before: " + r.State())
	default:
		b.WriteString(" was ended: " + r.State())
	}
	fmt.Fprintf(&b, " after %s\n", formatSeconds(r.Wall))
	r.Status.Cancelled = false // the call requested it
	for _, note := range r.endNotes(0) {
		b.WriteString(note + "\n")
	}
	switch {
	case r.Lost:
		b.WriteString("Nothing of it is left: the sandbox it ran in is gone.\n")
	case r.Kill.Left == 0:
		b.WriteString("Nothing of it is left.\n")
	}
	fmt.Fprintf(&b, "It wrote %s; %s reads them.\n", limits.FormatCount(int(r.Bytes), "byte"), OutputName)
	return b.String()
}

// State describes the outcome in a few words.
func (r Ended) State() string {
	if r.Lost {
		return "lost with its sandbox"
	}
	text := r.exitText()
	if cause := r.Cause(); cause != "" {
		text += " (" + cause + ")"
	}
	return text
}
