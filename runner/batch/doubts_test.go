package batch

import (
	"maps"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
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

// TestConnections: only what kept all connections to a host from being made is the network's fault
// without the control.
func TestConnections(t *testing.T) {
	closed := []record.NetworkClosed{
		{Host: "down:443", Ending: rule.ReasonConnect},
		{Host: "down:443", Ending: egress.EndingCanceled}, // while it was connected to
		{Host: "silent:443", Addr: "192.0.2.1:443", Ending: rule.ReasonTimeout},
		{Host: "slow:443", Addr: "192.0.2.1:443", Sent: 300, Ending: rule.ReasonTimeout},
		{Host: "partly:443", Ending: rule.ReasonConnect},
		{Host: "partly:443", Addr: "192.0.2.1:443", Ending: record.EndingDone},
		{Host: "reset:443", Addr: "192.0.2.1:443", Ending: egress.EndingHost},
		{Host: "reset:443", Addr: "192.0.2.1:443", Ending: record.EndingDone},
	}
	got, control := doubts{}, doubts{}
	got.addConnections(closed, false)
	want := doubts{"down:443": rule.ReasonConnect, "slow:443": rule.ReasonTimeout, "partly:443": doubtPartly, "reset:443": egress.EndingHost}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	control.addConnections([]record.NetworkClosed{{Host: "silent:443", Addr: "192.0.2.1:443", Ending: record.EndingDone}, {Host: "partly:443", Addr: "192.0.2.1:443", Ending: record.EndingDone}}, true)
	if confirmed := got.confirmedBy(control); len(confirmed) != 0 {
		t.Errorf("confirmed by a control that reaches all: %v", confirmed)
	}
}
