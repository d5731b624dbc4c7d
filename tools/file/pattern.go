package file

import (
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of a glob pattern. doublestar's time grows with the number of ways to
// choose among alternatives; apart from that it backtracks over only one star and
// one double star.
const (
	maxPatternBytes = 1024
	maxAlternatives = 64
)

// globPattern matches file names. Names that look alike are equal.
type globPattern struct {
	pattern string
	// literal is the pattern with its brackets taken literally, as in the directory
	// [id], or "".
	literal string
	// base matches only the last name: a pattern without a slash is meant for files
	// anywhere below.
	base bool
	// whole matches the path from the workspace's top, because the pattern began
	// with the workspace's own path.
	whole bool
	// last matches the last name of everything that the pattern matches, or is "".
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
	// "**/**" means the same as "**" but costs more.
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

// countAlternatives returns an upper bound on the number of patterns that the
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

// match reports whether the pattern matches an entry of the directory dir.
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
