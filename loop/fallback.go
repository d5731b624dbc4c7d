package loop

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"
)

// restTime is how long a failed profile is not used. Providers' prompt caches live
// about as long: going back earlier would pay for a new one each time.
const restTime = 5 * time.Minute

const restForever = time.Duration(math.MaxInt64)

// profileList chooses the profile of each model call: the first that does not rest
// after a failure.
type profileList struct {
	profiles []Profile
	// failed and rest say when each profile failed, and how long it then rests.
	failed []time.Time
	rest   []time.Duration
}

func newProfileList(profiles []Profile) profileList {
	l := profileList{failed: make([]time.Time, len(profiles)), rest: make([]time.Duration, len(profiles))}
	for _, p := range profiles {
		l.profiles = append(l.profiles, p.withDefaults())
	}
	return l
}

// next returns the index of the next profile that is not in tried, preferably one that
// doesn't rest. If minWindow is positive, the profile's context window is larger or
// unknown.
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

// canFallBack reports whether another profile may succeed. An invalid request is our
// fault, or the settings', and should be seen.
func canFallBack(c ErrorClass) bool { return c != ModelInvalidRequest && c != ModelCancelled }

// selectProfile selects the next profile for c and reports whether there was one left.
func (t *turn) selectProfile(c *pendingCall, minWindow int64) bool {
	i, ok := t.profiles.next(c.tried, minWindow)
	if ok {
		c.tried[i] = true
		c.profile, t.profile = i, t.profiles.profiles[i]
	}
	return ok
}

// fallBack selects the next profile after a failure and reports whether there is one
// that may answer. Once a piece of the answer was emitted, none may.
func (t *turn) fallBack(ctx context.Context, c *pendingCall, err error) bool {
	class := errorClass(err)
	if ctx.Err() != nil || c.shown || !canFallBack(class) {
		return false
	}
	var minWindow int64
	refused, _ := errors.AsType[*ModelError](err)
	if class == ModelContextOverflow && refused.Status != http.StatusTooManyRequests { // otherwise a rate limit was too small
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
