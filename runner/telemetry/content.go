package telemetry

import (
	"encoding/json"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// maxHistory bounds the messages in a model call's span, in bytes. The newest
// stay.
const maxHistory = 64 << 10

// message is a message in the form of the conventions. Only answers have
// Finish.
type message struct {
	Role   string `json:"role"`
	Parts  []part `json:"parts"`
	Finish string `json:"finish_reason,omitempty"`
}

// part is a part of a message: text, reasoning, tool_call or
// tool_call_response.
type part struct {
	Type      string          `json:"type"`
	Content   string          `json:"content,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Response  string          `json:"response,omitempty"`
}

// history is the exported content of a session: the newest messages, and the
// arguments of the calls that have not ended.
type history struct {
	messages  []string
	bytes     int
	arguments map[string]string
}

// held is an ended span that waits for its content: the result of call, or the
// message whose parent is the record message.
type held struct {
	span          trace.Span
	end           time.Time
	call, message string
	finish        string
}

// endOrHold ends a span, or holds it until its content is known if content is
// exported.
func (s *session) endOrHold(h held) {
	if s.content && s.turn != nil {
		s.turn.held = append(s.turn.held, h)
		return
	}
	h.span.End(trace.WithTimestamp(h.end))
}

// releaseSpans ends the held spans for which add returns true, or all if add is
// nil.
func (s *session) releaseSpans(add func(h held) bool) {
	if s.turn == nil {
		return
	}
	kept := s.turn.held[:0]
	for _, h := range s.turn.held {
		if add != nil && !add(h) {
			kept = append(kept, h)
			continue
		}
		h.span.End(trace.WithTimestamp(h.end))
	}
	s.turn.held = kept
}

// addMessage adds a message to the history and to the span that it belongs to.
func (s *session) addMessage(r record.Record) {
	if !s.content || s.turn == nil {
		return
	}
	p := record.PayloadOf[record.Message](r) // as far as possible: a long image was cut
	m := message{Role: string(p.Role), Parts: []part{}}
	if s.history.arguments == nil {
		s.history.arguments = map[string]string{}
	}
	for _, b := range p.Blocks {
		switch {
		case b.Text != nil:
			m.Parts = append(m.Parts, part{Type: "text", Content: b.Text.Text})
		case b.Thinking != nil:
			m.Parts = append(m.Parts, part{Type: "reasoning", Content: b.Thinking.Text})
		case b.ToolUse != nil:
			m.Parts = append(m.Parts, part{Type: "tool_call", ID: b.ToolUse.ID, Name: string(b.ToolUse.Name), Arguments: b.ToolUse.Input})
			s.history.arguments[b.ToolUse.ID] = string(b.ToolUse.Input)
		case b.ToolResult != nil:
			result := joinText(b.ToolResult.Content)
			m.Parts = append(m.Parts, part{Type: "tool_call_response", ID: b.ToolResult.ToolUseID, Response: result})
			s.releaseSpans(func(h held) bool {
				if h.call != b.ToolResult.ToolUseID {
					return false
				}
				h.span.SetAttributes(keyResult.String(result))
				return true
			})
		}
	}
	s.history.addMessage(m)
	switch p.Role {
	case loop.RoleUser:
		s.turn.input = &m
	case loop.RoleAssistant:
		s.releaseSpans(func(h held) bool {
			if h.message != r.Parent {
				return false
			}
			m.Finish = h.finish
			h.span.SetAttributes(keyMessagesOut.String("[" + encodeMessage(m) + "]"))
			return true
		})
		s.turn.output = &m
	}
}

func joinText(blocks []tools.Block) string {
	var parts []string
	for _, b := range blocks {
		parts = append(parts, b.Text)
	}
	return strings.Join(parts, "\n")
}

// addMessage appends a message, and drops the oldest ones beyond maxHistory.
func (h *history) addMessage(m message) {
	text := encodeMessage(m)
	h.messages, h.bytes = append(h.messages, text), h.bytes+len(text)
	for h.bytes > maxHistory {
		h.bytes -= len(h.messages[0])
		h.messages = h.messages[1:]
	}
}

func (s *session) setHistory(span trace.Span) {
	if !s.content {
		return
	}
	span.SetAttributes(keyMessagesIn.String("[" + strings.Join(s.history.messages, ",") + "]"))
}

func (s *session) setArguments(span trace.Span, call string) {
	if text, ok := s.history.arguments[call]; ok {
		span.SetAttributes(keyArguments.String(text))
		delete(s.history.arguments, call)
	}
}

// setAnswer adds the user's message and the last answer to a turn.
func (s *session) setAnswer(t *turn) {
	if t.span == nil {
		return
	}
	if t.input != nil {
		t.span.SetAttributes(keyMessagesIn.String("[" + encodeMessage(*t.input) + "]"))
	}
	if t.output != nil {
		t.span.SetAttributes(keyMessagesOut.String("[" + encodeMessage(*t.output) + "]"))
	}
}

// encodeMessage returns a message as JSON. If arguments are not valid JSON,
// because a long record was cut, it is an empty message.
func encodeMessage(m message) string {
	text, err := json.Marshal(m)
	if err != nil {
		text, _ = json.Marshal(message{Role: m.Role, Parts: []part{}})
	}
	return string(text)
}
