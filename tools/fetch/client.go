package fetch

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Client fetches URLs for one session, under one policy. It is safe for concurrent
// use. It needs no Close: it holds no connection between fetches.
type Client struct {
	opts  Options
	guard *rule.Guard
	cache *cache
}

// NewClient returns a client, or an error if the options are invalid.
func NewClient(o Options) (*Client, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make fetch client: %w", err)
	}
	guard, err := rule.NewGuard(o.Private)
	if err != nil {
		return nil, fmt.Errorf("make fetch client: %w", err)
	}
	return &Client{opts: o, guard: guard, cache: newCache(o.Dir, maxCacheBytes, o.Logger)}, nil
}

// Request is one fetch.
type Request struct {
	URL string
	// Refresh bypasses the cache.
	Refresh bool
	// CallID is the tool call's ID, for records and logs.
	CallID string
	// Asked reports whether a person approved this URL. Redirects to another
	// origin, which the person didn't see, are then not followed.
	Asked bool
}

// Response is the response of a server, with any status.
type Response struct {
	// URL is the final URL. Redirects are the URLs that redirected to it.
	URL       string
	Redirects []string
	Status    int
	// MediaType and Charset are from Content-Type, or "".
	MediaType, Charset string
	// Body has neither transfer nor content codings. SHA256 is its hash in
	// hexadecimal.
	Body   []byte
	SHA256 string
	// Cached reports whether the response is from the session's cache.
	Cached bool
}

var errTimeout = errors.New("the fetch took too long")

const reasonTimeout = "timeout"

// Get fetches one URL if the policy allows it. The error is a failure for the
// model, or wraps context.Cause(ctx), or wraps tools.ErrRecord if a refusal could
// not be recorded.
func (c *Client) Get(ctx context.Context, r Request) (Response, error) {
	within, cancel := context.WithTimeoutCause(ctx, c.opts.Timeout, errTimeout)
	defer cancel()
	last, res, err := c.followRedirects(within, r)
	if err == nil {
		return res, nil
	}
	err = asFailure(within, err)
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return Response{}, err
	}
	c.opts.Logger.Info("fetch failed", zap.String("call", r.CallID), zap.String("reason", f.reason), zap.NamedError("cause", f.err))
	if f.denied {
		if err := c.opts.Denied(newDenial(r.CallID, last, f)); err != nil {
			return Response{}, fmt.Errorf("record a refused connection: %w", err)
		}
	}
	return Response{}, err
}

// Denial is a connection that the egress policy refused before it was made. All
// fields are safe for display.
type Denial struct {
	CallID string
	// URL is the refused URL without a password, in canonical form if it has one.
	// Host is its host:port, or "".
	URL, Host string
	// Addr is the refused address, if the reason is an address.
	Addr string
	// Reason is a reason of docs/egress.md, such as not_allowed or address.
	Reason string
	// Redirect reports whether the URL came from a redirect, not from the model.
	Redirect bool
}

// newDenial returns the record of a refusal. last is the URL at which the fetch
// ended.
func newDenial(callID, last string, f *failure) Denial {
	d := Denial{CallID: callID, Addr: f.addr, Reason: f.reason, Redirect: f.redirect}
	if t, err := rule.ParseTarget(last); err == nil {
		last, d.Host = t.String(), t.Address()
	} else if u, err := url.Parse(last); err == nil {
		u.User = nil
		last, d.Host = u.String(), u.Host
	} else if before, _, holds := strings.Cut(last, "@"); holds {
		last = before[:min(len(before), strings.Index(before, "/")+1)] + "…"
	}
	d.URL, _ = tools.Display(utf8text.Clip(last, maxShownURL))
	d.Host, _ = tools.Display(utf8text.Clip(d.Host, maxShownURL))
	return d
}

const maxShownURL = 2 << 10

// followRedirects fetches a URL and follows its redirects. last is the URL at
// which it ended, unchanged if it can't be parsed.
func (c *Client) followRedirects(ctx context.Context, r Request) (last string, _ Response, err error) {
	first, err := rule.ParseTarget(r.URL)
	if err != nil {
		return r.URL, Response{}, err
	}
	if !r.Refresh && c.allows(first) {
		if res, ok := c.cache.get(first.String()); ok {
			return res.URL, res, nil
		}
	}
	var passed []string
	for at := first; ; {
		res, next, err := c.fetchHop(ctx, at)
		switch {
		case err != nil:
			return at.String(), Response{}, markRedirected(ctx, passed, err)
		case next == "":
			res.URL, res.Redirects = at.String(), passed
			if res.Status == http.StatusOK {
				c.cache.put(first.String(), res)
			}
			return res.URL, res, nil
		case len(passed) >= maxRedirects:
			return at.String(), Response{}, newFailure("redirects", "%s redirects more than %d times", first.Origin, maxRedirects)
		}
		passed = append(passed, at.String())
		at, err = c.resolveRedirect(at, first, next, r.Asked)
		if err != nil {
			return redirectURL(next, at), Response{}, markRedirected(ctx, passed, err)
		}
	}
}

// markRedirected makes a failure say that it is about a redirect's target, not the
// requested URL.
func markRedirected(ctx context.Context, passed []string, err error) error {
	err = asFailure(ctx, err)
	if f, ok := errors.AsType[*failure](err); ok && len(passed) > 0 {
		f.redirect = true
		f.message = utf8text.Clip(passed[len(passed)-1], 200) + " redirects, and then: " + f.message
	}
	return err
}

func (c *Client) allows(t rule.Target) bool {
	return rule.AllowsTarget(c.opts.Allow, t) && !rule.DeniesTarget(c.opts.Deny, t, http.MethodGet)
}

// resolveRedirect returns the target of a Location header. Fetching the target
// checks the allowlist.
func (c *Client) resolveRedirect(at, first rule.Target, location string, asked bool) (rule.Target, error) {
	next, err := at.ResolveRef(location)
	if err != nil {
		return rule.Target{}, err
	}
	if asked && next.Origin != first.Origin {
		return next, newFailure("redirect_not_shown", "%s redirects to %s, which is not what was approved; call fetch with that URL if it is needed", at, next)
	}
	return next, nil
}

// redirectURL returns the URL for the record of a refused redirect.
func redirectURL(location string, t rule.Target) string {
	if t.Host != "" {
		return t.String()
	}
	return location
}

// fetchHop makes one request if the policy allows it. For a redirect, next is its
// Location, and the body is not read.
func (c *Client) fetchHop(ctx context.Context, t rule.Target) (_ Response, next string, err error) {
	if !c.allows(t) {
		return Response{}, "", c.notAllowedFailure(t)
	}
	if err := c.newDialer().CheckLiteral(t.Host, t.Port); err != nil { // a proxy would dial it
		return Response{}, "", dialFailure(err)
	}
	if err := errors.Join(c.opts.Egress.Left(), c.opts.Egress.Host(t.Host)); err != nil {
		return Response{}, "", err
	}
	done, err := c.opts.Hosts.Begin(t.Address())
	if err != nil {
		f := newFailure("circuit_breaker", "%v", err)
		f.err = err
		return Response{}, "", f
	}
	outcome := limits.OutcomeUnknown
	defer func() { done(outcome) }()
	res, next, err := c.sendRequest(ctx, t)
	switch {
	case err != nil:
		err = asFailure(ctx, err)
		if f, ok := errors.AsType[*failure](err); ok && f.outage {
			outcome = limits.OutcomeFailure
		}
	case res.Status >= http.StatusInternalServerError || res.Status == http.StatusTooManyRequests:
		outcome = limits.OutcomeFailure
	default:
		outcome = limits.OutcomeSuccess
	}
	return res, next, err
}

// notAllowedFailure returns the failure for a URL that is denied, or not on the
// allowlist, which it lists.
func (c *Client) notAllowedFailure(t rule.Target) error {
	if len(c.opts.Allow) == 0 {
		return newDenied("not_allowed", "nothing may be fetched in this session")
	}
	if rule.AllowsTarget(c.opts.Allow, t) {
		return newDenied("not_allowed", "%s is denied in this session", utf8text.Clip(t.String(), 200))
	}
	return newDenied("not_allowed", "%s is not on this session's allowlist, which is: %s", utf8text.Clip(t.String(), 200), listRules(c.opts.Allow, 20))
}

// listRules returns the first rules, at most most, and the number of the others.
func listRules(rules []rule.Rule, most int) string {
	var list []string
	for _, r := range rules[:min(len(rules), most)] {
		list = append(list, r.String())
	}
	if over := len(rules) - most; over > 0 {
		list = append(list, fmt.Sprintf("and %d more", over))
	}
	return strings.Join(list, ", ")
}

func (c *Client) sendRequest(ctx context.Context, t rule.Target) (Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.String(), nil)
	if err != nil {
		return Response{}, "", newDenied("invalid_url", "not a URL: %v", err)
	}
	req.URL = t.URL()
	req.Header = http.Header{
		"User-Agent":      {c.opts.Agent},
		"Accept":          {"text/markdown, text/html;q=0.9, text/plain;q=0.9, application/json;q=0.9, */*;q=0.5"},
		"Accept-Encoding": {"gzip"},
	}
	tr := c.newTransport(t)
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(req)
	if err != nil {
		return Response{}, "", err
	}
	defer func() { _ = res.Body.Close() }() // an unread rest is not needed
	if location := res.Header.Get("Location"); location != "" && slices.Contains([]int{301, 302, 303, 307, 308}, res.StatusCode) {
		return Response{Status: res.StatusCode}, location, nil
	}
	out := Response{Status: res.StatusCode}
	// Without a valid type, the bytes decide whether it is text.
	kind, params, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err == nil || errors.Is(err, mime.ErrInvalidMediaParameter) {
		out.MediaType, out.Charset = utf8text.Clip(kind, 100), utf8text.Clip(strings.ToLower(params["charset"]), 40)
	}
	if !isReadableType(out.MediaType) {
		return Response{}, "", newFailure("content_type", "%s is %s (status %d), which is no text; only text is fetched", utf8text.Clip(t.String(), 200), out.MediaType, out.Status)
	}
	out.Body, err = c.readBody(res)
	if err != nil {
		return Response{}, "", err
	}
	out.SHA256 = fmt.Sprintf("%x", sha256.Sum256(out.Body))
	return out, "", nil
}

// newTransport returns a transport for one request to one origin. It uses only
// HTTP/1.1, whose messages are bounded by the few limits set here.
func (c *Client) newTransport(t rule.Target) *http.Transport {
	tr := &http.Transport{
		TLSClientConfig:        &tls.Config{RootCAs: c.opts.RootCAs, MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true, // decoded here, with a bound
		MaxResponseHeaderBytes: maxHeaderBytes,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			if address != t.Address() {
				return nil, newDenied("address", "the request would go to %s instead of %s", address, t.Address())
			}
			return c.dialOrigin(ctx, t.Origin)
		},
	}
	if c.opts.Proxy != nil {
		tr.Proxy = http.ProxyURL(c.opts.Proxy)
		tr.DialContext = c.dialProxy
	}
	return tr
}

func networkFailure(ctx context.Context, err error) *failure {
	switch {
	case context.Cause(ctx) != nil:
		return newOutage(err, reasonTimeout, "the server took longer than the fetch may take")
	case isTimeout(err):
		return newOutage(err, reasonTimeout, "the server stopped sending")
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return newOutage(err, "tls", "the server's certificate can't be trusted: %.300s", bad.Err)
	}
	return newOutage(err, "protocol", "the exchange with the server failed: %.300s", rootCause(err))
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, errTimeout) || errors.Is(err, os.ErrDeadlineExceeded) || ok && timeout.Timeout()
}

// rootCause returns err without the addresses that package net adds.
func rootCause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}
