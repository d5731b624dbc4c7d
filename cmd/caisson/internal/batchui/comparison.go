package batchui

import (
	"math"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/stats"
)

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
	P         float64           `json:"p"`
	DecidedBy string            `json:"decided_by"`
	Pairs     []PairDocument    `json:"pairs"`
	LeftOut   []LeftOutDocument `json:"left_out"`
}

// PairDocument is a task that both have attempted, with the shares of judged attempts that
// passed.
type PairDocument struct {
	Task      string  `json:"task"`
	A         float64 `json:"a"`
	B         float64 `json:"b"`
	AttemptsA int     `json:"attempts_a"`
	AttemptsB int     `json:"attempts_b"`
}

// LeftOutDocument is a task that the comparison leaves out.
type LeftOutDocument struct {
	Task   string `json:"task"`
	Reason string `json:"reason"`
}

// NewComparisonDocument returns a comparison of a with b as JSON has it.
func NewComparisonDocument(c batch.Comparison, a, b string) ComparisonDocument {
	d := ComparisonDocument{
		SchemaVersion: 1, A: a, B: b, Verdict: c.Verdict, Sentence: c.Sentence(a, b), Tasks: c.Tasks, Better: c.Better, Worse: c.Worse, Same: c.Same,
		RateA: knownOrNil(c.RateA), RateB: knownOrNil(c.RateB), Difference: knownOrNil(c.Difference), Low: knownOrNil(c.Interval.Low), High: knownOrNil(c.Interval.High),
		P: c.P, DecidedBy: "interval", Pairs: []PairDocument{}, LeftOut: []LeftOutDocument{},
	}
	if c.ByTest {
		d.DecidedBy = "mcnemar"
	}
	for _, p := range c.Pairs {
		d.Pairs = append(d.Pairs, PairDocument(p))
	}
	for _, l := range c.LeftOut {
		d.LeftOut = append(d.LeftOut, LeftOutDocument(l))
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
