package transcript

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/tools"
)

// reader makes messages from a body.
type reader struct {
	// system is the instructions in front of the messages.
	system   strings.Builder
	messages []loop.Message
	// open is set while the last message may get more blocks.
	open bool
	// elements is the number of messages, parts and calls so far.
	elements int
}

// part is an item, a block of content or a part of one, in any protocol.
type part struct {
	Type string `json:"type"`
	Text string `json:"text"`
	ID   string `json:"id"`
	Name string `json:"name"`

	// Anthropic
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	Input     json.RawMessage `json:"input"` // Responses too
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"` // Responses too
	IsError   bool            `json:"is_error"`
	Source    *blob           `json:"source"`

	// Responses
	Role      string          `json:"role"`
	CallID    string          `json:"call_id"`
	Arguments string          `json:"arguments"`
	Action    json.RawMessage `json:"action"`
	Output    json.RawMessage `json:"output"`
	Summary   json.RawMessage `json:"summary"`
	Encrypted string          `json:"encrypted_content"`
	Refusal   string          `json:"refusal"`
	ImageURL  json.RawMessage `json:"image_url"` // Chat too

	// Gemini
	Thought      bool  `json:"thought"`
	InlineData   *blob `json:"inlineData"`
	FunctionCall *struct {
		ID   string          `json:"id"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall"`
	FunctionResponse *struct {
		ID       string          `json:"id"`
		Name     string          `json:"name"`
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse"`

	// more is what a stream adds to the text, reasoning, arguments or content.
	more strings.Builder
	size int // of its JSON
}

// blob is data in base64.
type blob struct {
	MediaType string `json:"media_type"`
	MimeType  string `json:"mimeType"` // Gemini
	Data      string `json:"data"`
}

// chatMessage is a message of Chat, or a piece of one.
type chatMessage struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	Reasoning        string          `json:"reasoning"`
	ReasoningContent string          `json:"reasoning_content"`
	Refusal          string          `json:"refusal"`
	ToolCallID       string          `json:"tool_call_id"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
}

type chatCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
	Custom struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom"`
}

// readRequest reads a request's messages.
func readRequest(p bridge.Protocol, body []byte) (*reader, error) {
	var q struct {
		System            json.RawMessage `json:"system"`
		Messages          json.RawMessage `json:"messages"`
		Instructions      json.RawMessage `json:"instructions"`
		Input             json.RawMessage `json:"input"`
		SystemInstruction wireMessage     `json:"systemInstruction"`
		Contents          json.RawMessage `json:"contents"`
	}
	if err := decode(body, &q); err != nil {
		return nil, fmt.Errorf("the request is not valid JSON: %w", err)
	}
	r := &reader{}
	var err error
	switch p {
	case bridge.Anthropic:
		err = errors.Join(r.addContent(loop.RoleSystem, q.System), r.addMessages(q.Messages))
	case bridge.Responses:
		err = errors.Join(r.addContent(loop.RoleSystem, q.Instructions), r.addInput(q.Input))
	case bridge.Chat:
		err = forEach(r, q.Messages, func(m *chatMessage, _ int) error { return r.addChat(m) })
	case bridge.Gemini:
		err = errors.Join(r.addContent(loop.RoleSystem, q.SystemInstruction.Parts), r.addMessages(q.Contents))
	default:
		err = fmt.Errorf("unknown protocol %q", p)
	}
	if err == nil && len(r.messages) == 0 {
		err = errors.New("the request has no messages")
	}
	return r, err
}

// wireMessage is a message of Anthropic or Gemini.
type wireMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Parts   json.RawMessage `json:"parts"`
}

func (r *reader) addMessages(list json.RawMessage) error {
	return forEach(r, list, func(m *wireMessage, _ int) error {
		r.open = false
		return errors.Join(r.addContent(roleOf(m.Role), m.Content), r.addContent(roleOf(m.Role), m.Parts))
	})
}

func (r *reader) addInput(input json.RawMessage) error {
	if len(input) > 0 && input[0] == '"' {
		return r.addContent(loop.RoleUser, input)
	}
	return r.addItems(input)
}

// addItems adds items of Responses. Items of the model that follow each other are one
// message, as in the answer.
func (r *reader) addItems(list json.RawMessage) error {
	return forEach(r, list, func(p *part, size int) error {
		p.size = size
		return r.addItem(p)
	})
}

func (r *reader) addItem(p *part) error {
	role := roleOf(p.Role)
	switch {
	case p.Type == "message" || p.Type == "" && p.Role != "":
		if role != loop.RoleAssistant {
			r.open = false
		}
		r.addText(role, p.more.String())
		return r.addContent(role, p.Content)
	case strings.HasSuffix(p.Type, "_output"):
		return r.addPart(loop.RoleTool, p)
	}
	return r.addPart(loop.RoleAssistant, p)
}

func roleOf(name string) loop.Role {
	switch name {
	case "assistant", "model":
		return loop.RoleAssistant
	case "system", "developer":
		return loop.RoleSystem
	}
	return loop.RoleUser
}

func (r *reader) addChat(m *chatMessage) error {
	if m.Role == "tool" || m.Role == "function" {
		return r.addResult(m.ToolCallID, m.Content, false)
	}
	role := roleOf(m.Role)
	r.open = false
	r.addThinking(role, loop.Thinking{Text: cmp.Or(m.ReasoningContent, m.Reasoning)})
	if err := r.addContent(role, m.Content); err != nil {
		return err
	}
	r.addText(role, m.Refusal)
	return forEach(r, m.ToolCalls, func(c *chatCall, _ int) error {
		if c.Custom.Name != "" {
			r.addCall(c.ID, c.Custom.Name, wrapInput(c.Custom.Input))
			return nil
		}
		r.addCall(c.ID, c.Function.Name, c.Function.Arguments)
		return nil
	})
}

// addContent adds content that is a string or a list of parts.
func (r *reader) addContent(role loop.Role, content json.RawMessage) error {
	if len(content) > 0 && content[0] == '"' {
		var text string
		if err := decode(content, &text); err != nil {
			return err
		}
		r.addText(role, text)
		return nil
	}
	return forEach(r, content, func(p *part, size int) error {
		p.size = size
		return r.addPart(role, p)
	})
}

// addPart adds a part of a message of a role.
func (r *reader) addPart(role loop.Role, p *part) error {
	switch p.Type {
	case "":
		return r.addGeminiPart(role, p)
	case "text", "input_text", "output_text":
		r.addText(role, p.Text+p.more.String())
	case "refusal":
		r.addText(role, p.Refusal)
	case "thinking":
		r.addThinking(role, loop.Thinking{Text: p.Thinking + p.more.String(), Signature: p.Signature})
	case "redacted_thinking":
		r.addThinking(role, loop.Thinking{Redacted: p.Data})
	case "reasoning":
		text := cmp.Or(p.more.String(), r.joinTexts(p.Summary), r.joinTexts(p.Content))
		r.addThinking(role, loop.Thinking{Text: text, Signature: p.ID, Redacted: p.Encrypted})
	case "tool_use":
		r.addCall(p.ID, p.Name, cmp.Or(p.more.String(), string(p.Input)))
	case "tool_result":
		return r.addResult(p.ToolUseID, p.Content, p.IsError)
	case "function_call":
		r.addCall(cmp.Or(p.CallID, p.ID), p.Name, cmp.Or(p.more.String(), p.Arguments))
	case "custom_tool_call":
		input := p.more.String()
		if input == "" && decode(p.Input, &input) != nil {
			input = string(p.Input)
		}
		r.addCall(p.CallID, p.Name, wrapInput(input))
	default:
		return r.addOther(role, p)
	}
	return nil
}

// addOther adds a call or result of one of the many types of Responses, such as
// local_shell_call, or the placeholder of a part that isn't text.
func (r *reader) addOther(role loop.Role, p *part) error {
	switch name, isCall := strings.CutSuffix(p.Type, "_call"); {
	case isCall && p.CallID != "": // such as local_shell_call
		r.addCall(p.CallID, name, string(p.Action))
	case strings.HasSuffix(p.Type, "_output"):
		return r.addResult(p.CallID, p.Output, false)
	default:
		r.addText(role, p.placeholder())
	}
	return nil
}

func (r *reader) addGeminiPart(role loop.Role, p *part) error {
	switch call, result := p.FunctionCall, p.FunctionResponse; {
	case call != nil:
		r.addCall(cmp.Or(call.ID, noID(call.Name)), call.Name, string(call.Args))
	case result != nil:
		var said struct {
			Output, Error json.RawMessage
		}
		content := result.Response
		_ = decode(content, &said) // any value may be a response
		switch {
		case isSet(said.Error):
			content = said.Error
		case isSet(said.Output):
			content = said.Output
		}
		return r.addResult(cmp.Or(result.ID, noID(result.Name)), content, isSet(said.Error))
	case p.Thought:
		r.addThinking(role, loop.Thinking{Text: p.Text + p.more.String()})
	case p.InlineData != nil:
		r.addText(role, p.placeholder())
	default:
		r.addText(role, p.Text+p.more.String())
	}
	return nil
}

func isSet(member json.RawMessage) bool { return len(member) > 0 && string(member) != "null" }

// wrapInput makes an object of a call's text.
func wrapInput(text string) string {
	data, err := json.Marshal(map[string]string{"input": text})
	if err != nil {
		return "" // can't happen: strings have a JSON form
	}
	return string(data)
}

// placeholder describes a part that isn't text.
func (p *part) placeholder() string {
	kind, size := p.Type, p.size+p.more.Len()
	for _, b := range []*blob{p.Source, p.InlineData} {
		if b != nil && cmp.Or(b.MediaType, b.MimeType) != "" {
			kind, size = cmp.Or(b.MediaType, b.MimeType), len(b.Data)*3/4
		}
	}
	var url struct {
		URL string `json:"url"`
	}
	_ = decode(p.ImageURL, &url.URL) // a string,
	if url.URL == "" {
		_ = decode(p.ImageURL, &url) // an object, or missing
	}
	if head, data, ok := strings.Cut(url.URL, ";base64,"); ok {
		kind, size = strings.TrimPrefix(head, "data:"), len(data)*3/4
	}
	return fmt.Sprintf("[%s, %d bytes]", tools.Elide(kind, 100), size)
}

// add adds a block to the last message, or to a new one.
func (r *reader) add(role loop.Role, b loop.Block) {
	last := len(r.messages) - 1
	if !r.open || last < 0 || r.messages[last].Role != role || role == loop.RoleTool {
		r.messages = append(r.messages, loop.Message{Role: role})
		r.open = true
		last++
	}
	r.messages[last].Blocks = append(r.messages[last].Blocks, b)
}

func (r *reader) addText(role loop.Role, text string) {
	switch {
	case strings.TrimSpace(text) == "":
	case role == loop.RoleSystem && len(r.messages) == 0:
		if r.system.Len() > 0 {
			r.system.WriteByte('\n')
		}
		r.system.WriteString(text)
	default:
		r.add(role, loop.Block{Text: &loop.Text{Text: text}})
	}
}

func (r *reader) addThinking(role loop.Role, t loop.Thinking) {
	if t.Text != "" || t.Redacted != "" {
		r.add(role, loop.Block{Thinking: &t})
	}
}

// addCall adds a call with the agent's ID.
func (r *reader) addCall(id, name, arguments string) {
	u := loop.ToolUse{ProviderID: cmp.Or(id, noID(name)), Name: tools.Name(name)}
	if u.Input, u.InputError = loop.ParseInput(arguments); u.InputError != "" {
		u.Raw = arguments
	}
	r.add(loop.RoleAssistant, loop.Block{ToolUse: &u})
}

// addResult adds the result of a call with the agent's ID. The content is a string, a
// list of parts, or any other JSON.
func (r *reader) addResult(id string, content json.RawMessage, failed bool) error {
	result := loop.ToolResult{ToolUseID: id, IsError: failed}
	inner := &reader{elements: r.elements}
	if len(content) > 0 && content[0] != '"' && content[0] != '[' && isSet(content) {
		inner.addText(loop.RoleTool, string(content))
	} else if err := inner.addContent(loop.RoleTool, content); err != nil {
		return err
	}
	r.elements = inner.elements
	for _, m := range inner.messages {
		for _, b := range m.Blocks {
			if b.Text != nil {
				result.Content = append(result.Content, tools.Block{Text: b.Text.Text})
			}
		}
	}
	r.add(loop.RoleTool, loop.Block{ToolResult: &result})
	return nil
}

// joinTexts joins the texts of a list of parts.
func (r *reader) joinTexts(list json.RawMessage) string {
	var texts []string
	_ = forEach(r, list, func(p *part, _ int) error { // an error comes again
		texts = append(texts, p.Text)
		return nil
	})
	return strings.Join(texts, "\n")
}

// forEach decodes the elements of a list. Other values have none.
func forEach[T any](r *reader, list json.RawMessage, f func(element *T, size int) error) error {
	if len(list) == 0 || list[0] != '[' {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(list))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		if r.elements++; r.elements > maxElements {
			return errTooMany
		}
		var data json.RawMessage
		if err := d.Decode(&data); err != nil {
			return err
		}
		element := new(T)
		if err := decode(data, element); err != nil {
			return err
		}
		if err := f(element, len(data)); err != nil {
			return err
		}
	}
	return nil
}

// decode decodes JSON. Members of another type than expected stay zero.
func decode(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil
	}
	return err
}
