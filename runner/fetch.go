package runner

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/fetch"
)

// fetchedDir keeps the responses of a session by their SHA-256.
const fetchedDir = "fetched"

// FetchOptions say what a session may fetch. The zero value is nothing.
type FetchOptions struct {
	// Allow is what may be fetched; empty turns the tool off.
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

// fetchTool makes the fetch tool, its budget and its breakers, all of which are
// the session's.
func (s *Session) fetchTool() (tools.Factory, error) {
	o := s.opts.Fetch
	if o.Egress == (limits.EgressBudget{}) {
		o.Egress = limits.DefaultEgressBudget()
	}
	egress, err := limits.NewEgress(o.Egress)
	if err != nil {
		return nil, err
	}
	hosts, err := limits.NewBreakers(limits.BreakerOptions{Name: limits.BreakerFetchHost})
	if err != nil {
		return nil, err
	}
	agent := "Caisson"
	if s.opts.Version != "" {
		agent += "/" + s.opts.Version
	}
	dir := ""
	if s.dir != "" {
		dir = filepath.Join(s.dir, fetchedDir)
	}
	return fetch.New(fetch.Options{
		Allow: o.Allow, Private: o.Private, Egress: egress, Hosts: hosts, MaxBytes: o.MaxBytes, Timeout: o.Timeout, Proxy: o.Proxy,
		Dir: dir, Agent: agent, Logger: s.log,
		Denied: func(d fetch.Denial) error { return s.journal.denied(record.NetworkDenied(d)) },
	})
}
