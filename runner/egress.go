package runner

import (
	"net/netip"
	"net/url"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// EgressOptions configures what the commands of a session may reach. The zero value is
// no network at all.
type EgressOptions struct {
	// Policy decides; nil is no network.
	Policy *rule.Policy
	// Private are hosts that may be in networks that are not public.
	Private map[string][]netip.Prefix
	// Upstream is a proxy that makes the connections; nil is none, whatever the
	// environment has.
	Upstream *url.URL
	// Ask asks about hosts that no rule is about, through the broker of the session. It
	// has no effect where the policy of the session denies the class network.
	Ask bool
	// Capture lets programs that ignore proxies connect by name.
	Capture bool
	// Budget bounds all connections of the session.
	Budget EgressBudget
}

// EgressBudget bounds the connections of a session's commands together.
type EgressBudget struct {
	// Bytes counts both directions, Upload what is sent.
	Bytes, Upload int64
	// Connections and Hosts are counts; a host counts once.
	Connections, Hosts int64
}

// DefaultEgressBudget returns the budget of a session that sets none.
func DefaultEgressBudget() EgressBudget {
	return EgressBudget{Bytes: 4 << 30, Upload: 64 << 20, Connections: 10_000, Hosts: 50}
}
