package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/network"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
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
	// AskAddress also asks about addresses in private networks of hosts that were allowed so.
	AskAddress bool
	// Capture lets programs that ignore proxies connect by name.
	Capture bool
	// Presets are the networks of package managers, whose rules Policy has. GitFetch and
	// GitPush are the URLs of git repositories, for which it has rules too.
	Presets           []*preset.Preset
	GitFetch, GitPush []string
	// Secrets are keys that commands use without having them.
	Secrets []secret.Secret
	// CA are certificates in PEM that are trusted beside those of the machine, and of
	// the image.
	CA []byte
	// KeepFiles tells where files of the presets' registries are kept, CacheDir is the
	// directory of [CacheShared]. LockFile pins their content: it is obeyed if it exists,
	// and otherwise written at the session's end; "" is none.
	KeepFiles          FileCache
	CacheDir, LockFile string
	// Budget bounds all connections of the session; the zero value means
	// [limits.DefaultCommandEgressBudget].
	Budget limits.EgressBudget
}

// FileCache tells where files of package registries are kept.
type FileCache string

// The caches. The zero value means CacheOff.
const (
	CacheSession FileCache = "session"
	CacheShared  FileCache = "shared"
	CacheOff     FileCache = "off"
)

// enabled reports whether commands have a network.
func (o EgressOptions) enabled() bool { return o.Policy != nil }

// asksHosts reports whether a session asks about hosts that no rule is about.
func (o Options) asksHosts() bool {
	mode := o.Policy.Decide(tools.Definition{Class: tools.ClassNetwork, Runs: tools.PlaceHost}, o.Workspace.Path).Mode
	return o.Egress.Ask && mode != policy.ModeDeny
}

// newNetwork returns the network of the session's commands, nil for none.
func (s *Session) newNetwork() (*network.Network, error) {
	e := s.opts.Egress
	servers, err := networkServers(s.opts, s.servers)
	if err != nil {
		return nil, err
	}
	if !e.enabled() && !slices.ContainsFunc(servers, func(one network.Server) bool { return one.Policy != nil }) {
		return nil, nil
	}
	for _, one := range s.servers { // the same for all, where the session itself has none
		if len(e.CA) == 0 {
			e.CA = one.Egress.CA
		}
		if e.Upstream == nil && !e.enabled() {
			e.Upstream = one.Egress.Upstream
		}
	}
	if e.Budget == (limits.EgressBudget{}) {
		e.Budget = limits.DefaultCommandEgressBudget()
	}
	o := network.Options{
		Policy: e.Policy, Private: e.Private, Upstream: e.Upstream, Capture: e.Capture, Budget: e.Budget,
		Presets: e.Presets, GitFetch: e.GitFetch, GitPush: e.GitPush, Secrets: e.Secrets, CA: e.CA, Servers: servers,
		KeepFiles: e.KeepFiles == CacheSession || e.KeepFiles == CacheShared, LockFile: e.LockFile,
		Dir: s.dir, Hidden: s.opts.Secrets, Record: s.events.recordNetwork, Log: s.log,
	}
	if wall := s.opts.SessionBudget.WallTime; wall != nil && len(s.opts.Profiles) > 0 { // else there are no turns
		o.End = time.Now().Add(*wall)
	}
	if e.KeepFiles == CacheShared {
		o.CacheDir = e.CacheDir
	}
	if s.opts.asksHosts() {
		o.AskAddress = e.AskAddress
		o.Ask = func(ctx context.Context, q dispatch.HostQuestion) (approval.Resolution, error) {
			return s.tools.AskHost(ctx, q)
		}
	}
	return network.New(o)
}

// recordEgress returns what the first record has of what commands may reach; n is their
// network, nil for none.
func recordEgress(o Options, n *network.Network) *record.Egress {
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
	for _, one := range e.Presets {
		p.Presets = append(p.Presets, one.Name)
	}
	p.Secrets = recordSecrets(e.Secrets)
	p.AuthoritySHA256, p.Cache, p.Lock = n.AuthoritySHA256(), string(e.KeepFiles), e.LockFile
	return p
}

// recordSecrets returns what records have of keys that programs use without having them.
func recordSecrets(list []secret.Secret) []record.EgressSecret {
	var out []record.EgressSecret
	for _, one := range list {
		to := make([]string, len(one.To))
		for i, r := range one.To {
			to[i] = r.String()
		}
		out = append(out, record.EgressSecret{Name: one.Name, To: to, Header: cmp.Or(one.Header, "Authorization")})
	}
	return out
}
