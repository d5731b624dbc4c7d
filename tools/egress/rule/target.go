package rule

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// maxURLBytes is the maximum length of a URL. Servers commonly accept 8 KiB.
const maxURLBytes = 8 << 10

// Origin is the scheme, host and port of a URL. Origins are comparable with ==.
type Origin struct {
	Scheme string // http or https
	Host   string // canonical, as CanonicalHost returns it
	Port   uint16
}

// Address returns host:port, with brackets around an IPv6 address.
func (o Origin) Address() string { return net.JoinHostPort(o.Host, strconv.Itoa(int(o.Port))) }

// authority returns the address, without the port if it is the scheme's default.
func (o Origin) authority() string {
	if o.Port != defaultPort(o.Scheme) {
		return o.Address()
	}
	if strings.Contains(o.Host, ":") {
		return "[" + o.Host + "]"
	}
	return o.Host
}

// String returns the origin as a URL without a path.
func (o Origin) String() string { return o.Scheme + "://" + o.authority() }

// Target is a URL in canonical form, which is compared with rules, dialled and
// sent. The zero value is no URL.
type Target struct {
	Origin
	Path  string // escaped, begins with /, without dot segments
	Query string // as given, with its ?
	// ambiguous reports whether servers may read the path differently, because some
	// take a segment for more than a name.
	ambiguous bool
}

func (t Target) String() string { return t.Origin.String() + t.Path + t.Query }

// URL returns the URL for net/http.
func (t Target) URL() *url.URL {
	plain, err := url.PathUnescape(t.Path)
	if err != nil {
		plain = t.Path // can't happen: ParseTarget has unescaped it before
	}
	return &url.URL{
		Scheme: t.Scheme, Host: t.authority(), Path: plain, RawPath: t.Path,
		RawQuery: strings.TrimPrefix(t.Query, "?"), ForceQuery: t.Query == "?",
	}
}

// Error reports a URL or host that can't be used. Its reason is one of this
// package's.
type Error struct{ Reason, Message string }

func (e *Error) Error() string { return e.Message }

func newError(reason, format string, args ...any) error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ParseTarget returns the canonical form of an absolute http or https URL, or an
// *Error.
func ParseTarget(raw string) (Target, error) {
	if err := checkText(raw); err != nil {
		return Target{}, err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return Target{}, newError(ReasonInvalidURL, "not a URL: %v", errors.Unwrap(err))
	}
	return newTarget(u)
}

// ResolveRef returns the canonical form of a reference, such as a Location header,
// relative to t.
func (t Target) ResolveRef(ref string) (Target, error) {
	if err := checkText(ref); err != nil {
		return Target{}, err
	}
	u, err := url.Parse(ref)
	if err != nil {
		return Target{}, newError(ReasonInvalidURL, "not a URL: %v", errors.Unwrap(err))
	}
	return newTarget(t.URL().ResolveReference(u))
}

// checkText refuses URLs that parsers interpret differently.
func checkText(raw string) error {
	if len(raw) > maxURLBytes {
		return newError(ReasonInvalidURL, "the URL has %d bytes, at most %d are accepted", len(raw), maxURLBytes)
	}
	for _, r := range raw {
		if r <= ' ' || r == 0x7f || r == '\\' || r == 0xfffd || r >= 0x80 && r < 0xa0 {
			return newError(ReasonInvalidURL, "the URL holds %q; write it escaped", r)
		}
	}
	return nil
}

func newTarget(u *url.URL) (Target, error) {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		if u.Scheme == "" {
			return Target{}, newError(ReasonScheme, "the URL has no scheme; write it from https:// on")
		}
		return Target{}, newError(ReasonScheme, "scheme %q is not supported, only http and https", u.Scheme)
	case u.Opaque != "" || u.Host == "":
		return Target{}, newError(ReasonInvalidURL, "the URL names no host; write it like https://example.com/path")
	case u.User != nil:
		return Target{}, newError(ReasonUserinfo, "the URL holds a user name or password, which are not sent; leave out what stands before @")
	}
	t := Target{Origin: Origin{Scheme: u.Scheme}}
	var err error
	t.Host, err = CanonicalHost(u.Hostname())
	if err != nil {
		return Target{}, err
	}
	t.Port, err = canonicalPort(u)
	if err != nil {
		return Target{}, err
	}
	t.Path, t.ambiguous, err = canonicalPath(u.EscapedPath())
	if err != nil {
		return Target{}, err
	}
	if u.RawQuery != "" || u.ForceQuery {
		t.Query = "?" + escapeQuery(u.RawQuery)
	}
	return t, nil
}

// CanonicalHost returns a name in lower-case ASCII without a trailing dot, or an
// address as package netip formats it. It refuses hosts that some resolvers take
// for an address and others for a name. Its error is an *Error.
func CanonicalHost(host string) (string, error) {
	if !isASCII(host) {
		if !utf8.ValidString(host) {
			return "", newError(ReasonInvalidURL, "the host's name is not UTF-8")
		}
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", newError(ReasonInvalidURL, "host %q is not a name: %v", host, err)
		}
		host = ascii
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" || addr.Is4In6() {
			return "", newError(ReasonAddress, "address %s has a zone, or is an IPv4 address in disguise", host)
		}
		return addr.String(), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if len(host) > 253 || host == "" {
		return "", newError(ReasonInvalidURL, "the host's name is empty or too long")
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", newError(ReasonInvalidURL, "host %q is not a name", host)
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || isHex(last) {
		return "", newError(ReasonAddress, "host %q is neither a name nor an address in the usual form", host)
	}
	return host, nil
}

// isHex reports whether a label is 0x and hexadecimal digits, which inet_aton
// accepts in addresses.
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
			return 0, newError(ReasonInvalidURL, "the URL ends its host with a colon and no port")
		}
		return defaultPort(u.Scheme), nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, newError(ReasonPort, "port %s is not one of 1 to 65535", text)
	}
	return uint16(port), nil
}

// canonicalPath removes dot segments in every spelling, as browsers do.
func canonicalPath(escaped string) (canonical string, ambiguous bool, err error) {
	segments := strings.Split(strings.TrimPrefix(escaped, "/"), "/")
	out := make([]string, 0, len(segments))
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return "", false, newError(ReasonInvalidURL, "the URL's path is badly escaped")
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

// isAmbiguous reports whether some server may take a segment for more than a name:
// it has an escaped separator or escape, a control character or invalid UTF-8, or
// resembles a dot segment.
func isAmbiguous(segment string) bool {
	plain, err := url.PathUnescape(segment)
	return err != nil || !utf8.ValidString(plain) || strings.ContainsAny(plain, "/\\%") || strings.ContainsFunc(plain, unicode.IsControl) || likeDots(plain)
}

// scopedName is a package name with a scope, as npm sends it. It is one or two
// names below a directory, but never leads out of it.
var scopedName = regexp.MustCompile(`^@[0-9A-Za-z][0-9A-Za-z._~-]*%2[Ff][0-9A-Za-z][0-9A-Za-z._~-]*$`)

// hasOnlyScopes reports whether nothing but names of npm packages makes the path
// ambiguous.
func (t Target) hasOnlyScopes() bool {
	for segment := range strings.SplitSeq(t.Path, "/") {
		if isAmbiguous(segment) && !scopedName.MatchString(segment) {
			return false
		}
	}
	return true
}

// lookAlikes replaces the characters that best-fit tables turn into dots and
// separators, and that NFKC leaves unchanged.
var lookAlikes = strings.NewReplacer("\u3002", ".", "\u2044", "/", "\u2215", "/", "\u29f8", "/", "\u2216", "/", "\u29f5", "/", "\u29f9", "/", "\\", "/")

// likeDots reports whether a part of a segment resembles a dot segment. Characters
// that look like dots count as such. Invisible characters, and everything after a
// semicolon, which some servers take for parameters, don't count.
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

// escapeQuery escapes characters that are invalid in a request line.
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
