package batchui

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/batch"
)

// Grades counts the verdicts of a second verification: those that are the same as the first
// ones, those that differ, and those that it did not get.
type Grades struct{ Same, Differ, Failed int }

// WriteGrades lists the verdicts of a second verification that differ from those before, or
// were not had, and where all of them are.
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

// formatVerdict returns an outcome with its reward or its class.
func formatVerdict(r batch.Result) string {
	if r.Reward != nil {
		return fmt.Sprintf("%s (%g)", r.Outcome, *r.Reward)
	}
	return fmt.Sprintf("%s (%s)", r.Outcome, r.Class)
}

// DescribeRepairs returns what was wrong in the directory of a batch, a line for each fault.
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
