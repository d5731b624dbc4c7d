package approval

import (
	"math"
	"testing"
	"time"
)

func TestReportsComeBackWithTime(t *testing.T) {
	now := time.Now()
	a := newAttempts()
	take := func(n int) (reported int) {
		for range n {
			if omitted, ok := a.takeReport(now); ok {
				reported++
			} else if omitted != 0 {
				t.Errorf("what is not reported counts %d", omitted)
			}
		}
		return reported
	}
	if got := take(attemptBurst + 10); got != attemptBurst || a.omitted != 10 {
		t.Errorf("%d at once, %d counted", got, a.omitted)
	}
	now = now.Add(3*attemptInterval + attemptInterval/2)
	if omitted, ok := a.takeReport(now); !ok || omitted != 10 {
		t.Errorf("later: %d, %t", omitted, ok)
	}
	if got := take(10); got != 2 {
		t.Errorf("%d after three intervals, want 2 more", got)
	}
	now = now.Add(attemptInterval / 2)
	if got := take(10); got != 1 {
		t.Errorf("%d after half an interval that was left and another half, want 1", got)
	}
	now = now.Add(-time.Hour) // a clock that goes back gives nothing
	if got := take(10); got != 0 {
		t.Errorf("%d in the past", got)
	}
	now = now.Add(math.MaxInt64)
	if got := take(attemptBurst + 1); got != attemptBurst {
		t.Errorf("%d after a long time", got)
	}
}
