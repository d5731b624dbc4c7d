package runner

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/ledger"
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
	"github.com/caisson-run/caisson/tools/skill"
)

// Options configures one session. Dir, Workspace, Backend, Image and Resources are
// required.
type Options struct {
	// Dir is the session's directory, from [sessiondir.Create]. It must stay open
	// until the session is closed.
	Dir *sessiondir.Dir
	// Task is the user's request; [Run] needs it. For [Open] it describes the
	// session in its first record, and may be "".
	Task string
	// User starts the session, and the turns that [Session.Start] begins.
	User User
	// Workspace must stay open until the session is closed.
	Workspace *Workspace
	// Secrets are kept out of records and logs.
	Secrets []redact.Secret

	SandboxOptions
	ModelOptions
	PolicyOptions
	ToolOptions
	CheckOptions
	Hooks

	// Version, Sources, Ignored and Removed are facts for session.created: the
	// program's version, configuration that was used, configuration that was
	// not, and sandboxes of dead sessions that were removed.
	Version string
	Sources []record.Source
	Ignored []record.Ignored
	Removed []sandbox.Orphan
	// Warnings are recorded after session.created, such as what an image lacks.
	Warnings []string

	// from is where a fork begins, nil for other sessions.
	from *forkPoint
	// continues refuses a session whose last turn can't be continued.
	continues bool
}

// SandboxOptions configures the sandbox of a session.
type SandboxOptions struct {
	// Backend makes the sandbox; Choice records how it was chosen.
	Backend sandbox.Creator
	Choice  record.BackendChoice
	// Setup is what each sandbox has. The Watch of its Service is the session's.
	sandbox.Setup
	// ImageName is the image's name as the user wrote it; "" makes it up from Image.
	ImageName string
	// Submounts are mounts in the workspace that are accepted.
	Submounts []string
	// Mode is how the workspace is mounted; the zero value is bind. In overlay
	// and copy mode the directory is not changed, and the changes are kept in the session's
	// directory.
	Mode sandbox.WorkspaceMode
	// CopyBytes and CopyEntries bound what copy mode sends; zero means the
	// defaults of [sandbox.Workspace].
	CopyBytes, CopyEntries int64
	// NoCheckpoints leaves the changes of a copy in the sandbox until the session's
	// end, and ends a session whose sandbox is lost. Otherwise they are collected while
	// the model is asked, and a fresh sandbox goes on from there.
	NoCheckpoints bool
	// NoDiffs leaves out diffs in bind mode, and so keeps no copies of files at the start. A
	// file that a command writes again with its old content then counts as changed, unless
	// a program of the host would run or obey it.
	NoDiffs bool
	// Target is where the workspace is mounted in the container; empty means
	// sandbox.WorkspaceDir. See sandbox.Workspace.
	Target string
	// Apply applies the changes of an overlay session at its end if the model
	// answered, no call was refused for want of an approver, and the sandbox is
	// gone.
	Apply bool
	// Mounts are directories of the user that commands see, from [OpenMounts]. A
	// writable one has the protection of the workspace; in overlay mode there can be
	// none.
	Mounts []sandbox.Mount
	// Caches are the caches of build tools that commands use.
	Caches CacheOptions
	// Egress configures what commands may reach.
	Egress EgressOptions
	// Env are variables of the commands, as [sandbox.Spec] has them. Records have
	// their names. Options.Secrets must have the values that are secret.
	Env []string
	// RefuseLost refuses a sandbox whose attestation names lost protections.
	RefuseLost bool

	// startOnDemand starts the sandbox when a call needs it, and not beside the
	// first model call: of forks, and in tests.
	startOnDemand bool
}

// CacheOptions configures the caches of a session. The zero value has none.
type CacheOptions struct {
	// Store holds the caches; it is required if there are any.
	Store  *caches.Store
	Caches []caches.Cache
	// Use is how commands use them; the zero value means [caches.Writable]. A session
	// that judges the work of another must not see what that one may have written:
	// see [caches.Frozen] and [caches.None].
	Use caches.Use
}

// enabled reports whether commands use caches.
func (o CacheOptions) enabled() bool { return len(o.Caches) > 0 && o.Use != caches.None }

// isOverlay reports whether the session works on a copy-on-write view, or a copy.
func (o SandboxOptions) isOverlay() bool { return o.Mode.KeepsChanges() }

// mountPoint returns the workspace's path in the container.
func (o SandboxOptions) mountPoint() string { return sandbox.Workspace{Target: o.Target}.MountPoint() }

// workspaceMode returns the mode of the workspace as records name it.
func (o SandboxOptions) workspaceMode() string {
	return string(cmp.Or(o.Mode, sandbox.ModeBind))
}

// abandonTime returns how long to wait for a cancelled call. It is 30 s, or longer if the
// grace period would leave the guest less than 25 s to end a command.
func (o SandboxOptions) abandonTime() time.Duration {
	grace := o.Grace
	if grace == 0 {
		grace = sandbox.DefaultGrace
	}
	return max(dispatch.DefaultAbandon, grace+25*time.Second)
}

// ModelOptions configures the model of a session, its messages and its budgets.
type ModelOptions struct {
	// Profiles answer the messages of turns; none are for a session of calls alone.
	Profiles []loop.Profile
	// Budget bounds each turn; a nil field is no limit.
	Budget limits.Budget
	// SessionBudget bounds all turns together, its wall time from Open on: a turn
	// gets no more than what is left, and no turn starts when nothing is left. A
	// nil field is no limit; rounds are bounded per turn.
	SessionBudget limits.Budget
	// Ledger holds ceilings per day and month; nil has none. The caller closes it
	// after the session.
	Ledger *ledger.Ledger
	// Instructions are the operator's, added to the system prompt. InstructionTexts are
	// further ones, each with where it comes from, which is recorded.
	Instructions     string
	InstructionTexts []InstructionText
	// InstructionFiles adds the workspace's AGENTS.md, or CLAUDE.md if there is
	// none, to the first turn: as data, in the wrapper of tool results. It is read
	// once, when the session is opened.
	InstructionFiles bool
	// TrustedInstructions are the workspace's instruction files that the user trusts as
	// they were. One whose content has the hash when the session is opened is added to
	// the system prompt instead, files of directories below the root included.
	TrustedInstructions []approval.TrustedFile
	// Canary marks the system prompt with a token. Where an answer or a call repeats it,
	// it is replaced and the records have a warning.
	Canary bool
}

// InstructionText is a text of the operator's instructions.
type InstructionText struct {
	// Source is where it comes from, such as a path.
	Source string
	Text   string
}

// modelInfo returns the identity of the model, the zero value if there is none.
func (o ModelOptions) modelInfo() loop.ModelInfo {
	if len(o.Profiles) == 0 {
		return loop.ModelInfo{}
	}
	return o.Profiles[0].Model.Info()
}

// profileName returns the name of the profile that is asked first, "" if there is none.
func (o ModelOptions) profileName() string {
	if len(o.Profiles) == 0 {
		return ""
	}
	return cmp.Or(o.Profiles[0].Name, o.modelInfo().String())
}

// PolicyOptions configures what the calls of a session may do, and who approves
// them.
type PolicyOptions struct {
	// Policy decides which calls need an approval. Broker receives the answers; if
	// it is nil, no one can be asked and OnPrompt decides.
	Policy   policy.Policy
	Broker   *approval.Broker
	OnPrompt dispatch.OnPrompt
	// ConfirmTimeout is how long an answer is waited for; zero means
	// dispatch.DefaultConfirmTimeout.
	ConfirmTimeout time.Duration
	// Grants keeps answers of scope always; nil offers no such scope.
	Grants *approval.Grants
	// Concurrency is how many tool calls run at once; zero means
	// dispatch.DefaultConcurrency.
	Concurrency int
}

// ToolOptions configures the tools of a session. The zero value has the built-in
// ones.
type ToolOptions struct {
	// Fetch configures what may be fetched; the zero value allows nothing.
	Fetch FetchOptions
	// Memory keeps notes about the workspace; nil offers none.
	Memory *memory.Store
	// Skills configures where skills are looked for; the zero value has none.
	Skills SkillOptions
	// Workers configures the tools that ask models; the zero value turns them off.
	Workers WorkerOptions
	// MCP configures the servers of tools.
	MCP MCPOptions
	// Declared are the operator's own tools: commands in the sandbox.
	Declared []shell.Declared
	// Tools are offered after the built-in ones. They run in this process.
	Tools []tools.Factory
}

// WorkerOptions configures confer and coordinate, by which the model asks other models.
type WorkerOptions struct {
	// Profiles are the models that may be asked; none turn the tools off. They are
	// charged to the session: its limits and its ledger count what they use.
	Profiles []loop.Profile
	// Tools are the tools that these models may call if the model asks for it: fetch, as
	// the session has it, and verify, on texts.
	Tools []string
	// CostCap bounds the cost of each model with tools.
	CostCap worker.CostCap
}

// SkillOptions configures the skills of a session. [ModelOptions].TrustedInstructions
// has those of the workspace that count as the operator's.
type SkillOptions struct {
	// Workspace looks for skills in the workspace, Dirs are the operator's directories.
	Workspace bool
	Dirs      []skill.Dir
	// Untrusted are directories of strangers: their skills reach the model as data.
	Untrusted []skill.Dir
	// CheckFile refuses a file of Dirs that others could have written; nil accepts all.
	CheckFile func(path string) error
}

// Hooks connect a session with its caller while it runs. Nil hooks do nothing.
type Hooks struct {
	// Mirror receives every record and its line, in order. The session waits for
	// it: it must hand on and return.
	Mirror func(r record.Record, line []byte)
	// Observe is a second Mirror: for what exports the records of all sessions, forks
	// included.
	Observe func(r record.Record, line []byte)
	// Live receives what is never stored: output and answers as they arrive. It
	// is called from several goroutines and must return at once.
	Live func(Delta)
	// Hint returns what the caller's users can do about a fault; the session's
	// records and the report have it. Nil takes [Fault.Hint].
	Hint func(Fault) string
	// Notify receives what the start of the sandbox waits for, if it has to; see
	// [sandbox.Spec].
	Notify func(waiting string)
	// Warner receives, once, a function that records a warning: for what the
	// caller learns while the session runs.
	Warner func(warn func(message string))
	// Beside does what need not be done before the session begins and returns
	// warnings, which are recorded. It runs once the first record is written, beside
	// everything else, and the session's end waits for it.
	Beside func(ctx context.Context) []string
	// OnFork changes the options of a fork, whose number counts from 0, before it is
	// opened: its model, broker, policy, budgets and hooks. The directory, the
	// workspace and its mode must stay. See [Session.Fork].
	OnFork func(number int, o *Options)
	// Force, when it is closed, destroys the sandbox at once instead of
	// letting commands end; nil never does.
	Force <-chan struct{}
	// EndRequested is called when another process of this user asks for the end of the
	// session, see [EndSession]. It must return at once, and may be called again. Nil
	// refuses, with [FaultNotHeld].
	EndRequested func()

	// writeTrace and syncTrace are those of [record.RecorderOptions], for tests.
	writeTrace func(f *os.File, line []byte) (int, error)
	syncTrace  func(f *os.File) error
}

// joinMirrors returns Observe and Mirror in one.
func (h Hooks) joinMirrors() func(r record.Record, line []byte) {
	switch {
	case h.Observe == nil:
		return h.Mirror
	case h.Mirror == nil:
		return h.Observe
	}
	return func(r record.Record, line []byte) {
		h.Observe(r, line)
		h.Mirror(r, line)
	}
}

// Delta is a piece of live output. It is not made safe for a terminal.
type Delta struct {
	// CallID is "" for a piece of the model's answer.
	CallID string
	// Stream is stdout, stderr, or answer.
	Stream string
	Text   string
}
