package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/usage"
)

// tally counts one answer. Its input is untrusted: what it can't read it counts as
// text.
type tally struct {
	protocol Protocol
	usage    limits.Usage // the largest counts so far
	// text counts the bytes of text, reasoning and arguments that came in pieces. whole
	// counts the bytes of complete parts, which repeat the pieces. events counts the
	// events with pieces.
	text, whole, events int64
	finish, model       string
	// atFinish is text at the time of finish.
	atFinish int64
	// failed is set if the provider reported an error in its answer.
	failed bool
}

// answerPart is what is read of an event, or of a whole answer, of any protocol.
type answerPart struct {
	Type  loose `json:"type"`
	Model loose `json:"model"`
	Error raw   `json:"error"`

	// Anthropic
	Message    *answerPart `json:"message"`
	Delta      raw         `json:"delta"` // Responses too
	Block      raw         `json:"content_block"`
	Content    raw         `json:"content"`
	StopReason loose       `json:"stop_reason"`
	Usage      raw         `json:"usage"` // OpenAI too

	// Responses
	Response   *answerPart `json:"response"`
	Item       raw         `json:"item"`
	Output     raw         `json:"output"`
	Status     loose       `json:"status"`
	Incomplete struct {
		Reason loose `json:"reason"`
	} `json:"incomplete_details"`

	// Chat
	Choices []struct {
		Delta   raw   `json:"delta"`
		Message raw   `json:"message"`
		Finish  loose `json:"finish_reason"`
	} `json:"choices"`

	// Gemini
	Candidates []struct {
		Content raw   `json:"content"`
		Finish  loose `json:"finishReason"`
	} `json:"candidates"`
	ModelVersion loose `json:"modelVersion"`
	Metadata     raw   `json:"usageMetadata"`
}

// loose is a string; other values are "".
type loose string

// UnmarshalJSON never fails.
func (l *loose) UnmarshalJSON(data []byte) error {
	text, _ := decodeString(data)
	*l = loose(text)
	return nil
}

// raw is a JSON value, nil for null.
type raw []byte

// UnmarshalJSON never fails.
func (r *raw) UnmarshalJSON(data []byte) error {
	*r = nil
	if string(data) != "null" {
		*r = append(*r, data...)
	}
	return nil
}

// addEvent counts an event of a stream.
func (t *tally) addEvent(data []byte) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || bytes.HasPrefix(data, []byte("[DONE]")) {
		return
	}
	before := t.text
	t.add(data)
	if t.text > before {
		t.events++
	}
}

// add counts an event or a whole answer.
func (t *tally) add(data []byte) {
	var a answerPart
	if err := json.Unmarshal(data, &a); err != nil && !json.Valid(data) || isTooDeep(data) {
		t.text += int64(len(data))
		return
	}
	t.addPart(&a, 0)
}

func (t *tally) addPart(a *answerPart, depth int) {
	if a.Error != nil {
		t.failed = true
	}
	t.setModel(string(a.Model))
	t.setModel(string(a.ModelVersion))
	t.addUsage(a.Usage)
	t.addUsage(a.Metadata)
	switch t.protocol {
	case Anthropic:
		t.failed = t.failed || a.Type == "error"
		var d struct {
			StopReason loose `json:"stop_reason"`
		}
		_ = json.Unmarshal(a.Delta, &d) // most have none
		t.text += textBytes(a.Delta) + textBytes(a.Block) + textBytes(a.Content)
		t.setFinish(string(d.StopReason))
		t.setFinish(string(a.StopReason))
	case Responses:
		t.text += textBytes(a.Delta)
		if a.Type == "response.output_item.done" {
			t.whole += textBytes(a.Item)
		}
		t.whole = max(t.whole, textBytes(a.Output))
		switch a.Status {
		case "completed", "incomplete", "failed", "cancelled":
			t.setFinish(string(a.Incomplete.Reason))
			t.setFinish(string(a.Status))
			t.failed = t.failed || a.Status == "failed"
		}
	}
	for _, c := range a.Choices {
		t.text += textBytes(c.Delta) + textBytes(c.Message)
		t.setFinish(string(c.Finish))
	}
	for _, c := range a.Candidates {
		t.text += textBytes(c.Content)
		t.setFinish(string(c.Finish))
	}
	for _, inner := range []*answerPart{a.Message, a.Response} {
		if inner != nil && depth == 0 {
			t.addPart(inner, 1)
		}
	}
}

// Texts of the provider that are kept are short.
const maxWord = 200

func (t *tally) setModel(name string) {
	if t.model == "" && len(name) <= maxWord {
		t.model = name
	}
}

func (t *tally) setFinish(word string) {
	if t.finish == "" && len(word) <= maxWord {
		t.finish, t.atFinish = word, t.text
	}
}

// finished reports whether the answer has ended, so that its usage is final.
func (t *tally) finished() bool { return t.finish != "" && t.text == t.atFinish }

// addUsage counts a provider's usage, nil for none.
func (t *tally) addUsage(data raw) {
	var counted interface{ Limits() limits.Usage }
	switch t.protocol {
	case Anthropic:
		counted = &usage.Anthropic{}
	case Gemini:
		counted = &usage.Gemini{}
	default:
		counted = &usage.OpenAI{}
	}
	if data == nil || json.Unmarshal(data, counted) != nil {
		return
	}
	t.usage = usage.Max(t.usage, counted.Limits())
}

// output returns the estimated output: one token for 4 bytes of text, and at least one
// for each event.
func (t *tally) output() int64 { return max((max(t.text, t.whole)+3)/4, t.events) }

// count returns the usage so far for a request with an estimated input, and whether
// some of it is an estimate. A provider's count that is missing or far below the
// estimate doesn't count.
func (t *tally) count(input int64) (u limits.Usage, estimated bool) {
	u = t.usage
	u.Rounds = 1
	if all := u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens; all == 0 || all < input/8 {
		u.InputTokens, u.CachedInputTokens, u.CacheWriteTokens, u.CacheWriteHourTokens = input, 0, 0, 0
		u.CostMicroUSD, estimated = nil, true
	}
	if output := t.output(); u.OutputTokens < (output+3)/4 {
		u.OutputTokens = output
		u.CostMicroUSD, estimated = nil, true
	}
	return u, estimated
}

// noText are the names of members whose strings are not the model's text.
var noText = map[string]bool{
	"type": true, "role": true, "id": true, "callid": true, "itemid": true, "tooluseid": true, "status": true, "phase": true, "object": true,
	"signature": true, "thoughtsignature": true, "encryptedcontent": true, "data": true, "obfuscation": true, "logprobs": true, "annotations": true, "stopreason": true, "stopsequence": true,
}

// textBytes returns the size of the strings in a valid JSON value.
func textBytes(data []byte) int64 { return textBytesBelow(data, 1) }

func textBytesBelow(data []byte, depth int) int64 {
	switch {
	case len(data) == 0:
		return 0
	case depth > maxWalk:
		return int64(len(data))
	}
	switch data[0] {
	case '"':
		return int64(len(data) - 2)
	case '[':
		var n int64
		for _, one := range elements(data) {
			n += textBytesBelow(one, depth+1)
		}
		return n
	case '{':
		o, err := parseObject(data)
		if err != nil {
			return int64(len(data)) // of a name that occurs twice
		}
		var n int64
		for _, m := range o {
			switch name := foldName(m.name); {
			case name == "args" || name == "input":
				n += int64(len(m.value)) // a call's arguments
			case !noText[name]:
				n += textBytesBelow(m.value, depth+1)
			}
		}
		return n
	}
	return 0
}
