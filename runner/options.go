package runner

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/bridge"
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
	// Dir is from [sessiondir.Create] or [sessiondir.Reopen]. It must stay open until the
	// session is closed.
	Dir *sessiondir.Dir
	// Task is the user's request. [Run] needs it for a new session. For [Open] it only
	// describes the session in its first record.
	Task string
	// User starts the session and the turns of [Session.Start].
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

	// Facts for session.created: the program's version, the configuration used and
	// not used, and the sandboxes of dead sessions that were removed.
	Version string
	Sources []record.Source
	Ignored []record.Ignored
	Removed []sandbox.Orphan
	// Warnings are recorded after session.created.
	Warnings []string

	// from is where a fork begins, nil for other sessions.
	from *forkPoint
	// continues refuses to open a session whose last turn can't be continued.
	continues bool
}

// SandboxOptions configures the sandbox of a session.
type SandboxOptions struct {
	// Backend makes the sandbox; Choice records how it was chosen.
	Backend sandbox.Creator
	Choice  record.BackendChoice
	// Setup is common to all sandboxes. The session sets its Service.Watch.
	sandbox.Setup
	// ImageName is the image's name as the user wrote it; the default is Image's scheme.
	ImageName string
	// Submounts are the accepted mounts inside the workspace.
	Submounts []string
	// Mode is how the workspace is mounted; the zero value is bind. In overlay and copy mode
	// the workspace doesn't change, and changes are kept in the session's directory.
	Mode sandbox.WorkspaceMode
	// CopyBytes and CopyEntries bound what copy mode sends. Zero means the defaults of
	// [sandbox.Workspace].
	CopyBytes, CopyEntries int64
	// NoCheckpoints leaves the changes of a copy in the sandbox until the session's end, so
	// that losing the sandbox ends the session. Otherwise changes are collected while the
	// model works, and a fresh sandbox continues from there.
	NoCheckpoints bool
	// NoDiffs omits diffs in bind mode, so that files need not be copied at the start. A
	// file rewritten with the same content then counts as changed, unless a program on the
	// host would run or obey it.
	NoDiffs bool
	// Target is the workspace's path in the container; empty means [sandbox.WorkspaceDir].
	Target string
	// Apply applies an overlay session's changes at its end if the model answered, no call
	// was refused for lack of an approver, all checks passed and the sandbox is gone.
	Apply bool
	// Mounts are the user's directories, from [OpenMounts]. Writable ones are protected like
	// the workspace, and are not possible in overlay and copy mode.
	Mounts []sandbox.Mount
	// Caches are the build tools' caches.
	Caches CacheOptions
	// Egress configures what commands may reach.
	Egress EgressOptions
	// Env are variables for commands, see [sandbox.Spec]. Records have only their names.
	// Secret values must also be in Options.Secrets.
	Env []string
	// MaxCommandTime bounds the time of users' commands, which may ask for more than
	// Resources.CommandTime; zero means no bound.
	MaxCommandTime time.Duration
	// RefuseLost refuses a sandbox whose attestation lists lost protections.
	RefuseLost bool

	// startOnDemand starts the sandbox when a call needs it instead of during the first
	// model call. Forks and tests set it.
	startOnDemand bool
}

// CacheOptions configures a session's caches. The zero value has none.
type CacheOptions struct {
	// Store holds the caches; it is required if Caches isn't empty.
	Store  *caches.Store
	Caches []caches.Cache
	// Use is how commands use the caches; the zero value means [caches.Writable]. A session
	// that judges another's work must not see what that session wrote there: use
	// [caches.Frozen] or [caches.None].
	Use caches.Use
}

func (o CacheOptions) enabled() bool { return len(o.Caches) > 0 && o.Use != caches.None }

// isOverlay reports whether the session works on an overlay or a copy.
func (o SandboxOptions) isOverlay() bool { return o.Mode.KeepsChanges() }

func (o SandboxOptions) mountPoint() string { return sandbox.Workspace{Target: o.Target}.MountPoint() }

func (o SandboxOptions) workspaceMode() string {
	return string(cmp.Or(o.Mode, sandbox.ModeBind))
}

// abandonTime returns how long to wait for a cancelled call: 30 s, or longer if that would
// leave the guest less than 25 s after the grace period to end a command.
func (o SandboxOptions) abandonTime() time.Duration {
	return max(dispatch.DefaultAbandon, cmp.Or(o.Grace, sandbox.DefaultGrace)+25*time.Second)
}

// ModelOptions configures the model of a session, its messages and its budgets.
type ModelOptions struct {
	// Profiles are the models that answer; without any, the session only takes calls.
	Profiles []loop.Profile
	// Bridge lets commands ask models, in a session without Profiles; nil doesn't. The
	// session sets its Ledger and Call. The limits of tokens and cost of Budget and
	// SessionBudget bound all requests together; see UserCommand.EndAtLimit.
	Bridge *bridge.Options
	// Budget bounds each turn; a nil field is no limit.
	Budget limits.Budget
	// SessionBudget bounds all turns together; wall time counts from Open. A turn gets at most
	// the rest, and none starts once nothing is left. A nil field is no limit. Rounds are
	// bounded per turn.
	SessionBudget limits.Budget
	// Ledger holds ceilings per day and month; nil for none. The caller closes it after the
	// session.
	Ledger *ledger.Ledger
	// Instructions are the operator's, added to the system prompt. InstructionTexts are
	// added too, and their sources recorded.
	Instructions     string
	InstructionTexts []InstructionText
	// InstructionFiles adds the workspace's AGENTS.md, or else CLAUDE.md, to the first turn,
	// as data wrapped like tool results. It is read once, by Open.
	InstructionFiles bool
	// TrustedInstructions are the workspace's instruction files that the user trusts, with
	// their hashes. Files that still match are added to the system prompt instead, including
	// files in directories below the root.
	TrustedInstructions []approval.TrustedFile
	// Canary marks the system prompt with a token. If an answer or a call repeats it, it is
	// replaced and a warning recorded.
	Canary bool
}

// InstructionText is one text of operator instructions.
type InstructionText struct {
	// Source is the text's origin, such as a path.
	Source string
	Text   string
}

func (o ModelOptions) modelInfo() loop.ModelInfo {
	if len(o.Profiles) == 0 {
		return loop.ModelInfo{}
	}
	return o.Profiles[0].Model.Info()
}

func (o ModelOptions) profileName() string {
	if len(o.Profiles) == 0 {
		return ""
	}
	return cmp.Or(o.Profiles[0].Name, o.modelInfo().String())
}

// PolicyOptions configures what calls may do and who approves them.
type PolicyOptions struct {
	// Policy decides which calls need an approval. Broker receives the answers; if it is nil,
	// nobody can be asked and OnPrompt decides.
	Policy   policy.Policy
	Broker   *approval.Broker
	OnPrompt dispatch.OnPrompt
	// Decider rules on calls before anybody is asked; nil rules on nothing.
	Decider *approval.Decider
	// ConfirmTimeout bounds the wait for an answer; zero means
	// [dispatch.DefaultConfirmTimeout].
	ConfirmTimeout time.Duration
	// Grants keeps answers of scope always; nil does not offer that scope.
	Grants *approval.Grants
	// Concurrency bounds the tool calls that run at once; zero means
	// [dispatch.DefaultConcurrency].
	Concurrency int
}

// ToolOptions configures the tools of a session. The zero value has the built-in ones.
type ToolOptions struct {
	// Fetch configures what may be fetched; the zero value allows nothing.
	Fetch FetchOptions
	// Memory keeps notes about the workspace; nil offers none.
	Memory *memory.Store
	// Skills configures where to look for skills; the zero value has none.
	Skills SkillOptions
	// Workers configures the tools that ask other models; the zero value has none.
	Workers WorkerOptions
	// MCP configures the MCP servers.
	MCP MCPOptions
	// Declared are the operator's own tools, which run commands in the sandbox.
	Declared []shell.Declared
	// Tools run in this process, and are offered after the built-in ones.
	Tools []tools.Factory
}

// WorkerOptions configures confer and coordinate, with which the model asks other models.
type WorkerOptions struct {
	// Profiles are the models that may be asked; without any, the tools are off. Their use
	// counts towards the session's limits and its ledger.
	Profiles []loop.Profile
	// Tools are the tools that the model may give them: fetch, as configured for the session,
	// and verify, on texts only.
	Tools []string
	// CostCap bounds the cost of each model with tools.
	CostCap worker.CostCap
}

// SkillOptions configures the skills of a session. [ModelOptions].TrustedInstructions lists
// the workspace's skills that are trusted like the operator's.
type SkillOptions struct {
	// Workspace looks for skills in the workspace. Dirs are the operator's directories.
	Workspace bool
	Dirs      []skill.Dir
	// Untrusted are directories whose skills reach the model as data.
	Untrusted []skill.Dir
	// CheckFile refuses files of Dirs that others could have written; nil accepts all.
	CheckFile func(path string) error
}

// Hooks connect a running session with its caller. Nil hooks do nothing.
type Hooks struct {
	// Mirror receives every record and its line, in order. The session waits for it, so it
	// must return quickly.
	Mirror func(r record.Record, line []byte)
	// Observe is a second Mirror, for exporters that get the records of all sessions, forks
	// included.
	Observe func(r record.Record, line []byte)
	// Live receives output and answers as they arrive, which are never stored. It is called
	// from several goroutines and must return at once.
	Live func(Delta)
	// Hint returns what users can do about a fault, for the records and the report. Nil means
	// [Fault.Hint].
	Hint func(Fault) string
	// Notify is told when the sandbox has to wait before it starts; see [sandbox.Spec].
	Notify func(waiting string)
	// Warner is called once with a function that records a warning, for use while the session
	// runs.
	Warner func(warn func(message string))
	// Beside runs in the background once the first record is written. The warnings that it
	// returns are recorded. The session's end waits for it.
	Beside func(ctx context.Context) []string
	// OnFork changes the options of a fork before it is opened: its model, broker, policy,
	// budgets and hooks, but not its directory, its workspace or the mode. number counts the
	// forks from 0. See [Session.Fork].
	OnFork func(number int, o *Options)
	// Force destroys the sandbox at once when closed, without waiting for commands. It may be
	// nil.
	Force <-chan struct{}
	// EndRequested is called when another process of this user asks for the session's end,
	// see [EndSession]. It must return at once and may be called again. Nil refuses, with
	// [FaultNotHeld].
	EndRequested func()

	// writeTrace and syncTrace replace [record.RecorderOptions] Write and Sync in tests.
	writeTrace func(f *os.File, line []byte) (int, error)
	syncTrace  func(f *os.File) error
}

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

// Delta is a piece of live output. It is not safe for a terminal.
type Delta struct {
	// CallID is "" for the model's answer.
	CallID string
	// Stream is stdout, stderr or answer.
	Stream string
	Text   string
}
