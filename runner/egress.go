package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/safeurl"
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
	// Budget bounds all connections of the session; the zero value means
	// [limits.DefaultCommandEgressBudget].
	Budget limits.EgressBudget
}

// enabled reports whether commands have a network.
func (o EgressOptions) enabled() bool { return o.Policy != nil }

// asksHosts reports whether a session asks about hosts that no rule is about.
func (o Options) asksHosts() bool {
	mode := o.Policy.Decide(tools.Definition{Class: tools.ClassNetwork, Runs: tools.PlaceHost}, o.Workspace.Path).Mode
	return o.Egress.Ask && mode != policy.ModeDeny
}

// newNetwork returns the network of the session's commands, nil for none.
func newNetwork(s *Session) (*network.Network, error) {
	e := s.opts.Egress
	if !e.enabled() {
		return nil, nil
	}
	if e.Budget == (limits.EgressBudget{}) {
		e.Budget = limits.DefaultCommandEgressBudget()
	}
	o := network.Options{
		Policy: e.Policy, Private: e.Private, Upstream: e.Upstream, Capture: e.Capture, Budget: e.Budget,
		Dir: s.dir, Secrets: s.opts.Secrets, Record: s.events.recordNetwork, Log: s.log,
	}
	if s.opts.asksHosts() {
		o.Ask = s.askHost
	}
	return network.New(o)
}

// askHost asks about a host that no rule is about.
func (s *Session) askHost(ctx context.Context, q dispatch.HostQuestion) (approval.Resolution, error) {
	return s.tools.AskHost(ctx, q)
}

// egressPlan returns the listeners of the session's sandboxes, nil for none.
func (s *Session) egressPlan() *sandbox.EgressPlan {
	if s.network == nil {
		return nil
	}
	return s.network.Plan()
}

// recordEgress returns what the first record has of what commands may reach.
func (o Options) recordEgress() *record.Egress {
	e := o.Egress
	if !e.enabled() {
		return nil
	}
	sum := sha256.New()
	list := func(rules []rule.Rule) []string {
		out := []string{}
		for _, r := range rules {
			out = append(out, r.Describe())
		}
		_, _ = sum.Write([]byte(strings.Join(out, "\n") + "\n\n")) // never fails
		return out[:min(len(out), record.MaxListed)]
	}
	p := &record.Egress{Allow: list(e.Policy.Allow), Deny: list(e.Policy.Deny), Unknown: "deny", Capture: e.Capture}
	for _, within := range e.Policy.Within {
		p.Within = append(p.Within, list(within))
	}
	p.RulesSHA256 = hex.EncodeToString(sum.Sum(nil))
	for host := range e.Private {
		p.Private = append(p.Private, host)
	}
	slices.Sort(p.Private)
	if o.asksHosts() {
		p.Unknown = "prompt"
	}
	if e.Upstream != nil {
		p.Proxy = safeurl.String(e.Upstream.String())
	}
	return p
}
