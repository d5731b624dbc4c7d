package report

import (
	"slices"

	"github.com/caisson-run/caisson/runner/batch"
)

// cell has an agent's trials of a task.
type cell struct {
	Passed, Judged int
	// Dir is the directory of the first judged trial that did not pass, or of the
	// first.
	Dir string
	// Undecided are the trials that no rate counts.
	Undecided []undecided
}

// undecided counts trials that have no verdict, for one reason. Dir is the first one's
// directory.
type undecided struct {
	Outcome batch.Outcome
	Count   int
	Dir     string
}

// Outcome returns the outcome of all judged trials, or "" if they differ or there are
// none.
func (c cell) Outcome() batch.Outcome {
	switch {
	case c.Judged > 0 && c.Passed == c.Judged:
		return batch.Passed
	case c.Judged > 0 && c.Passed == 0:
		return batch.Failed
	}
	return ""
}

func (c *cell) add(r batch.Result) {
	dir := trialDir(r)
	if !r.Outcome.Judged() {
		i := slices.IndexFunc(c.Undecided, func(u undecided) bool { return u.Outcome == r.Outcome })
		if i < 0 {
			i, c.Undecided = len(c.Undecided), append(c.Undecided, undecided{Outcome: r.Outcome, Dir: dir})
		}
		c.Undecided[i].Count++
		return
	}
	if c.Judged == 0 || r.Outcome != batch.Passed && c.Passed == c.Judged {
		c.Dir = dir
	}
	c.Judged++
	if r.Outcome == batch.Passed {
		c.Passed++
	}
}

// index finds cells, and the rows of trials on a page.
type index struct {
	cells map[[2]string]*cell // by task and agent
	rows  map[string]int      // the row of a task's first trial
}

// newIndex indexes results, which are sorted by attempt. The first of them are a page's
// rows.
func newIndex(results []batch.Result, rows int) index {
	x := index{map[[2]string]*cell{}, map[string]int{}}
	for i, r := range results {
		k := [2]string{r.Task, r.Agent}
		if x.cells[k] == nil {
			x.cells[k] = &cell{}
		}
		x.cells[k].add(r)
		if _, known := x.rows[r.Task]; !known && i < rows {
			x.rows[r.Task] = i
		}
	}
	return x
}

func (x index) cell(task, agent string) cell {
	if c := x.cells[[2]string{task, agent}]; c != nil {
		return *c
	}
	return cell{}
}

// row returns the row of a task's first trial, or -1.
func (x index) row(task string) int {
	if row, ok := x.rows[task]; ok {
		return row
	}
	return -1
}

// trialDir returns a trial's directory relative to the batch's, as a link.
func trialDir(r batch.Result) string { return batch.TrialsDir + "/" + r.Key.Name() + "/" }
