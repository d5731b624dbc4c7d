package limits

import (
	"cmp"
	"fmt"
	"time"
)

// Budget bounds one agent run. A nil field means no limit. Limits must be positive.
type Budget struct {
	// Rounds is the number of model calls, except the closing completion.
	Rounds    *int64
	ToolCalls *int64
	// Tokens is the sum of input tokens, cached ones included, and output tokens.
	Tokens *int64
	// CostMicroUSD is in millionths of a US dollar. Calls without a known price count
	// as zero, and the run's report then has no cost.
	CostMicroUSD *int64
	WallTime     *time.Duration
}

type budgetField struct {
	kind  Kind
	bound **int64
}

func (b *Budget) fields() []budgetField {
	return []budgetField{
		{KindRounds, &b.Rounds},
		{KindToolCalls, &b.ToolCalls},
		{KindTokens, &b.Tokens},
		{KindCost, &b.CostMicroUSD},
	}
}

// Validate returns an error that names the first limit that is not positive.
func (b Budget) Validate() error {
	wall := (*int64)(b.WallTime)
	for _, f := range append(b.fields(), budgetField{KindWallTime, &wall}) {
		if bound := *f.bound; bound != nil && *bound <= 0 {
			return fmt.Errorf("budget %s is %d, must be positive or left out", f.kind, *bound)
		}
	}
	return nil
}

// LowerBudget returns the lower of two budgets for each limit.
func LowerBudget(a, b Budget) Budget {
	return Budget{
		Rounds: Lower(a.Rounds, b.Rounds), ToolCalls: Lower(a.ToolCalls, b.ToolCalls), Tokens: Lower(a.Tokens, b.Tokens),
		CostMicroUSD: Lower(a.CostMicroUSD, b.CostMicroUSD), WallTime: Lower(a.WallTime, b.WallTime),
	}
}

// Lower returns the lower of two limits. Nil is none.
func Lower[T cmp.Ordered](a, b *T) *T {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

// RaisedError is the error for a limit above the one that it should lower.
type RaisedError struct {
	Kind Kind
	// Limit and Asked are in the unit of Kind.
	Limit, Asked int64
}

func (e *RaisedError) Error() string {
	return fmt.Sprintf("a limit %s of %d is above the limit of %d", e.Kind, e.Asked, e.Limit)
}

// LowerTo returns b with the limits that asked sets. It returns an error if asked is
// invalid, or a *[RaisedError] if one of its limits is above b's.
func (b Budget) LowerTo(asked Budget) (Budget, error) {
	if err := asked.Validate(); err != nil {
		return b, err
	}
	of := asked.fields()
	for i, f := range b.fields() {
		bound := *of[i].bound
		switch {
		case bound == nil:
			continue
		case *f.bound != nil && *bound > **f.bound:
			return b, &RaisedError{Kind: f.kind, Limit: **f.bound, Asked: *bound}
		}
		*f.bound = bound
	}
	if wall := asked.WallTime; wall != nil {
		if b.WallTime != nil && *wall > *b.WallTime {
			return b, &RaisedError{Kind: KindWallTime, Limit: b.WallTime.Milliseconds(), Asked: wall.Milliseconds()}
		}
		b.WallTime = wall
	}
	return b, nil
}

// Period is the time in which a [Ceiling] counts usage. Periods begin at midnight UTC.
type Period string

// The periods.
const (
	PeriodDay   Period = "day"
	PeriodMonth Period = "month"
)

// Start returns the start of the period that contains t.
func (p Period) Start(t time.Time) time.Time {
	year, month, day := t.UTC().Date()
	if p == PeriodMonth {
		day = 1
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// End returns the end of the period that contains t: the start of the next one.
func (p Period) End(t time.Time) time.Time {
	if p == PeriodMonth {
		return p.Start(t).AddDate(0, 1, 0)
	}
	return p.Start(t).AddDate(0, 0, 1)
}

// Ceiling bounds the usage of all sessions together in one period. A nil field means no
// limit. Limits must be positive.
type Ceiling struct {
	// Requests is the number of answered model requests.
	Requests *int64
	// Tokens and CostMicroUSD are as in [Budget].
	Tokens, CostMicroUSD *int64
}

// IsZero reports whether c has no limit.
func (c Ceiling) IsZero() bool { return c == Ceiling{} }

// Limit returns the limit of one kind, or nil.
func (c Ceiling) Limit(k Kind) *int64 {
	switch k {
	case KindRequests:
		return c.Requests
	case KindTokens:
		return c.Tokens
	case KindCost:
		return c.CostMicroUSD
	}
	return nil
}

// Ceilings are the ceilings of a day and of a month.
type Ceilings struct{ Day, Month Ceiling }

// Of returns a period's ceiling.
func (c Ceilings) Of(p Period) Ceiling {
	if p == PeriodMonth {
		return c.Month
	}
	return c.Day
}

// IsZero reports whether neither ceiling has a limit.
func (c Ceilings) IsZero() bool { return c.Day.IsZero() && c.Month.IsZero() }

// BoundsCost reports whether either ceiling bounds the cost.
func (c Ceilings) BoundsCost() bool { return c.Day.CostMicroUSD != nil || c.Month.CostMicroUSD != nil }
