package stats

import (
	"fmt"
	"math"
)

// Pair is a task that both sides of a comparison attempted.
type Pair struct {
	Task string `json:"task"`
	// A and B are the shares of judged attempts that passed.
	A float64 `json:"a"`
	B float64 `json:"b"`
	// AttemptsA and AttemptsB count the judged attempts, at least one.
	AttemptsA int `json:"attempts_a"`
	AttemptsB int `json:"attempts_b"`
}

// Comparison is the result of [Compare].
type Comparison struct {
	// Tasks is the number of pairs: Better where A's share is higher, Worse where it is
	// lower, Same where both are equal.
	Tasks, Better, Worse, Same int
	// RateA and RateB are means over tasks, and Difference is RateA-RateB. They are NaN
	// without pairs.
	RateA, RateB, Difference float64
	// Interval is Difference's, by Student's distribution over tasks, within -1 to 1.
	Interval Interval
	// P is the exact p-value of McNemar's test on Better and Worse.
	P float64
	// ByTest means that P decides, not Interval: each task has one attempt per side, or
	// the differences do not vary.
	ByTest  bool
	Verdict Verdict
}

// Verdict is the result of a comparison.
type Verdict string

// The verdicts. Equal means that no task differs, not that none would.
const (
	BetterA    Verdict = "a"
	BetterB    Verdict = "b"
	Equal      Verdict = "equal"
	CannotTell Verdict = "cannot tell"
)

// Compare compares two sides on their common tasks.
func Compare(pairs []Pair) Comparison {
	c := Comparison{Tasks: len(pairs), P: 1, Interval: unknown}
	var a, b, differences []float64
	one := true
	for _, p := range pairs {
		a = append(a, p.A)
		b = append(b, p.B)
		differences = append(differences, p.A-p.B)
		one = one && p.AttemptsA == 1 && p.AttemptsB == 1
		switch {
		case p.A > p.B:
			c.Better++
		case p.A < p.B:
			c.Worse++
		default:
			c.Same++
		}
	}
	c.RateA = Mean(a)
	c.RateB = Mean(b)
	c.Difference = Mean(differences)
	c.P, c.Interval = McNemar(c.Better, c.Worse), TInterval(differences).clamp(-1, 1)
	c.ByTest = one || len(pairs) < 2 || areEqual(differences)
	c.Verdict = c.findVerdict()
	return c
}

func (c Comparison) findVerdict() Verdict {
	differs := c.P < 1-Level
	if !c.ByTest {
		differs = c.Interval.Low > 0 || c.Interval.High < 0
	}
	switch {
	case c.Tasks > 0 && c.Same == c.Tasks:
		return Equal
	case !differs:
		return CannotTell
	case c.Difference > 0:
		return BetterA
	}
	return BetterB
}

// Sentence returns the verdict as a sentence with the names of both sides.
func (c Comparison) Sentence(a, b string) string {
	switch {
	case c.Tasks == 0:
		return fmt.Sprintf("Can't tell: %s and %s have no task in common that was judged on both sides.", a, b)
	case c.Verdict == Equal:
		return fmt.Sprintf("Can't tell %s from %s: %s with the same result.", a, b, countTasks(c.Tasks))
	case c.Verdict == CannotTell:
		return fmt.Sprintf("Can't tell: the difference of %s on %s is within what chance makes (%s).", formatPoints(c.Difference), countTasks(c.Tasks), c.describeEvidence())
	case c.Verdict == BetterA:
		return fmt.Sprintf("%s is better than %s by %s on %s (%s).", a, b, formatPoints(c.Difference), countTasks(c.Tasks), c.describeEvidence())
	}
	return fmt.Sprintf("%s is better than %s by %s on %s (%s).", b, a, formatPoints(-c.Difference), countTasks(c.Tasks), c.swapSides().describeEvidence())
}

// swapSides returns the comparison of b with a, enough for describeEvidence.
func (c Comparison) swapSides() Comparison {
	c.Better, c.Worse = c.Worse, c.Better
	c.Interval = Interval{-c.Interval.High, -c.Interval.Low}
	return c
}

func (c Comparison) describeEvidence() string {
	if c.ByTest {
		return fmt.Sprintf("better on %d, worse on %d; McNemar's exact p = %.2g", c.Better, c.Worse, c.P)
	}
	if c.Interval == (Interval{-1, 1}) {
		return "too few tasks: the 95 % CI is -100 to 100 points"
	}
	return fmt.Sprintf("95 %% CI %.1f to %.1f", 100*c.Interval.Low, 100*c.Interval.High)
}

func formatPoints(difference float64) string {
	if math.Abs(math.Round(10*100*difference)/10) == 1 {
		return fmt.Sprintf("%.1f point", 100*difference)
	}
	return fmt.Sprintf("%.1f points", 100*difference)
}

func countTasks(n int) string {
	if n == 1 {
		return "1 task"
	}
	return fmt.Sprintf("%d tasks", n)
}
