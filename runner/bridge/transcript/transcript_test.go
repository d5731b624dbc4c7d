package transcript

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
)

// session adds calls, and describes the messages that they add.
type session struct {
	t        *testing.T
	protocol bridge.Protocol
	Transcript
	ids []string
}

// add returns the thread's number and one line for each message. IDs of calls are
// numbered in their order.
func (s *session) add(request, answer string) string {
	s.t.Helper()
	n, added, err := s.Add(s.protocol, []byte(request), []byte(answer))
	if err != nil {
		s.t.Fatal(err)
	}
	lines := []string{fmt.Sprint(n)}
	for _, m := range added {
		line := string(m.Role)
		for _, b := range m.Blocks {
			line += " | " + s.describe(b)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (s *session) describe(b loop.Block) string {
	switch {
	case b.Text != nil:
		return b.Text.Text
	case b.Thinking != nil:
		return strings.TrimSpace("thinks " + strings.Join([]string{b.Thinking.Text, b.Thinking.Signature, b.Thinking.Redacted}, " "))
	case b.ToolUse != nil:
		for _, id := range s.ids {
			if id == b.ToolUse.ID {
				s.t.Errorf("the ID %s occurs twice", id)
			}
		}
		s.ids = append(s.ids, b.ToolUse.ID)
		text := fmt.Sprintf("call %d %s %s %s", len(s.ids), b.ToolUse.ProviderID, b.ToolUse.Name, b.ToolUse.Input)
		if b.ToolUse.InputError != "" {
			text += " raw " + b.ToolUse.Raw
		}
		return text
	}
	var texts []string
	for _, c := range b.ToolResult.Content {
		texts = append(texts, c.Text)
	}
	call := 0
	for i, id := range s.ids {
		if id == b.ToolResult.ToolUseID {
			call = i + 1
		}
	}
	text := fmt.Sprintf("result %d %s", call, strings.Join(texts, "+"))
	if b.ToolResult.IsError {
		text += " failed"
	}
	return text
}

func (s *session) want(request, answer, want string) {
	s.t.Helper()
	if got := s.add(request, answer); got != strings.TrimSpace(want) {
		s.t.Errorf("got\n%s\nwant\n%s", got, strings.TrimSpace(want))
	}
}

// stream returns a stream of events.
func stream(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "event: any\ndata: %s\n\n", e)
	}
	return b.String()
}

var streams = map[bridge.Protocol]string{
	bridge.Anthropic: stream(
		`{"type":"message_start","message":{"id":"msg_1","role":"assistant","content":[]}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"two "}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"files"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
		`{"type":"ping"}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I wri"}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"te it."}}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"Write","input":{}}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"path\":\"a\","}}`,
		`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\"n\":1}"}}`,
		`{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_2","name":"Read","input":{}}}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}`,
		`{"type":"message_stop"}`,
	),
	bridge.Responses: stream(
		`{"type":"response.created","response":{"id":"resp_1","status":"in_progress","output":[]}}`,
		`{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}`,
		`{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"two "}`,
		`{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"files"}`,
		`{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","encrypted_content":"secret","summary":[{"type":"summary_text","text":"two files"}]}}`,
		`{"type":"response.output_item.added","output_index":1,"item":{"type":"message","id":"msg_1","role":"assistant","content":[]}}`,
		`{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"I wri"}`,
		`{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"te it."}`,
		`{"type":"response.output_item.done","output_index":1,"item":{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"I write it."}]}}`,
		`{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"write","arguments":""}}`,
		`{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"path\":\"a\","}`,
		`{"type":"response.function_call_arguments.delta","output_index":2,"delta":"\"n\":1}"}`,
		`{"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"write","arguments":"{\"path\":\"a\",\"n\":1}"}}`,
		`{"type":"response.output_item.done","output_index":3,"item":{"type":"custom_tool_call","id":"ct_1","call_id":"call_2","name":"apply_patch","input":"*** Begin"}}`,
		`{"type":"response.output_item.done","output_index":4,"item":{"type":"local_shell_call","call_id":"call_3","action":{"type":"exec","command":["ls"]}}}`,
		`{"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[{"type":"reasoning","id":"rs_1","encrypted_content":"secret","summary":[{"type":"summary_text","text":"two files"}]},`+
			`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I write it."}]},{"type":"function_call","call_id":"call_1","name":"write","arguments":"{\"path\":\"a\",\"n\":1}"},`+
			`{"type":"custom_tool_call","call_id":"call_2","name":"apply_patch","input":"*** Begin"},{"type":"local_shell_call","call_id":"call_3","action":{"type":"exec","command":["ls"]}}]}}`,
	),
	bridge.Chat: stream(
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"two "}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_content":"files"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"I wri"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"te it."}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"write","arguments":""}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":\"a\","}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"n\":1}"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"read","arguments":"{}"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`,
		`[DONE]`,
	),
	bridge.Gemini: stream(
		`{"candidates":[{"content":{"role":"model","parts":[{"text":"two ","thought":true}]}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"text":"files","thought":true},{"text":"I wri"}]}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"text":"te it."}]}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"write","args":{"path":"a","n":1}},"thoughtSignature":"sig"}]}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"write","args":{"path":"b"}}}]}}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1}}`,
	),
}

// conversations are two calls, as the agents make them. The second request has the
// first one's answer as an agent sends it back, and its results.
var conversations = map[bridge.Protocol]struct{ first, told, second, answer, more string }{
	bridge.Anthropic: {
		`{"model":"m","system":[{"type":"text","text":"You are an agent."},{"type":"text","text":"Be brief."}],"tools":[{"name":"Write"}],
			"messages":[{"role":"user","content":[{"type":"text","text":"<system-reminder>x</system-reminder>"},{"type":"text","text":"make it","cache_control":{"type":"ephemeral"}}]},{"role":"system","content":"Agent types: none"}]}`,
		"1\nsystem | You are an agent.\nBe brief.\nuser | <system-reminder>x</system-reminder> | make it\nsystem | Agent types: none\n" +
			`assistant | thinks two files sig | I write it. | call 1 toolu_1 Write {"path":"a","n":1} | call 2 toolu_2 Read {}`,
		`{"model":"m","system":"You are an agent.\nBe brief.","messages":[
			{"role":"user","content":[{"type":"text","text":"<system-reminder>x</system-reminder>"},{"type":"text","text":"make it"}]},{"role":"system","content":"Agent types: none"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"two files","signature":"sig"},{"type":"text","text":"I write it.\n"},{"type":"tool_use","id":"toolu_1","name":"Write","input":{"n": 1, "path":"a"}},{"type":"tool_use","id":"toolu_2","name":"Read","input":{}}]},
			{"role":"user","content":[{"tool_use_id":"toolu_2","type":"tool_result","content":[{"type":"text","text":"seen"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGVsbG8hISEh"}}]},
				{"tool_use_id":"toolu_1","type":"tool_result","content":"no space","is_error":true,"cache_control":{"type":"ephemeral"}},{"type":"text","text":"go on"}]}]}`,
		`{"id":"msg_2","type":"message","role":"assistant","content":[{"type":"text","text":"Done."},{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query":"x"}}],"stop_reason":"end_turn"}`,
		"1\ntool | result 2 seen+[image/png, 9 bytes]\ntool | result 1 no space failed\nuser | go on\nassistant | Done. | [server_tool_use, 81 bytes]",
	},
	bridge.Responses: {
		`{"model":"m","instructions":"You are an agent.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"Be brief."}]},
			{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context/>"}]},
			{"role":"user","content":[{"type":"input_text","text":"make it"},{"type":"input_image","image_url":"data:image/jpeg;base64,aGVsbG8hISEh"}]}]}`,
		"1\nsystem | You are an agent.\nBe brief.\nuser | <environment_context/>\nuser | make it | [image/jpeg, 9 bytes]\n" +
			`assistant | thinks two files rs_1 secret | I write it. | call 1 call_1 write {"path":"a","n":1} | call 2 call_2 apply_patch {"input":"*** Begin"} | call 3 call_3 local_shell {"type":"exec","command":["ls"]}`,
		`{"model":"m","instructions":"You are an agent.","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"Be brief."}]},
			{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context/>"}]},
			{"role":"user","content":[{"type":"input_text","text":"make it"},{"type":"input_image","image_url":"data:image/jpeg;base64,aGVsbG8hISEh"}]},
			{"type":"reasoning","summary":[{"type":"summary_text","text":"two files"}],"encrypted_content":"secret"},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I write it."}]},
			{"type":"function_call","name":"write","arguments":"{\"n\":1,\"path\":\"a\"}","call_id":"call_1"},
			{"type":"custom_tool_call","name":"apply_patch","input":"*** Begin","call_id":"call_2"},
			{"type":"local_shell_call","call_id":"call_3","action":{"command":["ls"],"type":"exec"}},
			{"type":"function_call_output","call_id":"call_1","output":"written"},
			{"type":"custom_tool_call_output","call_id":"call_2","output":[{"type":"input_text","text":"patched"}]},
			{"type":"local_shell_call_output","call_id":"call_3","output":"a b"}]}`,
		`{"id":"resp_2","status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Done."},{"type":"refusal","refusal":"Not more."}]}]}`,
		"1\ntool | result 1 written\ntool | result 2 patched\ntool | result 3 a b\nassistant | Done. | Not more.",
	},
	bridge.Chat: {
		`{"model":"m","messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"make it"}]}`,
		"1\nsystem | You are an agent.\nuser | make it\n" +
			`assistant | thinks two files | I write it. | call 1 call_1 write {"path":"a","n":1} | call 2 call_2 read {}`,
		`{"model":"m","messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":[{"type":"text","text":"make it"}]},
			{"role":"assistant","content":"I write it.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"write","arguments":"{\"n\":1, \"path\":\"a\"}"}},{"id":"call_2","type":"function","function":{"name":"read","arguments":""}}]},
			{"role":"tool","tool_call_id":"call_1","content":"written"},{"role":"tool","tool_call_id":"call_2","content":[{"type":"text","text":"seen"}]},
			{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGVsbG8hISEh"}},{"type":"text","text":"this"}]}]}`,
		`{"choices":[{"index":0,"message":{"role":"assistant","content":"Done.","refusal":null},"finish_reason":"stop"}]}`,
		"1\ntool | result 1 written\ntool | result 2 seen\nuser | [image/png, 9 bytes] | this\nassistant | Done.",
	},
	bridge.Gemini: {
		`{"systemInstruction":{"role":"user","parts":[{"text":"You are an agent."}]},"contents":[{"role":"user","parts":[{"text":"<session_context/>"},{"text":"make it"}]}]}`,
		"1\nsystem | You are an agent.\nuser | <session_context/> | make it\n" +
			`assistant | thinks two files | I write it. | call 1  write {"path":"a","n":1} | call 2  write {"path":"b"}`,
		`{"systemInstruction":{"role":"user","parts":[{"text":"You are an agent."}]},"contents":[{"role":"user","parts":[{"text":"<session_context/>"},{"text":"make it"}]},
			{"role":"model","parts":[{"text":"I write it."},{"functionCall":{"name":"write","args":{"n":1,"path":"a"}}},{"functionCall":{"name":"write","args":{"path":"b"}}}]},
			{"role":"user","parts":[{"functionResponse":{"name":"write","response":{"output":"written","error":null}}},{"functionResponse":{"name":"write","response":{"error":"no space"}}},{"inlineData":{"mimeType":"application/pdf","data":"aGVsbG8hISEh"}}]}]}`,
		`{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"id":"own_1","name":"write","args":{"path":"b"}}}]},"finishReason":"STOP"}]}`,
		"1\ntool | result 1 written\ntool | result 2 no space failed\nuser | [application/pdf, 9 bytes]\n" + `assistant | call 3 own_1 write {"path":"b"}`,
	},
}

func TestConversations(t *testing.T) {
	for p, c := range conversations {
		t.Run(string(p), func(t *testing.T) {
			s := &session{t: t, protocol: p}
			s.want(c.first, streams[p], c.told)
			s.want(c.second, c.answer, c.more)
			if len(s.threads) != 1 {
				t.Errorf("%d threads", len(s.threads))
			}
		})
	}
}

// TestBrokenStreams cuts each answer at many places. The agent then repeats its call,
// and gets the whole answer.
func TestBrokenStreams(t *testing.T) {
	for p, c := range conversations {
		t.Run(string(p), func(t *testing.T) {
			whole := streams[p]
			texts := map[string]bool{}
			for n := 0; n < len(whole); n += 5 {
				s := &session{t: t, protocol: p}
				got := s.add(c.first, whole[:n]+"\n\ndata: {\"error\":{\"message\":\"broken\"}}\n\n")
				_, answer, _ := strings.Cut(got, "\nassistant | ")
				texts[answer] = true
				again := s.add(c.first, whole)
				if answer == "" {
					again = got + strings.TrimPrefix(again, "1")
				} else if !strings.HasPrefix(again, "1") || strings.Contains(again, "user") {
					t.Fatalf("after %d bytes, the repeated call adds\n%s", n, again)
				}
				if answer == "" && again != c.told {
					t.Fatalf("after %d bytes\n%s", n, again)
				}
			}
			for _, want := range []string{"thinks two", "I wri", `raw {"path":"a",`} {
				if p == bridge.Gemini && strings.HasPrefix(want, "raw") {
					continue // it has no pieces of arguments
				}
				found := false
				for text := range texts {
					found = found || strings.HasSuffix(strings.TrimSuffix(text, "  rs_1"), want)
				}
				if !found {
					t.Errorf("no broken answer ends with %q: %v", want, texts)
				}
			}
		})
	}
}

// chat returns a request of Chat. Each message is its role and text.
func chat(messages ...string) string {
	var list []map[string]any
	for _, m := range messages {
		role, text, _ := strings.Cut(m, " ")
		entry := map[string]any{"role": role, "content": text}
		switch role {
		case "call": // an ID, and the arguments
			id, arguments, _ := strings.Cut(text, " ")
			entry = map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{"id": id, "function": map[string]any{"name": "sh", "arguments": arguments}}}}
		case "tool": // an ID, and the result
			id, result, _ := strings.Cut(text, " ")
			entry["tool_call_id"], entry["content"] = id, result
		}
		list = append(list, entry)
	}
	data, err := json.Marshal(map[string]any{"messages": list})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// reply returns an answer of Chat.
func reply(message string) string {
	inner := strings.TrimSuffix(strings.TrimPrefix(chat(message), `{"messages":[`), "]}")
	return `{"choices":[{"message":` + inner + `}]}`
}

func TestThreads(t *testing.T) {
	s := &session{t: t, protocol: bridge.Chat}
	s.want(chat("system Write a title.", "user make it"), reply("assistant Making it"), "1\nsystem | Write a title.\nuser | make it\nassistant | Making it")
	s.want(chat("system Agent.", "user make it"), reply(`call a {"agent":1}`), "2\nsystem | Agent.\nuser | make it\nassistant | call 1 a sh {\"agent\":1}")
	// Two subagents with the same instructions take turns.
	s.want(chat("system Sub.", "user task A"), reply("call a 1"), "3\nsystem | Sub.\nuser | task A\nassistant | call 2 a sh {} raw 1")
	s.want(chat("system Sub.", "user task B"), reply(`call a {}`), "4\nsystem | Sub.\nuser | task B\nassistant | call 3 a sh {}")
	s.want(chat("system Sub.", "user task A", "call a 1", "tool a x"), reply("assistant A done"), "3\ntool | result 2 x\nassistant | A done")
	s.want(chat("system Sub.", "user task B", "call a {}", "tool a y"), reply("assistant B done"), "4\ntool | result 3 y\nassistant | B done")
	s.want(chat("system Agent.", "user make it", `call a {"agent":1}`, "tool a A done"), reply("assistant all done"), "2\ntool | result 1 A done\nassistant | all done")
	// The instructions changed a little.
	s.want(chat("system Agent.\nIt is ten.\nBe kind.", "user other"), reply("assistant one"), "5\nsystem | Agent.\nIt is ten.\nBe kind.\nuser | other\nassistant | one")
	s.want(chat("system Agent.\nIt is twelve.\nBe kind.", "user other", "assistant one", "user more"), reply("assistant two"), "5\nuser | more\nassistant | two")
	// White space changed, and then most of the instructions.
	s.want(chat("system Agent.\nIt is twelve.\nBe kind.", "user other\n", "assistant one ", "user more"), reply("assistant three"), "5\nassistant | three")
	s.want(chat("system Agent.\nName it.\nBriefly.", "user other", "assistant one", "user more"), "", "6\nsystem | Agent.\nName it.\nBriefly.\nuser | other\nassistant | one\nuser | more")
}

func TestCompaction(t *testing.T) {
	s := &session{t: t, protocol: bridge.Chat}
	s.add(chat("system S", "user env", "user a"), reply("assistant 1"))
	s.add(chat("system S", "user env", "user a", "assistant 1", "user b"), reply("assistant 2"))
	s.want(chat("system S", "user env", "user a", "assistant 1", "user b", "assistant 2", "user summarize"), reply("assistant sum"), "1\nuser | summarize\nassistant | sum")
	s.want(chat("system S", "user sum", "user c"), reply("assistant 3"), "2\nsystem | S\nuser | sum\nuser | c\nassistant | 3")
	s.want(chat("system S", "user sum", "user c", "assistant 3", "user d"), reply("assistant 4"), "2\nuser | d\nassistant | 4")
	// This agent keeps its first message.
	s.want(chat("system S", "user env", "user sum", "user c"), reply("assistant 5"), "3\nuser | sum\nuser | c\nassistant | 5")
	s.want(chat("system S", "user env", "user sum", "user c", "assistant 5", "user e"), reply("assistant 6"), "3\nuser | e\nassistant | 6")
}

// TestRewritten has what agents do with what was said.
func TestRewritten(t *testing.T) {
	start := func(t *testing.T) *session {
		s := &session{t: t, protocol: bridge.Chat}
		s.add(chat("system S", "user a"), reply("call x {}"))
		s.add(chat("system S", "user a", "call x {}", "tool x long result"), reply("call y {}"))
		return s
	}
	t.Run("old result removed", func(t *testing.T) {
		s := start(t)
		s.want(chat("system S", "user a", "call x {}", "tool x [removed]", "call y {}", "tool y r"), reply("call z {}"), "1\ntool | result 2 r\nassistant | call 3 z sh {}")
		s.want(chat("system S", "user a", "call x {}", "tool x [removed]", "call y {}", "tool y r", "call z {}", "tool z q"), reply("assistant end"), "1\ntool | result 3 q\nassistant | end")
		// The same request again finds its place.
		s.want(chat("system S", "user a", "call x {}", "tool x [removed]", "call y {}", "tool y r", "call z {}", "tool z q"), reply("assistant other"), "1\nassistant | other")
	})
	t.Run("answer renamed", func(t *testing.T) {
		s := start(t)
		s.want(chat("system S", "user a", "call x {}", "tool x long result", `call y {"invalid":true}`, "tool y unknown"), reply("assistant end"), "1\ntool | result 2 unknown\nassistant | end")
	})
	t.Run("answer dropped", func(t *testing.T) {
		s := start(t)
		s.want(chat("system S", "user a", "call x {}", "tool x long result", "user go on"), reply("assistant end"), "1\nuser | go on\nassistant | end")
	})
	t.Run("reminder in the last message", func(t *testing.T) {
		s := start(t)
		s.add(chat("system S", "user a", "call x {}", "tool x long result", "call y {}", "tool y r", "user b <reminder>"), reply("call z {}"))
		s.want(chat("system S", "user a", "call x {}", "tool x long result", "call y {}", "tool y r", "user b", "call z {}", "tool z q"), reply("assistant end"), "1\ntool | result 3 q\nassistant | end")
	})
	t.Run("question aside", func(t *testing.T) {
		s := start(t)
		s.want(chat("system S", "user a", "call x {}", "tool x long result", "call y {}", "tool y r", "user who is next?"), reply("assistant model"), "1\ntool | result 2 r\nuser | who is next?\nassistant | model")
		s.want(chat("system S", "user a", "call x {}", "tool x long result", "call y {}", "tool y r"), reply("assistant end"), "1\nassistant | end")
	})
	t.Run("other beginning", func(t *testing.T) {
		s := start(t)
		s.want(chat("system S", "user b", "call q {}", "tool q long result", "call v {}", "tool v r"), "", "2\nsystem | S\nuser | b\nassistant | call 3 q sh {}\ntool | result 3 long result\nassistant | call 4 v sh {}\ntool | result 4 r")
	})
	t.Run("refused and repeated", func(t *testing.T) {
		s := &session{t: t, protocol: bridge.Chat}
		s.want(chat("user a"), `{"error":{"message":"slow down"}}`, "1\nuser | a")
		s.want(chat("user a"), "<html>", "1")
		s.want(chat("user a"), reply("assistant 1"), "1\nassistant | 1")
		s.want(chat("user a"), reply("assistant 1"), "1")
		s.want(chat("user a", "assistant 1", "user b"), "", "1\nuser | b")
	})
}

// TestIDs repeats calls whose IDs are missing or the same.
func TestIDs(t *testing.T) {
	s := &session{t: t, protocol: bridge.Chat}
	messages := []string{"user a"}
	for i := range 5 {
		want := "1\nuser | a\nassistant | call 1 call_0 sh {}"
		if i > 0 {
			want = fmt.Sprintf("1\ntool | result %d r\nassistant | call %d call_0 sh {}", i, i+1)
		}
		s.want(chat(messages...), reply("call call_0 {}"), want)
		messages = append(messages, "call call_0 {}", "tool call_0 r")
	}
	s = &session{t: t, protocol: bridge.Gemini}
	const call, result = `{"role":"model","parts":[{"functionCall":{"name":"ls","args":{}}},{"functionCall":{"name":"ls","args":{}}}]}`,
		`{"role":"user","parts":[{"functionResponse":{"name":"ls","response":{"output":"r"}}},{"functionResponse":{"name":"ls","response":{"output":"r"}}}]}`
	contents := `{"role":"user","parts":[{"text":"a"}]}`
	for i := range 3 {
		want := "1\nuser | a\nassistant | call 1  ls {} | call 2  ls {}"
		if i > 0 {
			want = fmt.Sprintf("1\ntool | result %d r\ntool | result %d r\nassistant | call %d  ls {} | call %d  ls {}", 2*i-1, 2*i, 2*i+1, 2*i+2)
		}
		s.want(`{"contents":[`+contents+`]}`, `{"candidates":[{"content":`+call+`}]}`, want)
		contents += "," + call + "," + result
	}
	long := strings.Repeat("x", maxProviderIDBytes+1)
	s = &session{t: t, protocol: bridge.Chat}
	s.want(chat("user a", "call "+long+" {}", "tool "+long+" r"), "", "1\nuser | a\nassistant | call 1  sh {}\ntool | result 1 r")
	// Nobody made these calls.
	s = &session{t: t, protocol: bridge.Chat}
	s.want(chat("user a", "tool q r", "tool q r"), "", "1\nuser | a\ntool | result 0 r\ntool | result 0 r")
}

func TestRefusesRequests(t *testing.T) {
	deep := strings.Repeat("[", 20_000)
	for _, tt := range []struct {
		protocol bridge.Protocol
		body     string
	}{
		{bridge.Anthropic, ``},
		{bridge.Anthropic, `{"messages":[]}`},
		{bridge.Anthropic, `{"messages":[{"role":"user","content":[]}]}`},
		{bridge.Responses, `{"contents":[{"parts":[{"text":"a"}]}]}`},
		{bridge.Chat, `{"messages":` + deep},
		{bridge.Chat, `{"messages":[` + strings.Repeat(`{},`, maxElements) + `{"role":"user","content":"a"}]}`},
		{bridge.Anthropic, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[` + strings.Repeat(`{},`, maxElements) + `{}]}]}]}`},
		{"other", `{"messages":[{"role":"user","content":"a"}]}`},
	} {
		var tr Transcript
		n, added, err := tr.Add(tt.protocol, []byte(tt.body), nil)
		if err == nil || n != 0 || added != nil || len(tr.known) > 0 {
			t.Errorf("%.80s: %d, %d messages, %v", tt.body, n, len(added), err)
		}
	}
	full := Transcript{known: map[hash]place{}}
	for i := range maxMessages {
		full.known[hash{byte(i), byte(i >> 8), byte(i >> 16)}] = place{}
	}
	if _, _, err := full.Add(bridge.Chat, []byte(chat("user a")), nil); err == nil {
		t.Error("a full transcript took a message")
	}
	// Arguments that are nested too deeply for records stay text.
	var tr Transcript
	_, added, err := tr.Add(bridge.Chat, []byte(chat("user a", `call x {"a":`+deep[:500]+strings.Repeat("]", 500)+"}")), nil)
	if err != nil || len(added) != 2 || added[1].Blocks[0].ToolUse.InputError == "" {
		t.Errorf("deep arguments: %v, %v", added, err)
	}
}

// TestLongSession checks that a call costs what its bodies are long, and that each
// message is returned once.
func TestLongSession(t *testing.T) {
	s := &session{t: t, protocol: bridge.Chat}
	messages := []string{"system S"}
	total := 0
	for i := range 300 {
		messages = append(messages, fmt.Sprintf("user question %d", i))
		_, added, err := s.Add(bridge.Chat, []byte(chat(messages...)), []byte(reply(fmt.Sprintf("assistant answer %d", i))))
		if err != nil {
			t.Fatal(err)
		}
		total += len(added)
		messages = append(messages, fmt.Sprintf("assistant answer %d", i))
	}
	if total != 601 || len(s.threads) != 1 || len(s.known) != 600 || len(s.answers) != 1 {
		t.Errorf("%d messages, %d threads, %d known, %d answers", total, len(s.threads), len(s.known), len(s.answers))
	}
}
