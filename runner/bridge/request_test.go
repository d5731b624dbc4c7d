package bridge

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newRequest(p Protocol, search bool) *request {
	q := &request{endpoint: endpoint{protocol: p, name: map[Protocol]string{Anthropic: "messages", Responses: "responses", Chat: "chat/completions", Gemini: "generateContent"}[p]}, webSearch: search}
	q.profile = &Profile{Model: "m", BaseURL: &url.URL{Scheme: "https", Host: "api.example.com"}}
	return q
}

// change rewrites a body, with a bound of 9 on the output.
func change(q *request, body string) (string, error) {
	if err := q.rewrite([]byte(body)); err != nil {
		return "", err
	}
	q.setModel()
	if err := q.askForUsage(); err != nil {
		return "", err
	}
	if err := q.setOutput(9); err != nil {
		return "", err
	}
	return string(q.body.encode()), nil
}

func TestTools(t *testing.T) {
	const function = `{"type":"function","name":"f","parameters":{"type":"object","properties":{"image_url":{"type":"string"}}}}`
	for _, tt := range []struct {
		protocol   Protocol
		search     bool
		body, want string
		withheld   string
	}{
		{protocol: Anthropic, body: `"tools":[{"name":"a","input_schema":{}},{"type":"custom","name":"b"},{"type":"bash_20250124","name":"bash"},{"type":"web_search_20250305","name":"web_search","max_uses":5},{"type":"web_fetch_20250910","name":"web_fetch"},{"type":"code_execution_20250825","name":"code_execution"},{"type":"mcp_toolset","mcp_server_name":"x"},{"type":"novelty_2027"}],"tool_choice":{"type":"auto"}`, want: `"tools":[{"name":"a","input_schema":{}},{"type":"custom","name":"b"},{"type":"bash_20250124","name":"bash"}],"tool_choice":{"type":"auto"}`, withheld: "web_search_20250305 web_fetch_20250910 code_execution_20250825 mcp_toolset novelty_2027"},
		{protocol: Anthropic, search: true, body: `"tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"web_fetch_20250910","name":"web_fetch"}]`, want: `"tools":[{"type":"web_search_20250305","name":"web_search"}]`, withheld: "web_fetch_20250910"},
		{protocol: Anthropic, body: `"tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"a"}],"tool_choice":{"type":"tool","name":"web_search"}`, want: `"tools":[{"name":"a"}]`, withheld: "web_search_20250305"},
		{protocol: Anthropic, body: `"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"any"}`, withheld: "web_search_20250305"},
		{protocol: Anthropic, body: `"mcp_servers":[{"type":"url","url":"https://x/"}],"speed":"fast","service_tier":"priority"`, withheld: "mcp_servers service_tier speed"},
		{protocol: Responses, body: `"tools":[` + function + `,{"type":"custom","name":"p"},{"type":"local_shell"},{"type":"shell","environment":{"type":"local"}},{"type":"shell","environment":{"type":"container_auto"}},{"type":"shell"},{"type":"web_search"},{"type":"web_search_preview"},{"type":"file_search"},{"type":"code_interpreter"},{"type":"image_generation"},{"type":"mcp","server_url":"https://x"}]`, want: `"tools":[` + function + `,{"type":"custom","name":"p"},{"type":"local_shell"},{"type":"shell","environment":{"type":"local"}}]`, withheld: "shell web_search web_search_preview file_search code_interpreter image_generation mcp"},
		{protocol: Responses, body: `"tools":[{"type":"namespace","name":"n","tools":[` + function + `,{"type":"web_search"}]},{"type":"namespace","tools":[{"type":"mcp"}]}]`, want: `"tools":[{"type":"namespace","name":"n","tools":[` + function + `]}]`, withheld: "web_search mcp"},
		{protocol: Responses, body: `"tools":[` + function + `,{"type":"web_search"}],"tool_choice":{"type":"web_search"}`, want: `"tools":[` + function + `]`, withheld: "web_search"},
		{protocol: Responses, body: `"tools":[` + function + `,{"type":"web_search"}],"tool_choice":{"type":"allowed_tools","tools":[{"type":"web_search"}]}`, want: `"tools":[` + function + `]`, withheld: "web_search"},
		{protocol: Responses, body: `"tools":[` + function + `,{"type":"web_search"}],"tool_choice":{"type":"function","name":"f"}`, want: `"tools":[` + function + `],"tool_choice":{"type":"function","name":"f"}`, withheld: "web_search"},
		{protocol: Responses, body: `"input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[` + function + `,{"type":"mcp"}]},{"type":"web_search"}]},{"type":"message"},"x"],"tool_choice":{"type":"web_search"}`, want: `"input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[` + function + `]}]},{"type":"message"},"x"]`, withheld: "mcp web_search"},
		{protocol: Responses, body: `"input":[ {"type":"additional_tools","tools":[ ` + function + `]}]`, want: `"input":[ {"type":"additional_tools","tools":[ ` + function + `]}]`},
		{protocol: Responses, search: true, body: `"tools":[{"type":"web_search"},{"type":"mcp"}]`, want: `"tools":[{"type":"web_search"}]`, withheld: "mcp"},
		{protocol: Responses, body: `"tools":[{"type":"web_search"}],"tool_choice":"required","parallel_tool_calls":true`, withheld: "web_search"},
		{protocol: Chat, body: `"tools":[{"type":"function","function":{"name":"f"}},{"type":"builtin_function"},{"type":7}],"web_search_options":{},"plugins":[{"id":"web"}],"models":["other"],"enable_search":true`, want: `"tools":[{"type":"function","function":{"name":"f"}}]`, withheld: "enable_search plugins models web_search_options builtin_function without a type"},
		{protocol: Chat, search: true, body: `"web_search_options":{},"plugins":[]`, want: `"web_search_options":{}`, withheld: "plugins"},
		{protocol: Gemini, body: `"tools":[{"functionDeclarations":[],"googleSearch":{}},{"googleMaps":{}},{"url_context":{}},{"codeExecution":{}},{"novelty":{}}]`, want: `"tools":[{"functionDeclarations":[]}]`, withheld: "googleSearch googleMaps url_context codeExecution novelty"},
		{protocol: Gemini, search: true, body: `"tools":[{"google_search":{},"codeExecution":{}}]`, want: `"tools":[{"google_search":{}}]`, withheld: "codeExecution"},
		{protocol: Gemini, body: `"tools":[{"googleSearch":{}}],"toolConfig":{}`, withheld: "googleSearch"},
	} {
		q := newRequest(tt.protocol, tt.search)
		got, err := change(q, `{"model":"a",`+tt.body+`}`)
		rest := map[Protocol]string{Anthropic: `"max_tokens":9`, Responses: `"store":false,"max_output_tokens":9`, Chat: `"max_tokens":9`, Gemini: `"generationConfig":{"maxOutputTokens":9}`}[tt.protocol]
		want := `{"model":"m",`
		if tt.protocol == Gemini {
			want = `{`
		}
		if want += tt.want; tt.want != "" {
			want += ","
		}
		if err != nil || got != want+rest+"}" || !sameWords(q.withheld, tt.withheld) {
			t.Errorf("%s\ngot  %s, %v\nwant %s\nwithheld %q, want %q", tt.body, got, err, want+rest+"}", q.withheld, tt.withheld)
		}
	}
}

// sameWords reports whether a list has the words of a text in any order.
func sameWords(list []string, text string) bool {
	rest := " " + text + " "
	for _, word := range list {
		if !strings.Contains(rest, " "+word+" ") {
			return false
		}
		rest = strings.Replace(rest, word+" ", "", 1)
	}
	return strings.TrimSpace(rest) == ""
}

func TestRefusedRequests(t *testing.T) {
	message := func(content string) string { return `{"messages":[{"role":"user","content":[` + content + `]}]}` }
	for _, tt := range []struct {
		protocol Protocol
		body     string
		allowed  bool
	}{
		{Anthropic, `{}`, true},
		{Anthropic, message(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"cG5n"}}`), true},
		{Anthropic, message(`{"type":"image","source":{"type":"url","url":"https://x/y.png"}}`), false},
		{Anthropic, message(`{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}`), false},
		{Anthropic, message(`{"type":"document","source":{"type":"file","file_id":"file_1"}}`), false},
		{Anthropic, message(`{"type":"document","source":{"type":"file","id":"file_1"}}`), false},
		{Anthropic, message(`{"type":"document","source":{"url":"https://x/y.pdf"}}`), false},
		{Anthropic, message(`{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}}`), false},
		{Anthropic, message(`{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}`), false},
		{Anthropic, message(`{"type":"tool_use","input":{"source":{"type":"url","url":"https://x"},"image_url":"https://x","file_id":"a"}}`), true},
		{Anthropic, message(`{"type":"text","input":{"source":{"type":"url","url":"https://x"}}}`), false},
		{Anthropic, message(`{"type":"container_upload","file_id":"file_1"}`), false},
		{Anthropic, message(`{"type":"text","text":"see https://x"}`), true},
		{Anthropic, message(`{"type":"search_result","source":"https://x","title":"x"}`), true},
		{Anthropic, `{"container":{"skills":[{"skill_id":"x"}]}}`, false},
		{Anthropic, `{"container":null}`, true},
		{Anthropic, `{"system":[{"type":"image","source":{"type":"url"}}]}`, false},
		{Anthropic, `{"metadata":{"file_id":"x"}}`, true},
		{Anthropic, `{"tools":{"type":"web_search_20250305"}}`, false},
		{Anthropic, `{"tools":[{"Type":"web_search_20250305"}]}`, false},
		{Anthropic, `{"Tools":[{"type":"web_search_20250305"}]}`, false},
		{Anthropic, `{"MODEL":"x"}`, false},
		{Anthropic, `{"Model":"x","model":"m"}`, false},
		{Anthropic, `{"model":"x","model":"m"}`, false},
		{Anthropic, `{"model":"x","mod\u0065l":"m"}`, false},
		{Anthropic, `{"max_to\u212Aens":5}`, false},
		{Anthropic, `{"mcp_ſervers":[]}`, false},
		{Anthropic, `{"tools":[{"type":"custom","type":"web_search_20250305"}]}`, false},
		{Anthropic, `{"messages":[{"role":"user","role":"user"}]}`, false},
		{Anthropic, `{"metadata":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`, true},
		{Anthropic, `{"metadata":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`, false},
		{Anthropic, `{"messages":` + strings.Repeat("[", maxWalk-1) + strings.Repeat("]", maxWalk-1) + `}`, true},
		{Anthropic, `{"messages":` + strings.Repeat("[", maxWalk) + strings.Repeat("]", maxWalk) + `}`, false},
		{Anthropic, `{"image":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`, false},
		{Anthropic, `{"stream":"true"}`, false},
		{Anthropic, `{"stream":1}`, false},
		{Anthropic, `[]`, false},
		{Anthropic, ``, false},
		{Anthropic, `null`, false},
		{Anthropic, `{"a":1}{"b":2}`, false},
		{Anthropic, "{\"a\":\"\xff\"}", false},
		{Anthropic, " \n{\"a\":1}\n ", true},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_image","image_url":"data:image/png;base64,x"}]}]}`, true},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_image","image_url":"https://x"}]}]}`, false},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_image","image_url":" HTTPS://x"}]}]}`, false},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_image","file_id":"file-1"}]}]}`, false},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_file","file_url":"https://x"}]}]}`, false},
		{Responses, `{"input":[{"type":"message","content":[{"type":"input_file","file_data":"data:application/pdf;base64,x"}]}]}`, true},
		{Responses, `{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"http://x"}]}]}`, false},
		{Responses, `{"input":[{"type":"function_call","arguments":"{\"image_url\":\"http://x\"}"}]}`, true},
		{Responses, `{"input":[{"type":"item_reference","id":"msg_1"}]}`, false},
		{Responses, `{"input":[{"type":"tool_search_output","tools":{"type":"web_search"}}]}`, false},
		{Responses, `{"input":[{"Tools":[{"type":"web_search"}]}]}`, true}, // removed
		{Responses, `{"input":[{"x":{"tools":[{"type":"web_search"}]}}]}`, false},
		{Responses, `{"input":[{"x":{"tools":[{"type":"function"}]}}]}`, true},
		{Responses, `{"input":{"tools":[{"type":"web_search"}]}}`, false},
		{Anthropic, message(`{"tools":[{"type":"web_search_20250305"}]}`), false},
		{Responses, `{"background":true}`, false},
		{Responses, `{"background":"true"}`, false},
		{Responses, `{"background":false}`, true},
		{Responses, `{"previous_response_id":"resp_1"}`, false},
		{Responses, `{"previous_response_id":null}`, true},
		{Responses, `{"conversation":"conv_1"}`, false},
		{Responses, `{"prompt":{"id":"pmpt_1"}}`, false},
		{Chat, message(`{"type":"image_url","image_url":{"url":"data:image/png;base64,x","detail":"low"}}`), true},
		{Chat, message(`{"type":"image_url","image_url":{"url":"http://x"}}`), false},
		{Chat, message(`{"type":"image_url","imageUrl":{"url":"http://x"}}`), false},
		{Chat, message(`{"type":"image_url","image_url":"file:///etc/passwd"}`), false},
		{Chat, message(`{"type":"video_url","video_url":{"url":"http://x"}}`), false},
		{Chat, message(`{"type":"video","video":["http://x"]}`), false},
		{Chat, message(`{"type":"image","image":"oss://x"}`), false},
		{Chat, message(`{"type":"file","file":{"file_id":"x"}}`), false},
		{Chat, message(`{"type":"file","file":{"file_data":"data:x"}}`), true},
		{Chat, `{"n":2}`, false},
		{Chat, `{"n":1}`, true},
		{Chat, `{"N":2}`, false},
		{Chat, `{"modalities":["text","audio"]}`, false},
		{Chat, `{"response_format":{"json_schema":{"file_id":{}}}}`, true},
		{Gemini, `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"x"}}]}]}`, true},
		{Gemini, `{"contents":[{"parts":[{"fileData":{"fileUri":"https://x"}}]}]}`, false},
		{Gemini, `{"contents":[{"parts":[{"file_data":{"file_uri":"https://x"}}]}]}`, false},
		{Gemini, `{"contents":[{"parts":[{"functionResponse":{"response":{"fileUri":"x"},"parts":[]}}]}]}`, true},
		{Gemini, `{"contents":[{"parts":[{"functionResponse":{"parts":[{"fileData":{"fileUri":"https://x"}}]}}]}]}`, false},
		{Gemini, `{"contents":[{"parts":[{"functionCall":{"args":{"image_url":"https://x"}}}]}]}`, true},
		{Gemini, `{"generationConfig":{"candidateCount":2}}`, false},
		{Gemini, `{"generation_config":{"candidate_count":2}}`, false},
		{Gemini, `{"generation_config":{"candidate_count":1,"max_output_tokens":"5"}}`, true},
		{Gemini, `{"generationConfig":{},"generation_config":{}}`, false},
		{Gemini, `{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":2}}`, false},
		{Gemini, `{"generationConfig":{"responseModalities":["IMAGE"]}}`, false},
		{Gemini, `{"generationConfig":[]}`, false},
		{Gemini, `{"cachedContent":"cachedContents/1"}`, false},
		{Gemini, `{"GenerationConfig":{}}`, false},
	} {
		_, err := change(newRequest(tt.protocol, false), tt.body)
		if (err == nil) != tt.allowed {
			t.Errorf("%s %s: %v", tt.protocol, tt.body[:min(len(tt.body), 200)], err)
		}
	}
}

func TestOutput(t *testing.T) {
	for _, tt := range []struct {
		protocol    Protocol
		body        string
		bound       int64
		least       int64
		want, named string
	}{
		{Anthropic, `{"max_tokens":5}`, 5, 0, `{"max_tokens":9,"model":"m"}`, ""},
		{Anthropic, `{"max_tokens":null}`, 0, 0, `{"max_tokens":9,"model":"m"}`, ""},
		{Anthropic, `{"max_tokens":-1}`, 0, 0, `{"max_tokens":9,"model":"m"}`, ""},
		{Anthropic, `{"max_tokens":1e9}`, 0, 0, `{"max_tokens":9,"model":"m"}`, ""},
		{Anthropic, `{"max_tokens":99999999999999999999}`, 0, 0, `{"max_tokens":9,"model":"m"}`, ""},
		{Anthropic, `{"max_tokens":5000,"thinking":{"type":"enabled","budget_tokens":4000}}`, 5000, 4001, `{"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":4000},"model":"m"}`, ""},
		{Chat, `{"max_tokens":5,"max_completion_tokens":4}`, 4, 0, `{"max_tokens":9,"max_completion_tokens":9,"model":"m"}`, ""},
		// A server ignores a member that it doesn't know, so it must get its own too.
		{Chat, `{"max_output_tokens":1}`, 1, 0, `{"model":"m","max_tokens":9}`, ""},
		{Chat, `{"max_tokens":5}`, 5, 0, `{"model":"m","max_completion_tokens":9}`, "api.openai.com"},
		{Anthropic, `{"max_output_tokens":5}`, 5, 0, `{"model":"m","max_tokens":9}`, ""},
		{Chat, `{}`, 0, 0, `{"model":"m","max_completion_tokens":9}`, "api.openai.com"},
		{Chat, `{}`, 0, 0, `{"model":"m","max_tokens":9}`, "api.openai.com.example.com"},
		{Gemini, `{"generation_config":{"max_output_tokens":"7","seed":1}}`, 7, 0, `{"generation_config":{"max_output_tokens":9,"seed":1}}`, ""},
		{Gemini, `{"model":"models/other"}`, 0, 0, `{"generationConfig":{"maxOutputTokens":9}}`, ""},
	} {
		q := newRequest(tt.protocol, false)
		if tt.named != "" {
			q.profile.BaseURL.Host = tt.named
		}
		if err := q.rewrite([]byte(tt.body)); err != nil {
			t.Fatal(tt.body, err)
		}
		bound, least := q.output()
		got, err := change(q, tt.body)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil || bound != tt.bound || least != tt.least {
			t.Errorf("%s: bound %d, least %d, %v (-want +got):\n%s", tt.body, bound, least, err, diff)
		}
	}
}

// TestImages checks that an image counts as one, and not by its size.
func TestImages(t *testing.T) {
	data := strings.Repeat("iVBORw0KGgo", 50_000)
	for p, body := range map[Protocol]string{
		Anthropic: `{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + data + `"}}]}]}`,
		Chat:      `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}}]}]}`,
		Responses: `{"input":[{"content":[{"type":"input_image","image_url":"data:image/png;base64,` + data + `"}]}]}`,
		Gemini:    `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"` + data + `"}}]}]}`,
	} {
		q := newRequest(p, false)
		if err := q.rewrite([]byte(body)); err != nil || q.images != 1 || q.bytes > 200 {
			t.Errorf("%s: %d images, %d bytes, %v", p, q.images, q.bytes, err)
		}
	}
}

// FuzzRewrite checks that requests become valid JSON with the profile's model, a bound
// on the output and no provider's tools, and that what nobody touches stays.
func FuzzRewrite(f *testing.F) {
	for _, e := range exchanges {
		f.Add(e.body, uint8(len(e.name)%4))
	}
	f.Add(`{"tools":[{"type":"web_search"},{"type":"function"}],"tool_choice":{"type":"web_search"},"a":"\\\"","b":[1,-2.5e3,true,null,{}]}`, uint8(1))
	f.Add(`{"generation_config":{"a":[{}]},"tools":[{"googleSearch":{},"functionDeclarations":[]}]}`, uint8(3))
	f.Add(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,x"}}]}]}`, uint8(2))
	f.Fuzz(func(t *testing.T, body string, n uint8) {
		p := []Protocol{Anthropic, Responses, Chat, Gemini}[n%4]
		q := newRequest(p, false)
		got, err := change(q, body)
		if err != nil {
			return
		}
		var before, after map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &before); err != nil {
			t.Fatalf("%q was accepted: %v", body, err)
		}
		if err := json.Unmarshal([]byte(got), &after); err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		for name, value := range before {
			if _, known := members()[foldName(name)]; !known && !bytes.Equal(value, after[name]) {
				t.Errorf("%q: member %q became %s", body, name, after[name])
			}
		}
		if p != Gemini && string(after["model"]) != `"m"` {
			t.Errorf("%q became %q", body, got)
		}
		if p == Responses {
			var list []struct{ Type string }
			_ = json.Unmarshal(after["tools"], &list) // a type that isn't a string was removed
			for _, tool := range list {
				if strings.HasPrefix(tool.Type, "web_search") {
					t.Errorf("%q became %q", body, got)
				}
			}
		}
		again := newRequest(p, false)
		if twice, err := change(again, got); err != nil || twice != got {
			t.Errorf("%q became %q, and then %q, %v", body, got, twice, err)
		}
	})
}
