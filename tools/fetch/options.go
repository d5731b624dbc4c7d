package fetch

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Defaults of [Options].
const (
	// DefaultMaxBytes bounds one response. The longest single-page specifications
	// have 5 to 15 MB, far more than fits into a model's context.
	DefaultMaxBytes = 10 << 20
	// DefaultTimeout bounds a fetch with all its redirects.
	DefaultTimeout = 30 * time.Second
	// DefaultIdle bounds the wait for the next byte.
	DefaultIdle = 10 * time.Second
)

const (
	maxHeaderBytes = 64 << 10
	maxRedirects   = 5
	connectTime    = 10 * time.Second
	maxCacheBytes  = 256 << 20
)

// Options configure the tool and its client. Egress and Hosts are required.
type Options struct {
	// Allow is the allowlist. If it is empty, nothing may be fetched and the tool
	// is disabled by default.
	Allow []rule.Rule
	// Deny wins over Allow. Its rules are as [rule.ParseEgress] returns them.
	Deny []rule.Rule
	// Private are the hosts that need not be public, with the networks that their
	// addresses may be in, as for [rule.NewGuard].
	Private map[string][]netip.Prefix
	// Egress counts the bytes and hosts of the session.
	Egress *limits.Egress
	// Hosts are the circuit breakers, by host and port.
	Hosts *limits.Breakers
	// MaxBytes bounds the decoded body of one response, Timeout the whole fetch,
	// and Idle the wait for the next byte. Zero means the default.
	MaxBytes      int64
	Timeout, Idle time.Duration
	// Proxy is the proxy for connections. Nil means none, regardless of the
	// environment. The proxy resolves names, so it must also check their addresses:
	// Caisson dials only the proxy.
	Proxy *url.URL
	// Resolver resolves names. Nil means Go's resolver with the system's
	// configuration.
	Resolver *net.Resolver
	// RootCAs are the certificate authorities. Nil means the system's.
	RootCAs *x509.CertPool
	// Dir is where responses are stored by their SHA-256. It is created when
	// needed. If it is "", nothing is stored.
	Dir string
	// Agent is the User-Agent. "" means Caisson.
	Agent string
	// Denied is called for each connection that the policy refuses, before the call
	// ends. Unless nil, it must be safe for concurrent use. An error that wraps
	// tools.ErrRecord ends the run.
	Denied func(Denial) error
	// Logger gets messages that are not for the model. It may be nil.
	Logger *zap.Logger
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Egress == nil:
		return o, errors.New("no Egress")
	case o.Hosts == nil:
		return o, errors.New("no Hosts")
	case o.MaxBytes < 0 || o.Timeout < 0 || o.Idle < 0:
		return o, errors.New("bounds must not be negative: MaxBytes, Timeout, Idle")
	case o.Proxy != nil && (o.Proxy.Scheme != "http" && o.Proxy.Scheme != "https" || o.Proxy.Hostname() == ""):
		return o, fmt.Errorf("proxy %s: only http and https proxies with a host are used", o.Proxy.Redacted())
	}
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Agent = cmp.Or(o.Agent, "Caisson")
	o.Resolver = cmp.Or(o.Resolver, &net.Resolver{PreferGo: true})
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Denied == nil {
		o.Denied = func(Denial) error { return nil }
	}
	return o, nil
}
