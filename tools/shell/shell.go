package shell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Name is the shell tool's canonical name.
const Name = tools.NameShell

// DefaultTimeout is the default of [Options].Timeout, from the dispatcher
// specification.
const DefaultTimeout = 10 * time.Minute

// Options configures the tools of this package. The zero value is useful.
type Options struct {
	// Timeout is both the maximum and default timeout of a command. It is at least
	// 1 s; zero means [DefaultTimeout].
	Timeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL. It must match the runner's.
	// Zero means 5 s.
	Grace time.Duration
	// Mount is the workspace's path in the container; "" means "/workspace".
	// HostRoot is its path on the host. If set, working directories may be given
	// below it.
	Mount, HostRoot string
	Network         bool
	// Background runs background commands. If nil, they are not offered.
	Background Background
	// View reads the workspace, so that an approval can cover a command's directory
	// and scripts. If nil, approvals cover neither.
	View workspace.View
}

// New returns a factory for a shell tool that runs its commands with r. It returns
// an error if r is nil or the options are invalid.
func New(r commandRunner, opts Options) (tools.Factory, error) {
	s, err := newShellTool(r, opts)
	if err != nil {
		return nil, err
	}
	return func() tools.Tool {
		one := *s
		return &one
	}, nil
}

func newShellTool(r commandRunner, opts Options) (*shellTool, error) {
	opts.Timeout = cmp.Or(opts.Timeout, DefaultTimeout)
	opts.Grace = cmp.Or(opts.Grace, sandbox.DefaultGrace)
	opts.Mount = cmp.Or(opts.Mount, sandbox.WorkspaceDir)
	switch {
	case r == nil:
		return nil, errors.New("make shell tool: no runner")
	case opts.Timeout < time.Second:
		return nil, fmt.Errorf("make shell tool: timeout is %v, must be at least 1s", opts.Timeout)
	case opts.Grace < 0:
		return nil, fmt.Errorf("make shell tool: grace is %v, must not be negative", opts.Grace)
	}
	return &shellTool{runner: r, opts: opts, def: newDefinition(opts)}, nil
}

type shellTool struct {
	runner commandRunner
	opts   Options
	def    tools.Definition
}

type input struct {
	Command    string `json:"command"`
	Timeout    int64  `json:"timeout_seconds"`
	Dir        string `json:"cwd"`
	Background bool   `json:"background"`
	Terminal   bool   `json:"terminal"`
	// Description is for people, who see it in the input.
	Description string `json:"description"`
}

func newDefinition(opts Options) tools.Definition {
	seconds := int64(opts.Timeout / time.Second)
	aliases := map[string]string{
		"cmd": "command", "script": "command", "timeout": "timeout_seconds",
		"workdir": "cwd", "working_directory": "cwd", "dir_path": "cwd",
	}
	background := ""
	if opts.Background != nil {
		background = `,
    "background": {"type": "boolean", "description": "Start the command, such as a server, and return a handle at once. It runs until it ends or the session does, or for timeout_seconds if you give it."},
    "terminal": {"type": "boolean", "description": "Only with background: run on a terminal of 24 rows and 80 columns, for programs that ask questions or draw a screen. Type with shell_input."}`
		aliases["run_in_background"], aliases["is_background"] = "background", "background"
	}
	schema := fmt.Sprintf(`{
  "type": "object",
  "properties": {
    "command": {"type": "string", "minLength": 1, "description": "The command line or script, run by a fresh shell."},
    "timeout_seconds": {"type": "integer", "minimum": 1, "maximum": %d, "description": "Seconds, not milliseconds, after which the command is stopped; %d when left out."},
    "cwd": {"type": "string", "description": "The folder to run in, relative to the workspace; the workspace itself when left out."},
    "description": {"type": "string", "maxLength": 1000, "description": "What the command is for, in a few words; it changes nothing."}%s
  },
  "required": ["command"],
  "additionalProperties": false
}`, seconds, seconds, background)
	return tools.Definition{
		Name:             Name,
		Description:      describeTool(opts),
		InputSchema:      json.RawMessage(schema),
		Class:            tools.ClassExecute,
		Runs:             tools.PlaceSandbox,
		Timeout:          opts.Timeout + opts.Grace + sandbox.StopTime,
		Aliases:          aliases,
		Paths:            inputPaths,
		Summary:          inputCommand,
		Commands:         approvalCommands,
		EnabledByDefault: true,
	}
}

func describeTool(opts Options) string {
	network := "without network"
	if opts.Network {
		network = "with the network access that the operator allowed,"
	}
	text := "Runs a shell command in the session's sandbox, a container " + network + " whose workspace is " + opts.Mount + ". " +
		"Each call gets a fresh shell (bash if there is one, else sh): files stay, variables and the current folder don't. " +
		"Standard input is empty. Whatever a command leaves running is killed when it ends. The result gives the exit code " +
		"first, then standard output and standard error apart; of long output you get the beginning and the end. " +
		"Usually, only the workspace, /tmp and the home folder can be written."
	if opts.Background != nil {
		text += " Use background for a command that must keep running, such as a server. It runs until it ends, shell_kill ends it, " +
			"or the session ends. shell_output returns its output so far."
	}
	return text
}

func (s *shellTool) Definition() tools.Definition { return s.def }

// Project returns the command's directory and the workspace scripts that it names.
// An approval covers them besides the command's text.
func (s *shellTool) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	var in input
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return tools.Projection{}, fmt.Errorf("decode shell input: %w", err)
	}
	return s.projectCommand(ctx, in.Dir, in.Command)
}

func (s *shellTool) projectCommand(ctx context.Context, cwd, command string) (tools.Projection, error) {
	if s.opts.View == nil {
		return tools.Projection{}, nil
	}
	dir, ok := s.containerDir(cwd)
	if !ok {
		return tools.Projection{}, fmt.Errorf("cwd %q is outside the workspace", cwd)
	}
	rel := path.Join(".", strings.TrimPrefix(dir, s.opts.Mount))
	return policy.ProjectCommands(ctx, s.opts.View, strings.TrimPrefix(rel, "/"), []string{command})
}

// Execute runs the command. If the command fails, times out or is killed, Success
// is false and there is no error. An error means an invalid or cancelled call, or a
// sandbox failure.
func (s *shellTool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	var in input
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return tools.Output{}, fmt.Errorf("decode shell input: %w", err)
	}
	cmd, err := s.newCommand(in)
	if err != nil {
		return tools.Output{}, err
	}
	// The user approved this exact directory, so refuse symlinks in its path.
	cmd.NoLinks = call.Asked && in.Dir != ""
	cmd.CallID = call.ID
	if in.Terminal && !in.Background {
		return tools.Output{}, refusalError("bad_input", "The command did not run: terminal needs background; give background too.")
	}
	if in.Background {
		if in.Terminal {
			cmd.Terminal = &sandbox.Terminal{TerminalSize: sandbox.TerminalSize{Rows: 24, Columns: 80}}
			cmd.Variables = []string{"TERM=" + TerminalKind}
		}
		if in.Timeout == 0 {
			cmd.Timeout = 0
		}
		return s.startBackground(ctx, cmd, in.Command)
	}
	return s.runForeground(ctx, call, cmd, in.Command)
}

// runForeground runs a command to its end. shown is the command for people and
// records.
func (s *shellTool) runForeground(ctx context.Context, call *tools.Call, cmd Command, shown string) (tools.Output, error) {
	stdout, stderr := newLiveWriter("stdout", call.Delta), newLiveWriter("stderr", call.Delta)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	result, err := s.runner.Run(ctx, cmd)
	stdout.close()
	stderr.close()
	text, cut := formatReport(result, cmd.Timeout, call.ResultBytes)
	out := tools.Output{
		Content:   []tools.Block{{Text: text}},
		Success:   result.succeeded(),
		Command:   shown,
		Metadata:  resultMetadata(result),
		Truncated: cut,
	}
	switch {
	case err != nil && ctx.Err() == nil:
		out.Success = false
		return out, fmt.Errorf("run command: %w", err)
	case ctx.Err() != nil || result.Status.Cancelled:
		return out, cancelledError(ctx, text, err)
	}
	return out, nil
}

func cancelledError(ctx context.Context, partial string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(err, cause)
	}
	return &tools.Error{
		Class:   tools.ErrorCancelled,
		Message: "The command was cancelled.",
		Visible: true,
		Partial: partial,
		Err:     err,
	}
}

func (s *shellTool) newCommand(in input) (Command, error) {
	if strings.ContainsRune(in.Command, 0) {
		return Command{}, refusalError("nul", "The command holds a NUL byte, which no shell can run.")
	}
	if len(in.Command) > MaxScriptBytes {
		return Command{}, refusalError("too_long", fmt.Sprintf(
			"The command is %d bytes, at most %d can be run; write it to a file and run that.", len(in.Command), MaxScriptBytes))
	}
	dir, ok := s.containerDir(in.Dir)
	if !ok {
		return Command{}, &tools.Error{
			Class: tools.ErrorPermissionDenied, Reason: "workspace_escape", Visible: true,
			Message: fmt.Sprintf("cwd %q is outside the workspace.", in.Dir),
		}
	}
	timeout := s.opts.Timeout
	if in.Timeout > 0 && in.Timeout < int64(timeout/time.Second) {
		timeout = time.Duration(in.Timeout) * time.Second
	}
	return Command{Script: in.Command, Command: sandbox.Command{Dir: dir, Timeout: timeout}}, nil
}

// containerDir returns the path of a working directory in the container, and
// whether its name is inside the workspace. The runner resolves symlinks.
func (s *shellTool) containerDir(cwd string) (string, bool) {
	if strings.ContainsRune(cwd, 0) {
		return "", false
	}
	if root := s.opts.HostRoot; root != "" && root != s.opts.Mount && isBelow(path.Clean(cwd), root) {
		cwd = path.Join(s.opts.Mount, strings.TrimPrefix(path.Clean(cwd), root))
	}
	if !path.IsAbs(cwd) {
		cwd = path.Join(s.opts.Mount, cwd)
	}
	cwd = path.Clean(cwd)
	return cwd, isBelow(cwd, s.opts.Mount)
}

func isBelow(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

func refusalError(reason, message string) error {
	return &tools.Error{Class: tools.ErrorExecution, Reason: reason, Message: message, Visible: true}
}

func inputPaths(raw json.RawMessage) []string {
	var in input
	if err := json.Unmarshal(raw, &in); err != nil || in.Dir == "" {
		return nil
	}
	return []string{in.Dir}
}

func inputCommand(raw json.RawMessage) string {
	var in input
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	return in.Command
}

// approvalCommands returns the commands that lasting answers and patterns of
// dangerous commands are matched with. A command in another directory or in the
// background differs from the same words in the workspace: git status, for example,
// obeys the configuration of a directory that the model may have created. So
// another command precedes it, and no lasting answer covers both.
func approvalCommands(raw json.RawMessage) []string {
	var in input
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil
	}
	var list []string
	if in.Dir != "" && path.Clean(in.Dir) != "." {
		list = append(list, `cd "$cwd"`)
	}
	if in.Background {
		list = append(list, ": &")
	}
	return append(list, in.Command)
}

// Command is one shell command. It must not be changed while it runs.
type Command struct {
	// Script runs in bash if the image has it, else in sh. It has at most
	// [MaxScriptBytes] and no NUL.
	Script string
	// Args are the script's positional parameters. Each has at most MaxScriptBytes
	// and no NUL.
	Args []string
	// Argv is not set: the runner makes it from Script. A zero Timeout means a
	// background command without a limit. Stdout and Stderr never fail, and are nil
	// only for background commands.
	sandbox.Command
	CallID string
}

// MaxScriptBytes bounds a script. Linux accepts arguments of at most 128 KiB,
// including the NUL (MAX_ARG_STRLEN).
const MaxScriptBytes = 128<<10 - 1

// Result is the outcome of a command. The zero value is exit code 0 without output.
type Result struct {
	sandbox.Exit
	// Refused lists refused connections, and Allowed the rules of what the command
	// may reach; both are empty if nothing was refused. They are safe for display.
	Refused []Refused
	Allowed []string
	// Offline is set if the session's commands have no network.
	Offline bool
	// Notice is a sentence about the sandbox for the model, or "".
	Notice         string
	Stdout, Stderr Capture
}

// Refused is a host that a command was not connected to.
type Refused struct {
	Host   string `json:"host"` // with a port, unless only the name was looked up
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// KilledProcesses returns the number of processes that had to be killed. If the
// command left them running, it includes those that SIGTERM ended.
func (r Result) KilledProcesses() int {
	if r.Kill.AfterExit {
		return max(r.Kill.Terminated, r.Kill.Killed)
	}
	return r.Kill.Killed
}

// Capture is one output stream: its first and last bytes. The bytes between them
// were not kept.
type Capture struct {
	Head, Tail []byte
	// Total is the number of bytes written, SHA256 their hash in hex.
	Total  int64
	SHA256 string
	// Spill is a file below the session directory with the beginning of the stream,
	// up to a limit, or "" if Head and Tail are the whole stream.
	Spill string
	// Handle names the stream for the tool of [NewOutput], or is "" if that can't
	// read it.
	Handle string
}

// commandRunner runs a command to its end. Cancelling ctx ends the command and
// everything that it started; the error then wraps context.Cause(ctx). The result
// is valid even with an error. A failing command is not an error.
type commandRunner interface {
	Run(ctx context.Context, cmd Command) (Result, error)
}
