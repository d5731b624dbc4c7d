package file

import (
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of a glob pattern. Matching one of doublestar's takes time in
// proportion to the ways to choose among its alternatives; the rest of it
// backtracks over one star and one double star only.
const (
	maxPatternBytes = 1024
	maxAlternatives = 64
)

// globPattern matches the names of files. Names that look alike are equal.
type globPattern struct {
	pattern string
	// literal is the pattern whose brackets stand for themselves, as in the directory [id].
	// It is "" without brackets.
	literal string
	// base matches the last name alone: a pattern without a slash is meant
	// for files anywhere below.
	base bool
	// whole matches the path from the workspace's top on: the pattern began
	// with the workspace's own path.
	whole bool
	// last matches the last name of whatever the pattern matches; "" where it
	// was not to be had.
	last string
}

func newPattern(r workspace.View, s string) (globPattern, error) {
	if len(s) > maxPatternBytes {
		return globPattern{}, refuse("invalid_pattern", "The pattern has %d bytes; at most %d are taken.", len(s), maxPatternBytes)
	}
	g := globPattern{pattern: strings.TrimPrefix(s, "./")}
	if strings.HasPrefix(s, "/") {
		rel, err := r.Relative(s)
		if err != nil {
			return globPattern{}, err
		}
		g.pattern, g.whole = rel, true
	}
	parts := strings.Split(g.pattern, "/")
	if slices.Contains(parts, "..") {
		return globPattern{}, refuse("invalid_pattern", "The pattern %q leads upwards; name the directory to search in with path.", s)
	}
	// "**/**" means no more than "**" and costs more.
	parts = slices.CompactFunc(parts, func(a, b string) bool { return a == "**" && b == "**" })
	g.pattern = foldName(strings.Join(parts, "/"))
	if !doublestar.ValidatePattern(g.pattern) || g.pattern == "" {
		return globPattern{}, refuse("invalid_pattern", "The pattern %q is not a valid glob: look for a bracket or brace that is not closed.", s)
	}
	if countAlternatives(g.pattern) > maxAlternatives {
		return globPattern{}, refuse("invalid_pattern", "The pattern's braces stand for more than %d alternatives; use several calls.", maxAlternatives)
	}
	if strings.Contains(g.pattern, "[") && !strings.Contains(g.pattern, `\`) {
		g.literal = strings.NewReplacer("[", `\[`, "]", `\]`).Replace(g.pattern)
	}
	g.base = !g.whole && len(parts) == 1
	last := parts[len(parts)-1]
	if !g.base && last != "**" && !strings.ContainsAny(g.pattern, `{\[`) {
		g.last = foldName(last)
	}
	return g, nil
}

// countAlternatives returns an upper bound for the number of patterns that the
// braces expand to.
func countAlternatives(pattern string) int {
	product, groups := 1, []int(nil)
	for i := 0; i < len(pattern) && product <= maxAlternatives; i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '{':
			groups = append(groups, 1)
		case ',':
			if n := len(groups); n > 0 {
				groups[n-1]++
			}
		case '}':
			if n := len(groups); n > 0 {
				product *= groups[n-1]
				groups = groups[:n-1]
			}
		}
	}
	return product
}

// match reports whether the pattern of a search matches an entry of a
// directory.
func (g globPattern) match(s *search, dir, name string) bool {
	name = foldName(name)
	switch {
	case g.base:
	case g.last != "" && !doublestar.MatchUnvalidated(g.last, name):
		return false
	case g.whole:
		name = path.Join(foldName(dir), name)
	default:
		name = foldName(s.relativeTo(dir, name))
	}
	return doublestar.MatchUnvalidated(g.pattern, name) || g.literal != "" && doublestar.MatchUnvalidated(g.literal, name)
}
