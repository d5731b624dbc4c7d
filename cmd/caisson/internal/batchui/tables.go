package batchui

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/stats"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// WriteSummary writes a summary as a table with a line for each agent, then the
// remarks.
func WriteSummary(w io.Writer, s batch.Summary) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "AGENT\tPASSED\tPASS@1\t95 % CI\tFAILED\tLIMIT\tINFRA\tSUSPECT\tNOT RUN\tCOST\tMEDIAN")
	for _, a := range s.Agents {
		fmt.Fprintf(t, "%s\t%d/%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", safeText(a.Agent), a.Passed, a.Judged, formatRate(a.PassAt1.Value), formatInterval(a.PassAt1),
			a.Failed, a.Limit, a.Infrastructure, a.Suspect, a.NotRun, formatCost(a), time.Duration(a.MedianMS)*time.Millisecond)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, a := range s.Agents {
		for _, k := range slices.SortedFunc(maps.Keys(a.PassAt), func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) }) {
			r := a.PassAt[k]
			fmt.Fprintf(w, "%s: pass@%s %s on %d tasks\n", safeText(a.Agent), k, formatRate(r.Value), r.Tasks)
		}
		writeClasses(w, safeText(a.Agent)+": tries that the infrastructure failed", a.Faults)
		for _, c := range slices.Sorted(maps.Keys(a.FaultCauses)) {
			fmt.Fprintf(w, "  %s: %s\n", c, clipCause(a.FaultCauses[c]))
		}
		writeClasses(w, safeText(a.Agent)+": judged trials with a reason", a.Classes)
	}
	for _, t := range s.Suspects {
		fmt.Fprintf(w, "suspect: %s: %s: %s\n", safeText(t.Describe()), t.Class, clipCause(t.Cause))
	}
	if s.DroppedCostUSD != "" {
		fmt.Fprintf(w, "tries without a result have cost $%s\n", s.DroppedCostUSD)
	}
	for _, u := range s.Unsupported {
		fmt.Fprintf(w, "unsupported: %s: %s\n", safeText(u.Task), safeText(strings.Join(u.Reasons, "; ")))
	}
	return nil
}

func writeClasses(w io.Writer, title string, counts map[batch.Class]int) {
	if len(counts) == 0 {
		return
	}
	var parts []string
	for _, c := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", c, counts[c]))
	}
	fmt.Fprintf(w, "%s: %s\n", title, strings.Join(parts, ", "))
}

// Maximum lengths of a cause and a task's id, in characters.
const (
	maxCause = 300
	maxTask  = 48
)

// clipText returns the beginning of a text, safe to show.
func clipText(text string, most int) string {
	runes := []rune(safeText(text))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// clipCause returns a cause, safe to show. It drops the middle of a long one: the hint
// is at the end.
func clipCause(text string) string {
	runes := []rune(safeText(text))
	if len(runes) <= maxCause {
		return string(runes)
	}
	return string(runes[:maxCause/2]) + " … " + string(runes[len(runes)-maxCause/2:])
}

func formatRate(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *v)
}

func formatInterval(r batch.Rate) string {
	if r.Low == nil || r.High == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f-%.2f", *r.Low, *r.High)
}

func formatCost(a batch.AgentSummary) string {
	switch {
	case a.CostUSD == "":
		return "-"
	case a.CostUnknown > 0:
		return fmt.Sprintf("$%s and %d unknown", a.CostUSD, a.CostUnknown)
	}
	return "$" + a.CostUSD
}

// WriteResults writes a table of results, by task, agent and attempt.
func WriteResults(w io.Writer, results []batch.Result) error {
	results = slices.Clone(results)
	slices.SortFunc(results, func(a, b batch.Result) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Attempt, b.Attempt))
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TASK\tAGENT\tATTEMPT\tOUTCOME\tREWARD\tREASON\tTIME\tTRIAL")
	for _, r := range results {
		reward := "-"
		if r.Reward != nil {
			reward = fmt.Sprintf("%g", *r.Reward)
		}
		reason := string(r.Class)
		if r.Limit != "" {
			reason = strings.TrimPrefix(reason+", limit "+r.Limit, ", ")
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", clipText(r.Task, maxTask), safeText(r.Agent), r.Attempt, r.Outcome, reward, cmp.Or(reason, "-"), r.Finished.Sub(r.Started).Round(time.Millisecond), r.Key.Name())
	}
	return t.Flush()
}

// WriteCheck lists tasks that are unsound, because oracle didn't pass or nop did, or
// undecided, because one has no verdict. It returns the number of each.
func WriteCheck(w io.Writer, dir string, trials []batch.Trial, results []batch.Result) (unsound, undecided int, err error) {
	ended := map[batch.Key]batch.Result{}
	for _, r := range results {
		ended[r.Key] = r
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	bad, total := map[string]bool{}, map[string]bool{} // by task: unsound, or undecided
	for _, trial := range trials {
		r := ended[trial.Key]
		r.Key = trial.Key
		total[r.Task] = true
		if r.Outcome.Judged() && (r.Outcome == batch.Passed) == (r.Agent == batch.Oracle) {
			continue
		}
		if len(bad) == 0 {
			fmt.Fprintln(t, "TASK\tPROBLEM\tLOOK AT")
		}
		bad[r.Task] = bad[r.Task] || r.Outcome.Judged()
		problem := fmt.Sprintf("%s: %s", r.Agent, cmp.Or(string(r.Outcome), "did not run"))
		if r.Reward != nil {
			problem += fmt.Sprintf(", reward %g", *r.Reward)
		}
		if r.Class != "" {
			problem += fmt.Sprintf(", %s: %s", r.Class, r.Cause)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", clipText(r.Task, maxTask), clipCause(problem), safeText(evidenceOf(dir, r)))
	}
	for _, isUnsound := range bad {
		if isUnsound {
			unsound++
		}
	}
	if err := t.Flush(); err != nil {
		return 0, 0, err
	}
	_, err = fmt.Fprintf(w, "%d of %d tasks are sound\n", len(total)-len(bad), len(total))
	return unsound, len(bad) - unsound, err
}

// evidenceOf returns the output of the part that failed in a trial, or else the trial's
// directory.
func evidenceOf(dir string, r batch.Result) string {
	trial := filepath.Join(dir, batch.TrialsDir, r.Key.Name())
	output := filepath.Join(trial, batch.VerifierDir, batch.OutputFile)
	if r.Class == batch.SolutionFailed {
		output = filepath.Join(trial, batch.AgentOutputFile)
	}
	if _, err := os.Stat(output); err != nil {
		return trial
	}
	return output
}

// WriteComparison writes the verdict of a comparison and its basis.
func WriteComparison(w io.Writer, c batch.Comparison, a, b string) error {
	fmt.Fprintf(w, "%s\n", safeText(c.Sentence(a, b)))
	fmt.Fprintf(w, "%d tasks in both, %d left out: %s passed %.3f, %s passed %.3f; better on %d, worse on %d, same on %d\n", c.Tasks, len(c.LeftOut), safeText(a), orZero(c.RateA), safeText(b), orZero(c.RateB), c.Better, c.Worse, c.Same)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range c.Pairs {
		if p.A != p.B {
			fmt.Fprintf(t, "%s\t%.2f of %d\t%.2f of %d\n", safeText(p.Task), p.A, p.AttemptsA, p.B, p.AttemptsB)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range c.LeftOut {
		fmt.Fprintf(w, "left out: %s: %s\n", safeText(l.Task), safeText(l.Reason))
	}
	return nil
}

// orZero returns v, or 0 for NaN.
func orZero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

func safeText(text string) string {
	shown, _ := tools.Display(text)
	return shown
}

// Grades counts the verdicts of a second verification: the same as before, different,
// and missing.
type Grades struct{ Same, Differ, Failed int }

// WriteGrades lists the verdicts of a second verification that differ or are missing,
// and the directory with all.
func WriteGrades(w io.Writer, graded []batch.Result, before map[batch.Key]batch.Result, dir string) Grades {
	var g Grades
	for _, r := range graded {
		was := before[r.Key]
		switch {
		case !r.Outcome.Judged():
			g.Failed++
			fmt.Fprintf(w, "%s: not verified: %s: %q\n", r.Key.Name(), r.Class, r.Cause)
		case r.Outcome == was.Outcome && r.Class == was.Class && equalRewards(r.Reward, was.Reward):
			g.Same++
		default:
			g.Differ++
			fmt.Fprintf(w, "%s: was %s, is %s\n", r.Key.Name(), formatVerdict(was), formatVerdict(r))
		}
	}
	fmt.Fprintf(w, "%d verdicts are the same, %d differ, %d could not be had: %s\n", g.Same, g.Differ, g.Failed, dir)
	return g
}

func equalRewards(a, b *float64) bool { return a == b || a != nil && b != nil && *a == *b }

func formatVerdict(r batch.Result) string {
	if r.Reward != nil {
		return fmt.Sprintf("%s (%g)", r.Outcome, *r.Reward)
	}
	return fmt.Sprintf("%s (%s)", r.Outcome, r.Class)
}

// DescribeRepairs returns a line for each fault in a batch's directory.
func DescribeRepairs(r batch.Repairs) []string {
	var lines []string
	if r.Damaged > 0 {
		lines = append(lines, fmt.Sprintf("%s had %d damaged lines: it is written again from the directories of trials", batch.ResultsFile, r.Damaged))
	}
	for _, k := range r.Missing {
		lines = append(lines, safeText(fmt.Sprintf("%s runs again: its directory %s is gone", k.Describe(), filepath.Join(batch.TrialsDir, k.Name()))))
	}
	return lines
}

// ComparisonDocument is a comparison as JSON. For example:
//
//	{"schema_version":1,"a":"gpt-5","b":"fast","verdict":"a","sentence":"gpt-5 is better than …",…}
type ComparisonDocument struct {
	SchemaVersion int    `json:"schema_version"` // 1
	A             string `json:"a"`
	B             string `json:"b"`
	// Verdict is "a" or "b" for the better one, "equal" if no task differs, or "cannot
	// tell".
	Verdict  stats.Verdict `json:"verdict"`
	Sentence string        `json:"sentence"`
	// Tasks is the number of pairs: A is better on Better of them, worse on Worse, and
	// both are equal on Same.
	Tasks  int `json:"tasks"`
	Better int `json:"better"`
	Worse  int `json:"worse"`
	Same   int `json:"same"`
	// RateA and RateB are the means over tasks of the share of attempts that passed, and
	// Difference is RateA - RateB with its 95 % interval. They are absent without enough
	// tasks.
	RateA      *float64 `json:"rate_a,omitempty"`
	RateB      *float64 `json:"rate_b,omitempty"`
	Difference *float64 `json:"difference,omitempty"`
	Low        *float64 `json:"low,omitempty"`
	High       *float64 `json:"high,omitempty"`
	// P is McNemar's exact p-value of Better and Worse. DecidedBy is "interval" or
	// "mcnemar".
	P         float64         `json:"p"`
	DecidedBy string          `json:"decided_by"`
	Pairs     []stats.Pair    `json:"pairs"`
	LeftOut   []batch.LeftOut `json:"left_out"`
}

// NewComparisonDocument returns a comparison of a with b as JSON has it.
func NewComparisonDocument(c batch.Comparison, a, b string) ComparisonDocument {
	d := ComparisonDocument{
		SchemaVersion: 1, A: a, B: b, Verdict: c.Verdict, Sentence: c.Sentence(a, b), Tasks: c.Tasks, Better: c.Better, Worse: c.Worse, Same: c.Same,
		RateA: knownOrNil(c.RateA), RateB: knownOrNil(c.RateB), Difference: knownOrNil(c.Difference), Low: knownOrNil(c.Interval.Low), High: knownOrNil(c.Interval.High),
		P: c.P, DecidedBy: "interval", Pairs: record.NonNil(c.Pairs), LeftOut: record.NonNil(c.LeftOut),
	}
	if c.ByTest {
		d.DecidedBy = "mcnemar"
	}
	return d
}

// knownOrNil returns v, or nil for NaN, which JSON can't have.
func knownOrNil(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}
