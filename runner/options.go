package runner

import (
	"os"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/shell"
)

// Options configures one session. Folder, Workspace, Backend, Model, Image and
// Resources are required.
type Options struct {
	// Folder is the session's, from [NewFolder]. It stays open until the session
	// is closed.
	Folder *sessiondir.Dir
	// Task is the user's request; [Run] needs it. For [Open] it is a word
	// about the session for its first record, and may be "".
	Task string
	// User is who starts the session, and the user of turns that [Session.Start]
	// begins.
	User User
	// Workspace stays open until the session is closed. Submounts are mounts in it
	// that are accepted.
	Workspace *Workspace
	Submounts []string

	// Backend makes the sandbox; Choice records how it was chosen.
	Backend   sandbox.Creator
	Choice    record.BackendChoice
	Image     images.Reference
	ImageName string // as it was written; "" makes it up from Image
	Git       sandbox.GitMode
	// Mode is how the workspace is mounted; the zero value is bind. In overlay
	// mode the folder is untouched, and what changed is kept in the session's.
	Mode sandbox.WorkspaceMode
	// Apply brings the changes of an overlay session in at its end, where the
	// model answered, no call was refused for want of an approver, and the
	// sandbox is gone.
	Apply     bool
	Resources limits.Resources
	Grace     time.Duration // zero means sandbox.DefaultGrace
	// CallerOwnsFiles accepts that new files belong to the user who runs
	// Caisson in a workspace of another user.
	CallerOwnsFiles bool
	// Notify is told what the start of the sandbox waits for, if it has to; see
	// sandbox.Spec. Nil does nothing.
	Notify func(waiting string)
	// SandboxOnDemand starts the sandbox when a call needs it, and not beside the
	// first model call: for a model that needs no time to answer.
	SandboxOnDemand bool
	// RefuseLost refuses a sandbox whose attestation names lost protections.
	RefuseLost bool

	Model loop.Model
	// MaxOutputTokens and ContextWindow are the model's; zero is unknown.
	MaxOutputTokens, ContextWindow int64
	// Budget bounds each turn; a nil field is no limit.
	Budget limits.Budget
	// SessionBudget bounds all turns together, its wall time from Open on: a turn
	// gets no more than what is left, and none is started where nothing is. A nil
	// field is no limit; rounds are each turn's.
	SessionBudget limits.Budget
	// Policy decides what is asked about; Broker gets the answers, nil where
	// there is no one to ask, and OnPrompt decides then.
	Policy   policy.Policy
	Broker   *approval.Broker
	OnPrompt dispatch.OnPrompt
	// ConfirmTimeout is how long an answer is waited for; zero means
	// dispatch.DefaultConfirmTimeout.
	ConfirmTimeout time.Duration
	// Concurrency is how many tool calls run at once; zero means
	// dispatch.DefaultConcurrency.
	Concurrency int
	// Grants keeps answers of scope always; nil offers no such scope.
	Grants *approval.Grants
	// Fetch configures what may be fetched; the zero value allows nothing.
	Fetch FetchOptions

	// Declared are the operator's own tools: commands in the sandbox.
	Declared []shell.Declared
	// Memory keeps notes about the workspace; nil offers none.
	Memory *memory.Store

	// Tools are offered after the built-in ones. They run in this process.
	Tools []tools.Factory
	// Instructions are the operator's, added to the system prompt.
	Instructions string

	// InstructionFiles adds for the model the workspace's AGENTS.md, or CLAUDE.md
	// where there is none, with the first turn: as data, in the wrapper of tool
	// results. It is read once, when the session is opened.
	InstructionFiles bool

	// Warnings are recorded after session.created, such as what an image lacks.
	Warnings []string

	// Phrase rewrites a problem for those who read the session's records; nil
	// leaves problems as they are, in words for the command line.
	Phrase func(record.Problem) record.Problem

	// Sources, Ignored and Removed are facts for session.created.
	Sources []record.Source
	Ignored []record.Ignored
	Removed []sandbox.Orphan
	// Version is the program's.
	Version string

	// Secrets reach no record and no log.
	Secrets []redact.Secret
	// Mirror gets every record and its line, in order. The session waits for
	// it: it must hand on and return. Nil does nothing.
	Mirror func(r record.Record, line []byte)
	// Live gets what is never stored: output and answers as they arrive. It
	// is called from several goroutines and must return at once. Nil does nothing.
	Live func(Delta)
	// Warner is given, once, a function that records a warning: for what the
	// caller learns while the session runs. Nil needs none.
	Warner func(warn func(message string))
	// Force, when it is closed, destroys the sandbox at once instead of
	// letting commands end; nil never does.
	Force <-chan struct{}

	// writeTrace and syncTrace are those of [RecorderOptions], for tests.
	writeTrace func(f *os.File, line []byte) (int, error)
	syncTrace  func(f *os.File) error
}

// Delta is a piece of live output. It is not made safe for a terminal.
type Delta struct {
	// CallID is "" for a piece of the model's answer.
	CallID string
	// Stream is stdout, stderr, or answer.
	Stream string
	Text   string
}

// Report is how a session ended.
type Report struct {
	Session string `json:"session"`
	// Dir is the session's folder.
	Dir string `json:"dir"`
	// SessionEnded is the content of the last record, its lists whole.
	record.SessionEnded
	// Unapproved is the number of calls that were refused because no one could
	// be asked or no answer came in time.
	Unapproved int `json:"unapproved"`
	// Signal is the number of the signal that ended it, or 0.
	Signal int `json:"signal,omitempty"`
	// Patch is a unified diff of what has one; it is also in workspace.patch.
	Patch string `json:"-"`
	// ApplyRefused reports that Options.Apply applied nothing, because of conflicts.
	ApplyRefused bool `json:"apply_refused,omitempty"`
	// Err is the cause of a bad end, for the log and errors.Is.
	Err error `json:"-"`
}
