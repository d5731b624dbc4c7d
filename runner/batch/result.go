package batch

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
)

// Outcome is how a trial ended.
type Outcome string

// The outcomes. Passed, Failed and Limit are the agent's, and what rates count. The others
// are in no denominator: Infrastructure is a fault of the machine, the sandbox or the
// provider, Suspect a verdict that the agent may not have earned, and Unsupported a task that
// can't be run here. Cancelled is a trial that was interrupted, and NotRun one that a limit on
// all trials together ended. Both have no result and run again.
const (
	Passed         Outcome = "passed"
	Failed         Outcome = "failed"
	Limit          Outcome = "limit" // a limit ended the agent, and the verifier did not pass
	Infrastructure Outcome = "infrastructure"
	Suspect        Outcome = "suspect" // the verifier failed twice for reasons that are not the agent's
	Cancelled      Outcome = "cancelled"
	NotRun         Outcome = "not_run"
	Unsupported    Outcome = "unsupported"
)

// Judged reports whether rates count the outcome.
func (o Outcome) Judged() bool { return o == Passed || o == Failed || o == Limit }

// Class is the reason of an outcome that is not plainly passed or failed.
type Class string

// The classes of faults of the infrastructure. A sandbox that is lost, can't be replaced or can't
// be set up once a command of the agent has run is the agent's failure, with the same class.
const (
	ImageUnavailable  Class = "image"         // the image could not be built, found or unpacked
	SandboxStart      Class = "sandbox_start" // a sandbox could not start
	SandboxLost       Class = "sandbox_lost"  // a sandbox disappeared
	Provider          Class = "provider"      // the model's provider failed
	ProviderAuth      Class = "provider_auth" // the provider refused the key, which ends the batch
	Ceiling           Class = "ceiling"       // the use of a day or month reached its bound, which ends the batch
	RecordsUnwritable Class = "records"       // what happened could not be written
	Environment       Class = "environment"   // the task's environment did not become healthy, or could not be set up
	Machine           Class = "machine"       // anything else that the machine did not do
)

// The classes of failed trials: why there is no reward.
const (
	AgentFailed       Class = "agent_failed"      // the agent gave up or was stuck, and the verifier did not pass
	SolutionFailed    Class = "solution_failed"   // the oracle's solution had another exit status than 0, and the verifier did not pass
	StateUnreadable   Class = "state_unreadable"  // what the agent left could not be collected or brought to the verifier
	RewardMissing     Class = "reward_missing"    // the verifier wrote no reward
	RewardEmpty       Class = "reward_empty"      // its file is empty
	RewardUnparsable  Class = "reward_unparsable" // its file is no number, or no object of numbers
	VerifierTimeout   Class = "verifier_timeout"  // the verifier reached its time twice
	MinRewardNotMet   Class = "min_reward"        // a step stayed below its least reward
	VerifierCrashed   Class = "verifier_crashed"  // the verifier's sandbox ended by what ran in it, or its files could not be collected
	UnverifiedOutcome Class = "unverified"        // the task has no verifier
)

// The classes of suspect trials: why the verifier failed. VerifierTimeout is one too, if the
// agent was [Oracle].
const (
	VerifierNetwork Class = "verifier_network" // its connections failed
	VerifierLimit   Class = "verifier_limit"   // it reached a limit of memory or disk
)

// Fault is one failed try of a trial for a reason of the infrastructure.
type Fault struct {
	Class Class  `json:"class"`
	Cause string `json:"cause"`
}

// Result is the result of one trial: a line of results.jsonl, and result.json of its
// directory. For example:
//
//	{"schema_version":1,"task":"hello","agent":"oracle","attempt":1,"outcome":"passed","reward":1,…}
type Result struct {
	SchemaVersion int `json:"schema_version"` // 1
	Key
	// Name is the name of the trial's directory below trials.
	Name     string `json:"trial"`
	Checksum string `json:"task_checksum"`
	// Model is provider/model of the agent, "" for oracle and nop.
	Model   string  `json:"model,omitempty"`
	Outcome Outcome `json:"outcome"`
	Class   Class   `json:"class,omitempty"`
	// Cause explains Class for people.
	Cause string `json:"cause,omitempty"`
	// Reward decides whether the trial has passed: 1 or more is a pass. It is nil
	// without one. Rewards are all that the verifier wrote.
	Reward  *float64           `json:"reward,omitempty"`
	Rewards map[string]float64 `json:"rewards,omitempty"`
	Steps   []StepResult       `json:"steps,omitempty"`
	// Limit is the limit that ended the agent, even if the verifier passed.
	Limit string `json:"limit,omitempty"`
	// LeftOut names the agent's files that were not kept or not brought to the verifier,
	// such as symlinks that lead out. With steps, they are in Steps.
	LeftOut []string `json:"left_out,omitempty"`
	// Faults are tries before this result that failed by the infrastructure, and, if
	// Outcome is Infrastructure, the last one too.
	Faults []Fault `json:"faults,omitempty"`

	Started  time.Time `json:"started_at"`
	Finished time.Time `json:"finished_at"`
	// Times are milliseconds of the parts: environment, agent, verifier.
	Times map[string]int64 `json:"times_ms,omitempty"`

	Usage   limits.Usage `json:"usage,omitzero"`
	CostUSD string       `json:"cost_usd,omitempty"` // decimal, or "unknown"

	// Sessions are the ids of the sessions of the agent and the verifiers.
	Sessions []string `json:"sessions,omitempty"`
	Image    string   `json:"image,omitempty"` // the id of the environment's image
	Backend  string   `json:"backend,omitempty"`

	// fault is the error of an outcome of the infrastructure.
	fault error
}

// StepResult is the result of one step of a task with steps.
type StepResult struct {
	Name    string             `json:"name"`
	Rewards map[string]float64 `json:"rewards,omitempty"`
	Class   Class              `json:"class,omitempty"`
	Cause   string             `json:"cause,omitempty"`
	Limit   string             `json:"limit,omitempty"`
	LeftOut []string           `json:"left_out,omitempty"`
}

// costMicroUSD returns the cost of a result in millionths of a dollar, and whether it is
// known.
func (r Result) costMicroUSD() (int64, bool) {
	if r.Usage.CostMicroUSD == nil {
		return 0, r.Model == ""
	}
	return *r.Usage.CostMicroUSD, true
}

// setUsage sets what a session used.
func (r *Result) setUsage(u limits.Usage) {
	r.Usage, r.CostUSD = u, record.CostUSD(u.CostMicroUSD)
}
