// Package safeurl shows URLs without their credentials. Passwords and keys are
// in addresses of models, engines and proxies, as user information or in the
// query.
package safeurl

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// inText finds URLs in a text.
var urlPattern = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>,\]}]+`)

// String returns a URL without user information and query. One that can't be
// parsed loses what stands before its last "@", and what stands behind "?".
func String(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case strings.HasPrefix(raw, "unix://"), strings.HasPrefix(raw, "npipe://"):
		return raw // a path
	case err == nil && u.User == nil && u.RawQuery == "" && !hasUserInfo(raw):
		return raw
	case err == nil && u.Host != "":
		u.User = nil
		u.RawQuery = ""
		u.ForceQuery = false
		return u.String()
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if ok {
		scheme += "://"
	} else {
		scheme = ""
		rest = raw
	}
	user, rest := cutUser(rest)
	if err != nil && ok && user == "" {
		return scheme + "[an address that can't be parsed]" // of a text, it may be half of one
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + rest
}

// InText returns text with every URL in it as [String] returns it.
func InText(text string) string { return urlPattern.ReplaceAllStringFunc(text, String) }

// Secrets returns what must not be shown of a URL, as it is written and decoded:
// the user information, the password, and the values of the query. The name of a
// user with a password is no secret, and neither is the version of an API.
func Secrets(raw string) []string {
	if strings.HasPrefix(raw, "unix://") || strings.HasPrefix(raw, "npipe://") {
		return nil
	}
	var out []string
	addForms := func(values ...string) {
		for _, v := range values {
			decoded, _ := url.PathUnescape(v) // "" if an escape is invalid
			for _, form := range []string{v, decoded} {
				if form != "" && !slices.Contains(out, form) {
					out = append(out, form)
				}
			}
		}
	}
	rest := raw
	if _, after, ok := strings.Cut(raw, "://"); ok {
		rest = after
	}
	rest, _, _ = strings.Cut(rest, "#")
	user := ""
	if u, err := url.Parse(raw); err == nil && u.Host != "" && u.User == nil {
		_, rest, _ = strings.Cut(rest, "?")
	} else {
		user, rest = cutUser(rest)
		_, rest, _ = strings.Cut(rest, "?")
	}
	if _, password, ok := strings.Cut(user, ":"); ok {
		addForms(user, password)
	} else {
		addForms(user)
	}
	for pair := range strings.SplitSeq(rest, "&") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok { // no key
			value = key
			key = ""
		}
		if strings.HasSuffix(strings.ToLower(key), "version") {
			continue
		}
		addForms(value)
	}
	return out
}

// opaque reports whether a text without a scheme has user information.
func hasUserInfo(raw string) bool { return !strings.Contains(raw, "://") && strings.Contains(raw, "@") }

// cutUser splits the part of a URL behind its scheme at the last "@" before the
// path; where a password has a slash that is not escaped, at the last one.
func cutUser(rest string) (user, host string) {
	authority := rest[:strings.IndexAny(rest+"/", "/?")]
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		at = strings.LastIndexByte(rest, '@')
	}
	return rest[:max(at, 0)], rest[at+1:]
}
