package limits

import (
	"fmt"
	"time"
)

// Budget bounds one agent run. A nil field means no limit; a zero or negative
// limit is invalid.
type Budget struct {
	// Rounds is the number of model calls, without the closing completion.
	Rounds *int64
	// ToolCalls is the number of tool calls that the model may make.
	ToolCalls *int64
	// Tokens is the sum of input tokens, cached ones included, and output
	// tokens over all model calls.
	Tokens *int64
	// CostMicroUSD is the cost in millionths of a US dollar. Calls with an
	// unknown price count as zero here; the run's report has no cost then.
	CostMicroUSD *int64
	// WallTime is the time from the start of the run to its end.
	WallTime *time.Duration
}

// budgetField is one limit of a budget.
type budgetField struct {
	kind  Kind
	bound **int64
}

// fields returns the limits of b, which are those of b itself.
func (b *Budget) fields() []budgetField {
	return []budgetField{
		{KindRounds, &b.Rounds},
		{KindToolCalls, &b.ToolCalls},
		{KindTokens, &b.Tokens},
		{KindCost, &b.CostMicroUSD},
	}
}

// Validate returns an error that names the first field that is zero or
// negative.
func (b Budget) Validate() error {
	wall := (*int64)(b.WallTime)
	for _, f := range append(b.fields(), budgetField{KindWallTime, &wall}) {
		if bound := *f.bound; bound != nil && *bound <= 0 {
			return fmt.Errorf("budget %s is %d, must be positive or left out", f.kind, *bound)
		}
	}
	return nil
}

// RaisedError is the error of a limit that is above the one that it should lower.
type RaisedError struct {
	Kind Kind
	// Limit and Asked are in the unit of Kind.
	Limit, Asked int64
}

// Error names the limit.
func (e *RaisedError) Error() string {
	return fmt.Sprintf("a limit %s of %d is above the limit of %d", e.Kind, e.Asked, e.Limit)
}

// LowerTo returns b with the limits that asked has. Its error is that of
// [Budget.Validate] for asked, or a *[RaisedError] if a limit is above that of b.
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

// Period is the time for which a [Ceiling] counts usage. Periods begin at midnight UTC.
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

// End returns the end of the period that contains t, which is the start of the next one.
func (p Period) End(t time.Time) time.Time {
	if p == PeriodMonth {
		return p.Start(t).AddDate(0, 1, 0)
	}
	return p.Start(t).AddDate(0, 0, 1)
}

// Ceiling bounds what is used in one period, by all sessions together. A nil field is
// no limit; a zero or negative limit is invalid.
type Ceiling struct {
	// Requests is the number of requests that a model answered.
	Requests *int64
	// Tokens and CostMicroUSD are those of [Budget].
	Tokens, CostMicroUSD *int64
}

// IsZero reports whether the ceiling has no limit.
func (c Ceiling) IsZero() bool { return c == Ceiling{} }

// Limit returns the limit of one kind, nil if there is none.
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

// Ceilings are those of a day and of a month.
type Ceilings struct{ Day, Month Ceiling }

// Of returns the ceiling of one period.
func (c Ceilings) Of(p Period) Ceiling {
	if p == PeriodMonth {
		return c.Month
	}
	return c.Day
}

// IsZero reports whether neither ceiling has a limit.
func (c Ceilings) IsZero() bool { return c.Day.IsZero() && c.Month.IsZero() }

// BoundsCost reports whether one of the ceilings bounds the cost.
func (c Ceilings) BoundsCost() bool { return c.Day.CostMicroUSD != nil || c.Month.CostMicroUSD != nil }
