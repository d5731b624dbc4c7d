package batch

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/batch/stats"
	"github.com/caisson-run/caisson/runner/record"
)

// Summary sums up a batch's results, as in summary.json.
type Summary struct {
	SchemaVersion int       `json:"schema_version"` // 1
	Created       time.Time `json:"created_at"`
	Backend       string    `json:"backend"`
	Attempts      int       `json:"attempts"`
	Shard         Shard     `json:"shard,omitzero"`
	// Tasks counts all tasks. Unsupported are those without trials; no rate counts
	// them.
	Tasks       int               `json:"tasks"`
	Unsupported []UnsupportedTask `json:"unsupported"`
	Agents      []AgentSummary    `json:"agents"`
	Suspects    []SuspectTrial    `json:"suspects,omitempty"`
	// DroppedCostUSD is the decimal cost of attempts without a result, or "".
	DroppedCostUSD string `json:"dropped_cost_usd,omitempty"`
}

// UnsupportedTask is a task that can't run, with the reasons.
type UnsupportedTask struct {
	Task    string   `json:"task"`
	Reasons []string `json:"reasons"`
}

// SuspectTrial is a trial that ended as [Suspect].
type SuspectTrial struct {
	Key
	Class Class  `json:"class"`
	Cause string `json:"cause"`
}

// AgentSummary sums up one agent's results.
type AgentSummary struct {
	Agent string `json:"agent"`
	Model string `json:"model,omitempty"`
	// Planned counts the trials of supported tasks, and NotRun those without a result.
	// Rates count Judged = Passed + Failed + Limit, not Infrastructure and Suspect.
	Planned        int `json:"planned"`
	NotRun         int `json:"not_run"`
	Judged         int `json:"judged"`
	Passed         int `json:"passed"`
	Failed         int `json:"failed"`
	Limit          int `json:"limit"`
	Infrastructure int `json:"infrastructure"`
	Suspect        int `json:"suspect"`
	// Classes counts the judged trials by why they have no reward or a lower one.
	// Faults counts the attempts that the infrastructure failed, including those that
	// were retried.
	Classes map[Class]int `json:"classes,omitempty"`
	Faults  map[Class]int `json:"faults,omitempty"`
	// FaultCauses has one cause for each class of faults.
	FaultCauses map[Class]string `json:"fault_causes,omitempty"`
	// JudgedTasks counts the tasks with a judged trial. PassAt1 is the mean over these
	// of the share that passed. PassAt has the unbiased estimates for more attempts,
	// each over the tasks with at least that many judged attempts.
	JudgedTasks int             `json:"judged_tasks"`
	PassAt1     Rate            `json:"pass@1"`
	PassAt      map[string]Rate `json:"pass@k,omitempty"`
	// MeanReward is the mean of judged trials. Without a reward they count as 0.
	MeanReward *float64 `json:"mean_reward,omitempty"`

	Usage limits.Usage `json:"usage,omitzero"`
	// CostUSD is the decimal sum of the known costs. CostUnknown counts the trials with
	// an unknown cost.
	CostUSD     string `json:"cost_usd,omitempty"`
	CostUnknown int    `json:"cost_unknown,omitempty"`
	// MedianMS is the median time of judged trials, and TotalMS the total of all.
	MedianMS int64 `json:"median_ms"`
	TotalMS  int64 `json:"total_ms"`
}

// Rate is a mean over tasks with its 95 % interval. Without tasks, all are absent.
type Rate struct {
	Value *float64 `json:"value,omitempty"`
	Low   *float64 `json:"low,omitempty"`
	High  *float64 `json:"high,omitempty"`
	Tasks int      `json:"tasks"`
}

func newRate(values []float64, interval stats.Interval) Rate {
	r := Rate{Tasks: len(values)}
	if len(values) > 0 {
		r.Value = new(stats.Mean(values))
	}
	if interval.Known() {
		r.Low, r.High = &interval.Low, &interval.High
	}
	return r
}

// Summarize sums up results. Those of tasks and attempts that the batch no longer has don't
// count.
func Summarize(s Spec, results []Result) Summary {
	has := map[string]bool{}
	for _, t := range s.Tasks {
		has[t.ID] = true
	}
	results = slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return !has[r.Task] || r.Attempt > s.Attempts })
	s = s.supportTried(results)
	out := Summary{SchemaVersion: 1, Created: s.Created, Backend: s.Backend, Attempts: s.Attempts, Shard: s.Shard, Tasks: len(s.Tasks), Unsupported: []UnsupportedTask{}, Agents: []AgentSummary{}}
	for _, t := range s.Tasks {
		if len(t.Unsupported) > 0 {
			out.Unsupported = append(out.Unsupported, UnsupportedTask{t.ID, t.Unsupported})
		}
	}
	if s.DroppedMicroUSD > 0 {
		out.DroppedCostUSD = record.CostUSD(&s.DroppedMicroUSD)
	}
	for _, r := range results {
		if r.Outcome == Suspect && slices.Contains(s.Agents, r.Agent) {
			out.Suspects = append(out.Suspects, SuspectTrial{r.Key, r.Class, r.Cause})
		}
	}
	slices.SortFunc(out.Suspects, func(a, b SuspectTrial) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Attempt, b.Attempt))
	})
	for _, agent := range s.Agents {
		out.Agents = append(out.Agents, summarizeAgent(s, agent, results))
	}
	return out
}

func summarizeAgent(s Spec, agent string, results []Result) AgentSummary {
	a := AgentSummary{Agent: agent, Planned: plannedTrials(s, agent), Classes: map[Class]int{}, Faults: map[Class]int{}, FaultCauses: map[Class]string{}}
	var times, rewards []float64
	var cost int64
	byTask := map[string][]Result{}
	for _, r := range results {
		if r.Agent != agent {
			continue
		}
		a.Model = cmp.Or(r.Model, a.Model)
		a.countResult(r)
		took := r.Finished.Sub(r.Started)
		a.TotalMS += took.Milliseconds()
		if micro, known := r.costMicroUSD(); known {
			cost += micro
		} else {
			a.CostUnknown++
		}
		if !r.Outcome.Judged() {
			continue
		}
		times = append(times, float64(took.Milliseconds()))
		reward := 0.0
		if r.Reward != nil {
			reward = *r.Reward
		}
		rewards = append(rewards, reward)
		byTask[r.Task] = append(byTask[r.Task], r)
	}
	a.NotRun = max(0, a.Planned-a.Judged-a.Infrastructure-a.Suspect)
	if a.Model != "" {
		a.CostUSD = record.CostUSD(&cost)
	}
	if len(times) > 0 {
		a.MedianMS, a.MeanReward = int64(math.Round(stats.Median(times))), new(stats.Mean(rewards))
	}
	a.JudgedTasks = len(byTask)
	a.setRates(byTask)
	return a
}

func plannedTrials(s Spec, agent string) int {
	n := 0
	for _, t := range s.Tasks {
		for attempt := 1; attempt <= s.Attempts && len(t.Unsupported) == 0; attempt++ {
			if s.Shard.Contains(Key{t.ID, agent, attempt}) {
				n++
			}
		}
	}
	return n
}

func (a *AgentSummary) countResult(r Result) {
	switch r.Outcome {
	case Passed:
		a.Passed++
	case Failed:
		a.Failed++
	case Limit:
		a.Limit++
	case Infrastructure:
		a.Infrastructure++
	case Suspect:
		a.Suspect++
	}
	if r.Outcome.Judged() {
		a.Judged++
		if r.Class != "" {
			a.Classes[r.Class]++
		}
	}
	for _, f := range r.Faults {
		a.Faults[f.Class]++
		a.FaultCauses[f.Class] = cmp.Or(a.FaultCauses[f.Class], f.Cause)
	}
	a.Usage = a.Usage.Plus(r.Usage) // without a cost; see CostUSD
}

// setRates sets pass@1, and pass@k for powers of two and for the most attempts.
func (a *AgentSummary) setRates(byTask map[string][]Result) {
	most, one := 0, true
	for _, list := range byTask {
		most = max(most, len(list))
		one = one && len(list) == 1
	}
	rates := func(k int) []float64 {
		var values []float64
		for _, list := range byTask {
			if len(list) >= k {
				values = append(values, stats.PassAtK(len(list), countPassed(list), k))
			}
		}
		slices.Sort(values) // so that the map's order doesn't affect the sum
		return values
	}
	first := rates(1)
	a.PassAt1 = newRate(first, stats.RateInterval(first, one))
	for k := 2; k <= most; k *= 2 {
		a.setPassAt(k, rates(k))
	}
	if most > 1 {
		a.setPassAt(most, rates(most))
	}
}

func (a *AgentSummary) setPassAt(k int, values []float64) {
	if a.PassAt == nil {
		a.PassAt = map[string]Rate{}
	}
	a.PassAt[strconv.Itoa(k)] = newRate(values, stats.RateInterval(values, false))
}

func countPassed(list []Result) int {
	n := 0
	for _, r := range list {
		if r.Outcome == Passed {
			n++
		}
	}
	return n
}

// WriteSummary writes summary.json to a batch's directory and returns its content.
func WriteSummary(dir string, s Spec, results []Result) (Summary, error) {
	out := Summarize(s, results)
	return out, writeJSON(filepath.Join(dir, SummaryFile), out)
}
