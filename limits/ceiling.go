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
