package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/caisson-run/caisson/tools"
)

func (c *catalogue) searchDefinition() tools.Definition {
	return tools.Definition{
		Name: tools.NameSearchTools,
		Description: "Finds tools of servers (MCP) by words, in their names and descriptions, and loads those that it finds: they can be called from the next answer on. " +
			`Query "servers" lists the servers; "all" with a server lists its tools, without loading them.`,
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "query": {"type": "string", "maxLength": 500, "description": "Words of which any may match, such as: create issue."},
    "server": {"type": "string", "maxLength": 128, "description": "Only tools of this server."}
  },
  "additionalProperties": false
}`),
		Class: tools.ClassNone, Runs: tools.PlaceHost,
		Summary: func(input json.RawMessage) string {
			var in searchInput
			_ = json.Unmarshal(input, &in) // it passed the schema
			return strings.TrimSpace(in.Query + " " + in.Server)
		},
		EnabledByDefault: c.Enabled,
	}
}

type searchInput struct {
	Query  string `json:"query"`
	Server string `json:"server"`
}

func (c *catalogue) executeSearch(ctx context.Context, call *tools.Call, in searchInput) (tools.Output, error) {
	server := strings.TrimPrefix(strings.TrimSpace(in.Server), "mcp:")
	if slices.Contains([]string{"default", "all", "any", "*"}, server) {
		server = ""
	}
	if err := c.Wait(ctx, server); err != nil {
		return tools.Output{}, fmt.Errorf("wait for servers: %w", err)
	}
	text, matches := c.searchTools(strings.ToLower(strings.TrimSpace(in.Query)), server)
	if err := c.activateTools(call.ID, BySearch, matches); err != nil {
		return tools.Output{}, err
	}
	return tools.Output{Content: []tools.Block{{Text: text}}, Success: true}, nil
}

// searchTools returns the answer to a query and the tools to load.
func (c *catalogue) searchTools(query, server string) (text string, matches []tools.Definition) {
	all := c.Tools()
	defs := ofServer(all, server)
	switch query {
	case "", "servers", "mcp", "capabilities":
		return c.listServers(all), nil
	case "all", "list", "*":
		if server == "" {
			return c.listServers(all) + "\nName a server to list its tools.", nil
		}
		return c.listTools(defs, server), nil
	}
	words := splitWords(query)
	if matches = c.firstUsable(matchWords(defs, words), maxMatches); len(matches) == 0 {
		return c.noMatch(defs, query, server), nil
	}
	lines := []string{"These tools can be called from your next answer on:"}
	for _, def := range matches {
		lines = append(lines, c.describeTool(def))
	}
	return strings.Join(lines, "\n"), matches
}

func (c *catalogue) listTools(defs []tools.Definition, server string) string {
	usable := c.firstUsable(defs, len(defs))
	if len(usable) == 0 {
		return c.noServer(server)
	}
	slices.SortFunc(usable, func(a, b tools.Definition) int { return cmp.Compare(a.Name, b.Name) })
	lines := []string{fmt.Sprintf("Tools of %s. %s loads one.", server, tools.NameLoadTool)}
	for _, def := range usable[:min(len(usable), maxListed)] {
		lines = append(lines, c.describeTool(def))
	}
	if more := len(usable) - maxListed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more, which a search by words finds", more))
	}
	return strings.Join(lines, "\n")
}

func (c *catalogue) noServer(server string) string {
	shown, _ := tools.Display(server)
	return fmt.Sprintf("No server %q has tools that this session may use.\n%s", shown, c.listServers(c.Tools()))
}

// noMatch returns the answer to words that no tool has. It shows names differently
// from a match: nothing is loaded.
func (c *catalogue) noMatch(defs []tools.Definition, query, server string) string {
	if len(defs) == 0 {
		return c.noServer(server)
	}
	shown, _ := tools.Display(query)
	text := fmt.Sprintf("No tool matches %q.", shown)
	if near := c.suggestTools(defs, query); len(near) > 0 {
		return text + fmt.Sprintf(" Did you mean: %s? %s loads one.", c.quoteNames(near), tools.NameLoadTool)
	}
	return text + " Query \"servers\" lists the servers."
}

// splitWords returns the distinct words of a query, at most maxTokens.
func splitWords(query string) []string {
	words := strings.FieldsFunc(query, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	var list []string
	for _, word := range words {
		if len(list) < maxTokens && !slices.Contains(list, word) {
			list = append(list, word)
		}
	}
	return list
}
