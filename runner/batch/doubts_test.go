package batch

import (
	"maps"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// TestConfirmedDoubts: what the agent can cause counts only if the control fails too.
func TestConfirmedDoubts(t *testing.T) {
	d := doubts{"a:443": rule.ReasonConnect, "b:443": rule.ReasonConnect, "c:443": egress.EndingHost, "d:443": egress.EndingIdle, "e:443": egress.EndingHost, "memory": doubtLimit, "disk": doubtLimit}
	control := doubts{"a:443": doubtContacted, "c:443": doubtContacted, "d:443": doubtContacted, "e:443": rule.ReasonTimeout, "memory": doubtLimit, "f:443": rule.ReasonConnect}
	if got := slices.Sorted(maps.Keys(d.confirmedBy(control))); !slices.Equal(got, []string{"a:443", "e:443", "memory"}) {
		t.Errorf("confirmed %q", got)
	}
}
