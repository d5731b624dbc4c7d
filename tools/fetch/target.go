package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// maxURLBytes bounds a URL; servers commonly take 8 KiB.
const maxURLBytes = 8 << 10

// origin is what a connection is made to. Two equal origins are one.
type origin struct {
	scheme string // http or https
	host   string // lower-case ASCII without a trailing dot, or an address
	port   uint16
}

// address is host:port, an IPv6 address in brackets.
func (o origin) address() string { return net.JoinHostPort(o.host, strconv.Itoa(int(o.port))) }

// authority is address without the scheme's own port.
func (o origin) authority() string {
	if o.port != defaultPort(o.scheme) {
		return o.address()
	}
	if strings.Contains(o.host, ":") {
		return "[" + o.host + "]"
	}
	return o.host
}

// String is the origin as a URL writes it.
func (o origin) String() string { return o.scheme + "://" + o.authority() }

// literal is the address that the host is, if it is one.
func (o origin) literalAddr() (netip.Addr, bool) {
	addr, err := netip.ParseAddr(o.host)
	return addr, err == nil
}

// target is a URL in its one canonical form: what the allowlist decides about,
// what is dialled and what is sent. The zero value is none.
type target struct {
	origin
	path  string // escaped, begins with /, without dot segments
	query string // as it was given, with its ?
	// ambiguous says that servers disagree about what path this is, because a
	// segment may be more than a name to them.
	ambiguous bool
}

// String is the whole URL.
func (t target) String() string { return t.origin.String() + t.path + t.query }

// url is what net/http is given.
func (t target) url() *url.URL {
	plain, err := url.PathUnescape(t.path)
	if err != nil {
		plain = t.path // can't be: parseTarget has unescaped it before
	}
	return &url.URL{
		Scheme: t.scheme, Host: t.authority(), Path: plain, RawPath: t.path,
		RawQuery: strings.TrimPrefix(t.query, "?"), ForceQuery: t.query == "?",
	}
}

// urlError says why a URL can't be used. Its reason is one of network.denied.
type urlError struct{ reason, message string }

func (e *urlError) Error() string { return e.message }

func badURL(reason, format string, args ...any) error {
	return &urlError{reason: reason, message: fmt.Sprintf(format, args...)}
}

// parseTarget gives the canonical form of an absolute URL, or a *urlError.
func parseTarget(raw string) (target, error) {
	if err := checkText(raw); err != nil {
		return target{}, err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, badURL("invalid_url", "not a URL: %v", errors.Unwrap(err))
	}
	return newTarget(u)
}

// resolve gives the canonical form of a reference, such as a Location header,
// as it is meant at t.
func (t target) resolveRef(ref string) (target, error) {
	if err := checkText(ref); err != nil {
		return target{}, err
	}
	u, err := url.Parse(ref)
	if err != nil {
		return target{}, badURL("invalid_url", "not a URL: %v", errors.Unwrap(err))
	}
	return newTarget(t.url().ResolveReference(u))
}

// checkText refuses what parsers of URLs read differently.
func checkText(raw string) error {
	if len(raw) > maxURLBytes {
		return badURL("invalid_url", "the URL has %d bytes, at most %d are accepted", len(raw), maxURLBytes)
	}
	for _, r := range raw {
		if r <= ' ' || r == 0x7f || r == '\\' || r == 0xfffd || r >= 0x80 && r < 0xa0 {
			return badURL("invalid_url", "the URL holds %q; write it escaped", r)
		}
	}
	return nil
}

func newTarget(u *url.URL) (target, error) {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		if u.Scheme == "" {
			return target{}, badURL("scheme", "the URL has no scheme; write it from https:// on")
		}
		return target{}, badURL("scheme", "scheme %q is not fetched, only http and https", u.Scheme)
	case u.Opaque != "" || u.Host == "":
		return target{}, badURL("invalid_url", "the URL names no host; write it like https://example.com/path")
	case u.User != nil:
		return target{}, badURL("userinfo", "the URL holds a user name or password, which are not sent; leave out what stands before @")
	}
	t := target{origin: origin{scheme: u.Scheme}}
	var err error
	t.host, err = canonicalHost(u.Hostname())
	if err != nil {
		return target{}, err
	}
	t.port, err = canonicalPort(u)
	if err != nil {
		return target{}, err
	}
	t.path, t.ambiguous, err = canonicalPath(u.EscapedPath())
	if err != nil {
		return target{}, err
	}
	if u.RawQuery != "" || u.ForceQuery {
		t.query = "?" + escapeQuery(u.RawQuery)
	}
	return t, nil
}

// canonicalHost gives a name in lower-case ASCII, or an address as netip
// writes it. What some resolvers take for an address, and others for a name,
// is neither.
func canonicalHost(host string) (string, error) {
	if !isASCII(host) {
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", badURL("invalid_url", "host %q is not a name: %v", host, err)
		}
		host = ascii
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" || addr.Is4In6() {
			return "", badURL("address", "address %s has a zone, or is an IPv4 address in disguise", host)
		}
		return addr.String(), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if len(host) > 253 || host == "" {
		return "", badURL("invalid_url", "the host's name is empty or too long")
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", badURL("invalid_url", "host %q is not a name", host)
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || isHex(last) {
		return "", badURL("address", "host %q is neither a name nor an address in the usual form", host)
	}
	return host, nil
}

// isHex says whether a label is 0x and hexadecimal digits, as in addresses of
// inet_aton.
func isHex(label string) bool {
	digits, ok := strings.CutPrefix(label, "0x")
	return ok && strings.Trim(digits, "0123456789abcdef") == ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

func canonicalPort(u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		if strings.HasSuffix(u.Host, ":") {
			return 0, badURL("invalid_url", "the URL ends its host with a colon and no port")
		}
		return defaultPort(u.Scheme), nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, badURL("port", "port %s is not one of 1 to 65535", text)
	}
	return uint16(port), nil
}

// canonicalPath takes out dot segments, in every spelling, the way browsers do
// it.
func canonicalPath(escaped string) (canonical string, ambiguous bool, err error) {
	segments := strings.Split(strings.TrimPrefix(escaped, "/"), "/")
	out := make([]string, 0, len(segments))
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return "", false, badURL("invalid_url", "the URL's path is badly escaped")
		}
		last := i == len(segments)-1
		switch plain {
		case "..":
			out = out[:max(len(out)-1, 0)]
			fallthrough
		case ".":
			if last {
				out = append(out, "")
			}
			continue
		}
		out = append(out, segment)
	}
	return "/" + strings.Join(out, "/"), slices.ContainsFunc(out, isAmbiguous), nil
}

// isAmbiguous says whether a segment may be taken for more than a name: it
// holds an escaped separator, an escaped escape, a control character or what is
// no UTF-8, or some server reads a dot segment in it.
func isAmbiguous(segment string) bool {
	plain, err := url.PathUnescape(segment)
	return err != nil || !utf8.ValidString(plain) || strings.ContainsAny(plain, "/\\%") || strings.ContainsFunc(plain, unicode.IsControl) || likeDots(plain)
}

// lookAlikes are what NFKC leaves of the characters that best-fit tables make
// dots and separators of.
var lookAlikes = strings.NewReplacer("\u3002", ".", "\u2044", "/", "\u2215", "/", "\u29f8", "/", "\u2216", "/", "\u29f5", "/", "\u29f9", "/", "\\", "/")

// likeDots says whether a part of a segment is one of dots alone, once
// characters that look like dots are dots, what is invisible is gone, and so is
// what stands behind a semicolon: to some servers the parameters of a folder.
func likeDots(plain string) bool {
	for part := range strings.SplitSeq(lookAlikes.Replace(norm.NFKC.String(plain)), "/") {
		name, _, _ := strings.Cut(part, ";")
		name = strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) || unicode.Is(unicode.Cf, r) {
				return -1
			}
			return r
		}, name)
		if name != "" && strings.Trim(name, ".") == "" {
			return true
		}
	}
	return false
}

// escapeQuery escapes what does not belong into a request line.
func escapeQuery(q string) string {
	var b strings.Builder
	for i := range len(q) {
		if c := q[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '<' || c == '>' || c == '#' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
