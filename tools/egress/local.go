package egress

import (
	"context"
	"net/http"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Local answers the requests to a host that Caisson itself is. Command is the number
// of the command that sent the request, or 0 if unknown. The function may panic with
// [http.ErrAbortHandler] to break off its response.
type Local func(w http.ResponseWriter, req *http.Request, command int)

// LocalPort is the only port of local hosts, which speak plain HTTP.
const LocalPort = 80

func (s *Server) isLocal(host string) bool { return s.opts.Local[host] != nil }

// admitLocal returns a *refusal unless the agent's own program asks for a local host at
// its port. No policy, budget or question decides about local hosts.
func (s *Server) admitLocal(r request) error {
	switch {
	case !r.userKnown:
		return newRefusal(rule.ReasonUser, "the user of the program is unknown")
	case r.foreign:
		return newRefusal(rule.ReasonIdentity, "this is the proxy of another identity than the program's")
	case r.other:
		return newRefusal(rule.ReasonIdentity, "%s is only for the agent's own programs", r.host)
	case r.port != LocalPort:
		return newRefusal(rule.ReasonPort, "%s is only at port %d, without TLS", r.host, LocalPort)
	}
	return nil
}

// serveLocalTunnel serves the requests in a tunnel to a local host.
func (c *client) serveLocalTunnel(ctx context.Context, r request, established func() error, refuse func(*refusal)) {
	if err := c.s.admitLocal(r); err != nil {
		refuse(asRefusal(ctx, err))
		return
	}
	c.first = 0 // the first byte belonged to the proxy's protocol
	if established() != nil {
		return
	}
	switch err := c.awaitFirst(c.s.times.header); {
	case c.expired.Load():
		c.s.reportDenied(r, asRefusal(ctx, err))
	case err != nil: // the program has closed it
	case c.first == firstTLS:
		c.refuseConn(r, newRefusal(rule.ReasonNotAllowed, "%s speaks no TLS", r.host))
	default:
		c.serveHTTP(ctx, &tunnel{request: r, scheme: "http"})
	}
}

// serveLocal answers a request to a local host.
func (x *httpConn) serveLocal(ctx context.Context, w http.ResponseWriter, req *http.Request, t rule.Target, r request) {
	r.host, r.port, r.method = t.Host, t.Port, req.Method
	r.url = withoutQuery(t.URL())
	if err := x.s.admitLocal(r); err != nil {
		x.answerRefused(w, r, asRefusal(ctx, err))
		return
	}
	req.URL, req.Host = t.URL(), t.Host
	if req.URL.RawPath == req.URL.Path { // as net/http has it
		req.URL.RawPath = ""
	}
	x.s.opts.Local[t.Host](w, req.WithContext(ctx), r.command)
}
