package egress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// refusal says why a request is not served. Its message is for the program.
type refusal struct {
	reason, message string
	// denied reports whether the request was refused, not failed by the network.
	denied bool
	rule   rule.Rule
	addr   netip.Addr
	err    error
}

func (f *refusal) Error() string { return f.message }

func (f *refusal) Unwrap() error { return f.err }

func newRefusal(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...), denied: true}
}

// newFailure returns a refusal for a failure of the network.
func newFailure(err error, reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...), err: err}
}

func refuseDecision(r request, d rule.Decision) *refusal {
	address := net.JoinHostPort(r.host, strconv.Itoa(int(r.port)))
	f := newRefusal(d.Reason, "%s is not allowed", address)
	switch d.Reason {
	case rule.ReasonMethod:
		f.message = fmt.Sprintf("the method %s is not allowed at %s", r.method, address)
	case rule.ReasonPath:
		f.message = fmt.Sprintf("this path is not allowed at %s", address)
	}
	f.rule = d.Rule
	return f
}

// asRefusal returns an error of a dialer, a budget or an exchange as a *refusal, or
// nil if ctx has ended.
func asRefusal(ctx context.Context, err error) *refusal {
	if f, ok := errors.AsType[*refusal](err); ok {
		return f
	}
	if ctx.Err() != nil {
		return nil
	}
	if bad, ok := errors.AsType[*rule.Error](err); ok {
		return newRefusal(bad.Reason, "%s", bad.Message)
	}
	if refused, ok := errors.AsType[*rule.AddressError](err); ok {
		f := newRefusal(rule.ReasonAddress, "%v", refused)
		f.rule, f.addr, f.err = refused.Rule, refused.Addr, refused.Err
		return f
	}
	if over, ok := errors.AsType[*limits.ExceededError](err); ok {
		f := newRefusal(string(over.Kind), "the session's network budget is used up (%s: %d of %d)", over.Kind, over.Used, over.Limit)
		f.err = over
		return f
	}
	if misplaced, ok := errors.AsType[*secret.MisplacedError](err); ok {
		return newRefusal(rule.ReasonSecretMisplaced, "%v", misplaced)
	}
	if f := refuseFile(err); f != nil {
		return f
	}
	if failed, ok := errors.AsType[*secret.CodingError](err); ok {
		return newFailure(failed, rule.ReasonProtocol, "%v", failed)
	}
	if failed, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return newFailure(failed, rule.ReasonTLS, "the host's certificate can't be verified: %.300s", failed.Err)
	}
	if failed, ok := errors.AsType[*rule.ResolveError](err); ok {
		return newFailure(failed.Err, rule.ReasonResolve, "%v", failed)
	}
	if failed, ok := errors.AsType[*rule.ConnectError](err); ok {
		return newFailure(failed.Err, rule.ReasonConnect, "%v", failed)
	}
	if timeout, ok := errors.AsType[net.Error](err); errors.Is(err, os.ErrDeadlineExceeded) || ok && timeout.Timeout() {
		return newFailure(err, rule.ReasonTimeout, "the host took too long")
	}
	return newFailure(err, rule.ReasonProtocol, "the exchange with the host failed")
}

// reportDenied reports a refusal. Failures of the network are reported with their
// connection.
func (s *Server) reportDenied(r request, f *refusal) {
	if !f.denied {
		return
	}
	d := Denied{Command: r.command, Way: r.way, Port: r.port, Method: r.method, Reason: f.reason, Addr: f.addr, Count: 1}
	if f.rule != (rule.Rule{}) {
		d.Rule = f.rule.String()
	}
	d.Host, _ = tools.Display(utf8text.Clip(r.host, 256))
	d.URL, _ = tools.Display(utf8text.Clip(r.url, 512))
	d.Method, _ = tools.Display(utf8text.Clip(r.method, 32))
	s.denials.addDenied(d)
}

// proxyError returns the error type of RFC 9209.
func (f *refusal) proxyError() string {
	switch f.reason {
	case rule.ReasonAddress:
		return "destination_ip_prohibited"
	case rule.ReasonResolve:
		return "dns_error"
	case rule.ReasonConnect:
		return "connection_refused"
	case rule.ReasonTimeout:
		return "connection_timeout"
	case rule.ReasonProtocol:
		return "http_protocol_error"
	case rule.ReasonTLS:
		return "tls_certificate_error"
	case rule.ReasonInvalidRequest:
		return "http_request_error"
	case string(limits.KindEgressConnections):
		return "connection_limit_reached"
	}
	return "http_request_denied"
}

func (f *refusal) httpStatus() int {
	switch {
	case f.denied:
		return http.StatusForbidden
	case f.reason == rule.ReasonTimeout:
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

func writeRefusal(w http.ResponseWriter, r request, f *refusal) {
	type failure struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Host    string `json:"host,omitempty"`
		Port    uint16 `json:"port,omitempty"`
	}
	host, _ := tools.Display(utf8text.Clip(r.host, 256))
	body, err := json.Marshal(map[string]failure{"error": {Reason: f.reason, Message: "Caisson: " + f.message, Host: host, Port: r.port}})
	if err != nil {
		body = []byte("{}") // can't happen: they are texts and a number
	}
	body = append(body, '\n')
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Proxy-Status", fmt.Sprintf("caisson; error=%s; details=%q", f.proxyError(), f.reason))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(f.httpStatus())
	_, _ = w.Write(body)
}

// withoutQuery returns a URL without credentials, query and fragment, for reports.
func withoutQuery(u *url.URL) string {
	plain := *u
	plain.User, plain.RawQuery, plain.ForceQuery, plain.Fragment = nil, "", false, ""
	return plain.String()
}

// shownURL returns a request's target without credentials and query, for reports.
func shownURL(raw string) string {
	if u, err := url.Parse(raw); err == nil {
		return withoutQuery(u)
	}
	raw, _, _ = strings.Cut(raw, "?")
	return raw[strings.LastIndexByte(raw, '@')+1:]
}

// shownHost returns the host of a URL that has no canonical form, for reports.
func shownHost(raw string) string {
	_, rest, _ := strings.Cut(raw, "//")
	rest, _, _ = strings.Cut(rest, "/")
	return rest[strings.LastIndexByte(rest, '@')+1:]
}
