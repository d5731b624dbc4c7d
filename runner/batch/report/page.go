package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/stats"
)

type page struct {
	head

	batch.Summary
	Version                                 string
	Agents                                  []agentRow
	Costs                                   *costPlot // nil if no cost is known
	Choice                                  *choice   // for the page that compares two agents, if there is one
	Planned, Judged, Infrastructure, NotRun int
	SuspectsTotal, SuspectsLeft             int
	Foreign                                 int // results of agents that are not in the batch
	Faults                                  []faultRow
	FaultsLeft, AgentsLeft                  int
	UnsupportedTotal, UnsupportedLeft       int
	Comparisons                             []comparison
	ByTask                                  []taskRow
	TasksLeft                               int
	Trials                                  []trialRow
	TrialsLeft                              int
	Outcomes                                []batch.Outcome
}

type agentRow struct {
	batch.AgentSummary
	Index           int
	Rate, Interval  string
	Chart           *intervalChart
	Bars            []bar
	PerTrial, Cost  string // "" for agents without a model
	Median          time.Duration
	PassAtK         []passAtK
	Reasons, Faults []classCount
}

type passAtK struct {
	K              string
	Rate, Interval string
	Tasks          int
}

type classCount struct {
	Class batch.Class
	Count int
}

// intervalChart places an interval and its middle on a scale from 0 to chartWidth.
// Label describes it if no text does; the middle of the scale is then marked.
type intervalChart struct {
	Low, Width, At float64
	Label          string
}

const chartWidth = 200

// bar is the part of an agent's trials with one outcome.
type bar struct {
	Outcome  string
	Count    int
	X, Width float64
}

// faultRow counts the attempts that the infrastructure failed for one cause.
type faultRow struct {
	Class       batch.Class
	Cause       string
	Tries, Lost int
}

type comparison struct {
	A, B, Sentence, Decided string
	stats.Comparison
	Chart                *intervalChart
	Pairs                []pairRow
	LeftOut              []batch.LeftOut
	LeftOutTotal, Differ int
	PairsLeft, TasksLeft int
	Open                 bool // unfold the tasks on which they differ
}

type pairRow struct {
	Task string
	Row  int // of the task's first trial, or -1
	A, B cell
}

type taskRow struct {
	Task  string
	Row   int // of the task's first trial, or -1
	Cells []cell
}

type trialRow struct {
	batch.Result
	Index                         int // the agent's
	Dir, Reason, RewardText, Cost string
	Took                          time.Duration
}

func newPage(s batch.Spec, results []batch.Result) *page {
	p := &page{Summary: batch.Summarize(s, results), Version: s.Version, Outcomes: outcomes}
	columns := map[string]int{}
	for i, a := range p.Summary.Agents {
		columns[a.Agent] = i
		p.Agents = append(p.Agents, newAgentRow(i, a))
		p.Planned += a.Planned
		p.Judged += a.Judged
		p.Infrastructure += a.Infrastructure
		p.NotRun += a.NotRun
	}
	slices.SortStableFunc(p.Agents, func(a, b agentRow) int { return compareRates(a.AgentSummary, b.AgentSummary) })
	own := slices.DeleteFunc(slices.Clone(results), func(r batch.Result) bool {
		_, known := columns[r.Agent]
		return !known
	})
	p.Foreign = len(results) - len(own)
	p.Costs = newCostPlot(p.Agents, own)
	slices.SortFunc(own, func(a, b batch.Result) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(columns[a.Agent], columns[b.Agent]), cmp.Compare(a.Attempt, b.Attempt))
	})
	p.Faults, p.FaultsLeft = cut(countFaults(own), maxFaults)
	p.SuspectsTotal = len(p.Suspects)
	p.Suspects, p.SuspectsLeft = cut(p.Suspects, maxFaults)
	p.UnsupportedTotal = len(p.Unsupported)
	p.Unsupported, p.UnsupportedLeft = cut(p.Unsupported, maxUnsupported)
	shown, left := cut(own, maxTrials)
	p.TrialsLeft = left
	for _, r := range shown {
		p.Trials = append(p.Trials, newTrialRow(r, columns[r.Agent]))
	}
	x := newIndex(own, len(shown))
	p.compareAgents(s, own, x)
	p.listTasks(own, x)
	return p
}

// listTasks lists tasks by agents, in the leaderboard's order. results are sorted by
// task.
func (p *page) listTasks(results []batch.Result, x index) {
	var all []taskRow
	for _, r := range results {
		if len(all) > 0 && all[len(all)-1].Task == r.Task {
			continue
		}
		row := taskRow{Task: r.Task, Row: x.row(r.Task)}
		for _, a := range p.Agents {
			row.Cells = append(row.Cells, x.cell(r.Task, a.Agent))
		}
		all = append(all, row)
	}
	p.ByTask, p.TasksLeft = cut(all, maxTasks)
}

func cut[T any](list []T, n int) ([]T, int) {
	if len(list) <= n {
		return list, 0
	}
	return list[:n], len(list) - n
}

func newAgentRow(i int, a batch.AgentSummary) agentRow {
	row := agentRow{
		AgentSummary: a, Index: i, Rate: formatRate(a.PassAt1.Value), Interval: formatInterval(a.PassAt1), Chart: newRateChart(a.PassAt1),
		Median: roundTime(time.Duration(a.MedianMS) * time.Millisecond), Reasons: sortClasses(a.Classes), Faults: sortClasses(a.Faults),
	}
	if a.CostUSD != "" {
		total, _ := strconv.ParseFloat(a.CostUSD, 64) // 0 if it is no number
		row.Cost, row.PerTrial = formatDollars(total), "unknown"
		if known := a.Judged + a.Infrastructure + a.Suspect - a.CostUnknown; known > 0 {
			row.PerTrial = formatDollars(total / float64(known))
		}
	}
	x := 0.0
	for _, part := range []bar{{Outcome: "passed", Count: a.Passed}, {Outcome: "failed", Count: a.Failed}, {Outcome: "limit", Count: a.Limit}, {Outcome: "infrastructure", Count: a.Infrastructure}, {Outcome: "suspect", Count: a.Suspect}, {Outcome: "not-run", Count: a.NotRun}} {
		if part.Count > 0 {
			part.X, part.Width = x, chartWidth*float64(part.Count)/float64(a.Judged+a.Infrastructure+a.Suspect+a.NotRun)
			x += part.Width
			row.Bars = append(row.Bars, part)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(a.PassAt), func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) }) {
		r := a.PassAt[k]
		row.PassAtK = append(row.PassAtK, passAtK{k, formatRate(r.Value), formatInterval(r), r.Tasks})
	}
	return row
}

// newRateChart returns a rate's chart on a scale from 0 to 1, or nil.
func newRateChart(r batch.Rate) *intervalChart {
	if r.Value == nil || r.Low == nil || r.High == nil {
		return nil
	}
	return &intervalChart{Low: chartWidth * *r.Low, Width: chartWidth * (*r.High - *r.Low), At: chartWidth * *r.Value}
}

// newDifferenceChart returns a difference's chart on a scale from -1 to 1, or nil
// without an interval.
func newDifferenceChart(c stats.Comparison) *intervalChart {
	if !c.Interval.Known() || math.IsNaN(c.Difference) {
		return nil
	}
	place := func(v float64) float64 { return chartWidth * (min(max(v, -1), 1) + 1) / 2 }
	low, high := place(c.Interval.Low), place(c.Interval.High)
	return &intervalChart{low, high - low, place(c.Difference), "The difference with its interval, on a scale from -100 to 100 points"}
}

func sortClasses(counts map[batch.Class]int) []classCount {
	var list []classCount
	for _, c := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, classCount{c, counts[c]})
	}
	return list
}

// countFaults counts the attempts that the infrastructure failed by class and cause,
// most frequent first.
func countFaults(results []batch.Result) []faultRow {
	rows := map[batch.Fault]*faultRow{}
	add := func(f batch.Fault, tries, lost int) {
		if rows[f] == nil {
			rows[f] = &faultRow{Class: f.Class, Cause: f.Cause}
		}
		rows[f].Tries += tries
		rows[f].Lost += lost
	}
	for _, r := range results {
		for _, f := range r.Faults {
			add(f, 1, 0)
		}
		switch n := len(r.Faults); {
		case r.Outcome != batch.Infrastructure:
		case n > 0:
			add(r.Faults[n-1], 0, 1)
		default:
			add(batch.Fault{Class: r.Class, Cause: r.Cause}, 1, 1)
		}
	}
	list := make([]faultRow, 0, len(rows))
	for _, row := range rows {
		list = append(list, *row)
	}
	slices.SortFunc(list, func(a, b faultRow) int {
		return cmp.Or(cmp.Compare(b.Lost, a.Lost), cmp.Compare(b.Tries, a.Tries), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Cause, b.Cause))
	})
	return list
}

func newTrialRow(r batch.Result, agent int) trialRow {
	row := trialRow{Result: r, Index: agent, Dir: trialDir(r), Reason: string(r.Class), Took: roundTime(r.Finished.Sub(r.Started))}
	switch {
	case r.Outcome == batch.Limit && row.Reason == "":
		row.Reason = r.Limit
	case r.Limit != "":
		row.Reason = strings.TrimPrefix(row.Reason+", limit "+r.Limit, ", ")
	}
	if r.Reward != nil {
		row.RewardText = strconv.FormatFloat(*r.Reward, 'g', 4, 64)
	}
	switch {
	case r.Model == "":
	case r.Usage.CostMicroUSD == nil:
		row.Cost = "unknown"
	default:
		row.Cost = formatDollars(float64(*r.Usage.CostMicroUSD) / 1e6)
	}
	return row
}

// compareAgents compares the batch's models with each other. If there are many, it
// takes those with the highest rates.
func (p *page) compareAgents(s batch.Spec, results []batch.Result, x index) {
	var models []batch.AgentSummary
	for _, a := range p.Summary.Agents {
		if a.Agent != batch.Nop && a.Agent != batch.Oracle {
			models = append(models, a)
		}
	}
	slices.SortStableFunc(models, compareRates)
	models, p.AgentsLeft = cut(models, maxAgents)
	for i, a := range models {
		for _, b := range models[i+1:] {
			p.Comparisons = append(p.Comparisons, compareTwo(a.Agent, b.Agent, s, results, x, maxPairs))
		}
	}
	if len(p.Comparisons) > 0 {
		p.Comparisons[0].Open = p.Comparisons[0].Differ <= maxOpen
	}
}

// compareTwo compares two agents of a batch, and lists at most bound tasks.
func compareTwo(a, b string, s batch.Spec, results []batch.Result, x index, bound int) comparison {
	side := func(agent string) batch.Side { return batch.Side{Name: agent, Agent: agent, Spec: s, Results: results} }
	c := batch.Compare(side(a), side(b))
	out := comparison{A: a, B: b, Sentence: c.Sentence(a, b), Comparison: c.Comparison, Chart: newDifferenceChart(c.Comparison), LeftOutTotal: len(c.LeftOut)}
	out.Decided = "the 95 % t-interval over tasks decides"
	if c.ByTest {
		out.Decided = "McNemar's exact test decides"
	}
	differ := slices.DeleteFunc(slices.Clone(c.Pairs), func(p stats.Pair) bool { return p.A == p.B })
	slices.SortStableFunc(differ, func(x, y stats.Pair) int { return cmp.Compare(math.Abs(y.A-y.B), math.Abs(x.A-x.B)) })
	out.Differ = len(differ)
	differ, out.PairsLeft = cut(differ, bound)
	for _, p := range differ {
		out.Pairs = append(out.Pairs, pairRow{p.Task, x.row(p.Task), x.cell(p.Task, a), x.cell(p.Task, b)})
	}
	out.LeftOut, out.TasksLeft = cut(c.LeftOut, bound)
	return out
}

// compareRates orders agents by pass@1, those without it last.
func compareRates(a, b batch.AgentSummary) int {
	value := func(r batch.Rate) float64 {
		if r.Value == nil {
			return -1
		}
		return *r.Value
	}
	return cmp.Compare(value(b.PassAt1), value(a.PassAt1))
}

func formatRate(v *float64) string {
	if v == nil {
		return "–"
	}
	return fmt.Sprintf("%.3f", *v)
}

func formatInterval(r batch.Rate) string {
	if r.Low == nil || r.High == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f – %.2f", *r.Low, *r.High)
}

// formatDollars shows more digits below ten cents.
func formatDollars(v float64) string {
	if v != 0 && v < 0.1 {
		return fmt.Sprintf("$%.4f", v)
	}
	return fmt.Sprintf("$%.2f", v)
}

// roundTime rounds to seconds, or below ten seconds to milliseconds.
func roundTime(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
