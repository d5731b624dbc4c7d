package discovery

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/caisson-run/caisson/tools"
)

func (c *catalogue) loadDefinition() tools.Definition {
	return tools.Definition{
		Name: tools.NameLoadTool,
		Description: "Loads a tool of a server (MCP) by its name, as search_tools lists it: it can be called from the next answer on. " +
			"The result is the name.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 256, "description": "The name of the tool."}
  },
  "required": ["name"],
  "additionalProperties": false
}`),
		Class: tools.ClassNone, Runs: tools.PlaceHost,
		Aliases: map[string]string{"tool": "name", "tool_name": "name"},
		Summary: func(input json.RawMessage) string {
			var in loadInput
			_ = json.Unmarshal(input, &in) // it passed the schema
			if name, err := tools.OperatorName(in.Name); err == nil {
				return string(name) // people and records see the canonical form
			}
			return in.Name
		},
		EnabledByDefault: c.Enabled,
	}
}

type loadInput struct {
	Name string `json:"name"`
}

func (c *catalogue) executeLoad(ctx context.Context, call *tools.Call, in loadInput) (tools.Output, error) {
	name, _ := tools.OperatorName(in.Name) // "" waits for all
	if err := c.Wait(ctx, name.Server()); err != nil {
		return tools.Output{}, fmt.Errorf("wait for servers: %w", err)
	}
	defs := c.Tools()
	def, ok := c.findTool(defs, in.Name)
	switch {
	case !ok:
		return tools.Output{}, c.noTool(defs, in.Name)
	case !c.IsUsable(def):
		message := fmt.Sprintf("Tool %q is not available in this session.", c.Wire(def.Name))
		return tools.Output{}, &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "not_permitted", Message: message, Visible: true}
	}
	if err := c.activateTools(call.ID, ByLoad, []tools.Definition{def}); err != nil {
		return tools.Output{}, err
	}
	return tools.Output{Content: []tools.Block{{Text: string(c.Wire(def.Name))}}, Success: true}, nil
}

// findTool looks a tool up by any form of its name, the canonical one first.
func (c *catalogue) findTool(defs []tools.Definition, name string) (found tools.Definition, ok bool) {
	for _, def := range defs {
		if string(def.Name) == name {
			return def, true
		}
		if def.Name.Same(tools.Name(name)) || string(c.Wire(def.Name)) == name {
			found, ok = def, true
		}
	}
	return found, ok
}

func (c *catalogue) noTool(defs []tools.Definition, name string) error {
	shown, _ := tools.Display(name)
	message := fmt.Sprintf("There is no tool %q.", shown)
	if near := c.suggestTools(defs, name); len(near) > 0 {
		message += fmt.Sprintf(" Did you mean: %s?", c.quoteNames(near))
	} else {
		message += fmt.Sprintf(" %s finds tools.", tools.NameSearchTools)
	}
	return &tools.Error{Class: tools.ErrorNotFound, Reason: "unknown_tool", Message: message, Visible: true}
}
