package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Name is the tool's canonical name.
const Name = tools.NameShell

// DefaultTimeout bounds a command that asks for no shorter time: 600 s, as seed
// 002 gives execute tools.
const DefaultTimeout = 10 * time.Minute

// defaultGrace is the grace period where Options name none: seed 002's 5 s.
const defaultGrace = 5 * time.Second

// stopMargin is what the dispatcher waits beyond the command's own timeout and
// its grace period, so that the command's always strikes first: it is for the
// kill and its proof.
const stopMargin = 10 * time.Second

// Options configure the tool. The zero value is useful.
type Options struct {
	// Timeout bounds one command, and is what a command gets that asks for
	// none; zero means [DefaultTimeout]. At least a second.
	Timeout time.Duration
	// Grace is what a command that is stopped has between SIGTERM and SIGKILL,
	// as whoever runs it knows it; zero means 5 s.
	Grace time.Duration
	// Mount is the workspace's path in the container; "" means "/workspace".
	// HostRoot is its path on the host, under which absolute folders are
	// accepted too; "" accepts none.
	Mount, HostRoot string
	// Environment says in a sentence or two what the model finds in the
	// sandbox (system, toolchains, limits); it is added to the description.
	Environment string
	// ResultBytes bounds the text for the model; zero means
	// [tools.DefaultResultBytes].
	ResultBytes int
	// Background runs commands that outlive their call; nil offers none.
	Background Background
	// View reads the workspace, so that an approval can cover the directory and
	// the scripts of a command; nil covers neither.
	View workspace.View
}

// New gives the factory of the shell tool over whatever runs its commands. It
// fails for options that can't work.
func New(r commandRunner, opts Options) (tools.Factory, error) {
	if r == nil {
		return nil, errors.New("make shell tool: no runner")
	}
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Timeout < time.Second {
		return nil, fmt.Errorf("make shell tool: timeout is %v, must be at least 1s", opts.Timeout)
	}
	if opts.Grace < 0 {
		return nil, fmt.Errorf("make shell tool: grace is %v, must not be negative", opts.Grace)
	}
	if opts.Grace == 0 {
		opts.Grace = defaultGrace
	}
	if opts.Mount == "" {
		opts.Mount = "/workspace"
	}
	if opts.ResultBytes == 0 {
		opts.ResultBytes = tools.DefaultResultBytes
	}
	def := newDefinition(opts)
	return func() tools.Tool { return &shellTool{runner: r, opts: opts, def: def} }, nil
}

// shell is one execution of the tool.
type shellTool struct {
	runner commandRunner
	opts   Options
	def    tools.Definition
}

// input is the tool's input after aliases were rewritten.
type input struct {
	Command string `json:"command"`
	Timeout int64  `json:"timeout_seconds"`
	Dir     string `json:"cwd"`
	// Background starts the command and returns at once.
	Background bool `json:"background"`
	// Description is what the model says of its command; people see it in the
	// input, and it changes nothing.
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
    "background": {"type": "boolean", "description": "Start the command, such as a server, and return a handle at once; it then runs on, without timeout_seconds for as long as the session."}`
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
		Timeout:          opts.Timeout + opts.Grace + stopMargin,
		ResultBytes:      opts.ResultBytes,
		Aliases:          aliases,
		Paths:            inputPaths,
		Summary:          inputCommand,
		Commands:         approvalCommands,
		EnabledByDefault: true,
	}
}

func describeTool(opts Options) string {
	text := "Runs a shell command in the session's sandbox, a container without network whose workspace is " + opts.Mount + ". " +
		"Each call gets a fresh shell (bash where there is one, else sh): variables, the current folder and background " +
		"processes don't last from one call to the next, files do. Standard input is empty. Whatever a command leaves " +
		"running is killed when it ends. The result gives the exit code first, then standard output and standard error " +
		"apart; of long output you get the beginning and the end. Only the workspace, /tmp and the home folder can be written."
	if opts.Background != nil {
		text += " What has to run on, such as a server, is started with background: such a command is on its own until it ends, " +
			"shell_kill ends it, or the session ends; shell_output gives its output so far."
	}
	if opts.Environment != "" {
		text += " " + opts.Environment
	}
	return text
}

// Definition describes the tool.
func (s *shellTool) Definition() tools.Definition { return s.def }

// Project returns what an approval covers beside the command's text: its
// directory, and the scripts of the workspace that it names.
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
	return tools.ProjectCommands(ctx, s.opts.View, strings.TrimPrefix(rel, "/"), []string{command}) //nolint:wrapcheck // as it is
}

// Execute runs the command. A command that fails, times out or is killed has
// an Output without success; an error is a cancellation or the sandbox's own.
func (s *shellTool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	var in input
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return tools.Output{}, fmt.Errorf("decode shell input: %w", err)
	}
	cmd, err := s.newCommand(in)
	if err != nil {
		return tools.Output{}, err
	}
	// The directory was approved by its name, and by what it was.
	cmd.NoLinks = call.Asked && in.Dir != ""
	cmd.CallID = call.ID
	if in.Background {
		if in.Timeout == 0 {
			cmd.Timeout = 0
		}
		return s.startBackground(ctx, cmd, in.Command)
	}
	return s.runForeground(ctx, call, cmd, in.Command)
}

// runs runs a command to its end; asked is how it is told and recorded.
func (s *shellTool) runForeground(ctx context.Context, call *tools.Call, cmd Command, shown string) (tools.Output, error) {
	stdout, stderr := newLiveWriter("stdout", call.Delta), newLiveWriter("stderr", call.Delta)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	result, err := s.runner.Run(ctx, cmd)
	stdout.close()
	stderr.close()
	text, cut := formatReport(result, cmd.Timeout, resultRoom(s.opts.ResultBytes, call))
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
	case ctx.Err() != nil || result.Cancelled:
		return out, cancelledError(ctx, text, err)
	}
	return out, nil
}

// room is what a result may have: the tool's own bound, or less where the
// model's context has little left.
func resultRoom(toolLimit int, call *tools.Call) int {
	if call.ResultBytes > 0 {
		return min(toolLimit, call.ResultBytes)
	}
	return toolLimit
}

// cancelled is the failure of a command that was stopped from outside.
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

// command turns an input into what is run.
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
	return Command{Script: in.Command, Dir: dir, Timeout: timeout}, nil
}

// dir gives the working folder in the container, by its name alone: whether
// links lead out is for who opens it.
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

// paths gives the one path that an input names, for the scope check.
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

// commands are what lasting answers and patterns of dangerous commands see. In
// another folder, or running on, a command is another one: git status obeys what
// a folder's configuration says, and that folder the model may have made. So a
// word about it stands before, and no lasting answer covers the two.
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
