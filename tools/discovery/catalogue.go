package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of what the model gets, as specified.
const (
	maxMatches     = 10
	maxListed      = 30
	maxSuggestions = 3
	maxParameters  = 4
	maxDescription = 80  // characters
	maxServers     = 100 // of the catalogue
	maxParameter   = 40  // bytes of a name
	maxTokens      = 16
	// minSimilarity is the lowest similarity of a suggestion.
	minSimilarity = 0.40
)

// catalogue is shared by the calls of a session.
type catalogue struct{ Options }

func lowerText(def *tools.Definition) string {
	return strings.ToLower(string(def.Name) + "\n" + def.Description)
}

// ofServer returns the tools of a server, or all for "".
func ofServer(defs []tools.Definition, server string) []tools.Definition {
	if server == "" {
		return defs
	}
	return slices.DeleteFunc(slices.Clone(defs), func(def tools.Definition) bool { return def.Name.Server() != server })
}

// firstUsable returns up to most tools that the session may use.
func (c *catalogue) firstUsable(defs []tools.Definition, most int) []tools.Definition {
	var list []tools.Definition
	for _, def := range defs {
		if len(list) == most {
			break
		}
		if c.IsUsable(def) {
			list = append(list, def)
		}
	}
	return list
}

// ranked is a tool by its index, which is cheaper to sort than a definition.
type ranked struct {
	index int
	rank  float64
}

// sortRanked returns the tools by rank, highest first. Equal ranks keep their
// order.
func sortRanked(defs []tools.Definition, found []ranked) []tools.Definition {
	slices.SortFunc(found, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.index, b.index)) })
	list := make([]tools.Definition, len(found))
	for i, r := range found {
		list[i] = defs[r.index]
	}
	return list
}

// matchWords returns the tools with any of the words in their name or description.
// Tools with more words come first, and among equals, tools with more words in the
// name.
func matchWords(defs []tools.Definition, words []string) []tools.Definition {
	var found []ranked
	for i := range defs {
		text := lowerText(&defs[i])
		rank := 0
		for _, word := range words {
			switch at := strings.Index(text, word); {
			case at < 0:
			case at < len(defs[i].Name):
				rank += maxTokens + 2
			default:
				rank += maxTokens + 1
			}
		}
		if rank > 0 {
			found = append(found, ranked{i, float64(rank)})
		}
	}
	return sortRanked(defs, found)
}

// suggestTools returns the tools most like what was written: in the name, with or
// without the server, or in the description.
func (c *catalogue) suggestTools(defs []tools.Definition, written string) []tools.Definition {
	written = strings.ReplaceAll(strings.ToLower(utf8text.Clip(written, 64)), "__", "/")
	var found []ranked
	for i := range defs {
		name, text, _ := strings.Cut(lowerText(&defs[i]), "\n")
		_, short, _ := strings.Cut(name, "/")
		best := 0.0
		for _, part := range []string{name, short, text} {
			if n, m := len(written), len(part); float64(min(n, m)) >= minSimilarity*float64(max(n, m)) && m > 0 {
				best = max(best, levenshtein.Similarity(written, part, nil))
			}
		}
		if best >= minSimilarity {
			found = append(found, ranked{i, best})
		}
	}
	return c.firstUsable(sortRanked(defs, found), maxSuggestions)
}

func (c *catalogue) quoteNames(defs []tools.Definition) string {
	var names []string
	for _, def := range defs {
		names = append(names, string(c.Wire(def.Name)))
	}
	return strings.Join(names, ", ")
}

func (c *catalogue) describeTool(def tools.Definition) string {
	text, _ := tools.Display(strings.Join(strings.Fields(utf8text.Repair(utf8text.Clip(def.Description, 8*maxDescription))), " "))
	if characters := []rune(text); len(characters) > maxDescription {
		text = string(characters[:maxDescription-1]) + "…"
	}
	line := fmt.Sprintf("- %s: %s", c.Wire(def.Name), text)
	if names := parameterNames(def.InputSchema); len(names) > 0 {
		shown := names[:min(len(names), maxParameters)]
		if more := len(names) - len(shown); more > 0 {
			shown = append(slices.Clone(shown), fmt.Sprintf("+%d more", more))
		}
		line += " (" + strings.Join(shown, ", ") + ")"
	}
	return line
}

// parameterNames returns the names of parameters for display, required ones first.
func parameterNames(schema json.RawMessage) []string {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	_ = json.Unmarshal(schema, &s) // a registered schema is an object
	names := slices.Sorted(maps.Keys(s.Properties))
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(boolInt(!slices.Contains(s.Required, a)), boolInt(!slices.Contains(s.Required, b)))
	})
	for i, name := range names {
		names[i], _ = tools.Display(utf8text.Clip(name, maxParameter))
	}
	return names
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *catalogue) listServers(defs []tools.Definition) string {
	count := map[string]int{}
	for _, def := range defs {
		if server := def.Name.Server(); server != "" && c.IsUsable(def) {
			count[server]++
		}
	}
	servers := c.Servers()
	if len(servers) == 0 {
		return "There are no servers with tools that this session may use."
	}
	lines := []string{"Servers:"}
	for _, s := range servers[:min(len(servers), maxServers)] {
		line := fmt.Sprintf("- %s: %d tools", s.Name, count[s.Name])
		if s.Problem != "" {
			problem, _ := tools.Display(utf8text.Clip(s.Problem, 200))
			line += " (" + problem + ")"
		}
		lines = append(lines, line)
	}
	if more := len(servers) - maxServers; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// activateTools loads tools that are not loaded yet. A tool that can't be recorded
// isn't loaded.
func (c *catalogue) activateTools(callID, by string, defs []tools.Definition) error {
	for _, def := range defs {
		if c.Loaded.Has(def.Name) {
			continue
		}
		if err := c.Activated(Activation{CallID: callID, Name: def.Name, Definition: def.Hash, By: by}); err != nil {
			return fmt.Errorf("load tool %s: %w", def.Name, err)
		}
		c.Loaded.Add(def.Name)
	}
	return nil
}
