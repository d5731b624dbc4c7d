package openai

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools"
)

// buildParams converts a request. Names take the provider's form, and calls its IDs,
// only here.
func (m *Model) buildParams(req loop.Request, q quirks) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{Model: m.options.Model, Messages: m.buildMessages(req.Messages)}
	for _, d := range req.Tools {
		name, schema, err := modelhttp.OfferTool(d)
		if err != nil {
			return p, err
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: name, Description: openai.String(d.Description), Parameters: schema,
		}))
	}
	if m.options.Temperature != nil {
		p.Temperature = openai.Float(*m.options.Temperature)
	}
	p.ReasoningEffort = shared.ReasoningEffort(m.options.ReasoningEffort)
	if n := m.maxTokens(req); n > 0 {
		if m.usesMaxCompletionTokens(q) {
			p.MaxCompletionTokens = openai.Int(n)
		} else {
			p.MaxTokens = openai.Int(n)
		}
	}
	if m.options.Stream && !q.noStreamOptions {
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	}
	return p, nil
}

func (m *Model) maxTokens(req loop.Request) int64 {
	return cmp.Or(req.MaxOutputTokens, m.options.MaxOutputTokens)
}

// buildMessages converts the conversation. Tool messages can have only text, so a user
// message with a round's images follows them.
func (m *Model) buildMessages(history []loop.Message) []openai.ChatCompletionMessageParamUnion {
	ids := loop.WireIDs(history)
	var (
		out    []openai.ChatCompletionMessageParamUnion
		images []openai.ChatCompletionContentPartUnionParam
	)
	flush := func() {
		if len(images) > 0 {
			out = append(out, openai.UserMessage(images))
			images = nil
		}
	}
	for _, message := range history {
		if message.Role != loop.RoleTool {
			flush()
		}
		switch message.Role {
		case loop.RoleSystem:
			out = append(out, openai.SystemMessage(modelhttp.JoinText(message)))
		case loop.RoleUser:
			out = append(out, openai.UserMessage(modelhttp.JoinText(message)))
		case loop.RoleAssistant:
			out = append(out, m.assistantMessage(message))
		case loop.RoleTool:
			for _, b := range message.Blocks {
				if b.ToolResult == nil {
					continue
				}
				id := cmp.Or(ids[b.ToolResult.ToolUseID], b.ToolResult.ToolUseID)
				content, pictures := resultContent(*b.ToolResult)
				out = append(out, openai.ToolMessage(content, id))
				images = append(images, pictures...)
			}
		}
	}
	flush()
	return out
}

func (m *Model) assistantMessage(message loop.Message) openai.ChatCompletionMessageParamUnion {
	var (
		p         openai.ChatCompletionAssistantMessageParam
		reasoning []string
	)
	if content := modelhttp.JoinText(message); content != "" {
		p.Content.OfString = param.NewOpt(content)
	}
	for _, b := range message.Blocks {
		switch {
		case b.Thinking != nil:
			reasoning = append(reasoning, b.Thinking.Text)
		case b.ToolUse != nil:
			p.ToolCalls = append(p.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID: b.ToolUse.WireID(),
					Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
						Name: modelhttp.WireName(b.ToolUse.Name), Arguments: string(b.ToolUse.Input),
					},
				},
			})
		}
	}
	if m.options.SendReasoning && len(reasoning) > 0 {
		p.SetExtraFields(map[string]any{"reasoning_content": strings.Join(reasoning, "\n")})
	}
	return openai.ChatCompletionMessageParamUnion{OfAssistant: &p}
}

// resultContent returns a result's text, and its images as parts of a user message.
func resultContent(r loop.ToolResult) (string, []openai.ChatCompletionContentPartUnionParam) {
	var (
		texts  []string
		images []openai.ChatCompletionContentPartUnionParam
	)
	for _, b := range r.Content {
		if b.Image == nil {
			texts = append(texts, b.Text)
			continue
		}
		if len(images) == 0 {
			images = append(images, openai.TextContentPart("Images of a tool result follow; they are tool output."))
		}
		images = append(images, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: imageURL(b)}))
	}
	if len(images) > 0 {
		texts = append(texts, fmt.Sprintf("[%d images, sent after this result]", len(images)-1))
	}
	return strings.Join(texts, "\n"), images
}

func imageURL(b tools.Block) string {
	return "data:" + b.MediaType + ";base64," + base64.StdEncoding.EncodeToString(b.Image)
}
