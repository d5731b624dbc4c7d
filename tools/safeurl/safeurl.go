// Package safeurl removes credentials from URLs for display. The addresses of
// models, engines and proxies may contain passwords and keys, as user information
// or in the query.
package safeurl

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// urlPattern matches a URL inside a text.
var urlPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>,\]}]+`)
})

// String returns raw without user information and query. If raw can't be parsed, it
// removes everything before the last "@" and after the first "?".
func String(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case strings.HasPrefix(raw, "unix://"):
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
		return scheme + "(unreadable)" // may be cut off in a text, before its "@"
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + rest
}

// List applies [String] to each URL of a comma-separated list. The URLs may lack a
// scheme.
func List(raw string) string {
	list := strings.Split(raw, ",")
	for i, one := range list {
		list[i] = String(strings.TrimSpace(one))
	}
	return strings.Join(list, ",")
}

// InText applies [String] to each URL in text. Punctuation after a URL is not part
// of it.
func InText(text string) string {
	return urlPattern().ReplaceAllStringFunc(text, func(raw string) string {
		trimmed := strings.TrimRight(raw, ".:;!?")
		return String(trimmed) + raw[len(trimmed):]
	})
}

// Secrets returns the parts of a URL that must not be displayed, each as written
// and decoded: the user information, the password, and the values of the query. A
// user name with a password is not secret, and neither is an API version.
func Secrets(raw string) []string {
	if strings.HasPrefix(raw, "unix://") {
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

// hasUserInfo reports whether a text without a scheme has user information.
func hasUserInfo(raw string) bool { return !strings.Contains(raw, "://") && strings.Contains(raw, "@") }

// cutUser splits rest, a URL after its scheme, at the last "@" before the path or
// else at the last "@" anywhere: a password may contain an unescaped slash.
func cutUser(rest string) (user, host string) {
	authority := rest[:strings.IndexAny(rest+"/", "/?")]
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		at = strings.LastIndexByte(rest, '@')
	}
	return rest[:max(at, 0)], rest[at+1:]
}
