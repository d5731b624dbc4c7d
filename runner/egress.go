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

// EgressOptions configures what commands may reach. The zero value is no network.
type EgressOptions struct {
	// Policy decides; nil is no network.
	Policy *rule.Policy
	// Private are hosts that may have private addresses.
	Private map[string][]netip.Prefix
	// Upstream is a proxy for all connections; nil is none. The environment's proxy is
	// never used.
	Upstream *url.URL
	// Ask asks about hosts without a rule, through the session's broker. It has no effect if
	// the session's policy denies the class network.
	Ask bool
	// AskAddress also asks about private addresses of hosts allowed that way.
	AskAddress bool
	// Capture lets programs that ignore proxies connect by name.
	Capture bool
	// Presets are the package managers' networks, and GitFetch and GitPush the URLs of git
	// repositories. Policy contains their rules.
	Presets           []*preset.Preset
	GitFetch, GitPush []string
	// Secrets are keys that commands can use but not read.
	Secrets []secret.Secret
	// CA are PEM certificates to trust in addition to the machine's and the image's.
	CA []byte
	// KeepFiles is where files of the presets' registries are kept; CacheDir is the
	// directory for [CacheShared]. LockFile pins their content: if it exists it is obeyed,
	// otherwise it is written at the session's end; "" is none.
	KeepFiles          FileCache
	CacheDir, LockFile string
	// Budget bounds all connections of the session together; the zero value means
	// [limits.DefaultCommandEgressBudget].
	Budget limits.EgressBudget
}

// FileCache is where files of package registries are kept.
type FileCache string

// The caches. The zero value means [CacheOff].
const (
	CacheSession FileCache = "session"
	CacheShared  FileCache = "shared"
	CacheOff     FileCache = "off"
)

func (o EgressOptions) enabled() bool { return o.Policy != nil }

func (o Options) asksHosts() bool {
	mode := o.Policy.Decide(tools.Definition{Class: tools.ClassNetwork, Runs: tools.PlaceHost}, o.Workspace.Path).Mode
	return o.Egress.Ask && mode != policy.ModeDeny
}

func (s *Session) newNetwork() (*network.Network, error) {
	e := s.opts.Egress
	servers, err := networkServers(s.opts, s.servers)
	if err != nil {
		return nil, err
	}
	if !e.enabled() && s.bridge == nil && !slices.ContainsFunc(servers, func(one network.Server) bool { return one.Policy != nil }) {
		return nil, nil
	}
	for _, one := range s.servers { // the same for all, used if the session has none
		if len(e.CA) == 0 {
			e.CA = one.Egress.CA
		}
		if e.Upstream == nil && !e.enabled() {
			e.Upstream = one.Egress.Upstream
		}
	}
	o := network.Options{
		Policy: e.Policy, Private: e.Private, Upstream: e.Upstream, Capture: e.Capture, Budget: cmp.Or(e.Budget, limits.DefaultCommandEgressBudget()),
		Presets: e.Presets, GitFetch: e.GitFetch, GitPush: e.GitPush, Secrets: e.Secrets, CA: e.CA, Servers: servers,
		KeepFiles: e.KeepFiles == CacheSession || e.KeepFiles == CacheShared, LockFile: e.LockFile, Local: s.bridge.local(),
		Dir: s.dir, Hidden: s.opts.Secrets, Record: s.events.recordBelow, Log: s.log,
	}
	if wall := s.opts.SessionBudget.WallTime; wall != nil && len(s.opts.Profiles) > 0 { // without a model there are no turns
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

// recordEgress returns what commands may reach, for the first record. n may be nil.
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
		_, _ = sum.Write([]byte(strings.Join(out, "\n") + "\n\n")) // a hash never fails
		return firstListed(out)
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
