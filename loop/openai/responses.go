package openai

import (
	"cmp"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
)

// buildResponseParams converts a request to the Responses API. The endpoint keeps
// nothing: each request has the whole conversation, with earlier answers' encrypted
// reasoning.
func (m *Model) buildResponseParams(req loop.Request, q quirks) (responses.ResponseNewParams, error) {
	p := responses.ResponseNewParams{Model: m.options.Model, Store: openai.Bool(false)}
	if !q.noEncryptedReasoning {
		p.Include = []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent}
	}
	var system []string
	for _, message := range req.Messages {
		if text := modelhttp.JoinText(message); message.Role == loop.RoleSystem && text != "" {
			system = append(system, text)
		}
	}
	if len(system) > 0 {
		p.Instructions = openai.String(strings.Join(system, "\n\n"))
	}
	p.Input.OfInputItemList = m.buildItems(req.Messages)
	for _, d := range req.Tools {
		name, schema, err := modelhttp.OfferTool(d)
		if err != nil {
			return p, err
		}
		// Turn off strict mode, this API's default, in which every property would have
		// to be required.
		tool := responses.ToolParamOfFunction(name, schema, false)
		tool.OfFunction.Description = openai.String(d.Description)
		p.Tools = append(p.Tools, tool)
	}
	if m.options.Temperature != nil {
		p.Temperature = openai.Float(*m.options.Temperature)
	}
	p.Reasoning.Effort = shared.ReasoningEffort(m.options.ReasoningEffort)
	if n := m.maxTokens(req); n > 0 {
		p.MaxOutputTokens = openai.Int(n)
	}
	return p, nil
}

// buildItems converts the conversation without its system messages.
func (m *Model) buildItems(history []loop.Message) responses.ResponseInputParam {
	ids := loop.WireIDs(history)
	var out responses.ResponseInputParam
	for _, message := range history {
		switch message.Role {
		case loop.RoleUser:
			out = append(out, responses.ResponseInputItemParamOfMessage(modelhttp.JoinText(message), responses.EasyInputMessageRoleUser))
		case loop.RoleAssistant:
			out = append(out, m.assistantItems(message)...)
		case loop.RoleTool:
			for _, b := range message.Blocks {
				if b.ToolResult != nil {
					out = append(out, resultItem(*b.ToolResult, cmp.Or(ids[b.ToolResult.ToolUseID], b.ToolResult.ToolUseID)))
				}
			}
		}
	}
	return out
}

// assistantItems converts an earlier answer. It keeps the order, as the API demands for
// reasoning.
func (m *Model) assistantItems(message loop.Message) responses.ResponseInputParam {
	var out responses.ResponseInputParam
	phase := responses.EasyInputMessagePhaseFinalAnswer
	for _, b := range message.Blocks {
		if b.ToolUse != nil {
			phase = responses.EasyInputMessagePhaseCommentary
		}
	}
	for _, b := range message.Blocks {
		switch {
		case b.Text != nil && b.Text.Text != "":
			item := responses.ResponseInputItemParamOfMessage(b.Text.Text, responses.EasyInputMessageRoleAssistant)
			if m.namesPhases.Load() {
				item.OfMessage.Phase = phase
			}
			out = append(out, item)
		case b.Thinking != nil && b.Thinking.Redacted != "" && !m.stale.Has(b.Thinking):
			item := responses.ResponseInputItemParamOfReasoning(b.Thinking.Signature, []responses.ResponseReasoningItemSummaryParam{})
			if b.Thinking.Text != "" {
				item.OfReasoning.Summary = []responses.ResponseReasoningItemSummaryParam{{Text: b.Thinking.Text}}
			}
			item.OfReasoning.EncryptedContent = param.NewOpt(b.Thinking.Redacted)
			out = append(out, item)
		case b.ToolUse != nil:
			out = append(out, responses.ResponseInputItemParamOfFunctionCall(
				string(b.ToolUse.Input), b.ToolUse.WireID(), modelhttp.WireName(b.ToolUse.Name)))
		}
	}
	return out
}

func resultItem(r loop.ToolResult, id string) responses.ResponseInputItemUnionParam {
	var parts responses.ResponseFunctionCallOutputItemListParam
	image := false
	for _, b := range r.Content {
		if b.Image == nil {
			parts = append(parts, responses.ResponseFunctionCallOutputItemParamOfInputText(b.Text))
			continue
		}
		image = true
		parts = append(parts, responses.ResponseFunctionCallOutputItemUnionParam{
			OfInputImage: &responses.ResponseInputImageContentParam{ImageURL: openai.String(imageURL(b))},
		})
	}
	item := responses.ResponseInputItemParamOfFunctionCallOutput(boundary.JoinText(r.Content))
	if image {
		item = responses.ResponseInputItemParamOfFunctionCallOutput(parts)
	}
	item.OfFunctionCallOutput.CallID = openai.String(id)
	return item
}
