package ollama

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/loop/usage"
	"github.com/caisson-run/caisson/tools"
)

// piece is an answer or, on a line, a piece of one. Fields may be missing, null or of
// another type.
type piece struct {
	Model   modelhttp.LooseString `json:"model"`
	Message *struct {
		Content   modelhttp.LooseString    `json:"content"`
		Thinking  modelhttp.LooseString    `json:"thinking"`
		ToolCalls modelhttp.List[wireCall] `json:"tool_calls"`
	} `json:"message"`
	Done       modelhttp.LooseString `json:"done"`
	DoneReason modelhttp.LooseString `json:"done_reason"`
	Input      usage.Count           `json:"prompt_eval_count"`
	Output     usage.Count           `json:"eval_count"`
}

// wireCall is a whole call. Its arguments are an object, or from intermediate servers a
// string.
type wireCall struct {
	ID       modelhttp.LooseString `json:"id"`
	Function struct {
		Name      modelhttp.LooseString `json:"name"`
		Arguments modelhttp.LooseString `json:"arguments"`
	} `json:"function"`
}

// readResponse reads an answer: one JSON value, or one per piece. Without a piece
// marked as the last the answer may be cut, and nothing of it is used.
func readResponse(body io.Reader, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &assembly{onDelta: onDelta}
	values := json.NewDecoder(body)
	for {
		var raw json.RawMessage
		if err := values.Decode(&raw); err != nil {
			return loop.Response{}, classifyRead(err)
		}
		if len(raw) > 2*modelhttp.MaxContentBytes { // twice for escapes
			return loop.Response{}, modelhttp.ErrTooLarge
		}
		done, err := a.addPiece(raw)
		if err != nil {
			return loop.Response{}, err
		}
		if done {
			return a.buildResponse(), nil
		}
	}
}

func classifyRead(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return modelhttp.ErrCut
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	return err
}

type assembly struct {
	onDelta func(loop.Delta)

	model, finish  string
	text, thinking strings.Builder
	calls          []wireCall
	begun          bool
	content        modelhttp.Content
	input, output  int64
}

// addPiece adds a piece and reports whether it is the last.
func (a *assembly) addPiece(raw json.RawMessage) (bool, error) {
	var p piece
	if err := json.Unmarshal(raw, &p); err != nil {
		return false, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	if body := findError(raw); body != nil {
		return false, &modelhttp.StreamError{Body: body, Begun: a.begun}
	}
	if p.Message == nil && p.Done != "true" {
		return false, fmt.Errorf("%w: a piece without a message", modelhttp.ErrMalformed)
	}
	a.begun = true
	if p.Model != "" {
		a.model = string(p.Model)
	}
	a.input, a.output = max(a.input, int64(p.Input)), max(a.output, int64(p.Output))
	if p.Message != nil {
		a.thinking.WriteString(string(p.Message.Thinking))
		if text := string(p.Message.Content); text != "" {
			a.text.WriteString(text)
			a.onDelta(loop.Delta{Text: text})
		}
		a.content.Add(string(p.Message.Content), string(p.Message.Thinking))
		for _, c := range p.Message.ToolCalls {
			a.addCall(c)
		}
	}
	if err := a.content.Check(); err != nil {
		return false, err
	}
	a.finish = string(p.DoneReason)
	return p.Done == "true", nil
}

// addCall adds a call unless it repeats one.
func (a *assembly) addCall(c wireCall) {
	if c.ID != "" && slices.Contains(a.calls, c) {
		return
	}
	a.content.AddBlock()
	a.content.Add(string(c.ID), string(c.Function.Name), string(c.Function.Arguments))
	a.calls = append(a.calls, c)
	a.onDelta(loop.Delta{ToolName: string(c.Function.Name)})
}

// findError returns an error's body, or nil if the value is no error. In some versions
// the member's name begins with "error" and goes on with the cause.
func findError(raw json.RawMessage) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return nil
	}
	for name, value := range members {
		switch {
		case string(value) == "null", string(value) == `""`:
		case name == "error":
			return raw
		case strings.HasPrefix(name, "error "):
			body, err := json.Marshal(map[string]string{"error": name + ": " + string(value)})
			if err == nil {
				return body
			}
		}
	}
	return nil
}

func (a *assembly) buildResponse() loop.Response {
	m := loop.Message{Role: loop.RoleAssistant}
	if a.thinking.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Thinking: &loop.Thinking{Text: a.thinking.String()}})
	}
	if a.text.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Text: &loop.Text{Text: a.text.String()}})
	}
	for _, c := range a.calls {
		// The loop adds missing IDs, resolves the name and checks the arguments.
		m.Blocks = append(m.Blocks, loop.Block{ToolUse: &loop.ToolUse{
			ProviderID: string(c.ID), Name: tools.Name(c.Function.Name), Raw: string(c.Function.Arguments),
		}})
	}
	return loop.Response{
		Message: m, Finish: a.finish, Model: a.model, Truncated: a.finish == "length",
		Usage: limits.Usage{InputTokens: a.input, OutputTokens: a.output},
	}
}
