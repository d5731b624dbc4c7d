package rule

import (
	"net/url"
	"slices"
	"strings"
)

// Policy decides what a sandbox's commands may connect to. The zero value allows
// nothing. It must not be changed while it is used.
type Policy struct {
	// Allow lists what is allowed.
	Allow []Rule
	// Within are further lists, from requirements and workspaces. Each of them must
	// also allow what is allowed. An empty list allows nothing.
	Within [][]Rule
	// Deny wins over all of them. An http or https rule denies all methods unless
	// it names some.
	Deny []Rule
}

// Ways is a set of what may be sent to a host.
type Ways uint8

// The ways. Any includes HTTP and TLS. HTTPS excludes TLS and Any: if an https rule
// names the host and port, TLS ends in Caisson and only HTTP requests are sent
// there.
const (
	WayHTTP  Ways = 1 << iota // HTTP requests that the policy decides on one by one
	WayTLS                    // TLS whose first message names the host
	WayAny                    // any bytes
	WayHTTPS                  // like HTTP, over TLS that ends in Caisson
)

// Decision is a policy's decision. It allows if Reason is "".
type Decision struct {
	Reason string
	// Rule is the first rule of Allow that allows, or the rule of Deny that
	// refuses, or the zero value.
	Rule Rule
	// Ways are the ways left at this host and port.
	Ways Ways
	// PublicOnly reports that no rule names the host, so that exceptions for
	// private addresses don't count.
	PublicOnly bool
}

// Allowed reports whether the decision is to allow.
func (d Decision) Allowed() bool { return d.Reason == "" }

// DecideHost decides about connections to a canonical host and a port.
func (p *Policy) DecideHost(host string, port uint16) Decision {
	ways, first := waysOf(p.Allow, host, port)
	for _, list := range p.Within {
		within, _ := waysOf(list, host, port)
		ways &= within
	}
	var read Ways // what is sent can only be compared with a denied path if it is read
	for _, r := range p.Deny {
		switch {
		case !r.coversHost(host, port):
		case r.deniesAll():
			return Decision{Reason: ReasonNotAllowed, Rule: r}
		case r.kind == kindHTTPS:
			read |= WayHTTPS
		default:
			read |= WayHTTP
		}
	}
	if read != 0 {
		ways &= read
	}
	ends := func(r Rule) bool { return r.kind == kindHTTPS && r.coversHost(host, port) }
	switch {
	case ways&WayHTTPS == 0:
	case ways&WayTLS == 0 || slices.ContainsFunc(p.Allow, ends):
		ways &= WayHTTPS | WayHTTP
	default:
		ways &^= WayHTTPS
	}
	if ways == 0 {
		return Decision{Reason: ReasonNotAllowed}
	}
	named := slices.ContainsFunc(p.Allow, func(r Rule) bool { return r.kind != kindPublic && r.coversHost(host, port) })
	return Decision{Rule: first, Ways: ways, PublicOnly: !named}
}

// Ports returns ports among which the policy's rules differ: each port that a rule
// names, the ports of HTTP and TLS, and one that stands for all others.
func (p *Policy) Ports() []uint16 {
	ports := []uint16{80, 443}
	for _, list := range append([][]Rule{p.Allow, p.Deny}, p.Within...) {
		for _, r := range list {
			if r.port != 0 {
				ports = append(ports, r.port)
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	other := uint16(1)
	for slices.Contains(ports, other) {
		other++
	}
	return append(ports, other)
}

// AllowsName reports whether connections to a canonical name are allowed at any
// port.
func (p *Policy) AllowsName(host string) bool {
	return slices.ContainsFunc(p.Ports(), func(port uint16) bool { return p.DecideHost(host, port).Allowed() })
}

// DeniesName reports whether a rule of Deny covers a canonical name at any port, or
// a path.
func (p *Policy) DeniesName(host string) bool {
	return slices.ContainsFunc(p.Deny, func(r Rule) bool { return r.coversHost(host, r.port) })
}

// WithAnswer returns a policy that also allows r, which [AnswerRule] returned.
// Everything else of p stays in force. It shares its lists with p.
func (p *Policy) WithAnswer(r Rule) *Policy {
	out := *p
	out.Allow = append(slices.Clip(out.Allow), r)
	return &out
}

// AnswerRule returns the rule that an answer about a host and port adds: TLS at
// port 443, HTTP's GET and HEAD at port 80, and any bytes at others.
func AnswerRule(host string, port uint16) Rule {
	switch port {
	case 443:
		return Rule{kind: kindTLS, host: host, port: port}
	case 80:
		return Rule{kind: kindHTTP, host: host, port: port, path: "/"}
	}
	return Rule{kind: kindTCP, host: host, port: port}
}

// waysOf returns what a list of rules allows at a host and port, and the first rule
// that covers them.
func waysOf(list []Rule, host string, port uint16) (ways Ways, first Rule) {
	for _, r := range list {
		if !r.coversHost(host, port) {
			continue
		}
		if first == (Rule{}) {
			first = r
		}
		ways |= r.waysAt(port)
	}
	return ways, first
}

// waysAt returns what a rule allows at a host and port that it covers.
func (r Rule) waysAt(port uint16) Ways {
	switch {
	case r.kind == kindHTTP, r.kind == kindHost && port == 80:
		return WayHTTP
	case r.kind == kindTLS, r.kind == kindHost && port == 443:
		return WayTLS | WayHTTPS // an https rule of another list may narrow it
	case r.kind == kindHTTPS:
		return WayHTTPS
	}
	return WayAny | WayTLS | WayHTTP | WayHTTPS
}

// DecideRequest decides about an HTTP request that Caisson reads: unencrypted, or
// over TLS that ends in Caisson.
func (p *Policy) DecideRequest(t Target, method string) Decision {
	d := p.DecideHost(t.Host, t.Port)
	way := WayHTTP
	if t.Scheme == string(kindHTTPS) {
		way = WayHTTPS
	}
	switch {
	case !d.Allowed():
		return d
	case d.Ways&way == 0:
		return Decision{Reason: ReasonNotAllowed}
	case !isAllowedMethod(method):
		return Decision{Reason: ReasonMethod}
	}
	for _, r := range p.Deny {
		if r.deniesRequest(t, method) {
			return Decision{Reason: ReasonNotAllowed, Rule: r}
		}
	}
	for i, list := range append([][]Rule{p.Allow}, p.Within...) {
		r, reason := allowRequest(list, t, method, way)
		if reason != "" {
			return Decision{Reason: reason}
		}
		if i == 0 {
			d.Rule = r
		}
	}
	return d
}

// allowRequest returns the first rule that allows a request by a way to a host that
// the list covers, or why none does.
func allowRequest(list []Rule, t Target, method string, way Ways) (Rule, string) {
	reason := ReasonPath
	for _, r := range list {
		switch {
		case !r.coversHost(t.Host, t.Port) || r.waysAt(t.Port)&way == 0:
		case r.kind != kindHTTP && r.kind != kindHTTPS: // allows all requests
			return r, ""
		case r.git != "":
			if r.allowsGit(t, method) {
				return r, ""
			}
		case !r.allowsTarget(t):
		case slices.Contains(r.listMethods(), method):
			return r, ""
		default:
			reason = ReasonMethod
		}
	}
	return Rule{}, reason
}

func (r Rule) listMethods() []string {
	if r.methods == "" {
		return []string{"GET", "HEAD"}
	}
	return strings.Split(r.methods, ",")
}

// deniesAll reports whether a rule of Deny leaves nothing at the hosts and ports it
// covers.
func (r Rule) deniesAll() bool {
	return r.kind != kindHTTP && r.kind != kindHTTPS || r.path == "/" && r.methods == ""
}

// deniesRequest reports whether a rule of Deny refuses a request. It ignores what
// some servers ignore in paths: case, escapes, parameters, empty segments. A path
// that servers read differently is refused.
func (r Rule) deniesRequest(t Target, method string) bool {
	if !r.coversHost(t.Host, t.Port) || r.methods != "" && !slices.Contains(strings.Split(r.methods, ","), method) {
		return false
	}
	prefix := foldPath(r.path)
	return t.ambiguous || coversPath(strings.TrimSuffix(prefix, "/"), foldPath(t.Path))
}

// DeniesTarget reports whether any of the rules would refuse a request in
// [Policy].Deny.
func DeniesTarget(deny []Rule, t Target, method string) bool {
	return slices.ContainsFunc(deny, func(r Rule) bool {
		return r.coversHost(t.Host, t.Port) && (r.deniesAll() || r.deniesRequest(t, method))
	})
}

// foldPath returns a path in the form for comparison with denied paths.
func foldPath(path string) string {
	var out []string
	for segment := range strings.SplitSeq(path, "/") {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			plain = segment // can't happen: the path is canonical
		}
		name, _, _ := strings.Cut(plain, ";")
		if name != "" {
			out = append(out, strings.ToLower(name))
		}
	}
	return "/" + strings.Join(out, "/")
}
