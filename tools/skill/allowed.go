package skill

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

const allTools = "*"

// entry is a name in allowed-tools.
type entry struct {
	name string
	// pattern is the text in parentheses, or "". It restricts nothing.
	pattern string
}

// parseEntry parses a name such as Read, Bash(git:*) or mcp__server__tool.
func parseEntry(written string) entry {
	name, pattern, _ := strings.Cut(written, "(")
	name = strings.TrimSpace(name)
	return entry{name: name, pattern: strings.TrimSuffix(pattern, ")")}
}

// allows reports whether the entry names a tool. shell includes the tools for its
// commands, and a server's tool includes the tools that load servers' tools.
func (e entry) allows(name tools.Name) bool {
	if e.name == allTools {
		return true
	}
	if name == "shell_output" || name == "shell_kill" || name == "shell_input" {
		return e.allows(tools.NameShell)
	}
	if server := name.Server(); server != "" {
		return e.allowsRemote(server, name)
	}
	if (name == tools.NameSearchTools || name == tools.NameLoadTool) && e.isRemote() {
		return true
	}
	return tools.IsSpelling(e.name, name)
}

// isRemote reports whether the entry names a server or its tool.
func (e entry) isRemote() bool {
	return strings.Contains(e.name, "/") || strings.Contains(e.name, "__")
}

// allowsRemote reports whether the entry names a server's tool, or the server.
func (e entry) allowsRemote(server string, name tools.Name) bool {
	written := strings.TrimPrefix(e.name, "mcp__")
	if whole := strings.TrimSuffix(strings.TrimSuffix(written, "/*"), "__*"); whole != e.name {
		return whole == server || name.Same(tools.Name(whole))
	}
	return name.Same(tools.Name(written))
}

func allowsAny(list []string, name tools.Name) bool {
	return slices.ContainsFunc(list, func(written string) bool { return parseEntry(written).allows(name) })
}

// Resolve returns the known tools that a list of allowed-tools names, the entries
// that name none, and those with a pattern, which is not enforced.
func Resolve(allowed []string, known []tools.Name) (names []tools.Name, unknown, patterns []string) {
	names = []tools.Name{}
	for _, name := range known {
		if allowsAny(allowed, name) {
			names = append(names, name)
		}
	}
	for _, written := range allowed {
		e := parseEntry(written)
		switch {
		case e.name != allTools && !slices.ContainsFunc(known, e.allows):
			unknown = append(unknown, written)
		case e.pattern != "" && e.pattern != "*":
			patterns = append(patterns, written)
		}
	}
	return names, unknown, patterns
}
