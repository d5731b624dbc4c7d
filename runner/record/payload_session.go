package record

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
)

// SessionCreated is the first record. It describes the requested session.
//
//	{"version":"0.1.0","task":"make the test pass","workspace":"/home/me/p","workspace_target":"/workspace","workspace_mode":"bind","git":"ro","backend":{"asked":"auto","chosen":"gvisor","why":"…"},…}
type SessionCreated struct {
	Version   string `json:"version"`
	Task      string `json:"task"`
	Workspace string `json:"workspace"`
	// WorkspaceTarget is the requested mount point in the container.
	WorkspaceTarget string `json:"workspace_target"`
	// WorkspaceID identifies the directory as long as it exists. It is absent
	// if its file system does not record when it was made.
	WorkspaceID   string         `json:"workspace_id,omitempty"`
	WorkspaceMode string         `json:"workspace_mode"`
	Git           string         `json:"git"`
	Backend       BackendChoice  `json:"backend"`
	Image         string         `json:"image"`
	Root          string         `json:"root"`        // "read-only" or "ephemeral"
	UserPolicy    string         `json:"user_policy"` // "owner", "image" or "root"
	Model         loop.ModelInfo `json:"model"`
	// Profile is the name of the model's profile, or provider/model.
	Profile  string `json:"profile,omitempty"`
	Policy   string `json:"policy"`
	OnPrompt string `json:"on_prompt"`
	// Client is the label of the user who started the session, absent if
	// unknown.
	Client    string    `json:"client,omitempty"`
	Resources Resources `json:"resources"`
	Service   *Service  `json:"service,omitempty"`
	// Mounts are the user's directories, and Caches the build tools' caches,
	// that commands use.
	Mounts []Mount `json:"mounts,omitempty"`
	Caches *Caches `json:"caches,omitempty"`
	// Egress is absent if commands have no network.
	Egress *Egress `json:"egress,omitempty"`
	// Env are the names of the variables that commands get.
	Env []string `json:"env,omitempty"`
	// Budget bounds each turn, and SessionBudget all turns together.
	Budget        Budget        `json:"budget"`
	SessionBudget Budget        `json:"session_budget,omitzero"`
	Tools         []OfferedTool `json:"tools"`
	// Configuration lists the sources of settings, lowest priority first.
	// Ignored lists files that were ignored, and why.
	Configuration []Source  `json:"configuration"`
	Ignored       []Ignored `json:"ignored,omitempty"`
	// FilesLoaded are the workspace's files that the model got without asking.
	FilesLoaded []LoadedFile `json:"files_loaded"`
	// Skills are the skills that the model can load. MCPServers are the
	// configured servers, and MCPSkipped the servers that the session does
	// without, and why.
	Skills     []Skill     `json:"skills,omitempty"`
	MCPServers []MCPServer `json:"mcp_servers"`
	MCPSkipped []Ignored   `json:"mcp_skipped"`
	// Removed lists orphans of dead owners on this machine that were removed.
	Removed []sandbox.Orphan `json:"removed,omitempty"`
	// Parent is the session that this one is a fork of.
	Parent *Parent `json:"parent,omitempty"`
}

// SessionResumed reports that another process resumed the session, after the
// first was killed or the session had ended. SessionCreated has the settings as
// they are now; an attestation follows when a sandbox starts.
type SessionResumed struct {
	SessionCreated

	// Unfinished is the turn without an end. Interrupted are its calls without
	// a result; they get one that reports the interruption.
	Unfinished  string   `json:"unfinished_turn,omitempty"`
	Interrupted []string `json:"interrupted"`
	// TornBytes is the length of a torn last line, which is removed.
	TornBytes int64 `json:"torn_bytes,omitempty"`
	// Changes is the state of the changes of an overlay or a copy: kept (the
	// session continues with them), checkpoint (with the last ones that were
	// collected), applied, discarded, expired, or empty. It is absent in bind
	// mode.
	Changes string `json:"changes,omitempty"`
}

// Parent is the session of a fork, up to where it was forked: its last turn,
// its last record, and the hash of that record's line.
type Parent struct {
	Session string `json:"session"`
	Turn    string `json:"turn,omitempty"` // absent before the first turn
	Seq     int64  `json:"seq"`
	SHA256  string `json:"sha256"`
}

// Service is the requested service of the sandbox.
type Service struct {
	Program     string `json:"program"`      // "image" for the image's ENTRYPOINT and CMD
	HealthCheck string `json:"health_check"` // "image", or "configured"
	AsAgent     bool   `json:"as_agent,omitempty"`
}

// Mount is a directory of the user that commands see.
type Mount struct {
	From     string `json:"from"`
	To       string `json:"to"`
	ReadOnly bool   `json:"read_only"`
}

// Caches are the build tools' caches that commands use.
type Caches struct {
	Names []string `json:"names"` // as the user wrote them
	Use   string   `json:"use"`   // writable, frozen, none
}

// BackendChoice is the requested backend, the chosen one, and the reason.
type BackendChoice struct {
	Asked string `json:"asked"` // auto, docker, gvisor, runc
	// Chosen is "" if no call may need one, or none can start.
	Chosen string `json:"chosen"`
	Why    string `json:"why"`
}

// Source is a source of settings. SHA256 is its file's.
type Source struct {
	Name   string `json:"name"` // built-in, user, profile, environment, flags, requirements
	Path   string `json:"path,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// String returns the name, followed by the path if there is one.
func (s Source) String() string { return strings.TrimSpace(s.Name + " " + s.Path) }

// Ignored is something that was found but ignored.
type Ignored struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// OfferedTool is a tool that the session may use.
type OfferedTool struct {
	Name  tools.Name  `json:"name"`
	Class tools.Class `json:"side_effects"`
	Runs  tools.Place `json:"runs"`
}

// SandboxStarted attests the running container, before the first sandboxed
// call.
type SandboxStarted struct {
	Attestation sandbox.Attestation `json:"attestation"`
	// StartMS is the time from the request for the container to its
	// attestation.
	StartMS int64 `json:"start_ms"`
}

// SandboxLost reports that the container was lost while the session ran.
type SandboxLost struct {
	Container string `json:"container"`
	Cause     string `json:"cause"`
	// Limit is set if the container reached one of its limits.
	Limit *Limit `json:"limit,omitempty"`
	// Restarting reports that a new one is started on the same workspace.
	Restarting bool `json:"restarting"`
	// Workspace tells the model to which state a copy of the workspace returns.
	Workspace string `json:"workspace,omitempty"`
}

// SandboxRestarted attests the container that replaced one that was lost, or
// taken down for a fork.
type SandboxRestarted struct {
	Restart     int                 `json:"restart"` // from 1
	Attestation sandbox.Attestation `json:"attestation"`
	StartMS     int64               `json:"start_ms"`
}

// SessionEnded is the last record, unless the session is resumed.
//
//	{"reason":"answered","exit_status":0,"truncated":false,"usage":{…},"cost_usd":"unknown","wall_ms":4212,"attestation":{…},"changed":[{"path":"greet.sh","change":"modified",…}],…}
type SessionEnded struct {
	Reason loop.StopReason `json:"reason"`
	// ExitStatus is the exit status of a program that runs only this session.
	ExitStatus int `json:"exit_status"`
	// Answer is the model's answer to the last turn, absent if that turn has
	// none.
	Answer string `json:"answer,omitempty"`
	// Client is the label of the user who ended the session, absent if it ended
	// by itself or by a signal.
	Client    string `json:"client,omitempty"`
	Truncated bool   `json:"truncated"`
	Limit     *Limit `json:"limit,omitempty"`
	// Problem describes a failure for people.
	Problem *Problem `json:"problem,omitempty"`
	// Turns is the number of turns that were started.
	Turns int          `json:"turns,omitempty"`
	Usage limits.Usage `json:"usage"`
	// CostUSD is decimal US dollars, or "unknown".
	CostUSD string `json:"cost_usd"`
	WallMS  int64  `json:"wall_ms"`
	// Attestation is the last container's, absent if none ever ran.
	Attestation *sandbox.Attestation `json:"attestation,omitempty"`
	Restarts    int                  `json:"restarts"`
	// Changed lists the workspace's changed files, at most [MaxListed].
	// ChangedOmitted counts the rest. Incomplete reports that the workspace was
	// too large or unreadable, so the list may be incomplete.
	Changed        []Changed `json:"changed"`
	ChangedOmitted int       `json:"changed_omitted,omitempty"`
	// ChangedCount counts all changes.
	ChangedCount ChangeCount `json:"changed_count,omitzero"`
	Incomplete   bool        `json:"incomplete,omitempty"`
	// HostExecuted are changed files that programs of the host would run or
	// obey, and symlinks that lead out of the workspace: read them before
	// anything else does. HostExecutedOmitted counts the ones that are not
	// listed.
	HostExecuted        []HostExecuted `json:"host_executed"`
	HostExecutedOmitted int            `json:"host_executed_omitted,omitempty"`
	// Quarantined are repositories that appeared inside the workspace, or in
	// which git would obey something new. They were renamed so that no git of
	// the host obeys them. First come all that were not renamed, or could not
	// be read.
	Quarantined []Quarantined `json:"quarantined,omitempty"`
	// Cleared are files that would have run as their owner, or with
	// capabilities, but not when the session began.
	Cleared []Cleared `json:"cleared,omitempty"`
	// Overlay is the result of the changes in overlay mode. The workspace has
	// only the applied ones.
	Overlay *OverlayResult `json:"overlay,omitempty"`
	// PatchSHA256 is the hash of [PatchFile], absent without one.
	PatchSHA256 string   `json:"patch_sha256,omitempty"`
	Denials     []Denial `json:"denials"`
	// Verification is the result's verification. AnswerProblems tells why the
	// answer does not have the requested form. Differences tells how results of
	// tools differ from the replayed run's.
	Verification   *Verification `json:"verification,omitempty"`
	AnswerProblems []string      `json:"answer_problems,omitempty"`
	Differences    []Difference  `json:"differences,omitempty"`
	// ProcessesKilled counts processes that commands left and that were killed.
	ProcessesKilled int `json:"processes_killed"`
	// Network counts the commands' connections, absent if they have no network.
	Network *NetworkTotals `json:"network,omitempty"`
	// Bridge counts the programs' model requests, absent if they have no bridge.
	Bridge *BridgeTotals `json:"bridge,omitempty"`
	// Left lists parts of the sandbox that could not be removed.
	Left []string `json:"left,omitempty"`
}

// MaxListed bounds each list of a SessionEnded, so that the line stays short.
// report.json in the session's directory has up to 10,000 changed files, and
// 1,000 that a host would run or obey.
const MaxListed = 100

// Changed is a file that differs from the session's start.
type Changed struct {
	Path   string `json:"path"`
	Change string `json:"change"` // added, modified, deleted; in overlay mode also mode and type
	// Insertions and Deletions are lines; they are valid if HasDiff is true.
	Insertions int  `json:"insertions,omitempty"`
	Deletions  int  `json:"deletions,omitempty"`
	HasDiff    bool `json:"has_diff"`
	// Size is the size in bytes of an existing file without a diff.
	Size int64 `json:"size,omitempty"`
}

// HostExecuted is a changed file that a program of the host would run or obey,
// a deleted file that restricted one, or a symlink that leads out of the
// workspace.
type HostExecuted struct {
	Path string `json:"path"`
	// By names the program: "make", "GitHub Actions", …
	By string `json:"by"`
	// Target is where a symlink leads, if that is outside.
	Target string `json:"target,omitempty"`
	// Deleted reports that the file is gone, so that its prohibitions no longer
	// hold.
	Deleted bool `json:"deleted,omitempty"`
	Added   bool `json:"added,omitempty"`
}

// Quarantined is a directory or file that was renamed, or should have been.
type Quarantined struct {
	// Path and To are relative to the workspace; bytes that are not UTF-8 are
	// \xNN.
	Path string `json:"path"`
	To   string `json:"to,omitempty"` // "" if it was not renamed
	// Why tells why it was not renamed, or why it was, if it existed before.
	Why string `json:"why,omitempty"`
}

// String tells what happened to it.
func (q Quarantined) String() string {
	switch {
	case q.To == "":
		return q.Path + " was not renamed: " + q.Why
	case q.Why != "":
		return fmt.Sprintf("%s was renamed to %s: %s", q.Path, q.To, q.Why)
	}
	return fmt.Sprintf("%s appeared in the workspace and was renamed to %s", q.Path, q.To)
}

// Denial is a call that was refused.
type Denial struct {
	CallID string           `json:"tool_use_id"`
	Name   tools.Name       `json:"tool_name"`
	Class  tools.ErrorClass `json:"error_class"`
	Reason string           `json:"reason"`
}

// Problem is an error for people: what happened and what to do.
type Problem struct {
	Cause string `json:"cause"`
	Hint  string `json:"hint"`
}

// Cleared is a file or directory of the workspace that would have run as its
// owner, or with capabilities, but not when the session began.
type Cleared struct {
	Path         string `json:"path"`
	SetUID       bool   `json:"set_uid,omitempty"`
	SetGID       bool   `json:"set_gid,omitempty"`
	Capabilities bool   `json:"capabilities,omitempty"`
	// Why tells why they could not be cleared, absent if they were.
	Why string `json:"why,omitempty"`
}

// String names the privileges and tells what became of them.
func (c Cleared) String() string {
	var names []string
	if c.SetUID {
		names = append(names, "set-user-ID")
	}
	if c.SetGID {
		names = append(names, "set-group-ID")
	}
	if c.Capabilities {
		names = append(names, "capabilities")
	}
	what := strings.Join(names, " and ")
	if c.Why != "" {
		return fmt.Sprintf("%s has %s, which it had not when the session began, and kept: %s", c.Path, what, c.Why)
	}
	return fmt.Sprintf("%s had %s, which it had not when the session began: cleared", c.Path, what)
}

// ChangeCount counts all changes of a session, including ones that a list
// omits.
//
//	{"files":3,"insertions":14,"deletions":2,"uncounted":1}
type ChangeCount struct {
	// Files counts changed files and symlinks.
	Files int `json:"files"`
	// Insertions and Deletions count lines. Uncounted is the number of files
	// whose lines are not known.
	Insertions int `json:"insertions"`
	Deletions  int `json:"deletions"`
	Uncounted  int `json:"uncounted,omitempty"`
}

// String returns the count in the form of diff --stat.
func (n ChangeCount) String() string {
	files := limits.FormatCount(n.Files, "file") + " changed"
	if n.Files > 0 && n.Uncounted == n.Files {
		return files + ", lines not counted"
	}
	text := fmt.Sprintf("%s, %s(+), %s(-)", files, limits.FormatCount(n.Insertions, "insertion"), limits.FormatCount(n.Deletions, "deletion"))
	if n.Uncounted > 0 {
		text += fmt.Sprintf(", and %s whose lines are not counted", limits.FormatCount(n.Uncounted, "file"))
	}
	return text
}

// OverlayResult is the result of an overlay session's changes.
//
//	{"state":"kept","changes":3,"applied":0,"conflicts":[{"path":"a","why":"…"}]}
type OverlayResult struct {
	State overlay.State `json:"state"`
	// Changes counts all changes, including directories. Applied counts the
	// ones that apply brought into the workspace.
	Changes int `json:"changes"`
	Applied int `json:"applied"`
	// Conflicts are changes whose originals changed in the workspace meanwhile.
	// LeftOut are changes that apply leaves out. Failed are changes that the
	// system refused.
	Conflicts []PathNote `json:"conflicts,omitempty"`
	LeftOut   []PathNote `json:"left_out,omitempty"`
	Failed    []PathNote `json:"failed,omitempty"`
	// Omitted counts what these lists leave out.
	Omitted int `json:"omitted,omitempty"`
}

// PathNote is a path and a remark about it.
type PathNote struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Verification is how the command that verified a session's result ended. It
// ran in another session.
//
//	{"passed":false,"command":"make test","session":"ses_…","exit_code":2,"output":"FAIL …","wall_ms":4100}
type Verification struct {
	Passed  bool   `json:"passed"`
	Command string `json:"command"`
	// Session is the command's session, absent if there was none.
	Session string `json:"session,omitempty"`
	sandbox.ExitStatus
	// Output is the end of the command's output. OutputOmitted counts the bytes
	// before it.
	Output        string `json:"output,omitempty"`
	OutputOmitted int64  `json:"output_omitted,omitempty"`
	WallMS        int64  `json:"wall_ms"`
	// Error tells why the command could not run to its end.
	Error string `json:"error,omitempty"`
}

func (v Verification) String() string {
	switch {
	case v.Passed:
		return "passed"
	case v.Error != "":
		return "not run: " + v.Error
	}
	return v.ExitStatus.String()
}

// Difference is a difference between a tool's result and the replayed run's, or
// the one that the replayed script expects.
//
//	{"turn":1,"call":2,"tool_name":"shell","what":"exit_code","want":"0","got":"1"}
type Difference struct {
	Turn int        `json:"turn"` // Turn and Call count from 1
	Call int        `json:"call"`
	Tool tools.Name `json:"tool_name"`
	// What is the compared property: result, error, exit_code, contains or
	// not_contains.
	What string `json:"what"`
	// Want and Got are shortened.
	Want string `json:"want"`
	Got  string `json:"got"`
}

func (d Difference) String() string {
	return fmt.Sprintf("turn %d, call %d (%s): %s: want %q, got %q", d.Turn, d.Call, d.Tool, d.What, d.Want, d.Got)
}

// LoadedFile is a file of the workspace that the model got without asking.
//
//	{"path":"AGENTS.md","sha256":"9f86…","bytes":1200,"trust":"untrusted"}
type LoadedFile struct {
	// Path is relative to the workspace unless Trust is operator. Bytes is the
	// file's size.
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	// SHA256 is the hash of the bytes that were used: all of them, or only the
	// first if Truncated is true.
	SHA256    string `json:"sha256"`
	Truncated bool   `json:"truncated,omitempty"`
	// Trust is untrusted if anyone who can write to the workspace may have
	// written it, trusted for a file that is as it was when the user trusted
	// it, and operator for the operator's instructions, whose Path is their
	// source.
	Trust string `json:"trust"`
}

// Skill is a skill that the model can load. The metadata of the tool.completed
// that loads it also has this, with the allowed_tools that the skill declares.
//
//	{"name":"release","path":".agents/skills/release/SKILL.md","sha256":"9f86…","bytes":1200,"trust":"untrusted"}
type Skill struct {
	Name string `json:"name"`
	// Path is relative to the workspace. An operator's skill has a path for
	// display.
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	// Trust is as in [LoadedFile].
	Trust string `json:"trust"`
}
