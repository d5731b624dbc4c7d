package limits

import "time"

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
