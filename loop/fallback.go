package loop

import (
	"context"
	"errors"
	"math"
	"time"
)

// restTime is how long a profile that failed is not used again. The prompt caches of
// providers live about as long: going back earlier would pay for a new one each time.
const restTime = 5 * time.Minute

// restForever is longer than any turn.
const restForever = time.Duration(math.MaxInt64)

// profileList chooses the profile of each model call of a turn: the first one that
// does not rest after a failure.
type profileList struct {
	profiles []Profile
	// failed and rest are when each profile failed and for how long it rests since.
	failed []time.Time
	rest   []time.Duration
}

// newProfileList returns a list in which no profile rests.
func newProfileList(profiles []Profile) profileList {
	l := profileList{failed: make([]time.Time, len(profiles)), rest: make([]time.Duration, len(profiles))}
	for _, p := range profiles {
		l.profiles = append(l.profiles, p.withDefaults())
	}
	return l
}

// next returns the index of the profile for a call that has tried some. It prefers
// profiles that do not rest. If minWindow is positive, the profile's context window is
// larger or unknown.
func (l profileList) next(tried map[int]bool, minWindow int64) (int, bool) {
	resting := -1
	for i, p := range l.profiles {
		switch {
		case tried[i], minWindow > 0 && p.ContextWindow > 0 && p.ContextWindow <= minWindow:
		case time.Since(l.failed[i]) >= l.rest[i]:
			return i, true
		case resting < 0:
			resting = i
		}
	}
	return resting, resting >= 0
}

// startRest lets a profile rest after a failure.
func (l profileList) startRest(i int, err error) {
	l.failed[i], l.rest[i] = time.Now(), restTime
	switch errorClass(err) {
	case ModelAuth, ModelContextOverflow:
		l.rest[i] = restForever // neither changes within a turn
	}
	if failure, ok := errors.AsType[*ModelError](err); ok {
		l.rest[i] = max(l.rest[i], failure.RetryAfter)
	}
}

// canFallBack reports whether another profile may succeed where one failed. A request
// that is invalid is our own fault, or that of its settings, and should be seen.
func canFallBack(c ErrorClass) bool { return c != ModelInvalidRequest && c != ModelCancelled }

// selectProfile selects the profile that c is sent to next and reports whether there
// is one that c has not tried.
func (t *turn) selectProfile(c *pendingCall, minWindow int64) bool {
	i, ok := t.profiles.next(c.tried, minWindow)
	if ok {
		c.tried[i] = true
		c.profile, t.profile = i, t.profiles.profiles[i]
	}
	return ok
}

// fallBack selects the next profile after a failure of the current one and reports
// whether there is one that may answer. There is none once a piece of the answer was
// emitted.
func (t *turn) fallBack(ctx context.Context, c *pendingCall, err error) bool {
	class := errorClass(err)
	if ctx.Err() != nil || c.shown || !canFallBack(class) {
		return false
	}
	var minWindow int64
	if class == ModelContextOverflow {
		minWindow = t.profile.ContextWindow
	}
	from := t.profile.Name
	t.profiles.startRest(c.profile, err)
	if !t.selectProfile(c, minWindow) {
		return false
	}
	t.emit(ProfileChanged{From: from, To: t.profile.Name, Class: class})
	return true
}
