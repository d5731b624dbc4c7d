package rule

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Rule is one entry of a list of what may be connected to. Rules can be compared
// with ==. The zero value covers nothing.
//
//	https://docs.example.com/guide       /guide, and what is below /guide/; commands' TLS ends in Caisson
//	git+https://git.example.com/org/     what git sends to fetch from repositories below /org/
//	http://wiki.lan:8080/public/         that port alone, below /public/
//	tls://api.example.com                TLS to port 443, the name in its first message
//	tls://*.example.com:8443             every name below example.com, not itself
//	tcp://db.lan:5432                    any bytes; the host may be an address
//	tcp://10.1.0.0/16:*                  addresses of a network, any port
//	host://*.example.com                 every port: as tls:// at 443, HTTP with all methods at 80, any bytes at others
//	public                               any bytes to any host at public addresses
type Rule struct {
	kind kind
	// host is canonical. With wildcard, it is the part after "*.". A network is in
	// prefix instead.
	host     string
	wildcard bool
	prefix   netip.Prefix
	port     uint16 // 0 means any
	path     string // of http and https
	// git is the access to git repositories below path, or "" for every request.
	git gitAccess
	// methods are the methods of an http or https rule, sorted and joined by
	// commas. "" means GET and HEAD if the rule allows, and all if it denies.
	methods string
}

type kind string

const (
	kindHTTPS  kind = "https"
	kindHTTP   kind = "http"
	kindTLS    kind = "tls"
	kindTCP    kind = "tcp"
	kindHost   kind = "host"
	kindPublic kind = "public"
)

type gitAccess string

const (
	gitFetch gitAccess = "fetch"
	gitPush  gitAccess = "push" // and fetch
)

const syntaxHint = "write https://example.com/path/, tls://example.com, http://example.com/path/, tcp://db.lan:5432, " +
	"host://example.com, git+https://example.com/org/, or public"

const gitScheme = "git+https"

// ParseFetch parses a rule of the fetch tool: an http or https URL without a query.
// Its error is for the author of the rule.
func ParseFetch(s string) (Rule, error) {
	if strings.Contains(s, "*") {
		return Rule{}, fmt.Errorf("%q holds a wildcard; name each origin and path, such as https://docs.example.com/guide/", s)
	}
	return parseURL(s, s)
}

// ParseEgress parses a rule for a sandbox's commands. Its error is for the author
// of the rule.
func ParseEgress(s string) (Rule, error) {
	if len(s) > maxURLBytes {
		return Rule{}, fmt.Errorf("a rule has %d bytes, at most %d are accepted", len(s), maxURLBytes)
	}
	if s == string(kindPublic) {
		return Rule{kind: kindPublic}, nil
	}
	scheme, rest, _ := strings.Cut(s, "://")
	switch k := kind(scheme); k {
	case kindHTTP:
		name, wildcard := strings.CutPrefix(rest, "*.")
		r, err := parseURL(s, "http://"+name)
		if err != nil || !wildcard {
			return r, err
		}
		r.wildcard = true
		return r, checkWildcard(s, r)
	case kindHTTPS:
		if name, ok := strings.CutPrefix(rest, "*."); ok {
			return Rule{}, fmt.Errorf("%q: certificates are made for exact hosts only; name each host, or allow all requests with %s", s, suggestTLS(name))
		}
		return parseURL(s, s)
	case gitScheme:
		return ParseGit("https://"+rest, false)
	case kindTLS, kindTCP, kindHost:
		return parseHostRule(s, k, rest)
	}
	return Rule{}, fmt.Errorf("%q is not a rule; %s", s, syntaxHint)
}

// suggestTLS returns the rule for all names below an https URL's host.
func suggestTLS(rest string) string {
	host, _, _ := strings.Cut(rest, "/")
	if r, err := parseHostRule("", kindTLS, "*."+host); err == nil {
		return r.String()
	}
	return "tls://*. and its name"
}

// ParseGit parses a rule for the git repositories at or below an https URL. It
// allows only the requests of git's smart HTTP protocol that fetch and, with push,
// the ones that push. A repository may be written with or without .git at its end.
// Its error is for the author of the rule.
func ParseGit(rawURL string, push bool) (Rule, error) {
	if !strings.HasPrefix(rawURL, "https://") || strings.Contains(rawURL, "*") {
		return Rule{}, fmt.Errorf("%q is not the URL of git repositories; write it like https://git.example.com/org/", rawURL)
	}
	r, err := parseURL(rawURL, rawURL)
	r.git = gitFetch
	if push {
		r.git = gitPush
	}
	if path, ok := strings.CutSuffix(r.path, ".git"); ok && !strings.HasSuffix(path, "/") {
		r.path = path // /org/.git stays: /org/ would be every repository there
	}
	return r, err
}

// parseURL parses a rule that is an http or https URL. Errors quote shown.
func parseURL(shown, raw string) (Rule, error) {
	t, err := ParseTarget(raw)
	switch {
	case err != nil:
		return Rule{}, fmt.Errorf("%q: %w", shown, err)
	case t.Query != "" || strings.Contains(raw, "#"):
		return Rule{}, fmt.Errorf("%q holds a query or a fragment; a rule is an origin and the beginning of a path", shown)
	case t.ambiguous:
		return Rule{}, fmt.Errorf("%q has a path that servers read differently: an escaped separator, control character or dot segment in it", shown)
	}
	return Rule{kind: kind(t.Scheme), host: t.Host, port: t.Port, path: t.Path}, nil
}

// parseHostRule parses the part after :// of a rule with a host and a port.
func parseHostRule(shown string, k kind, rest string) (Rule, error) {
	if err := checkText(rest); err != nil {
		return Rule{}, fmt.Errorf("%q: %w", shown, err)
	}
	host, port := rest, ""
	at := strings.LastIndexByte(rest, ':')
	if at > strings.LastIndexByte(rest, ']') {
		host, port = rest[:at], rest[at+1:]
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(host, ":") {
			return Rule{}, fmt.Errorf("%q: brackets are for IPv6 addresses", shown)
		}
	} else if strings.Contains(host, ":") {
		return Rule{}, fmt.Errorf("%q: write an IPv6 address in brackets, and a port behind them", shown)
	}
	r := Rule{kind: k}
	switch {
	case port == "" && k == kindTLS && at != len(rest)-1: // a colon without a port is refused
		r.port = 443
	case port == "*" && k == kindTCP, k == kindHost && at < 0:
	case k == kindHost:
		return Rule{}, fmt.Errorf("%q: a rule of host:// is a name, for all ports; write tcp:// or tls:// for one port", shown)
	case port == "":
		return Rule{}, fmt.Errorf("%q has no port; write it behind the host, such as :5432", shown)
	default:
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Rule{}, fmt.Errorf("%q: port %q is not one of 1 to 65535", shown, port)
		}
		r.port = uint16(n)
	}
	return r.withHost(shown, host)
}

// withHost returns r for a name, a wildcard, an address or a network.
func (r Rule) withHost(shown, host string) (Rule, error) {
	if strings.Contains(host, "/") && r.kind == kindTCP {
		p, err := netip.ParsePrefix(host)
		if err != nil || p.Masked() != p || p.Addr().Is4In6() {
			return Rule{}, fmt.Errorf("%q: invalid network %q; write it like 10.1.0.0/16", shown, host)
		}
		r.prefix = p
		return r, nil
	}
	if strings.ContainsAny(host, "/?#") {
		return Rule{}, fmt.Errorf("%q: a rule of %s is a host and a port, without a path", shown, r.kind)
	}
	name, wildcard := strings.CutPrefix(host, "*.")
	canonical, err := CanonicalHost(name)
	if err != nil {
		return Rule{}, fmt.Errorf("%q: %w", shown, err)
	}
	r.host, r.wildcard = canonical, wildcard
	_, err = netip.ParseAddr(canonical)
	if isAddr := err == nil; isAddr && (r.kind == kindTLS || r.kind == kindHost) {
		return Rule{}, fmt.Errorf("%q: TLS names no address to the server; write tcp:// for an address", shown)
	}
	if wildcard {
		return r, checkWildcard(shown, r)
	}
	return r, nil
}

// checkWildcard refuses wildcards for strangers' names: *.com, *.co.uk, and names
// directly below a suffix under which everyone can have a name.
func checkWildcard(shown string, r Rule) error {
	if _, err := netip.ParseAddr(r.host); err == nil {
		return fmt.Errorf("%q: an address has no names below it", shown)
	}
	suffix, icann := publicsuffix.PublicSuffix(r.host)
	below, belowICANN := publicsuffix.PublicSuffix("x." + r.host)
	if suffix == r.host && (icann || !strings.Contains(suffix, ".")) || below == "x."+r.host && belowICANN {
		return fmt.Errorf("%q covers the names of everybody below %s; name the host, or a domain of one owner", shown, r.host)
	}
	return nil
}

// WithMethods returns an http or https rule for these methods instead of GET and
// HEAD.
func (r Rule) WithMethods(methods []string) (Rule, error) {
	if r.kind != kindHTTP && r.kind != kindHTTPS || r.git != "" {
		return Rule{}, fmt.Errorf("%s has no methods; only rules of http:// and https:// have", r)
	}
	list := slices.Clone(methods)
	for i, m := range list {
		list[i] = strings.ToUpper(m)
		if m == "" || strings.Trim(list[i], "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || !isAllowedMethod(list[i]) {
			return Rule{}, fmt.Errorf("%s: %q is not a method that can be allowed", r, m)
		}
	}
	if len(list) == 0 {
		return Rule{}, fmt.Errorf("%s has an empty list of methods; leave it out for GET and HEAD", r)
	}
	slices.Sort(list)
	r.methods = strings.Join(slices.Compact(list), ",")
	return r, nil
}

func isAllowedMethod(m string) bool { return m != http.MethodTrace && m != http.MethodConnect }

// Warning returns what the author of a rule should know, or "".
func (r Rule) Warning() string {
	if !r.wildcard {
		return ""
	}
	if suffix, _ := publicsuffix.PublicSuffix(r.host); suffix == r.host {
		return fmt.Sprintf("%s covers names of many owners: anybody can have a name below %s", r, r.host)
	}
	return ""
}

// String returns the rule in canonical form, without its methods or permission to
// push.
func (r Rule) String() string {
	switch r.kind {
	case "":
		return ""
	case kindPublic:
		return string(kindPublic)
	}
	o := Origin{Scheme: string(r.kind), Host: r.host, Port: r.port}
	switch {
	case r.wildcard:
		o.Host = "*." + r.host
	case r.prefix.IsValid():
		o.Host = r.prefix.String()
	}
	switch {
	case r.kind == kindHost:
		return "host://" + o.Host
	case r.port == 0 && strings.Contains(o.Host, ":"):
		return "tcp://[" + o.Host + "]:*"
	case r.port == 0:
		return "tcp://" + o.Host + ":*"
	case r.kind == kindTCP:
		return "tcp://" + net.JoinHostPort(o.Host, strconv.Itoa(int(r.port)))
	}
	if r.git != "" {
		return gitScheme + "://" + o.authority() + r.path
	}
	return o.String() + r.path
}

// Describe returns the rule with its methods, or its permission to push, such as
// "https://api.example.com/v1/ (POST)".
func (r Rule) Describe() string {
	switch {
	case r.methods != "":
		return r.String() + " (" + r.methods + ")"
	case r.git == gitPush:
		return r.String() + " (push)"
	}
	return r.String()
}

// Host returns the name or address of the rule's host, or the name after "*.". It
// is "" for a network and for public.
func (r Rule) Host() string { return r.host }

// IsFor reports whether the rule names a host, in any spelling. Wildcards, networks
// and public name none.
func (r Rule) IsFor(host string) bool {
	canonical, err := CanonicalHost(host)
	return err == nil && r.kind != "" && !r.wildcard && canonical == r.host
}

// coversHost reports whether the rule covers a canonical host and port, whatever is
// sent there.
func (r Rule) coversHost(host string, port uint16) bool {
	switch {
	case r.kind == kindPublic:
		return true
	case r.kind == "" || r.port != 0 && r.port != port:
		return false
	case r.prefix.IsValid():
		addr, err := netip.ParseAddr(host)
		return err == nil && r.prefix.Contains(addr)
	case r.wildcard:
		return strings.HasSuffix(host, "."+r.host)
	}
	return r.host == host
}

// allowsTarget reports whether an http or https rule allows a URL, whatever the
// method. An ambiguous path is allowed only by a rule for every path, or if nothing
// but names of npm packages makes it ambiguous.
func (r Rule) allowsTarget(t Target) bool {
	if string(r.kind) != t.Scheme || !r.coversHost(t.Host, t.Port) || r.git != "" {
		return false
	}
	return r.path == "/" || (!t.ambiguous || t.hasOnlyScopes()) && coversPath(r.path, t.Path)
}

// allowsGit reports whether a git rule allows a request. Ambiguous paths are not
// allowed.
func (r Rule) allowsGit(t Target, method string) bool {
	if string(r.kind) != t.Scheme || !r.coversHost(t.Host, t.Port) || t.ambiguous {
		return false
	}
	rest, ok := strings.CutPrefix(t.Path, r.path)
	if !ok {
		return false
	}
	if !strings.HasSuffix(r.path, "/") {
		if rest, ok = strings.CutPrefix(strings.TrimPrefix(rest, ".git"), "/"); !ok {
			return false
		}
	}
	rest = "/" + rest
	services := []string{"git-upload-pack"}
	if r.git == gitPush {
		services = append(services, "git-receive-pack")
	}
	for _, service := range services {
		refs := method == http.MethodGet && strings.HasSuffix(rest, "/info/refs") && t.Query == "?service="+service
		pack := method == http.MethodPost && strings.HasSuffix(rest, "/"+service) && t.Query == ""
		if refs || pack {
			return true
		}
	}
	return false
}

// EndsTLS reports whether Caisson must read what is sent over TLS in order to
// enforce the rule.
func (r Rule) EndsTLS() bool { return r.kind == kindHTTPS }

// coversPath reports whether a path is prefix, or below it.
func coversPath(prefix, path string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || strings.HasSuffix(prefix, "/") || rest[0] == '/')
}

// AllowsTarget reports whether any of the rules allows a URL.
func AllowsTarget(rules []Rule, t Target) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.allowsTarget(t) })
}

// IntersectFetch returns fetch rules for the URLs that both a and b allow.
func IntersectFetch(a, b []Rule) []Rule {
	out := []Rule{}
	for _, x := range a {
		for _, y := range b {
			switch {
			case x.kind != y.kind || x.host != y.host || x.port != y.port:
			case coversPath(y.path, x.path):
				out = append(out, x)
			case coversPath(x.path, y.path):
				out = append(out, y)
			}
		}
	}
	slices.SortFunc(out, func(x, y Rule) int { return strings.Compare(x.String(), y.String()) })
	return slices.Compact(out)
}

// ParseNetworks parses addresses and networks such as 10.1.2.0/24. It returns the
// valid ones even if there is an error.
func ParseNetworks(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var failed []error
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if addr, plain := netip.ParseAddr(s); plain == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || p.Addr().Zone() != "" || p.Addr().Is4In6() || p.Masked() != p {
			failed = append(failed, fmt.Errorf("invalid network %q", s))
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(failed...)
}
