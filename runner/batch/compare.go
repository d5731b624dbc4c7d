package batch

import (
	"fmt"

	"github.com/caisson-run/caisson/runner/batch/stats"
)

// Side is one side of a comparison: an agent in a batch.
type Side struct {
	// Name is for people.
	Name    string
	Agent   string
	Spec    Spec
	Results []Result
}

// Comparison compares two agents on their common tasks.
type Comparison struct {
	stats.Comparison
	Pairs []stats.Pair
	// LeftOut are tasks of either side that are not in Pairs.
	LeftOut []LeftOut
}

// LeftOut is a task that a comparison leaves out.
type LeftOut struct {
	Task   string `json:"task"`
	Reason string `json:"reason"`
}

// Compare compares two sides, paired by task: tasks that both have, with equal
// checksums and at least one judged trial each. Attempts at a task are averaged.
func Compare(a, b Side) Comparison {
	var c Comparison
	inB := map[string]SpecTask{}
	for _, t := range b.Spec.Tasks {
		inB[t.ID] = t
	}
	judgedA, judgedB := a.judgedResults(), b.judgedResults()
	leave := func(id, format string, args ...any) {
		c.LeftOut = append(c.LeftOut, LeftOut{id, fmt.Sprintf(format, args...)})
	}
	for _, t := range a.Spec.Tasks {
		other, both := inB[t.ID]
		delete(inB, t.ID)
		switch x, y := judgedA[t.ID], judgedB[t.ID]; {
		case !both:
			leave(t.ID, "only %s has it", a.Name)
		case other.Checksum != t.Checksum:
			leave(t.ID, "it differs between the two")
		case len(x) == 0:
			leave(t.ID, "no trial of %s was judged", a.Name)
		case len(y) == 0:
			leave(t.ID, "no trial of %s was judged", b.Name)
		default:
			c.Pairs = append(c.Pairs, stats.Pair{Task: t.ID, A: passedShare(x), B: passedShare(y), AttemptsA: len(x), AttemptsB: len(y)})
		}
	}
	for _, t := range b.Spec.Tasks {
		if _, left := inB[t.ID]; left {
			leave(t.ID, "only %s has it", b.Name)
		}
	}
	c.Comparison = stats.Compare(c.Pairs)
	return c
}

func (s Side) judgedResults() map[string][]Result {
	out := map[string][]Result{}
	for _, r := range s.Results {
		if r.Agent == s.Agent && r.Outcome.Judged() {
			out[r.Task] = append(out[r.Task], r)
		}
	}
	return out
}

func passedShare(list []Result) float64 { return float64(countPassed(list)) / float64(len(list)) }
