package approval

import "time"

// Bounds of what answers that change nothing add to the records, each of which
// is on the disk before its client hears of it: a client that floods must not
// fill it. Fifty clients that race for one confirmation are far below.
const (
	attemptBurst    = 1000
	attemptInterval = time.Second // one more each
)

// attempts is a bucket of reports, and counts what finds it empty. The zero
// value is full. It belongs to its broker.
type attempts struct {
	used    int
	since   time.Time // up to which moment used is refilled
	omitted int
}

// takeReport asks for one report. It returns the number of attempts before this one that were
// not reported, or that this one is not.
func (a *attempts) takeReport(now time.Time) (omitted int, ok bool) {
	since := now.Sub(a.since)
	if back := int(since / attemptInterval); back > 0 {
		a.used, a.since = max(0, a.used-back), now.Add(-(since % attemptInterval))
	}
	if a.used == attemptBurst {
		a.omitted++
		return 0, false
	}
	a.used++
	omitted, a.omitted = a.omitted, 0
	return omitted, true
}
