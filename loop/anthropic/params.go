package anthropic

import (
	"cmp"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/anthropics/anthropic-sdk-go"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools"
)

// buildParams converts a request. Names take the provider's form, and calls its IDs,
// only here.
func (m *Model) buildParams(req loop.Request) (anthropic.MessageNewParams, error) {
	p := anthropic.MessageNewParams{
		Model:     m.options.Model,
		MaxTokens: cmp.Or(req.MaxOutputTokens, m.options.MaxOutputTokens),
	}
	for _, message := range req.Messages {
		if text := modelhttp.JoinText(message); message.Role == loop.RoleSystem && text != "" {
			p.System = append(p.System, anthropic.TextBlockParam{Text: text})
		}
	}
	p.Messages = m.buildMessages(req.Messages)
	var err error
	if p.Tools, err = buildTools(req.Tools); err != nil {
		return p, err
	}
	if called := calledTools(p.Messages); len(p.Tools) == 0 && len(called) > 0 {
		// The API refuses a conversation with calls but without tool definitions.
		p.Tools = called
		p.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
	}
	if m.options.Temperature != nil {
		p.Temperature = anthropic.Float(*m.options.Temperature)
	}
	p.OutputConfig.Effort = anthropic.OutputConfigEffort(m.options.ReasoningEffort)
	markCached(&p)
	return p, nil
}

// reasoningConfig returns a request's thinking member, or nil. The API refuses a budget
// that leaves no answer, as it may after a limit lowered the answer's length. In the
// middle of a round it also refuses a budget if the previous call has no reasoning, for
// example because another model made it.
func (m *Model) reasoningConfig(p anthropic.MessageNewParams) map[string]any {
	if m.options.ThinkingTokens == 0 || m.options.ThinkingTokens >= p.MaxTokens {
		return nil
	}
	if n := len(p.Messages); n > 1 && hasToolResult(p.Messages[n-1]) && !hasReasoning(p.Messages[n-2]) {
		return nil
	}
	return map[string]any{"type": "enabled", "budget_tokens": m.options.ThinkingTokens}
}

func hasToolResult(m anthropic.MessageParam) bool {
	for _, b := range m.Content {
		if b.OfToolResult != nil {
			return true
		}
	}
	return false
}

func hasReasoning(m anthropic.MessageParam) bool {
	return len(m.Content) > 0 && (m.Content[0].OfThinking != nil || m.Content[0].OfRedactedThinking != nil)
}

func buildTools(definitions []tools.Definition) ([]anthropic.ToolUnionParam, error) {
	var out []anthropic.ToolUnionParam
	for _, d := range definitions {
		name, schema, err := modelhttp.OfferTool(d)
		if err != nil {
			return nil, err
		}
		dropProperties(schema)
		delete(schema, "type") // the library writes it
		out = append(out, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
			Name: name, Description: anthropic.String(d.Description), InputSchema: anthropic.ToolInputSchemaParam{ExtraFields: schema},
		}})
	}
	return out, nil
}

const maxPropertyBytes = 64

// acceptsProperty reports whether the API accepts a schema property of this name.
// Otherwise it would refuse the whole request.
func acceptsProperty(name string) bool {
	for _, r := range name {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-", r) {
			return false
		}
	}
	return name != "" && len(name) <= maxPropertyBytes
}

// dropProperties removes properties that the API doesn't accept from a schema. An MCP
// server's tools may have some, such as $filter.
func dropProperties(v any) {
	switch v := v.(type) {
	case []any:
		for _, part := range v {
			dropProperties(part)
		}
	case map[string]any:
		if named, ok := v["properties"].(map[string]any); ok {
			maps.DeleteFunc(named, func(name string, _ any) bool { return !acceptsProperty(name) })
			if required, ok := v["required"].([]any); ok {
				v["required"] = slices.DeleteFunc(required, func(name any) bool { text, _ := name.(string); return !acceptsProperty(text) })
			}
		}
		for key, part := range v {
			switch named, _ := part.(map[string]any); key {
			case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
				for _, schema := range named {
					dropProperties(schema)
				}
			case "enum", "const", "default", "examples":
			default:
				dropProperties(part)
			}
		}
	}
}

func calledTools(messages []anthropic.MessageParam) []anthropic.ToolUnionParam {
	var out []anthropic.ToolUnionParam
	seen := map[string]bool{}
	for _, m := range messages {
		for _, b := range m.Content {
			if b.OfToolUse != nil && !seen[b.OfToolUse.Name] {
				seen[b.OfToolUse.Name] = true
				out = append(out, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{Name: b.OfToolUse.Name}})
			}
		}
	}
	return out
}

// buildMessages converts the conversation. Roles have to alternate, so results and the
// text after them form one user message.
func (m *Model) buildMessages(history []loop.Message) []anthropic.MessageParam {
	var out []anthropic.MessageParam
	ids := map[string]string{}
	for _, message := range history {
		role := anthropic.MessageParamRoleUser
		if message.Role == loop.RoleAssistant {
			role = anthropic.MessageParamRoleAssistant
		}
		var content []anthropic.ContentBlockParamUnion
		if message.Role != loop.RoleSystem {
			content = m.buildBlocks(message, ids)
		}
		switch last := len(out) - 1; {
		case len(content) == 0:
		case last >= 0 && out[last].Role == role:
			out[last].Content = append(out[last].Content, content...)
		default:
			out = append(out, anthropic.MessageParam{Role: role, Content: content})
		}
	}
	return out
}

// buildBlocks converts a message's blocks. It adds its calls' IDs to ids, and reads its
// results' from there.
func (m *Model) buildBlocks(message loop.Message, ids map[string]string) []anthropic.ContentBlockParamUnion {
	var out []anthropic.ContentBlockParamUnion
	for _, b := range message.Blocks {
		switch {
		case b.Text != nil && strings.TrimSpace(b.Text.Text) != "": // the API refuses blank text
			out = append(out, anthropic.NewTextBlock(b.Text.Text))
		case b.Thinking != nil && m.stale.Has(b.Thinking):
		case b.Thinking != nil && b.Thinking.Redacted != "":
			out = append(out, anthropic.NewRedactedThinkingBlock(b.Thinking.Redacted))
		case b.Thinking != nil && b.Thinking.Signature != "":
			out = append(out, anthropic.NewThinkingBlock(b.Thinking.Signature, b.Thinking.Text))
		case b.ToolUse != nil:
			ids[b.ToolUse.ID] = wireID(*b.ToolUse)
			out = append(out, anthropic.NewToolUseBlock(ids[b.ToolUse.ID], b.ToolUse.Input, modelhttp.WireName(b.ToolUse.Name)))
		case b.ToolResult != nil:
			out = append(out, resultBlock(*b.ToolResult, cmp.Or(ids[b.ToolResult.ToolUseID], b.ToolResult.ToolUseID)))
		}
	}
	return out
}

// wireID returns a call's ID. Another provider's may have characters that this one
// refuses.
func wireID(u loop.ToolUse) string {
	id := u.WireID()
	if strings.ContainsFunc(id, func(r rune) bool { return !modelhttp.IsNameRune(r) }) {
		return u.ID
	}
	return id
}

func resultBlock(r loop.ToolResult, id string) anthropic.ContentBlockParamUnion {
	p := &anthropic.ToolResultBlockParam{ToolUseID: id}
	if r.IsError {
		p.IsError = anthropic.Bool(true)
	}
	for _, b := range r.Content {
		switch {
		case b.Image != nil:
			image := anthropic.NewImageBlockBase64(b.MediaType, base64.StdEncoding.EncodeToString(b.Image))
			p.Content = append(p.Content, anthropic.ToolResultBlockParamContentUnion{OfImage: image.OfImage})
		case strings.TrimSpace(b.Text) != "":
			p.Content = append(p.Content, anthropic.ToolResultBlockParamContentUnion{OfText: &anthropic.TextBlockParam{Text: b.Text}})
		}
	}
	return anthropic.ContentBlockParamUnion{OfToolResult: p}
}

// markCached marks where the provider caches the prompt: after tools and system prompt,
// which never change, and after the last two user messages. The next request begins
// with the earlier of these, and reads it from the cache.
func markCached(p *anthropic.MessageNewParams) {
	mark := anthropic.NewCacheControlEphemeralParam()
	switch {
	case len(p.System) > 0:
		p.System[len(p.System)-1].CacheControl = mark
	case len(p.Tools) > 0:
		p.Tools[len(p.Tools)-1].OfTool.CacheControl = mark
	}
	left := 2
	for i := len(p.Messages) - 1; i >= 0 && left > 0; i-- {
		if p.Messages[i].Role != anthropic.MessageParamRoleUser {
			continue
		}
		left--
		switch b := p.Messages[i].Content[len(p.Messages[i].Content)-1]; {
		case b.OfText != nil:
			b.OfText.CacheControl = mark
		case b.OfToolResult != nil:
			b.OfToolResult.CacheControl = mark
		}
	}
}
