package batch

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
)

// Outcome is how a trial ended.
type Outcome string

// The outcomes. Passed, Failed and Limit are the agent's, and only these count in
// rates. Infrastructure is a fault of the machine, the sandbox or the provider, Suspect
// a verdict that the agent may not have earned, and Unsupported a task that can't run
// here. Cancelled (interrupted) and NotRun (ended by a limit on all trials together)
// have no result, and the trial runs again.
const (
	Passed         Outcome = "passed"
	Failed         Outcome = "failed"
	Limit          Outcome = "limit" // a limit ended the agent, and the verifier didn't pass
	Infrastructure Outcome = "infrastructure"
	Suspect        Outcome = "suspect" // the verifier failed twice, for reasons that are not the agent's
	Cancelled      Outcome = "cancelled"
	NotRun         Outcome = "not_run"
	Unsupported    Outcome = "unsupported"
)

// Judged reports whether rates count the outcome.
func (o Outcome) Judged() bool { return o == Passed || o == Failed || o == Limit }

// Class explains an outcome other than a plain pass or fail.
type Class string

// The classes of infrastructure faults. Once one of the agent's commands has run, a
// sandbox that is lost, can't be replaced or can't be set up is the agent's failure,
// with the same class.
const (
	ImageUnavailable  Class = "image"         // the image could not be built, found or unpacked
	SandboxStart      Class = "sandbox_start" // a sandbox could not start
	SandboxLost       Class = "sandbox_lost"  // a sandbox disappeared
	Provider          Class = "provider"      // the model's provider failed
	ProviderAuth      Class = "provider_auth" // the provider refused the key; ends the batch
	Ceiling           Class = "ceiling"       // a day's or month's use reached its bound; ends the batch
	RecordsUnwritable Class = "records"       // records can't be written
	Environment       Class = "environment"   // the task's environment can't be set up or isn't healthy
	Machine           Class = "machine"       // any other fault of the machine
)

// The classes of failed trials: why there is no reward.
const (
	AgentFailed       Class = "agent_failed"      // the agent gave up or was stuck, and the verifier didn't pass
	SolutionFailed    Class = "solution_failed"   // the oracle's solution failed, and the verifier didn't pass
	StateUnreadable   Class = "state_unreadable"  // the agent's files could not be collected or brought to the verifier
	RewardMissing     Class = "reward_missing"    // the verifier wrote no reward
	RewardEmpty       Class = "reward_empty"      // its file is empty
	RewardUnparsable  Class = "reward_unparsable" // its file is no number, or no object of numbers
	VerifierTimeout   Class = "verifier_timeout"  // the verifier reached its time limit
	MinRewardNotMet   Class = "min_reward"        // a step's reward was below its minimum
	VerifierCrashed   Class = "verifier_crashed"  // its sandbox ended because of what ran in it, or its files could not be collected
	UnverifiedOutcome Class = "unverified"        // the task has no verifier
)

// The classes of suspect trials: why the verifier failed. VerifierTimeout is one too if
// the agent is [Oracle].
const (
	VerifierNetwork Class = "verifier_network" // its connections failed
	VerifierLimit   Class = "verifier_limit"   // it reached a memory or disk limit
)

// Fault is an attempt that failed because of the infrastructure.
type Fault struct {
	Class Class  `json:"class"`
	Cause string `json:"cause"`
}

// Result is a trial's result, as in results.jsonl and result.json. For example:
//
//	{"schema_version":1,"task":"hello","agent":"oracle","attempt":1,"outcome":"passed","reward":1,…}
type Result struct {
	SchemaVersion int `json:"schema_version"` // 1
	Key
	// Name is the trial's directory below trials.
	Name     string `json:"trial"`
	Checksum string `json:"task_checksum"`
	// Model is provider/model, "" for oracle and nop.
	Model   string  `json:"model,omitempty"`
	Outcome Outcome `json:"outcome"`
	Class   Class   `json:"class,omitempty"`
	Cause   string  `json:"cause,omitempty"`
	// Reward is nil if there is none; 1 or more is a pass. Rewards are all that the
	// verifier wrote.
	Reward  *float64           `json:"reward,omitempty"`
	Rewards map[string]float64 `json:"rewards,omitempty"`
	Steps   []StepResult       `json:"steps,omitempty"`
	// Limit is the limit that ended the agent, even if the verifier passed.
	Limit string `json:"limit,omitempty"`
	// LeftOut names the agent's files that were not kept or not brought to the
	// verifier, such as symlinks that lead out. If there are Steps, it is in them.
	LeftOut []string `json:"left_out,omitempty"`
	// Faults are earlier attempts that the infrastructure failed, and if Outcome is
	// Infrastructure the last one too.
	Faults []Fault `json:"faults,omitempty"`

	Started  time.Time `json:"started_at"`
	Finished time.Time `json:"finished_at"`
	// Times are in milliseconds, for environment, agent and verifier.
	Times map[string]int64 `json:"times_ms,omitempty"`

	Usage   limits.Usage `json:"usage,omitzero"`
	CostUSD string       `json:"cost_usd,omitempty"` // decimal, or "unknown"

	// Sessions are the IDs of the agent's and the verifiers' sessions.
	Sessions []string `json:"sessions,omitempty"`
	Image    string   `json:"image,omitempty"` // the image's ID
	Backend  string   `json:"backend,omitempty"`

	// fault is the error if Outcome is Infrastructure.
	fault error
}

// StepResult is one step's result.
type StepResult struct {
	Name    string             `json:"name"`
	Rewards map[string]float64 `json:"rewards,omitempty"`
	Class   Class              `json:"class,omitempty"`
	Cause   string             `json:"cause,omitempty"`
	Limit   string             `json:"limit,omitempty"`
	LeftOut []string           `json:"left_out,omitempty"`
}

// costMicroUSD returns the cost in millionths of a dollar, and whether it is known.
func (r Result) costMicroUSD() (int64, bool) {
	if r.Usage.CostMicroUSD == nil {
		return 0, r.Model == ""
	}
	return *r.Usage.CostMicroUSD, true
}

func (r *Result) setUsage(u limits.Usage) {
	r.Usage, r.CostUSD = u, record.CostUSD(u.CostMicroUSD)
}
