package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// Bounds of what a server may offer. Registration bounds its schemas.
const (
	maxTools            = 1000
	maxPages            = 100
	maxDescriptionBytes = 8 << 10
	// maxSchemaTextBytes bounds one text in a schema.
	maxSchemaTextBytes = 2 << 10
	// maxDefinitionBytes bounds a definition's JSON, maxDefinitionDepth its
	// nesting.
	maxDefinitionBytes = 1 << 20
	maxDefinitionDepth = 64
	// maxShownName bounds a raw name when it is shown.
	maxShownName = 80
	// maxSkipped bounds the list of skipped tools, except for the entry that says
	// so.
	maxSkipped = 99
)

type toolList struct {
	tools   []offeredTool // by name
	skipped []Skipped
}

type offeredTool struct {
	Tool
	raw string // the server's own name
	def tools.Definition
}

// skipTool adds a tool that is not offered, up to a bound.
func (t *toolList) skipTool(raw, format string, args ...any) {
	switch len(t.skipped) {
	case maxSkipped + 1:
	case maxSkipped:
		t.skipped = append(t.skipped, Skipped{Name: "…", Why: "and more"})
	default:
		t.skipped = append(t.skipped, Skipped{Name: oneLine(raw, maxShownName), Why: oneLine(fmt.Sprintf(format, args...), maxLogBytes)})
	}
}

func (l *life) listTools(ctx context.Context) (toolList, error) {
	var list toolList
	if caps := l.session.InitializeResult().Capabilities; caps == nil || caps.Tools == nil {
		return list, nil
	}
	var found []*mcp.Tool
	cut, err := eachPage(func(cursor string) (next string, full bool, err error) {
		page, err := l.session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
		if err != nil {
			return "", false, err
		}
		found = append(found, page.Tools...)
		return page.NextCursor, len(found) > maxTools, nil
	})
	if err != nil {
		return list, fmt.Errorf("list tools: %w", l.explainError(ctx, err))
	}
	if cut != "" {
		list.skipTool("…", "the server's list has %s: only the tools before that are offered", cut)
	}
	// A repeated page has the same tools.
	first, different := map[string]*mcp.Tool{}, map[string]bool{}
	found = slices.DeleteFunc(found, func(t *mcp.Tool) bool {
		if t == nil {
			return true
		}
		other, again := first[t.Name]
		if !again {
			first[t.Name] = t
		}
		different[t.Name] = different[t.Name] || again && !reflect.DeepEqual(t, other)
		return again
	})
	if len(found) > maxTools {
		list.skipTool("…", "the server has more than %d tools", maxTools)
		found = found[:maxTools]
	}
	for _, t := range found {
		switch {
		case !l.server.cfg.offersTool(t.Name):
			list.skipTool(t.Name, "excluded by the configuration")
		case different[t.Name]:
			list.skipTool(t.Name, "the server has several tools of this name")
		default:
			offered, err := l.server.newOfferedTool(t)
			if err != nil {
				list.skipTool(t.Name, "%v", err)
				continue
			}
			list.tools = append(list.tools, offered)
		}
	}
	// Models get a.b and a_b under one name. Sort so that a_b is registered.
	wire := func(t offeredTool) string { return strings.ReplaceAll(string(t.Name), ".", "_") }
	slices.SortFunc(list.tools, func(a, b offeredTool) int {
		return cmp.Or(strings.Compare(wire(a), wire(b)), strings.Compare(string(b.Name), string(a.Name)))
	})
	return list, nil
}

// eachPage calls list with the cursor of each page, until the last page or until list
// reports that it has enough. If a server never stops paging, cut says how its list was cut off.
func eachPage(list func(cursor string) (next string, full bool, err error)) (cut string, err error) {
	cursor, seen := "", map[string]bool{}
	for range maxPages {
		next, full, err := list(cursor)
		switch {
		case err != nil || full || next == "":
			return "", err
		case seen[next]:
			return "pages that repeat", nil
		}
		seen[next] = true
		cursor = next
	}
	return fmt.Sprintf("more than %d pages", maxPages), nil
}

// newOfferedTool checks a definition and cleans its texts. The error is a phrase.
func (s *server) newOfferedTool(t *mcp.Tool) (offeredTool, error) {
	var o offeredTool
	name, err := tools.ParseName(s.cfg.Name + "/" + t.Name)
	if err != nil {
		return o, errors.New("its name is invalid: it must be short and consist of letters, digits, _, -, . and /")
	}
	// Leave out icons and _meta: no model and no person sees them.
	canonical, err := json.Marshal(mcp.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description,
		InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Annotations: t.Annotations,
	})
	if err != nil {
		return o, fmt.Errorf("the definition can't be encoded: %w", err)
	}
	decoded, err := strictjson.Decode(canonical, maxDefinitionBytes, maxDefinitionDepth)
	if err != nil {
		return o, fmt.Errorf("the definition is refused: %w", err)
	}
	document, _ := decoded.(map[string]any)
	schema, ok := document["inputSchema"].(map[string]any)
	if !ok {
		return o, errors.New("the input schema is no object")
	}
	if err := cleanSchema(schema); err != nil {
		return o, err
	}
	text, err := strictjson.Canonical(schema)
	if err != nil {
		return o, err
	}
	description := t.Description
	if strings.TrimSpace(description) == "" {
		description = t.Title
	}
	if strings.TrimSpace(description) == "" {
		description = "(The server describes this tool with nothing.)"
	}
	o.Tool, o.raw = Tool{Name: name, Hash: fmt.Sprintf("%x", sha256.Sum256(canonical))}, t.Name
	if _, rest, _ := strings.Cut(string(name), "/"); rest != t.Name {
		o.Raw = t.Name
	}
	class, place := s.cfg.runs()
	o.def = tools.Definition{
		Name: name, Description: cleanText(description, maxDescriptionBytes), InputSchema: text, FullSchema: true, Hash: o.Hash,
		Class: class, Runs: place, Timeout: s.cfg.maxCallTime(), EnabledByDefault: true,
	}
	return o, nil
}

// runs returns the class of the server's tools and where they run. It ignores what
// the server says about them.
func (s Server) runs() (tools.Class, tools.Place) {
	if s.InSandbox() {
		return tools.ClassExecute, tools.PlaceSandbox
	}
	return tools.ClassNetwork, tools.PlaceHost
}

// schemaTexts are the keywords whose strings only describe.
var schemaTexts = []string{"title", "description", "$comment"}

// cleanSchema cleans the descriptions of a schema in place. Hidden characters
// elsewhere are an error: removing them would change which inputs are valid.
func cleanSchema(schema any) error {
	switch v := schema.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.ContainsFunc(key, isHidden) {
				return errors.New("the schema has a key with hidden characters")
			}
			if text, ok := value.(string); ok && slices.Contains(schemaTexts, key) {
				v[key] = cleanText(text, maxSchemaTextBytes)
				continue
			}
			if err := cleanSchema(value); err != nil {
				return err
			}
		}
	case []any:
		for _, value := range v {
			if err := cleanSchema(value); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsFunc(v, isHidden) {
			return errors.New("the schema has a value with hidden characters")
		}
	}
	return nil
}
