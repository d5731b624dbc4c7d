package fetch

import (
	"fmt"
	"slices"
	"strings"
)

// Rule allows the URLs of one origin at or below one path.
//
//	https://docs.example.com/            everything of that origin
//	https://docs.example.com/guide       /guide, and what is below /guide/
//	http://wiki.lan:8080/public/         that port alone, below /public/
//
// The zero value allows nothing.
type Rule struct{ at target }

// ParseRule parses a rule, which is a URL without a query. Its error is for the
// author of the rule.
func ParseRule(s string) (Rule, error) {
	if strings.Contains(s, "*") {
		return Rule{}, fmt.Errorf("%q holds a wildcard; name each origin and path, such as https://docs.example.com/guide/", s)
	}
	t, err := parseTarget(s)
	switch {
	case err != nil:
		return Rule{}, fmt.Errorf("%q: %w", s, err)
	case t.query != "" || strings.Contains(s, "#"):
		return Rule{}, fmt.Errorf("%q holds a query or a fragment; a rule is an origin and the beginning of a path", s)
	case t.ambiguous:
		return Rule{}, fmt.Errorf("%q has a path that servers read differently: an escaped separator, control character or dot segment in it", s)
	}
	return Rule{at: t}, nil
}

// String returns the rule in canonical form.
func (r Rule) String() string { return r.at.String() }

// Host returns the name or address of the rule's host.
func (r Rule) Host() string { return r.at.host }

// IsFor reports whether the rule is for a host, in any spelling.
func (r Rule) IsFor(host string) bool {
	canonical, err := canonicalHost(host)
	return err == nil && canonical == r.at.host
}

// allowsTarget reports whether the rule allows a URL. An ambiguous path is only
// allowed by a rule that allows every path.
func (r Rule) allowsTarget(t target) bool {
	if r.at.host == "" || r.at.origin != t.origin {
		return false
	}
	return r.at.path == "/" || !t.ambiguous && coversPath(r.at.path, t.path)
}

// coversPath reports whether a path is the prefix or below it.
func coversPath(prefix, path string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || strings.HasSuffix(prefix, "/") || rest[0] == '/')
}

// Allows reports whether any of the rules allows a URL.
func Allows(rules []Rule, rawURL string) bool {
	t, err := parseTarget(rawURL)
	return err == nil && anyAllows(rules, t)
}

func anyAllows(rules []Rule, t target) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.allowsTarget(t) })
}

// Intersect returns rules that allow the URLs that both a and b allow.
func Intersect(a, b []Rule) []Rule {
	out := []Rule{}
	for _, x := range a {
		for _, y := range b {
			switch {
			case x.at.origin != y.at.origin:
			case coversPath(y.at.path, x.at.path):
				out = append(out, x)
			case coversPath(x.at.path, y.at.path):
				out = append(out, y)
			}
		}
	}
	slices.SortFunc(out, func(x, y Rule) int { return strings.Compare(x.String(), y.String()) })
	return slices.Compact(out)
}
