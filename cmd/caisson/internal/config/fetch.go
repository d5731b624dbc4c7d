package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/fetch"
)

// Fetch says what the fetch tool may reach; without allow it is off.
type Fetch struct {
	// Allow are origins and the beginnings of paths; see fetch.Rule.
	Allow []string `yaml:"allow"`
	// Private are networks, or addresses, that are not public, by the host that
	// may be there.
	Private map[string][]string `yaml:"private"`
	// MaxBytes bounds one response, Timeout one fetch.
	MaxBytes *Size     `yaml:"max_bytes"`
	Timeout  *Duration `yaml:"timeout"`
	// SessionBytes and SessionHosts are a session's egress budget.
	SessionBytes *Size  `yaml:"session_bytes"`
	SessionHosts *Count `yaml:"session_hosts"`
	// Proxy makes the connections; without it the environment's does not count.
	Proxy *string `yaml:"proxy"`
}

// FetchBounds is what requirements and a workspace's file can say of it: less.
type FetchBounds struct {
	// Allow is what may be allowed; absent is anything, empty nothing.
	Allow []string `yaml:"allow"`
	// RefusePrivate refuses private networks, and a proxy, behind which nobody
	// sees them.
	RefusePrivate *bool     `yaml:"refuse_private"`
	MaxBytes      *Size     `yaml:"max_bytes"`
	Timeout       *Duration `yaml:"timeout"`
	SessionBytes  *Size     `yaml:"session_bytes"`
	SessionHosts  *Count    `yaml:"session_hosts"`
}

// builtinFetch are the defaults.
func builtinFetch() Fetch {
	e := limits.DefaultEgressBudget()
	return Fetch{
		MaxBytes: new(Size(fetch.DefaultMaxBytes)), Timeout: new(Duration(fetch.DefaultTimeout)),
		SessionBytes: new(Size(e.Bytes)), SessionHosts: new(Count(e.Hosts)),
	}
}

func (f Fetch) over(upper Fetch) Fetch {
	if upper.Allow != nil {
		f.Allow = upper.Allow
	}
	f.Private = overMap(f.Private, upper.Private)
	over(&f.MaxBytes, upper.MaxBytes)
	over(&f.Timeout, upper.Timeout)
	over(&f.SessionBytes, upper.SessionBytes)
	over(&f.SessionHosts, upper.SessionHosts)
	over(&f.Proxy, upper.Proxy)
	return f
}

// narrow makes f no wider than the bounds of where. Its error is an [Error].
func (f *Fetch) narrow(where string, b FetchBounds) error {
	if b.Allow != nil {
		own, err := rules("fetch.allow", f.Allow)
		if err != nil {
			return err
		}
		most, err := rules(where+": fetch.allow", b.Allow)
		if err != nil {
			return err
		}
		f.Allow = []string{}
		for _, r := range fetch.Intersect(own, most) {
			f.Allow = append(f.Allow, r.String())
		}
	}
	if b.RefusePrivate != nil && *b.RefusePrivate {
		if len(f.Private) > 0 || f.Proxy != nil {
			return &Error{
				Where: where, Message: "fetch.private and fetch.proxy are not allowed on this machine",
				Mend: "take them out; only public addresses are fetched from",
			}
		}
	}
	lower(&f.MaxBytes, b.MaxBytes)
	lower(&f.Timeout, b.Timeout)
	lower(&f.SessionBytes, b.SessionBytes)
	lower(&f.SessionHosts, b.SessionHosts)
	return nil
}

// check refuses bounds that would loosen, or that mean nothing.
func (b FetchBounds) check(where string) error {
	if b.RefusePrivate != nil && !*b.RefusePrivate {
		return &Error{Where: where, Message: "fetch.refuse_private: false loosens nothing", Mend: "write true, or take the key out"}
	}
	_, err := rules(where+": fetch.allow", b.Allow)
	return err
}

// rules reads an allowlist.
func rules(where string, list []string) ([]fetch.Rule, error) {
	out := make([]fetch.Rule, 0, len(list))
	for _, s := range list {
		r, err := fetch.ParseRule(s)
		if err != nil {
			return nil, &Error{Where: where, Message: err.Error(), Mend: "write origins and paths, such as https://docs.example.com/guide/"}
		}
		out = append(out, r)
	}
	return out, nil
}

// FetchOptions gives what the fetch tool may reach, checked.
func (c *Config) FetchOptions() (runner.FetchOptions, error) {
	o, err := c.fetchOptions()
	return o, c.locate(err)
}

func (c *Config) fetchOptions() (runner.FetchOptions, error) {
	in := c.Fetch
	o := runner.FetchOptions{
		MaxBytes: int64(value(in.MaxBytes, 0)), Timeout: time.Duration(value(in.Timeout, 0)), Egress: limits.DefaultEgressBudget(),
	}
	o.Egress.Bytes = int64(value(in.SessionBytes, Size(o.Egress.Bytes)))
	o.Egress.Hosts = int64(value(in.SessionHosts, Count(o.Egress.Hosts)))
	var err error
	if o.Allow, err = rules("fetch.allow", in.Allow); err != nil {
		return o, err
	}
	if o.Private, err = in.networks(o.Allow); err != nil {
		return o, err
	}
	if in.Proxy != nil {
		u, err := url.Parse(*in.Proxy)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return o, &Error{Where: "fetch.proxy", Message: "it is no address of an http or https proxy", Mend: "write it like http://proxy.lan:3128"}
		}
		o.Proxy = u
	}
	return o, nil
}

// networks reads Private. A host that no rule allows is a mistake: its entry
// would do nothing.
func (f Fetch) networks(allow []fetch.Rule) (map[string][]netip.Prefix, error) {
	out := map[string][]netip.Prefix{}
	for _, host := range sorted(f.Private) {
		where := "fetch.private." + host
		at := slices.IndexFunc(allow, func(r fetch.Rule) bool { return r.IsFor(host) })
		if at < 0 {
			return nil, &Error{Where: where, Message: "no entry of fetch.allow is for this host", Mend: "add one, or take this out"}
		}
		for _, s := range f.Private[host] {
			p, err := netip.ParsePrefix(s)
			if addr, plain := netip.ParseAddr(s); plain == nil {
				p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
			}
			if err != nil || p.Addr().Zone() != "" || p.Addr().Is4In6() || p.Masked() != p {
				return nil, &Error{Where: where, Message: fmt.Sprintf("%q is no network or address", s), Mend: "write it like 10.1.2.0/24 or 10.1.2.3"}
			}
			out[allow[at].Host()] = append(out[allow[at].Host()], p)
		}
	}
	return out, nil
}

// setFetchAllow reads the flag.
func setFetchAllow(f *File, v string) error {
	f.Fetch.Allow = []string{}
	for s := range strings.SplitSeq(v, ",") {
		r, err := fetch.ParseRule(strings.TrimSpace(s))
		if err != nil {
			return err
		}
		f.Fetch.Allow = append(f.Fetch.Allow, r.String())
	}
	return nil
}

// A key of FetchBounds alone, and what it is.
const (
	refusePrivateKey = "fetch.refuse_private"
	refusePrivate    = "refuse fetch.private, and fetch.proxy, behind which nobody sees private networks"
)

func fetchDescriptions() map[string]string {
	return map[string]string{
		"fetch":               "what the fetch tool may reach; without allow it is off",
		"fetch.allow":         "origins and the beginnings of paths, such as https://docs.example.com/guide/",
		"fetch.private":       "networks that are not public, by the host of allow that may be there",
		"fetch.private.NAME":  "networks or addresses, such as 10.1.2.0/24",
		"fetch.max_bytes":     "size of one response, decoded",
		"fetch.timeout":       "time of one fetch, redirects included",
		"fetch.session_bytes": "what a session may exchange with all servers, in both directions",
		"fetch.session_hosts": "different hosts that a session may fetch from",
		"fetch.proxy":         "http or https proxy that makes the connections; the environment's does not count",
	}
}
