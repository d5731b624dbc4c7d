package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/loop/usage"
	"github.com/caisson-run/caisson/tools"
)

// responseEvent is a stream's event. Its members depend on its type.
type responseEvent struct {
	Type     modelhttp.LooseString `json:"type"`
	Index    modelhttp.LooseString `json:"output_index"`
	Delta    modelhttp.LooseString `json:"delta"`
	Item     *responseItem         `json:"item"`
	Response *wireResponse         `json:"response"`
	Error    json.RawMessage       `json:"error"`
}

// wireResponse is an answer. Fields may be missing, null or of another type.
type wireResponse struct {
	ID         modelhttp.LooseString         `json:"id"`
	Model      modelhttp.LooseString         `json:"model"`
	Status     modelhttp.LooseString         `json:"status"`
	Output     modelhttp.List[*responseItem] `json:"output"`
	Usage      *usage.OpenAI                 `json:"usage"`
	Error      json.RawMessage               `json:"error"`
	Incomplete struct {
		Reason modelhttp.LooseString `json:"reason"`
	} `json:"incomplete_details"`
}

// responseItem is an item of an answer: a message, reasoning, or a call. Other types
// are ignored.
type responseItem struct {
	Type      modelhttp.LooseString        `json:"type"`
	ID        modelhttp.LooseString        `json:"id"`
	Status    modelhttp.LooseString        `json:"status"`
	Phase     modelhttp.LooseString        `json:"phase"`
	Content   modelhttp.List[responsePart] `json:"content"`
	Summary   modelhttp.List[responsePart] `json:"summary"`
	Encrypted modelhttp.LooseString        `json:"encrypted_content"`
	CallID    modelhttp.LooseString        `json:"call_id"`
	Name      modelhttp.LooseString        `json:"name"`
	Arguments modelhttp.LooseString        `json:"arguments"`
	index     string
}

type responsePart struct {
	Text    modelhttp.LooseString `json:"text"`
	Refusal modelhttp.LooseString `json:"refusal"`
}

func joinParts(parts []responsePart) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(string(p.Text))
		b.WriteString(string(p.Refusal))
	}
	return b.String()
}

// readResponseStream reads a streamed answer. It is complete only with an event that
// ends it. Only complete items are used.
func (m *Model) readResponseStream(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &responseAssembly{model: m, onDelta: onDelta}
	events := ssestream.NewDecoder(res)
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if len(data) == 0 {
			continue
		}
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			break
		}
		a.size += len(data)
		if len(data) > 2*modelhttp.MaxContentBytes || a.size > 4*modelhttp.MaxContentBytes {
			return loop.Response{}, modelhttp.ErrTooLarge
		}
		end, err := a.addEvent(data)
		if err == nil {
			err = a.content.Check()
		}
		if err != nil {
			return loop.Response{}, err
		}
		if end != nil {
			return a.buildResponse(*end)
		}
	}
	if err := events.Err(); err != nil {
		return loop.Response{}, err
	}
	return loop.Response{}, modelhttp.ErrCut
}

// readWholeResponse reads an answer that is not streamed.
func (m *Model) readWholeResponse(body []byte, onDelta func(loop.Delta)) (loop.Response, error) {
	if len(body) > 2*modelhttp.MaxContentBytes {
		return loop.Response{}, modelhttp.ErrTooLarge
	}
	var r wireResponse
	if err := json.Unmarshal(body, &r); err != nil {
		return loop.Response{}, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	return (&responseAssembly{model: m, onDelta: onDelta}).buildResponse(r)
}

type responseAssembly struct {
	model   *Model
	onDelta func(loop.Delta)
	items   []*responseItem
	// begun reports whether an item has begun, and shown whether text was delivered.
	begun, shown bool
	size         int
	content      modelhttp.Content
}

// addEvent adds an event. If it ends the answer, addEvent returns that. Unknown types
// are ignored.
func (a *responseAssembly) addEvent(data []byte) (*wireResponse, error) {
	var e responseEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	switch {
	case e.Type == "error" && !isSet(e.Error):
		return nil, a.streamError(data) // the event itself is the error
	case isSet(e.Error):
		return nil, a.streamError(e.Error)
	}
	switch e.Type {
	case "response.output_text.delta", "response.refusal.delta":
		a.begun = true
		a.deliverText(string(e.Delta))
	case "response.output_item.added":
		a.begun = true
		if e.Item != nil && e.Item.Type == "function_call" {
			a.onDelta(loop.Delta{ToolName: string(e.Item.Name)})
		}
	case "response.output_item.done":
		a.begun = true
		a.addItem(e)
	case "response.completed", "response.incomplete", "response.failed":
		if e.Response == nil {
			return nil, fmt.Errorf("%w: the event %s has no response", modelhttp.ErrMalformed, e.Type)
		}
		if e.Response.Status == "" {
			e.Response.Status = e.Type[len("response."):]
		}
		return e.Response, nil
	}
	return nil, nil
}

// addItem adds a complete item. If one is sent again, it replaces the first.
func (a *responseAssembly) addItem(e responseEvent) {
	if e.Item == nil {
		return
	}
	e.Item.index = string(e.Index)
	i := slices.IndexFunc(a.items, func(have *responseItem) bool {
		return e.Item.ID != "" && have.ID == e.Item.ID && have.index == e.Item.index
	})
	if i >= 0 {
		a.items[i] = e.Item
		return
	}
	a.content.AddBlock()
	a.items = append(a.items, e.Item)
}

func (a *responseAssembly) deliverText(text string) {
	if text != "" {
		a.shown = true
		a.onDelta(loop.Delta{Text: text})
	}
}

func (a *responseAssembly) streamError(object json.RawMessage) error {
	body, err := json.Marshal(map[string]json.RawMessage{"error": object})
	if err != nil {
		body = object
	}
	return &modelhttp.StreamError{Body: body, Begun: a.begun}
}

// buildResponse converts an answer. Some endpoints send none of the items in it, so it
// falls back on the events' items.
func (a *responseAssembly) buildResponse(r wireResponse) (loop.Response, error) {
	switch {
	case isSet(r.Error):
		return loop.Response{}, a.streamError(r.Error)
	case r.Status != "completed" && r.Status != "incomplete":
		return loop.Response{}, fmt.Errorf("%w: an answer with status %.40q", modelhttp.ErrMalformed, r.Status)
	}
	items := r.Output
	if len(items) == 0 {
		items = a.items
	}
	out := loop.Response{
		Message: loop.Message{Role: loop.RoleAssistant}, ID: string(r.ID), Model: string(r.Model),
		Finish: cmp.Or(string(r.Incomplete.Reason), string(r.Status)), Truncated: r.Status == "incomplete",
	}
	var text strings.Builder
	size := 0
	for i, item := range items {
		if item == nil {
			continue
		}
		if item.Type == "function_call" && item.Status != "" && item.Status != "completed" {
			if i < len(items)-1 {
				return loop.Response{}, fmt.Errorf("%w: an incomplete call before other items", modelhttp.ErrMalformed)
			}
			out.Truncated = true // so that the loop does not run it
		}
		block, ok := item.makeBlock()
		if !ok {
			continue
		}
		if item.Phase != "" {
			a.model.namesPhases.Store(true)
		}
		if block.Text != nil {
			text.WriteString(block.Text.Text)
		}
		size += len(item.Arguments) + len(item.Encrypted)
		out.Message.Blocks = append(out.Message.Blocks, block)
	}
	if size+text.Len() > modelhttp.MaxContentBytes {
		return loop.Response{}, modelhttp.ErrTooLarge
	}
	if !a.shown {
		a.deliverText(text.String())
	}
	if r.Usage != nil {
		out.Usage = r.Usage.Limits()
	}
	return out, nil
}

func (i *responseItem) makeBlock() (loop.Block, bool) {
	switch i.Type {
	case "message":
		text := joinParts(i.Content)
		return loop.Block{Text: &loop.Text{Text: text}}, text != ""
	case "reasoning":
		t := loop.Thinking{Text: cmp.Or(joinParts(i.Summary), joinParts(i.Content)), Signature: string(i.ID), Redacted: string(i.Encrypted)}
		return loop.Block{Thinking: &t}, t.Text != "" || t.Redacted != ""
	case "function_call":
		// The loop resolves the name and checks the arguments.
		return loop.Block{ToolUse: &loop.ToolUse{
			ProviderID: cmp.Or(string(i.CallID), string(i.ID)), Name: tools.Name(i.Name), Raw: string(i.Arguments),
		}}, true
	}
	return loop.Block{}, false
}

func isSet(member json.RawMessage) bool {
	return len(member) > 0 && !bytes.Equal(member, []byte("null"))
}
