package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Tool is one execution of a tool. The dispatcher makes a new one for each call, so
// an implementation may keep the call's state in its fields.
type Tool interface {
	// Definition must be the same for every instance. It is asked once, at
	// registration.
	Definition() Definition
	// Execute runs the call; its input has passed the schema. If ctx is cancelled,
	// the tool cleans up and returns what it has, with an error that wraps
	// context.Cause(ctx). A failure that the model can fix is an [Error], or an
	// Output with Success false. Any other error, and a panic, becomes
	// execution_error with a generic text and an error id.
	Execute(ctx context.Context, call *Call) (Output, error)
}

// Factory makes a new Tool. Registration checks that two calls make two objects.
type Factory func() Tool

// Definition describes a tool to the model, the policy and people.
type Definition struct {
	Name        Name
	Description string
	// InputSchema is a JSON Schema object in the subset of docs/tools.md. A
	// server's tool may set FullSchema to use any keyword: registration then
	// rewrites what providers refuse, and inputs are validated with the whole
	// schema.
	InputSchema json.RawMessage
	FullSchema  bool
	// Hash identifies what a tool's server declares: the hex SHA-256 of its
	// canonical JSON. Approvals that outlast a call are bound to it. "" means the
	// hash of name, description and schema. Our own tools have none.
	Hash  string
	Class Class
	Runs  Place
	// Timeout bounds one execution, not counting its wait for a slot. Zero means
	// 60 s, or 600 s for execute and network (docs/internal/specification.md §4).
	Timeout time.Duration
	// ResultBytes bounds the text that the model sees; zero means
	// [DefaultResultBytes].
	ResultBytes int
	// Aliases maps other spellings of top-level arguments to the schema's. An input
	// with both is invalid.
	Aliases map[string]string
	// Paths returns the workspace paths that an input names, for the scope check,
	// the order of calls and projected changes. A write tool without paths excludes
	// every call that has some.
	Paths func(input json.RawMessage) []string
	// Summary returns one line for people about an input, such as the command. It
	// need not be safe for display. Nil means the first path, or the JSON itself.
	Summary func(input json.RawMessage) string
	// Commands returns the exact commands of an execute tool's input, in running
	// order. Each is searched for danger. If there is exactly one, a lasting
	// approval is bound to it. If nil, calls are approved once or for the session.
	Commands func(input json.RawMessage) []string
	// Typed means that Commands are text that is typed into a terminal, so that any
	// part of it may be a command. They may depend on earlier calls, so they are
	// judged again when a call is about to run.
	Typed bool
	// ActsAs returns the other tools whose work a call with this input does: their
	// policy binds the call too. With a nil input it returns the tools whose work
	// every call does.
	ActsAs func(input json.RawMessage) []Name
	// Parallel lets an execute tool run beside others.
	Parallel bool
	// InOrder makes calls of the tool run one at a time in the order requested,
	// because one call decides what the next may do.
	InOrder bool
	// EnabledByDefault offers the tool without configuration. RequiresAdmin
	// restricts it to administrators.
	EnabledByDefault bool
	RequiresAdmin    bool
}

// DefaultResultBytes is the default [Definition].ResultBytes.
const DefaultResultBytes = 50_000

// Call is one call of one tool. The dispatcher owns it; a tool must not keep it
// after Execute returns.
type Call struct {
	// ID is tu_ and a ULID.
	ID string
	// Name is the canonical form of what the model wrote. It may be unknown.
	Name Name
	// Input is a JSON object with aliases rewritten.
	Input json.RawMessage
	// InputError is set by the loop if the model's arguments are not a JSON object.
	// The dispatcher then answers input_invalid.
	InputError    string
	Session, Turn string
	// ResultBytes, if not zero, lowers the tool's bound because the model's context
	// has little room left. Tools see the effective bound here, never zero.
	ResultBytes int
	// Projected is the [Projection].State that was shown and approved, or "". The
	// dispatcher sets it.
	Projected string
	// Asked reports that this exact input had to be approved and was, so anything
	// that was not shown is not allowed. The dispatcher sets it.
	Asked bool
	// Delta reports live output. It is never nil, is safe for concurrent use, and
	// does nothing after Execute returns. The dispatcher sets it.
	Delta func(stream, text string)
}

// Projector is implemented by tools that can show what a call would change before
// it runs. Projecting uses a new instance, which is never executed.
type Projector interface {
	// Project changes nothing. If it returns an error, the call is asked about
	// without a diff, and an empty State becomes [Unprojected]. It must return when
	// ctx ends.
	Project(ctx context.Context, call *Call) (Projection, error)
}

// Unprojected is the state of a call whose projection failed. If the call can be
// projected when it runs, it must fail: nobody was shown what it would change.
const Unprojected = "unprojected"

// Projection describes what a call would change.
type Projection struct {
	// Diff is a unified diff. It need not be safe for display.
	Diff string
	// State identifies what Diff was made from: for one file its hex SHA-256, or
	// "absent". The call is projected again before it runs, and another State asks
	// again. The call gets it as Call.Projected and must fail rather than change
	// anything else (workspace.Op.IfSHA256).
	State string
	// Covers are workspace-relative paths whose content State also identifies
	// although the call doesn't change them, such as a script that it runs.
	Covers []string
	// NotCovered are phrases for what the call would run that State doesn't
	// identify: a script that is too large, "the files that make runs".
	NotCovered []string
}

// Output is the result of a tool.
type Output struct {
	Content []Block
	Success bool
	// FilesModified are workspace-relative paths. Command is the command line that
	// ran.
	FilesModified []string
	Command       string
	// Metadata is recorded if its JSON is at most 64 KiB. The dispatcher doesn't
	// look into it.
	Metadata map[string]any
	// Truncated reports that the tool shortened its content.
	Truncated bool
}

// Block is one piece of a result: text, or an image.
type Block struct {
	Text string `json:"text,omitempty"`
	// Image is a picture of type MediaType; Text is then empty.
	Image     []byte `json:"image,omitempty"`
	MediaType string `json:"media_type,omitempty"`
}

// Result is the answer to one call. Every call gets one.
type Result struct {
	CallID  string
	Name    Name
	Content []Block
	IsError bool
	// Class is the error class, "" if the call completed, with or without success,
	// and "input_invalid" if it failed the schema.
	Class ErrorClass
	// DenialReason is why a person refused the call, in their words and safe for
	// display. It is not in Content because no tool wrote it.
	DenialReason string
	// Output keeps what the tool reported, even after a failure.
	Output Output
	// Duration excludes the wait for a slot; zero if nothing ran.
	Duration time.Duration
}

// NewFunc returns a Factory for a tool that is one function. Each call decodes its
// input, which has passed def.InputSchema, into an In; run's text is the result.
// Parallel calls run it concurrently. The model sees an error only if it is a
// visible [Error]. The tool is enabled by default, and runs on the host unless def
// says otherwise.
func NewFunc[In any](def Definition, run func(ctx context.Context, in In) (text string, err error)) Factory {
	def.EnabledByDefault = true
	if def.Runs == "" {
		def.Runs = PlaceHost
	}
	return NewTool(def, func(ctx context.Context, _ *Call, in In) (Output, error) {
		text, err := run(ctx, in)
		if err != nil {
			return Output{}, err
		}
		return Output{Content: []Block{{Text: text}}, Success: true}, nil
	})
}

// NewTool is like [NewFunc] for a function that also gets the call and returns the
// whole Output. It uses def as it is.
func NewTool[In any](def Definition, run func(ctx context.Context, call *Call, in In) (Output, error)) Factory {
	return func() Tool { return &funcTool[In]{def, run} }
}

type funcTool[In any] struct {
	def Definition
	run func(ctx context.Context, call *Call, in In) (Output, error)
}

// Definition implements [Tool].
func (t *funcTool[In]) Definition() Definition { return t.def }

// Execute implements [Tool].
func (t *funcTool[In]) Execute(ctx context.Context, call *Call) (Output, error) {
	var in In
	if err := json.Unmarshal(call.Input, &in); err != nil {
		return Output{}, fmt.Errorf("decode %s input: %w", t.def.Name, err)
	}
	return t.run(ctx, call, in)
}

// Class is the greatest side effect that a tool is capable of, not its typical one
// (docs/internal/specification.md §5.3).
type Class string

// The classes, lowest first.
const (
	ClassNone    Class = "none"    // pure computation
	ClassRead    Class = "read"    // reads the workspace
	ClassWrite   Class = "write"   // changes files of the workspace
	ClassExecute Class = "execute" // runs arbitrary code
	ClassNetwork Class = "network" // changes external state
)

// Place is where a tool runs.
type Place string

// The places. Tools that write workspace files or execute code can be registered
// only with PlaceSandbox.
const (
	PlaceHost    Place = "host"
	PlaceSandbox Place = "sandbox"
	// PlaceState is Caisson's own state on the host, outside every workspace. Only
	// the tools of stateTools have it.
	PlaceState Place = "state"
)

// Valid reports whether c is one of the classes.
func (c Class) Valid() bool {
	return slices.Contains([]Class{ClassNone, ClassRead, ClassWrite, ClassExecute, ClassNetwork}, c)
}

func (p Place) isValid() bool { return p == PlaceHost || p == PlaceSandbox || p == PlaceState }

// Names of tools that [Definition].ActsAs and other packages refer to.
const (
	NameShell Name = "shell"

	NameSearchTools Name = "search_tools"
	NameLoadTool    Name = "load_tool"
	NameReadFile    Name = "read_file"
	NameWriteFile   Name = "write_file"
	NamePatchFile   Name = "patch_file"
	NameDeleteFile  Name = "delete_file"
)

// stateTools keep state of ours on the host. A layer test holds that none of them
// can reach a workspace file.
func stateTools() []Name { return []Name{"memory_add", "memory_replace", "memory_consolidate"} }

// Errors that end the run instead of becoming a result. A tool, or an adapter it
// calls, wraps one, and [dispatch.Dispatcher].Round passes it on.
var (
	// ErrSandboxStart means that the container could not be started.
	ErrSandboxStart = errors.New("sandbox could not start")
	// ErrSandboxLost means that the container is gone for good.
	ErrSandboxLost = errors.New("sandbox lost")
	// ErrRecord means that an event could not be recorded, so nothing more may run.
	ErrRecord = errors.New("record could not be written")
)

// ErrorClass is one of the error classes of docs/internal/specification.md §6.
type ErrorClass string

// The classes of tool.failed, and of tool.input_invalid.
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

// Error is a failure for the model. The zero value is not useful.
type Error struct {
	Class ErrorClass
	// Reason distinguishes causes within a class, such as "mode_deny" or
	// "workspace_escape". It is recorded.
	Reason string
	// Message tells the model what is wrong and what would help.
	Message string
	// Visible lets the model see Message. Otherwise it gets a generic text with an
	// error id, and Message and Err are logged.
	Visible bool
	// Partial is the output before the failure, bounded.
	Partial string
	// Err is the cause.
	Err error
}

// Error returns the message, or the class if there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Class)
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }
