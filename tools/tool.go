package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Tool is one execution of a tool. The dispatcher makes a fresh one for each
// call, so an implementation may keep the state of its call in its fields.
type Tool interface {
	// Definition is the same for every instance and is asked once, at registration.
	Definition() Definition
	// Execute runs the call. Input has passed the schema. Cancelling ctx
	// aborts it: the tool cleans up and returns what there is, with an error
	// that wraps context.Cause(ctx). A failure that the model can fix is an
	// [Error], or an Output with Success false; any other error, and a panic,
	// becomes execution_error with a generic text and an error id.
	Execute(ctx context.Context, call *Call) (Output, error)
}

// Factory makes a fresh Tool. Registration verifies that two calls make two
// objects.
type Factory func() Tool

// Definition describes a tool to the model, to the policy and to people.
type Definition struct {
	// Name is canonical: snake_case, or server/tool.
	Name        Name
	Description string
	// InputSchema is a JSON Schema object in the subset of docs/tools.md. It may have
	// any other keyword if FullSchema is set, which only tools of a server can set:
	// registration rewrites what providers would refuse in it, and inputs are validated
	// with all of it.
	InputSchema json.RawMessage
	FullSchema  bool
	// Hash identifies what the server of a tool declares: the hex SHA-256 of it as
	// canonical JSON. Answers that hold longer than a call are bound to it. "" means
	// the hash of the name, the description and the schema for a tool of a server; one
	// of our own has none.
	Hash  string
	Class Class
	Runs  Place
	// Timeout bounds one execution from the moment it holds a slot; zero
	// means 60 s, or 600 s for execute and network (docs/internal/specification.md §4).
	Timeout time.Duration
	// ResultBytes bounds the text that the model sees; zero means
	// [DefaultResultBytes].
	ResultBytes int
	// Aliases maps other spellings of arguments, at the top level, to the
	// schema's own. Both at once are invalid.
	Aliases map[string]string
	// Paths returns the workspace paths that an input names, for the scope
	// check, the order of calls and the projected changes. Nil: none. A write
	// tool that names none excludes every call that names any.
	Paths func(input json.RawMessage) []string
	// Summary returns the one line that people see of an input, such as the
	// command; it need not be safe for display. Nil: the first path, or the
	// JSON itself.
	Summary func(input json.RawMessage) string
	// Commands returns the exact commands of an execute tool's input, in the order
	// in which they run: each is searched for danger, and a lasting approval is
	// bound to the command where there is exactly one. Nil: such a tool is
	// approved for one call or for the session.
	Commands func(input json.RawMessage) []string
	// ActsAs returns the other tools that a call with this input does the work
	// of: what a policy restricts them to binds the call too. With a nil input
	// it returns those that every call does the work of. Nil: none.
	ActsAs func(input json.RawMessage) []Name
	// Parallel lets an execute tool run beside others. Ours to set, never the model's.
	Parallel bool
	// InOrder has calls of the tool run one at a time, in the order in which they were
	// asked for, because what one does decides what the next one may do.
	InOrder bool
	// EnabledByDefault reports whether the tool is offered without being configured,
	// RequiresAdmin whether only an administrator may use it.
	EnabledByDefault bool
	RequiresAdmin    bool
}

// DefaultResultBytes bounds a result's text if its definition has no bound.
const DefaultResultBytes = 50_000

// Call is one call of one tool. It belongs to the dispatcher; a tool must not
// keep it after Execute returned.
type Call struct {
	// ID is ours: tu_ and a ULID.
	ID string
	// Name is canonical, as the model meant it; it may be unknown.
	Name Name
	// Input is a JSON object, aliases rewritten.
	Input json.RawMessage
	// InputError is set by the loop where the model's arguments were not a
	// JSON object; the dispatcher answers input_invalid without running.
	InputError string
	// Session and Turn are the ids it belongs to.
	Session, Turn string
	// ResultBytes bounds this result's text below the tool's own bound, because
	// the model's context has little room left; zero leaves it. A tool finds
	// the bound here that holds for it, never zero.
	ResultBytes int
	// Projected is [Projection].State of what was shown and approved, "" where
	// nothing was. The dispatcher sets it.
	Projected string
	// Asked reports that an answer was needed for exactly this input, and allowed
	// it: what was not shown then was not allowed. The dispatcher sets it.
	Asked bool
	// Delta reports live output; never nil, safe for concurrent use. The
	// dispatcher sets it. After Execute returned it does nothing.
	Delta func(stream, text string)
}

// Projector is implemented by a tool that can show what a call would change
// before it runs. Its instance is a fresh one and is never executed.
type Projector interface {
	// Project changes nothing. An error means that no diff can be shown; the
	// call is then asked about without one, and its State is [Unprojected] if
	// there is none beside the error. It must return when ctx ends.
	Project(ctx context.Context, call *Call) (Projection, error)
}

// Unprojected is the state of a call whose projection failed. If the call could be
// projected when it runs, it would change what no one was shown, so it must fail.
const Unprojected = "unprojected"

// Projection describes what a call would change.
type Projection struct {
	// Diff is a unified diff; it need not be safe for display.
	Diff string
	// State identifies what Diff was made from: for one file its hex SHA-256,
	// or "absent". Before the call runs, it is projected again: another State
	// asks again. The call gets it as Call.Projected, and must fail instead of
	// changing anything else than what was shown (workspace.Op.IfSHA256).
	State string
	// Covers are the workspace files, relative to it, whose content State
	// identifies although the call does not change them: a script that it runs.
	Covers []string
	// NotCovered names what else the call would run and State does not identify,
	// each a phrase: a script that is too large, "the files that make runs".
	NotCovered []string
}

// Output is the result of a tool.
type Output struct {
	Content []Block
	// Success is false for a handled failure, such as a non-zero exit status.
	Success bool
	// FilesModified are workspace-relative paths; Command is the command line that was executed.
	FilesModified []string
	Command       string
	// Metadata is the tool's own and opaque to the dispatcher; it is recorded
	// where it can be JSON of at most 64 KiB.
	Metadata map[string]any
	// Unbounded content was cut by the tool itself; Truncated records that.
	Truncated bool
}

// Block is one piece of a result: text, or an image.
type Block struct {
	Text string `json:"text,omitempty"`
	// Image holds the bytes of a picture and MediaType its type; Text is then empty.
	Image     []byte `json:"image,omitempty"`
	MediaType string `json:"media_type,omitempty"`
}

// Result is the answer to one call for the model. Every call gets one.
type Result struct {
	// CallID is the Call's ID.
	CallID  string
	Name    Name
	Content []Block
	IsError bool
	// Class is the error class where the call failed, "" where it completed
	// (with or without success) and "input_invalid" for a schema failure.
	Class ErrorClass
	// DenialReason is why a person refused the call, in their words, safe for display;
	// "" for none. It is no part of Content: no tool wrote it.
	DenialReason string
	// Output keeps what the tool reported beside its content, also after a
	// failure (files_modified).
	Output Output
	// Duration is from holding a slot to the end; zero where nothing ran.
	Duration time.Duration
}

// NewFunc returns a Factory for a tool that is one function. Each call decodes its
// input, which has passed def.InputSchema, into an In; the returned text is the
// result. run is called by several goroutines if calls run in parallel. The model
// sees an error only if it is an [Error] that is visible. The tool is enabled, and
// runs on the host unless def has another place.
func NewFunc[In any](def Definition, run func(ctx context.Context, in In) (text string, err error)) Factory {
	def.EnabledByDefault = true
	if def.Runs == "" {
		def.Runs = PlaceHost
	}
	return func() Tool { return &funcTool[In]{def, run} }
}

type funcTool[In any] struct {
	def Definition
	run func(ctx context.Context, in In) (string, error)
}

// Definition implements [Tool].
func (t *funcTool[In]) Definition() Definition { return t.def }

// Execute implements [Tool].
func (t *funcTool[In]) Execute(ctx context.Context, call *Call) (Output, error) {
	var in In
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return Output{}, fmt.Errorf("decode %s input: %w", t.def.Name, err)
	}
	text, err := t.run(ctx, in)
	if err != nil {
		return Output{}, err
	}
	return Output{Content: []Block{{Text: text}}, Success: true}, nil
}

// Class is the highest side effect that a tool is capable of: by capability,
// not by typical usage (docs/internal/specification.md §5.3).
type Class string

// The classes, lowest first, as they are written on the wire.
const (
	ClassNone    Class = "none"    // pure computation
	ClassRead    Class = "read"    // reads the workspace
	ClassWrite   Class = "write"   // changes files of the workspace
	ClassExecute Class = "execute" // runs arbitrary code
	ClassNetwork Class = "network" // changes external state
)

// Place is where a tool runs.
type Place string

// The places. What writes workspace files or executes code must run in the
// sandbox, or its registration fails.
const (
	PlaceHost    Place = "host"
	PlaceSandbox Place = "sandbox"
	// PlaceState is state of Caisson's own on the host, outside every workspace:
	// for the tools of stateTools alone, which name no path.
	PlaceState Place = "state"
)

// Valid reports whether c is one of the classes.
func (c Class) Valid() bool {
	switch c {
	case ClassNone, ClassRead, ClassWrite, ClassExecute, ClassNetwork:
		return true
	}
	return false
}

func (p Place) isValid() bool { return p == PlaceHost || p == PlaceSandbox || p == PlaceState }

// Names of the tools whose restrictions also bind the tools that do their work;
// see [Definition].ActsAs.
const (
	NameShell Name = "shell"

	NameSearchTools Name = "search_tools"
	NameLoadTool    Name = "load_tool"
	NameReadFile    Name = "read_file"
	NameWriteFile   Name = "write_file"
	NamePatchFile   Name = "patch_file"
	NameDeleteFile  Name = "delete_file"
)

// stateTools are the tools that keep state of ours on the host. None of them can
// reach a file of a workspace: a test of the layers holds that.
func stateTools() []Name { return []Name{"memory_add", "memory_replace", "memory_consolidate"} }

// Errors that end the run instead of travelling in a result; a tool, or the
// adapter that it calls, returns one that wraps them, and
// [dispatch.Dispatcher].Round passes it on.
var (
	// ErrSandboxStart: the container could not be started.
	ErrSandboxStart = errors.New("sandbox could not start")
	// ErrSandboxLost: the container is gone and can't be had again.
	ErrSandboxLost = errors.New("sandbox lost")
	// ErrRecord: an event could not be recorded, so nothing more may run.
	ErrRecord = errors.New("record could not be written")
)

// ErrorClass is the closed set of the dispatcher specification, docs/internal/specification.md §6.
type ErrorClass string

// The classes of tool.failed, and the one of tool.input_invalid.
const (
	ErrorNotFound            ErrorClass = "not_found"
	ErrorValidation          ErrorClass = "validation_error"
	ErrorPermissionDenied    ErrorClass = "permission_denied"
	ErrorUserDenied          ErrorClass = "user_denied"
	ErrorTimeout             ErrorClass = "timeout"
	ErrorExecution           ErrorClass = "execution_error"
	ErrorCancelled           ErrorClass = "cancelled"
	ErrorConfirmationTimeout ErrorClass = "confirmation_timeout"
)

// Error is a failure that the model is told about in its own words. The zero
// value is not useful.
type Error struct {
	Class ErrorClass
	// Reason tells causes of one class apart: "mode_deny",
	// "no_approver", "workspace_escape", …; it is recorded.
	Reason string
	// Message is for the model: what is wrong and what would help.
	Message string
	// Visible allows Message to be shown; otherwise the model gets a
	// generic text with an error id, and Message and Err go to the log.
	Visible bool
	// Partial is the output until the failure, bounded.
	Partial string
	// Err is the cause, for the log.
	Err error
}

// Error returns the message, or the class if there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Class)
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
