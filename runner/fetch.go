package runner

import (
	"net/netip"
	"net/url"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/fetch"
)

// fetchedDir keeps the responses of a session by their SHA-256.
const fetchedDir = "fetched"

// FetchOptions configures what a session may fetch. The zero value allows nothing.
type FetchOptions struct {
	// Allow lists what may be fetched; empty turns the tool off.
	Allow []fetch.Rule
	// Private are hosts that may be in networks that are not public.
	Private map[string][]netip.Prefix
	// MaxBytes bounds one response and Timeout one fetch; zero means the tool's
	// defaults.
	MaxBytes int64
	Timeout  time.Duration
	// Proxy makes the connections; nil is none, whatever the environment says.
	Proxy *url.URL
	// Egress bounds the session's exchange; the zero value means
	// limits.DefaultEgressBudget.
	Egress limits.EgressBudget
}
