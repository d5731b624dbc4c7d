package egress

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// Options configure a [Server]. Budget is required. Functions may be called
// concurrently.
type Options struct {
	// Policy decides about hosts and requests. Nil allows nothing.
	Policy *rule.Policy
	// Guard decides about addresses. Nil allows public ones only.
	Guard *rule.Guard
	// Budget bounds the traffic. Other users of the network may share it.
	Budget *limits.Egress
	// Port is the proxy's port in the sandbox, by default
	// [sandbox.DefaultEgressPort].
	Port int
	// Resolver resolves names. Nil means Go's resolver with the system's
	// configuration.
	Resolver *net.Resolver
	// Upstream is the http or https proxy for connections to hosts. Nil means none,
	// regardless of the environment. The proxy resolves names, so it must also
	// check their addresses: only address literals are checked here.
	Upstream *url.URL
	// Authority signs the certificates for hosts with https rules, whose TLS ends
	// here. If it is nil, TLS to them is refused.
	Authority *ca.Authority
	// Roots verify hosts and the upstream proxy. Nil means this machine's roots.
	Roots *x509.CertPool
	// Secrets are the keys that commands use without having them. It may be nil.
	Secrets *secret.Set
	// Mirrors are paths of the proxy that stand for the URLs of registries. The
	// policy must allow the URLs.
	Mirrors []preset.Mirror
	// Registries are the registries whose files are cached. Nil caches none.
	Registries *Registries
	// Local are hosts, by canonical name, that this process serves itself to the
	// agent's own programs.
	Local map[string]Local
	// Names and Numbers are the table of names and the last connection number,
	// which the servers of one session share. Nil means new ones.
	Names   *Names
	Numbers *atomic.Int64
	// Ask asks a person about a host that no rule covers. It must return when ctx
	// ends: then no connection waits for the answer any more. An error refuses. If
	// Ask is nil, such hosts are refused.
	Ask func(ctx context.Context, q Question) (Answer, error)
	// AskAddress also asks about the address of a host that Ask has allowed, if it
	// is in a private network. Otherwise the connection is refused.
	AskAddress bool
	// Opened is called before a connection is made, and must return only when the
	// record is on disk. After an error, the connection isn't made.
	Opened func(Opened) error
	// Closed is called once for each Opened that returned nil.
	Closed func(Closed)
	// Denied is called for refusals. Equal refusals of one command are aggregated:
	// the first is reported at once with a count of 1, the others together when
	// [Server.Denials] takes the command's, or by [Server.Close].
	Denied func(Denied)
	// Requested is called for each forwarded HTTP request when its response has
	// ended.
	Requested func(Requested)
	// Failed is called with each [*PanicError]. It must not panic itself.
	Failed func(error)
}

const (
	// maxConns is the number of connections served at once. Others wait.
	maxConns = sandbox.MaxEgressConns
	// maxStreams is the number of concurrent requests on one HTTP/2 connection.
	maxStreams = 100
	// maxRequests is the number of concurrent requests on all HTTP/2 connections.
	// Others wait. Each may need a connection to the host, and files of the cache.
	maxRequests = 256
	// maxHostBuffer and maxProgramBuffer bound the bytes buffered for one HTTP/2
	// connection: responses that a program doesn't read, and bodies that a host
	// doesn't.
	maxHostBuffer    = 2 << 20
	maxProgramBuffer = 256 << 10
	// maxFileConns is the number of idle connections to registries.
	maxFileConns = 16
	// maxClientConns is the number of idle connections for Caisson's own requests.
	maxClientConns = 4
	// maxNames is the number of names per session that get an address.
	maxNames = 4096
	// maxOpenQuestions bounds the questions at once, maxQuestions those of a session
	// that a person gets, and maxRulings those that are answered without one.
	maxOpenQuestions = 4
	maxQuestions     = 20
	maxRulings       = 1000
	// maxDenials is the number of distinct refusals kept. Others are counted
	// together.
	maxDenials   = 1000
	maxHeadBytes = 64 << 10
)

// timeouts of connections, which tests shorten.
type timeouts struct {
	// header bounds the wait for the head of a request, and for a ClientHello.
	header time.Duration
	// idle bounds the time without a byte in either direction.
	idle time.Duration
	// linger bounds the wait for a program to receive a refusal before its
	// connection is closed.
	linger time.Duration
}

var defaultTimeouts = timeouts{header: 10 * time.Second, idle: 10 * time.Minute, linger: time.Second}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Budget == nil:
		return o, errors.New("no Budget")
	case o.Port < 0 || o.Port > 65535:
		return o, fmt.Errorf("invalid port %d", o.Port)
	case o.Upstream != nil && (o.Upstream.Scheme != "http" && o.Upstream.Scheme != "https" || o.Upstream.Hostname() == ""):
		return o, fmt.Errorf("proxy %s: only http and https proxies with a host are used", o.Upstream.Redacted())
	}
	o.Policy = cmp.Or(o.Policy, &rule.Policy{})
	o.Guard = cmp.Or(o.Guard, &rule.Guard{})
	o.Port = cmp.Or(o.Port, sandbox.DefaultEgressPort)
	o.Resolver = cmp.Or(o.Resolver, &net.Resolver{PreferGo: true})
	o.Names = cmp.Or(o.Names, &Names{})
	o.Numbers = cmp.Or(o.Numbers, &atomic.Int64{})
	if o.Opened == nil {
		o.Opened = func(Opened) error { return nil }
	}
	if o.Closed == nil {
		o.Closed = func(Closed) {}
	}
	if o.Denied == nil {
		o.Denied = func(Denied) {}
	}
	if o.Requested == nil {
		o.Requested = func(Requested) {}
	}
	if o.Failed == nil {
		o.Failed = func(error) {}
	}
	return o, nil
}

// Way is how a program asked for a connection.
type Way string

// The ways.
const (
	WayHTTP    Way = "http"    // a request to the proxy, for an http URL
	WayConnect Way = "connect" // CONNECT
	WaySOCKS5  Way = "socks5"  // SOCKS5
	WayCapture Way = "capture" // a connection to the address of a name
	WayName    Way = "name"    // the lookup of a name
	WayClient  Way = "client"  // a request of Caisson's own
)

// Question is a question about a host and port that no rule covers.
type Question struct {
	// Host is the canonical name, Display its Unicode form. They are equal in
	// ASCII.
	Host, Display string
	Port          uint16
	// Addr is set if the host is allowed but has this address in a private network.
	Addr netip.Addr
	// Command is the number of the command that wants to connect, 0 if unknown.
	Command int
	// Rule is the rule that allowing adds, such as tls://example.com.
	Rule string
}

// Verdict is the kind of an [Answer].
type Verdict string

// The verdicts. VerdictOnce allows the connections of the command in question or,
// if it is unknown, the connections that wait for the answer. The others apply to
// the rest of the session; see also [Answer].Unasked.
const (
	VerdictOnce   Verdict = "once"
	VerdictAlways Verdict = "always"
	VerdictDeny   Verdict = "deny"
)

// Answer is the answer to a [Question]. It applies only to the question's host and
// port.
type Answer struct {
	Verdict Verdict
	// Reason is a note from who answered, for the program and the model.
	Reason string
	// Unasked reports that no person got the question: a decider or a stored answer
	// settled it, or it was cancelled. A denial then holds only for the connections that
	// wait for it.
	Unasked bool
}

// Opened describes a connection that is about to be made.
type Opened struct {
	// ID is the connection's number in the session, from 1 on.
	ID int64
	// Command is the number of the command, or 0 if unknown.
	Command int
	Way     Way
	Host    string // canonical
	Port    uint16
	// Rule is the rule that allows the connection. Asked reports whether it is the
	// answer to a question.
	Rule  string
	Asked bool
}

// The endings of connections, besides the reasons of package rule. A connection
// that fails, or is refused after it was opened, ends with the reason.
const (
	EndingDone     = "done"      // by both sides
	EndingProgram  = "program"   // the program ended or reset it
	EndingHost     = "host"      // the host reset it
	EndingIdle     = "idle"      // no byte for too long
	EndingFailed   = "failed"    // an error of Caisson itself
	EndingCanceled = "cancelled" // its context ended: with the command, the session, or both directions of the program
)

// Closed describes a connection that has ended.
type Closed struct {
	Opened
	// Addr is the address connected to, which is the proxy's if there is one, or
	// the zero value if there was no connection.
	Addr netip.AddrPort
	// SNI is the name in the first TLS message, or "".
	SNI string
	// Sent and Received are bytes to and from the host.
	Sent, Received int64
	// Requests is the number of HTTP requests sent, or 0 if they can't be seen.
	Requests int
	// Ending is one of the endings, or a reason of package rule.
	Ending string
	// Duration is the time since Opened.
	Duration time.Duration
}

// Denied describes refusals. Its texts are safe for display.
type Denied struct {
	Command int
	Way     Way
	// Host is canonical, or what the program sent if that isn't a host, or "" if
	// unknown. Port may be 0.
	Host string
	Port uint16
	// Method and URL are set if a request was refused for more than its host. The
	// URL has no query.
	Method, URL string
	// Reason is a reason of package rule. Rule is the denying rule, or "".
	Reason, Rule string
	// Addr is the refused address, or the zero value.
	Addr netip.Addr
	// Count is the number of equal refusals.
	Count int
}

// Requested describes an HTTP request that was forwarded.
type Requested struct {
	// ID is the number of the connection that carried it, as in [Opened].
	ID      int64
	Command int
	Method  string
	URL     string // without its query
	Status  int    // 0 if there was no response
	// Received is the size of the response's body in bytes, SHA256 its hash in
	// hexadecimal. Complete reports whether the body arrived in full.
	Received int64
	SHA256   string
	Complete bool
	Cached   bool
}
