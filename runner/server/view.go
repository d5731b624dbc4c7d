package server

import (
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// State is the state of a session.
type State string

// The first three states are of sessions of this server:
//
//	idle ⇄ running ─▶ closing ─▶ ended
const (
	StateIdle    State = "idle"
	StateRunning State = "running"
	StateClosing State = "closing"
	StateEnded   State = "ended"
	// StateInterrupted is a session whose process died, so its records have no
	// end.
	StateInterrupted State = "interrupted"
	// StateElsewhere is a session of another running Caisson of the same user.
	// Its records can be followed here, and nothing else.
	StateElsewhere State = "elsewhere"
)

// NewSession is a client's request for a session. Fields that are left out are
// taken from the server's configuration. No field can be less strict than that.
type NewSession struct {
	Workspace string         `json:"workspace" minLength:"1" maxLength:"4096" doc:"directory that the agent works on: absolute, or relative to the only root; it must be at or below a root of the server"`
	Title     string         `json:"title,omitempty" maxLength:"400" doc:"a short title for lists; by default the first message"`
	Model     string         `json:"model,omitempty" maxLength:"200" doc:"the name of a model in the server's configuration"`
	Policy    string         `json:"policy,omitempty" enum:"strict,readonly,default,sandboxed,ci" doc:"preset that is applied on top of the server's policy, which it can only make stricter"`
	Mode      string         `json:"mode,omitempty" enum:"bind,overlay,copy" doc:"how the workspace is mounted; overlay and copy leave it untouched until changes are applied"`
	Image     string         `json:"image,omitempty" maxLength:"1000" doc:"root filesystem: the server's own, or one that its configuration lists"`
	Skills    string         `json:"skills,omitempty" enum:"all,user,off" doc:"skills that the model can load: all, user (without the workspace's) or off; no more than the server's configuration allows"`
	Limits    *SessionLimits `json:"limits,omitempty"`
}

// ResumeSession has the settings that a client changes in a resumed session.
// The workspace and mode stay. The model, image and stricter policy also stay
// unless the client names others.
type ResumeSession struct {
	Model  string         `json:"model,omitempty" maxLength:"200" doc:"the name of a model in the server's configuration; by default the session's"`
	Policy string         `json:"policy,omitempty" enum:"strict,readonly,default,sandboxed,ci" doc:"preset that is applied on top of the server's policy; by default the session's last one"`
	Image  string         `json:"image,omitempty" maxLength:"1000" doc:"root filesystem; by default the session's"`
	Skills string         `json:"skills,omitempty" enum:"all,user,off" doc:"as for a new session; by default the server's"`
	Limits *SessionLimits `json:"limits,omitempty" doc:"by default the server's"`
}

// TurnLimits are limits that a client requests for a turn. A limit above the
// session's or the server's is refused.
type TurnLimits struct {
	Rounds         *int64   `json:"max_rounds,omitempty" minimum:"1" doc:"model calls in a turn"`
	ToolCalls      *int64   `json:"max_tool_calls,omitempty" minimum:"1" doc:"tool calls in a turn"`
	Tokens         *int64   `json:"max_tokens,omitempty" minimum:"1" doc:"input and output tokens in a turn"`
	CostUSD        *float64 `json:"max_cost_usd,omitempty" minimum:"0.000001" maximum:"1000000000" doc:"US dollars that a turn may cost, by the price of its model in the server's configuration"`
	TimeoutSeconds *int64   `json:"timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"wall time of a turn"`
}

// TotalLimits are limits that a client requests for all turns of a session
// together. A limit above the server's is refused.
type TotalLimits struct {
	ToolCalls      *int64   `json:"max_tool_calls,omitempty" minimum:"1" doc:"tool calls in the session"`
	Tokens         *int64   `json:"max_tokens,omitempty" minimum:"1" doc:"input and output tokens in the session"`
	CostUSD        *float64 `json:"max_cost_usd,omitempty" minimum:"0.000001" maximum:"1000000000" doc:"US dollars that the session may cost, by the price of its model in the server's configuration"`
	TimeoutSeconds *int64   `json:"timeout_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"wall time of the session, from when it was opened"`
}

// SessionLimits are limits that a client requests for a session: for each turn,
// for all turns together, and for the sandbox. A limit above the server's is
// refused.
type SessionLimits struct {
	TurnLimits

	Session        *TotalLimits `json:"session,omitempty" doc:"limits of all turns together"`
	MemoryBytes    *int64       `json:"memory_bytes,omitempty" minimum:"1" doc:"memory of the sandbox"`
	MilliCPUs      *int64       `json:"milli_cpus,omitempty" minimum:"1" doc:"processors of the sandbox, in thousandths"`
	PIDs           *int64       `json:"pids,omitempty" minimum:"1" doc:"processes and threads in the sandbox"`
	CommandSeconds *int64       `json:"command_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"wall time of one command"`
}

// Session is a session, live or ended.
type Session struct {
	ID        string        `json:"id" example:"ses_01KAJ6N8YV8QZ6W4T0F6P3E9RC"`
	State     State         `json:"state" enum:"idle,running,closing,ended,interrupted,elsewhere"`
	Title     string        `json:"title"`
	Begun     time.Time     `json:"begun"`
	Last      *time.Time    `json:"last_record,omitempty" doc:"when the last record was written, for sessions that are not live here"`
	Client    string        `json:"client,omitempty" doc:"who started it, as in its records" example:"http:alice"`
	Workspace string        `json:"workspace"`
	Mode      string        `json:"mode" doc:"bind, overlay or copy"`
	Backend   string        `json:"backend"`
	Image     string        `json:"image"`
	Model     string        `json:"model" doc:"none for a sandbox without a model"`
	Policy    string        `json:"policy"`
	Turn      string        `json:"turn,omitempty" doc:"the running turn"`
	Spent     *limits.Usage `json:"turn_usage,omitempty" doc:"what the running turn's model calls have used so far"`
	Turns     *int          `json:"turns,omitempty" doc:"turns so far; absent if the records have no end and the session is not live here"`
	Usage     limits.Usage  `json:"usage" doc:"of the turns that have ended"`
	CostUSD   string        `json:"cost_usd" doc:"decimal US dollars, or unknown"`
	Waiting   int           `json:"waiting" doc:"confirmations waiting for an answer"`
	Seq       int64         `json:"seq" doc:"the number of the last record"`

	Unfinished bool `json:"unfinished,omitempty" doc:"the last turn of a resumed session has no end: a turn with continue continues it, and a message cancels it"`

	Over   string `json:"over,omitempty" doc:"why a live session takes no more turns"`
	Reason string `json:"stop_reason,omitempty" doc:"how an ended session ended"`
	Exit   *int   `json:"exit_status,omitempty"`
	// Only answers about one session have the rest.
	Problem     *Failure             `json:"problem,omitempty" doc:"what went wrong with an ended session"`
	LastTurn    *Turn                `json:"last_turn,omitempty"`
	Attestation *sandbox.Attestation `json:"attestation,omitempty" doc:"of the container"`
	Restarts    int                  `json:"restarts,omitempty"`
	Resources   *record.Resources    `json:"resources,omitempty"`
	Budget      *record.Budget       `json:"budget,omitempty" doc:"limits of each turn"`
	Total       *record.Budget       `json:"session_budget,omitempty" doc:"limits of all turns together"`
	Left        []string             `json:"left,omitempty" nullable:"false" doc:"what could not be removed"`
}

// Failure describes why a session failed, for people.
type Failure struct {
	Cause string `json:"cause"`
	Hint  string `json:"hint"`
}

// TurnState is the state of a turn.
type TurnState string

// The states of a turn.
const (
	TurnRunning TurnState = "running"
	TurnEnded   TurnState = "ended"
	// TurnInterrupted is a turn whose process died.
	TurnInterrupted TurnState = "interrupted"
)

// Turn is one turn of a session.
type Turn struct {
	ID     string    `json:"id" example:"trn_01KAJ6N8YV8QZ6W4T0F6P3E9RC"`
	State  TurnState `json:"state" enum:"running,ended,interrupted"`
	Reason string    `json:"stop_reason,omitempty" example:"answered"`
	Answer string    `json:"answer,omitempty"`
	// Truncated reports that a limit ended the turn, or that the provider cut
	// the answer.
	Truncated bool          `json:"truncated,omitempty"`
	Limit     *record.Limit `json:"limit,omitempty"`
	Usage     *limits.Usage `json:"usage,omitempty"`
	CostUSD   string        `json:"cost_usd,omitempty"`
	WallMS    int64         `json:"wall_ms,omitempty"`
}

// Confirmation is a call that waits for an answer. InputHash binds the answer
// to the input that is shown.
type Confirmation struct {
	ID          string           `json:"id" doc:"128 random bits, in hex"`
	Turn        string           `json:"turn"`
	CallID      string           `json:"tool_use_id"`
	Name        tools.Name       `json:"tool_name"`
	Class       tools.Class      `json:"side_effects" enum:"none,read,write,execute,network"`
	Seq         int              `json:"seq" doc:"counts the questions of the session, in the order of the calls"`
	Runs        tools.Place      `json:"runs" enum:"host,sandbox" doc:"where it would run"`
	Summary     string           `json:"summary" doc:"the call in one line, safe to show"`
	Display     string           `json:"display" doc:"the input, safe to show; if it is long, without its middle"`
	Exact       any              `json:"input" doc:"the exact input: never print it to a terminal as it is"`
	InputHash   string           `json:"input_hash" doc:"hex SHA-256 of the canonical JSON of the input"`
	Projected   []string         `json:"projected_modifications" nullable:"false" doc:"paths that would change, safe to show"`
	Diff        string           `json:"diff,omitempty" doc:"what would change, as a unified diff, safe to show"`
	Dangerous   string           `json:"dangerous,omitempty" doc:"the part of the command that the policy calls dangerous, safe to show"`
	Phrase      string           `json:"phrase,omitempty" doc:"the exact command that an answer with scope always would cover, safe to show"`
	Elided      bool             `json:"diff_elided,omitempty" doc:"the middle of the diff is left out; input is whole"`
	Notices     []string         `json:"notices,omitempty" doc:"facts about the input that are easily overlooked, such as letters that look like others; safe to show"`
	Covers      []string         `json:"covers,omitempty" doc:"workspace files whose content the answer covers; it covers nothing else that a command reads"`
	Hidden      bool             `json:"hidden_characters,omitempty" doc:"the input, a path or the diff has invisible characters; they are shown as escapes"`
	Changed     bool             `json:"changed,omitempty" doc:"it was asked before, and the file has changed since"`
	Description string           `json:"description,omitempty" doc:"what the server says about its tool, safe to show; don't trust it"`
	Definition  string           `json:"definition,omitempty" doc:"hex SHA-256 of the tool's definition, to which an answer for more than this call is bound"`
	Redefined   bool             `json:"redefined,omitempty" doc:"the tool was allowed before, with another definition"`
	Admin       bool             `json:"requires_admin,omitempty" doc:"only the role admin may allow it"`
	Session     string           `json:"session_words" doc:"what an answer with scope session covers, in words"`
	Lasting     string           `json:"always_words" doc:"what an answer with scope always covers, in words"`
	Scopes      []approval.Scope `json:"scopes" nullable:"false" doc:"how long an answer may last"`
	Expires     time.Time        `json:"expires_at" doc:"when it is refused automatically"`
}

// ConfirmationList lists a session's open confirmations, the oldest first.
type ConfirmationList struct {
	Confirmations []Confirmation `json:"confirmations" nullable:"false"`
}

// Note is a path with a remark.
type Note = record.PathNote

// Answer is a client's answer to a confirmation.
type Answer struct {
	Decision approval.Decision `json:"decision" enum:"allow,deny"`
	Scope    approval.Scope    `json:"scope,omitempty" enum:"once,session,always" doc:"how long it lasts: this call (default), this tool for the session, or this workspace, which needs the role admin; a scope that the confirmation does not offer counts as once"`
	Reason   string            `json:"reason,omitempty" maxLength:"1000" doc:"why it is denied, in your words, which the model is told; only with deny"`
}

// Resolution is the recorded outcome of a confirmation.
type Resolution struct {
	Confirmation string            `json:"id"`
	Turn         string            `json:"turn"`
	CallID       string            `json:"tool_use_id"`
	Decision     approval.Decision `json:"decision" enum:"allow,deny,timeout"`
	Scope        approval.Scope    `json:"scope,omitempty"`
	By           string            `json:"by" doc:"user, timeout, or cancel" example:"user"`
	Client       string            `json:"client,omitempty" doc:"the client that answered" example:"http:alice"`
	Reason       string            `json:"reason,omitempty" doc:"why it was denied, as the model is told"`
}

const titleRunes = 120

// displayTitle returns the first line of a text, safe to display, cut to
// titleRunes.
func displayTitle(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	safe, _ := tools.Display(line)
	if runes := []rune(safe); len(runes) > titleRunes {
		return string(runes[:titleRunes]) + "…"
	}
	if more {
		safe += " …"
	}
	return safe
}

// setFacts sets the fields that the first record has.
func (v *Session) setFacts(c record.SessionCreated, whole bool) {
	v.Workspace = c.Workspace
	v.Mode = c.WorkspaceMode
	v.Backend = c.Backend.Chosen
	v.Image = c.Image
	v.Model = c.Model.String()
	v.Policy = c.Policy
	v.Client = c.Client
	if whole {
		v.Resources, v.Budget = &c.Resources, &c.Budget
		if c.SessionBudget != (record.Budget{}) {
			v.Total = &c.SessionBudget
		}
	}
}

func turnView(r runner.TurnReport) Turn {
	return Turn{
		ID: r.Turn, State: TurnEnded, Reason: string(r.Reason), Answer: r.Answer, Truncated: r.Truncated, Limit: r.Limit,
		Usage: &r.Usage, CostUSD: r.CostUSD, WallMS: r.WallMS,
	}
}
