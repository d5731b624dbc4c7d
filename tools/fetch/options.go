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
	"github.com/caisson-run/caisson/tools"
)

// Defaults of [Options].
const (
	// DefaultMaxBytes bounds one response: the longest single-page
	// specifications are 5 to 15 MB, and what doesn't fit into a model's window
	// by far is of no use.
	DefaultMaxBytes = 10 << 20
	// DefaultTimeout bounds a whole fetch with its redirects.
	DefaultTimeout = 30 * time.Second
	// DefaultIdle bounds the wait for the next byte.
	DefaultIdle = 10 * time.Second
	// DefaultRedirects is the number of redirects that are followed.
	DefaultRedirects = 5
)

// Bounds that nobody has to change.
const (
	maxHeaderBytes = 64 << 10
	// maxDialled is the number of a host's addresses that are tried; all of
	// them are checked.
	maxDialled = 4
	// connectTime bounds the connection to one address.
	connectTime = 10 * time.Second
	// maxCacheBytes bounds what one session keeps of responses.
	maxCacheBytes = 256 << 20
)

// Options configure the tool and its client. Egress and Hosts are needed.
type Options struct {
	// Allow is what may be fetched; empty is nothing, and the tool is off.
	Allow []Rule
	// Private are hosts that may be at addresses that are not public, with the
	// networks in which they may be. Nil is none.
	Private map[string][]netip.Prefix
	// Egress counts what the session exchanges; nil is an error, because what
	// is not counted is not allowed.
	Egress *limits.Egress
	// Hosts are the circuit breakers, by host and port.
	Hosts *limits.Breakers
	// MaxBytes bounds the decoded body of one response, Timeout the whole
	// fetch, Idle the wait for the next byte; zero means the default.
	MaxBytes      int64
	Timeout, Idle time.Duration
	// Redirects is how many are followed; zero means the default, negative none.
	Redirects int
	// Proxy is asked to make connections. Nil is none, whatever the
	// environment says. With one, addresses behind names are the proxy's to
	// check: what is dialled here is the proxy alone.
	Proxy *url.URL
	// Resolver finds addresses; nil is Go's own, over the system's configuration.
	Resolver *net.Resolver
	// RootCAs verify servers; nil is the system's.
	RootCAs *x509.CertPool
	// Dir is where responses are kept by their SHA-256, made when it is needed;
	// "" keeps none.
	Dir string
	// Agent is the User-Agent; "" means Caisson.
	Agent string
	// ResultBytes bounds the text for the model; zero means
	// [tools.DefaultResultBytes].
	ResultBytes int
	// Denied is told of each connection that the policy refuses, before the
	// call ends; it is safe for concurrent use. An error that wraps
	// tools.ErrRecord ends the run. Nil is nobody.
	Denied func(Denial) error
	// Logger gets what is not for the model; nil discards.
	Logger *zap.Logger
}

// withDefaults fills in zeros and reports what can't work.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Egress == nil:
		return o, errors.New("no Egress: what is not counted is not allowed")
	case o.Hosts == nil:
		return o, errors.New("no Hosts")
	case o.MaxBytes < 0 || o.Timeout < 0 || o.Idle < 0 || o.ResultBytes < 0:
		return o, errors.New("bounds must not be negative: MaxBytes, Timeout, Idle, ResultBytes")
	case o.Proxy != nil && (o.Proxy.Scheme != "http" && o.Proxy.Scheme != "https" || o.Proxy.Hostname() == ""):
		return o, fmt.Errorf("proxy %s: only http and https proxies with a host are used", o.Proxy.Redacted())
	}
	private := make(map[string][]netip.Prefix, len(o.Private))
	for host, networks := range o.Private {
		canonical, err := canonicalHost(host)
		if err != nil {
			return o, fmt.Errorf("private host %q: %w", host, err)
		}
		private[canonical] = append(private[canonical], networks...)
	}
	o.Private = private
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Redirects = max(cmp.Or(o.Redirects, DefaultRedirects), 0)
	o.Agent = cmp.Or(o.Agent, "Caisson")
	o.ResultBytes = cmp.Or(o.ResultBytes, tools.DefaultResultBytes)
	if o.Resolver == nil {
		o.Resolver = &net.Resolver{PreferGo: true}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Denied == nil {
		o.Denied = func(Denial) error { return nil }
	}
	return o, nil
}
