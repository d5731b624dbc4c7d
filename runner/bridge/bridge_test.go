package bridge

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-proj-0123456789abcdefghij/ü+"

// setup is a bridge between a client and a provider.
type setup struct {
	url    string
	bridge *Bridge

	mu    sync.Mutex
	calls []Call
	// ended gets each call's last event.
	ended chan Call
}

// newSetup starts a bridge with a profile "fast" of a protocol, whose provider is a
// handler. Its budget is in tokens, or none if that is 0.
func newSetup(t *testing.T, p Protocol, provider http.Handler, tokens int64, change func(*Options)) *setup {
	t.Helper()
	server := httptest.NewServer(provider)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Authorization": {"Bearer " + testKey}}
	switch p {
	case Anthropic:
		header = http.Header{"X-Api-Key": {testKey}}
	case Gemini:
		base.Path = "/v1beta"
		header = http.Header{"X-Goog-Api-Key": {testKey}}
	default:
		base.Path = "/v1"
	}
	budget := limits.Budget{}
	if tokens > 0 {
		budget.Tokens = &tokens
	}
	ledger, err := loop.NewSharedBudget(budget, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s := &setup{ended: make(chan Call, 1000)}
	o := Options{
		Profiles: []Profile{{Name: "fast", Protocol: p, BaseURL: base, Model: "model-1", Header: header, Secrets: []string{testKey}}},
		Ledger:   ledger, Transport: transport,
		Call: func(c Call) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls = append(s.calls, c)
			if c.Stage != Started {
				s.ended <- c
			}
		},
	}
	if change != nil {
		change(&o)
	}
	if s.bridge, err = New(o); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.bridge.ServeRequest(w, r, 7) }))
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

func (s *setup) stages() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, c := range s.calls {
		list = append(list, string(c.Stage))
	}
	return strings.Join(list, " ")
}

// answer is what the client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

var client = &http.Client{
	Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func send(t *testing.T, method, to, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text), err}
}

// exchanges are requests of each protocol, as the agent sends them and as the provider
// must get them.
var exchanges = []struct {
	name           string
	protocol       Protocol
	path, body     string
	wantPath, want string
	finish         string
}{
	{
		"anthropic", Anthropic, "/v1/messages?beta=true&key=x", `{ "model":"model-1", "zeta": 1.10e+02, "max_tokens":500,"messages":[{"role":"user","content":"h\u0069"}] }`,
		"/v1/messages?beta=true", `{"model":"model-1","zeta":1.10e+02,"max_tokens":500,"messages":[{"role":"user","content":"h\u0069"}]}`, "tool_use",
	},
	{
		"anthropic stream", Anthropic, "/messages", `{"model":"fast","max_tokens":500,"stream":true,"messages":[],"new_field":{"b":1,"a":[ ]}}`,
		"/v1/messages", `{"model":"model-1","max_tokens":500,"stream":true,"messages":[],"new_field":{"b":1,"a":[ ]}}`, "tool_use",
	},
	{
		"responses", Responses, "/responses", `{"model":"alias","input":"hi","store":true}`,
		"/v1/responses", `{"model":"model-1","input":"hi","store":false,"max_output_tokens":32768}`, "completed",
	},
	{
		"responses stream", Responses, "/v1/responses", `{"model":"alias","input":"hi","stream":true,"store":false,"max_output_tokens":9}`,
		"/v1/responses", `{"model":"model-1","input":"hi","stream":true,"store":false,"max_output_tokens":9}`, "completed",
	},
	{
		"chat", Chat, "/v1/chat/completions", `{"model":"alias","messages":[],"max_completion_tokens":7}`,
		"/v1/chat/completions", `{"model":"model-1","messages":[],"max_completion_tokens":7,"max_tokens":7}`, "tool_calls",
	},
	{
		"chat stream", Chat, "/chat/completions", `{"model":"alias","messages":[],"stream":true,"stream_options":{"x":1}}`,
		"/v1/chat/completions", `{"model":"model-1","messages":[],"stream":true,"stream_options":{"x":1,"include_usage":true},"max_tokens":16384}`, "tool_calls",
	},
	{
		"gemini", Gemini, "/v1beta/models/alias:generateContent?key=x", `{"contents":[],"generationConfig":{"temperature":0,"maxOutputTokens":"12"}}`,
		"/v1beta/models/model-1:generateContent", `{"contents":[],"generationConfig":{"temperature":0,"maxOutputTokens":12}}`, "STOP",
	},
	{
		"gemini stream", Gemini, "/v1beta/models/alias:streamGenerateContent?alt=sse", `{"contents":[]}`,
		"/v1beta/models/model-1:streamGenerateContent?alt=sse", `{"contents":[],"generationConfig":{"maxOutputTokens":32768}}`, "STOP",
	},
}

// TestExchanges checks that requests arrive with the profile's key and only the
// members changed that must be, and that answers arrive byte for byte and are counted.
func TestExchanges(t *testing.T) {
	usage := limits.Usage{InputTokens: 100, CachedInputTokens: 20, OutputTokens: 30}
	for _, tt := range exchanges {
		t.Run(tt.name, func(t *testing.T) {
			mock := &mockmodel.Model{Steps: []mockmodel.Step{{
				Text: "Grüße, 世界: a text of some length.", Calls: []mockmodel.Call{{Name: "shell", Arguments: `{"command":"ls"}`}}, Usage: &usage,
				Header: http.Header{"X-Ratelimit": {"1"}, "Set-Cookie": {"a=b"}, "Location": {"/x"}, "Openai-Organization": {"o"}},
			}}}
			price := &limits.Price{Input: 1, CachedInput: 1, Output: 1}
			s := newSetup(t, tt.protocol, mock, 0, func(o *Options) {
				o.Models = map[string]string{"alias": "fast"}
				o.Profiles[0].Price = price
			})
			got := send(t, http.MethodPost, s.url+tt.path, tt.body,
				"Authorization", "Bearer "+Key, "X-Api-Key", Key, "Api-Key", Key, "X-Goog-Api-Key", Key, "Cookie", "a=b", "Proxy-Authorization", "Basic eA==",
				"Openai-Organization", "theirs", "X-Anything", "y", "X-Stainless-Lang", "js", "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "mcp-client-2025-11-20, interleaved-thinking-2025-05-14")
			end := <-s.ended
			if got.status != http.StatusOK || got.err != nil || end.Stage != Completed || s.stages() != "started completed" {
				t.Fatalf("answer %+v; %+v", got, end)
			}
			sent := mock.Requests()[0]
			path := sent.Path
			if sent.Query != "" {
				path += "?" + sent.Query
			}
			if path != tt.wantPath || string(sent.Body) != tt.want {
				t.Errorf("the provider got %s %s\nwant %s %s", path, sent.Body, tt.wantPath, tt.want)
			}
			var names []string
			for name := range sent.Header {
				names = append(names, name)
			}
			slices.Sort(names)
			key := map[Protocol]string{Anthropic: "X-Api-Key", Gemini: "X-Goog-Api-Key"}[tt.protocol]
			if key == "" {
				key = "Authorization"
			}
			wantNames := []string{"Accept-Encoding", "Anthropic-Beta", "Anthropic-Version", key, "Content-Length", "Content-Type", "User-Agent", "X-Stainless-Lang"}
			slices.Sort(wantNames)
			if diff := cmp.Diff(wantNames, names); diff != "" || !strings.Contains(sent.Header.Get(key), testKey) || sent.Header.Get("Anthropic-Beta") != "interleaved-thinking-2025-05-14" {
				t.Errorf("headers %v (-want +got):\n%s", sent.Header, diff)
			}
			for _, name := range []string{"Set-Cookie", "Location", "Openai-Organization"} {
				if got.header.Get(name) != "" {
					t.Errorf("header %s: %q", name, got.header.Get(name))
				}
			}
			if got.header.Get("X-Ratelimit") != "1" {
				t.Errorf("headers %v", got.header)
			}
			// The same request without the bridge has the same answer.
			direct := httptest.NewServer(&mockmodel.Model{Steps: mock.Steps})
			defer direct.Close()
			if want := send(t, http.MethodPost, direct.URL+tt.wantPath, tt.want); want.body != got.body || string(end.Answer) != got.body {
				t.Errorf("answer %q\nwant %q\nreported %q", got.body, want.body, end.Answer)
			}
			wantUsage := usage
			wantUsage.Rounds, wantUsage.CostMicroUSD = 1, new(int64(150))
			if diff := cmp.Diff(wantUsage, end.Usage); diff != "" || end.Estimated {
				t.Errorf("estimated %v, usage (-want +got):\n%s", end.Estimated, diff)
			}
			if end.Finish != tt.finish || end.AnsweredBy != "model-1" || end.Model != "model-1" || end.Profile != "fast" || end.Command != 7 ||
				string(end.Request) != tt.body || end.Status != 200 || end.Duration <= 0 {
				t.Errorf("report %+v", end)
			}
		})
	}
}

// TestUnbuffered checks that each event reaches the agent before the next one is made.
func TestUnbuffered(t *testing.T) {
	next := make(chan bool)
	s := newSetup(t, Anthropic, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"%d\"}}\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}), 0, nil)
	res, err := client.Post(s.url+"/v1/messages", "application/json", strings.NewReader(`{"model":"fast","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 1000)
	for i := range 3 {
		n, err := res.Body.Read(buf)
		if err != nil || !strings.HasSuffix(string(buf[:n]), fmt.Sprintf("\"%d\"}}\n\n", i)) {
			t.Fatalf("event %d: %q, %v", i, buf[:n], err)
		}
		next <- true
	}
}

// TestEndpoints checks that only the endpoints that ask a model are served.
func TestEndpoints(t *testing.T) {
	bodies := map[Protocol]string{Gemini: `{}`}
	for _, tt := range []struct {
		protocol     Protocol
		method, path string
		status       int
	}{
		{Anthropic, "POST", "/v1/messages", 200},
		{Anthropic, "POST", "/v1/messages/count_tokens?beta=true", 200},
		{Anthropic, "GET", "/v1/models", 200},
		{Anthropic, "GET", "/v1/models/fast", 200},
		{Anthropic, "GET", "/v1/models/other", 404},
		{Anthropic, "GET", "/v1/messages", 404},
		{Anthropic, "POST", "/v1/files", 404},
		{Anthropic, "GET", "/v1/files/file_1/content", 404},
		{Anthropic, "POST", "/v1/messages/batches", 404},
		{Anthropic, "POST", "/v1/complete", 404},
		{Anthropic, "POST", "/v1/skills", 404},
		{Anthropic, "GET", "/v1/organizations/api_keys", 404},
		{Anthropic, "POST", "/v1/v1/messages", 404},
		{Anthropic, "POST", "//v1/messages", 404},
		{Anthropic, "POST", "/v1//messages", 404},
		{Anthropic, "POST", "/v1/messages/", 404},
		{Anthropic, "POST", "/v1/x/../messages", 404},
		{Anthropic, "POST", "/v1/%6dessages", 404},
		{Anthropic, "POST", "/v1/messages%2fbatches", 404},
		{Anthropic, "POST", "/v1/messages%2f..%2ffiles", 404},
		{Anthropic, "HEAD", "/", 200},
		{Anthropic, "GET", "/", 200},
		{Anthropic, "POST", "/", 404},
		{Responses, "POST", "/v1/responses", 200},
		{Responses, "POST", "/v1/responses/compact", 200},
		{Responses, "GET", "/v1/models", 200},
		{Responses, "GET", "/v1/responses/resp_1", 404},
		{Responses, "POST", "/v1/responses/resp_1/cancel", 404},
		{Responses, "DELETE", "/v1/responses/resp_1", 404},
		{Responses, "POST", "/v1/responses/input_tokens", 404},
		{Responses, "POST", "/v1/uploads", 404},
		{Responses, "POST", "/v1/batches", 404},
		{Responses, "POST", "/v1/embeddings", 404},
		{Responses, "POST", "/v1/images/generations", 404},
		{Responses, "POST", "/v1/assistants", 404},
		{Responses, "POST", "/v1/chat/completions", 400}, // the model speaks another protocol
		{Chat, "POST", "/v1/chat/completions", 200},
		{Chat, "GET", "/models", 200},
		{Chat, "GET", "/v1/chat/completions/chatcmpl-1", 404},
		{Chat, "POST", "/v1/completions", 404},
		{Gemini, "POST", "/v1beta/models/fast:generateContent", 200},
		{Gemini, "POST", "/v1/models/fast:generateContent", 200},
		{Gemini, "POST", "/models/fast:streamGenerateContent?alt=sse", 200},
		{Gemini, "POST", "/v1beta/models/fast:streamGenerateContent", 400},
		{Gemini, "POST", "/v1beta/models/fast:countTokens", 200},
		{Gemini, "GET", "/v1beta/models", 200},
		{Gemini, "POST", "/v1beta/models/fast:batchGenerateContent", 404},
		{Gemini, "POST", "/v1beta/models/fast:embedContent", 404},
		{Gemini, "POST", "/v1beta/models/..:generateContent", 400},
		{Gemini, "POST", "/v1beta/models/fast%2f..%2fother:generateContent", 404},
		{Gemini, "POST", "/upload/v1beta/files", 404},
		{Gemini, "POST", "/v1beta/cachedContents", 404},
	} {
		t.Run(tt.method+" "+string(tt.protocol)+tt.path, func(t *testing.T) {
			mock := &mockmodel.Model{}
			s := newSetup(t, tt.protocol, mock, 0, nil)
			body := bodies[tt.protocol]
			if body == "" {
				body = `{"model":"fast"}`
			}
			// Not through the client, which cleans paths.
			r := httptest.NewRequest(tt.method, "/", strings.NewReader(body))
			u, err := url.Parse("http://" + Host + tt.path)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = u
			if tt.protocol == Anthropic {
				r.Header.Set("Anthropic-Version", "2023-06-01")
			}
			w := httptest.NewRecorder()
			s.bridge.ServeRequest(w, r, 1)
			if w.Code != tt.status {
				t.Fatalf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
			if n := len(mock.Requests()); n != map[bool]int{true: 1}[tt.status == 200 && tt.method == "POST"] {
				t.Errorf("the provider got %d requests", n)
			}
			if tt.status == 200 {
				return
			}
			checkDialect(t, tt.protocol, w.Body.String())
			if !strings.Contains(tt.path, "/models/other") && s.stages() != "failed" {
				t.Errorf("stages %q", s.stages())
			}
		})
	}
}

// checkDialect checks that an error has the form of a protocol.
func checkDialect(t *testing.T, p Protocol, body string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct {
			Type, Message, Status string
			Code                  any
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == "" ||
		p == Anthropic && (e.Type != "error" || e.Error.Type == "") || p == Gemini && (e.Error.Status == "" || e.Error.Code == nil) || (p == Chat || p == Responses) && e.Error.Type == "" {
		t.Errorf("error of %s: %s", p, body)
	}
}

// TestModels checks which names are models.
func TestModels(t *testing.T) {
	mock := &mockmodel.Model{}
	s := newSetup(t, Anthropic, mock, 0, func(o *Options) {
		small := o.Profiles[0]
		small.Name, small.Model = "small", "model-small"
		other := o.Profiles[0]
		other.Name, other.Model, other.Protocol = "other", "gpt", Responses
		o.Profiles = append(o.Profiles, small, other)
		o.Models = map[string]string{"haiku": "small", "sonnet": "fast"}
	})
	for asked, want := range map[string]string{
		"fast": "model-1", "model-1": "model-1", "small": "model-small", "model-small": "model-small", "haiku": "model-small", "sonnet": "model-1",
		"opus": "", "other": "", "gpt": "", "": "", "*": "", "model-1:online": "",
	} {
		before := len(mock.Requests())
		got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":`+string(quote(asked))+`}`)
		sent := mock.Requests()[before:]
		switch {
		case want == "" && (got.status != 400 || len(sent) > 0):
			t.Errorf("%s: %+v", asked, got)
		case want != "" && (len(sent) != 1 || !strings.Contains(string(sent[0].Body), `"model":"`+want+`"`)):
			t.Errorf("%s: %+v, sent %s", asked, got, sent)
		}
	}
	for path, want := range map[string]string{"/v1/models": "gpt other", "/v1/models/gpt": "gpt"} {
		if got := send(t, http.MethodGet, s.url+path, ""); ids(got.body) != want {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if got := send(t, http.MethodGet, s.url+"/v1/models", "", "Anthropic-Version", "x"); ids(got.body) != "fast haiku model-1 model-small small sonnet" {
		t.Errorf("models %s", got.body)
	}
	s.bridge.opts.Models["*"] = "fast"
	if got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"opus"}`); got.status != 200 {
		t.Errorf("any other: %+v", got)
	}
	if got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"gpt"}`); got.status != 400 || !strings.Contains(got.body, "responses") {
		t.Errorf("another protocol: %+v", got)
	}
}

func ids(body string) string {
	var v struct {
		ID   string
		Data []struct{ ID string }
	}
	_ = json.Unmarshal([]byte(body), &v)
	list := []string{}
	for _, d := range v.Data {
		list = append(list, d.ID)
	}
	return strings.TrimSpace(v.ID + strings.Join(list, " "))
}

// TestWebSocket checks the answer that lets Codex go on at once.
func TestWebSocket(t *testing.T) {
	s := newSetup(t, Responses, &mockmodel.Model{}, 0, nil)
	if got := send(t, http.MethodGet, s.url+"/v1/responses", "", "Connection", "Upgrade", "Upgrade", "websocket"); got.status != http.StatusUpgradeRequired {
		t.Errorf("%+v", got)
	}
}

// TestProviderFailures checks that refusals pass unchanged and count nothing, and that
// redirects are not followed.
func TestProviderFailures(t *testing.T) {
	for _, p := range []Protocol{Anthropic, Chat} {
		for _, status := range []int{302, 400, 401, 429, 500, 529} {
			t.Run(fmt.Sprint(p, status), func(t *testing.T) {
				mock := &mockmodel.Model{Steps: []mockmodel.Step{{Status: status, Header: http.Header{"Retry-After": {"7"}, "Location": {"http://127.0.0.1:1/"}}, Message: "because"}}}
				s := newSetup(t, p, mock, 100_000, nil)
				path := map[Protocol]string{Anthropic: "/v1/messages", Chat: "/v1/chat/completions"}[p]
				got := send(t, http.MethodPost, s.url+path, `{"model":"fast","stream":true}`)
				end := <-s.ended
				want := status
				if status == 302 {
					want = 502
				} else if got.header.Get("Retry-After") != "7" || !strings.Contains(got.body, "because") {
					t.Errorf("%+v", got)
				}
				if got.status != want || got.header.Get("Location") != "" || end.Class != ClassProvider || end.Status != want || end.Usage.Tokens() != 0 || len(mock.Requests()) != 1 {
					t.Errorf("%+v, %+v", got, end)
				}
				if used := s.bridge.opts.Ledger.(*loop.SharedBudget).Used(); used.Tokens() != 0 {
					t.Errorf("used %+v", used)
				}
				checkDialect(t, p, got.body)
			})
		}
	}
}

// TestBrokenAnswers checks answers that end before their end.
func TestBrokenAnswers(t *testing.T) {
	text := strings.Repeat("word ", 2000)
	for _, tt := range exchanges {
		stream := strings.Contains(tt.name, "stream")
		t.Run(tt.name, func(t *testing.T) {
			provider := http.Handler(&mockmodel.Model{Steps: []mockmodel.Step{{Text: text, Broken: true}}})
			if !stream {
				provider = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprintf(w, `{"text":%q`, text)
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				})
			}
			s := newSetup(t, tt.protocol, provider, 0, func(o *Options) { o.Models = map[string]string{"alias": "fast"} })
			got := send(t, http.MethodPost, s.url+tt.path, tt.body)
			end := <-s.ended
			if (got.err == nil) != stream || stream && !strings.Contains(got.body, "caisson: the provider gave no whole answer") {
				t.Errorf("%v, %s", got.err, got.body[max(0, len(got.body)-300):])
			}
			if end.Class != ClassProvider || !end.Estimated || end.Usage.OutputTokens < 2000 || end.Usage.OutputTokens > 4000 {
				t.Errorf("%+v %+v", end.Class, end.Usage)
			}
		})
	}
}

// TestTimeouts checks that no provider holds a call longer than the profile allows.
func TestTimeouts(t *testing.T) {
	stall := func(w http.ResponseWriter, r *http.Request, begin string) {
		if begin != "" {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, begin)
			w.(http.Flusher).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	drip := func(w http.ResponseWriter, r *http.Request, begin string) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			fmt.Fprint(w, begin)
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	}
	for name, tt := range map[string]struct {
		provider func(http.ResponseWriter, *http.Request, string)
		begin    string
		change   func(*Profile)
		status   int
		message  string
	}{
		"no headers": {stall, "", func(p *Profile) { p.HeaderTimeout = 50 * time.Millisecond }, 504, "did not begin"},
		"silence":    {stall, ": ping\n\n", func(p *Profile) { p.IdleTimeout = 50 * time.Millisecond }, 200, "fell silent"},
		"no end":     {drip, ": ping\n\n", func(p *Profile) { p.AnswerTimeout = 50 * time.Millisecond }, 200, "did not end"},
		"line":       {drip, strings.Repeat("x", 1<<20), nil, 200, "larger than allowed"},
		"event":      {drip, "data: " + strings.Repeat("x", 1<<20) + "\n", nil, 200, "larger than allowed"},
		"answer":     {drip, strings.Repeat(": ping\n\n", 1<<17), nil, 200, "larger than allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, Anthropic, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tt.provider(w, r, tt.begin) }), 0, func(o *Options) {
				if tt.change != nil {
					tt.change(&o.Profiles[0])
				}
			})
			got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"fast","stream":true}`)
			end := <-s.ended
			if got.status != tt.status || !strings.Contains(got.body[max(0, len(got.body)-300):], tt.message) || end.Stage != Failed || !end.Estimated || end.Usage.InputTokens == 0 {
				t.Errorf("%d %q, %s %s %+v", got.status, got.body[max(0, len(got.body)-300):], end.Class, end.Message, end.Usage)
			}
			if (end.Class == ClassTooSlow) != (tt.change != nil) {
				t.Errorf("class %s", end.Class)
			}
		})
	}
}

// TestClientGone checks that an agent that goes ends the provider's call, whose part
// counts.
func TestClientGone(t *testing.T) {
	gone := make(chan bool, 1)
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "again and again ", Endless: true}}}
	s := newSetup(t, Chat, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mock.ServeHTTP(w, r)
		gone <- true
	}), 0, nil)
	res, err := client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"fast","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, res.Body, 100_000); err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-gone
	if end := <-s.ended; end.Class != ClassClientGone || !end.Estimated || end.Usage.OutputTokens < 500 {
		t.Errorf("%s %+v", end.Class, end.Usage)
	}
}

// TestUnread checks that an agent that doesn't read its answer doesn't hold a call.
func TestUnread(t *testing.T) {
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: strings.Repeat("again and again ", 1000), Endless: true}}}
	s := newSetup(t, Chat, mock, 0, func(o *Options) { o.Profiles[0].IdleTimeout = time.Second })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"model":"fast","stream":true}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if end := <-s.ended; end.Class != ClassClientGone || end.Usage.OutputTokens == 0 {
		t.Errorf("%s %+v", end.Class, end.Usage)
	}
}

// TestTooManyWait checks that the number of requests that wait is bounded.
func TestTooManyWait(t *testing.T) {
	s := newSetup(t, Chat, &mockmodel.Model{}, 0, nil)
	for range maxWaiting {
		s.bridge.waiting <- struct{}{}
	}
	if got := send(t, http.MethodPost, s.url+"/v1/chat/completions", `{"model":"fast"}`); got.status != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
	<-s.bridge.waiting
	if got := send(t, http.MethodPost, s.url+"/v1/chat/completions", `{"model":"fast"}`); got.status != http.StatusOK {
		t.Errorf("%+v", got)
	}
}

// TestCallsAtOnce checks that no more than eight calls run at once, and that the
// others follow.
func TestCallsAtOnce(t *testing.T) {
	arrived, release := make(chan bool, 100), make(chan bool)
	mock := &mockmodel.Model{}
	s := newSetup(t, Chat, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-release
		mock.ServeHTTP(w, r)
	}), 0, nil)
	var wg sync.WaitGroup
	const atOnce = 8
	for range atOnce + 4 {
		wg.Go(func() {
			if got := send(t, http.MethodPost, s.url+"/v1/chat/completions", `{"model":"fast"}`); got.status != 200 {
				t.Errorf("%+v", got)
			}
		})
	}
	for range atOnce {
		<-arrived
	}
	for len(s.bridge.waiting) < 4 {
		time.Sleep(time.Millisecond)
	}
	if len(arrived) > 0 {
		t.Error("a ninth call began")
	}
	close(release)
	wg.Wait()
	if len(arrived) != 4 {
		t.Errorf("%d more calls", len(arrived))
	}
}

// TestLargeBodies checks the bound on requests.
func TestLargeBodies(t *testing.T) {
	mock := &mockmodel.Model{}
	s := newSetup(t, Anthropic, mock, 0, nil)
	body := func(n int) string {
		head := `{"model":"fast","messages":"`
		return head + strings.Repeat("x", n-len(head)-2) + `"}`
	}
	if got := send(t, http.MethodPost, s.url+"/v1/messages", body(MaxBodyBytes+1)); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %s", got.status, got.body)
	}
	if got := send(t, http.MethodPost, s.url+"/v1/messages", body(MaxBodyBytes-1000)); got.status != 200 {
		t.Errorf("large: %d %s", got.status, got.body)
	}
	if got := send(t, http.MethodPost, s.url+"/v1/messages", "x", "Content-Encoding", "gzip"); got.status != 400 {
		t.Errorf("encoded: %d %s", got.status, got.body)
	}
}

// TestKeyEcho checks that a provider that repeats the key doesn't show it to the agent.
func TestKeyEcho(t *testing.T) {
	spellings := map[string]string{
		"plain": testKey, "base64": base64.StdEncoding.EncodeToString([]byte(testKey)), "base64 url": base64.URLEncoding.EncodeToString([]byte("x" + testKey)),
		"hex": hex.EncodeToString([]byte(testKey)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(testKey))),
		"query": url.QueryEscape(testKey), "path": url.PathEscape(testKey), "json": strings.ReplaceAll(testKey, "/", `\/`),
	}
	for _, status := range []int{200, 401} {
		for _, kind := range []string{"text/event-stream", "application/json"} {
			for name, spelled := range spellings {
				t.Run(fmt.Sprint(name, " ", kind, status), func(t *testing.T) {
					s := newSetup(t, Anthropic, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get("X-Api-Key") != testKey {
							t.Error("the control: the provider got no key")
						}
						w.Header().Set("Content-Type", kind)
						w.Header().Set("X-Echo", spelled)
						w.WriteHeader(status)
						fmt.Fprintf(w, "data: {\"error\":{\"message\":\"bad key %s", spelled[:5])
						w.(http.Flusher).Flush()
						fmt.Fprintf(w, "%s\"}}\n\n", spelled[5:])
					}), 0, nil)
					got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"fast","stream":true}`)
					end := <-s.ended
					all := got.body + got.header.Get("X-Echo") + string(end.Answer) + end.Message
					if strings.Contains(all, strings.TrimRight(spelled, "=")) || !strings.Contains(got.body, "bad key ") {
						t.Errorf("%s", all)
					}
				})
			}
		}
	}
}

// TestEncodedAnswers checks that answers that can't be read don't pass.
func TestEncodedAnswers(t *testing.T) {
	s := newSetup(t, Anthropic, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		_, _ = w.Write([]byte("x"))
	}), 0, nil)
	if got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"fast"}`); got.status != http.StatusBadGateway {
		t.Errorf("%+v", got)
	}
}

// TestUnreachable checks a provider that isn't there. Nothing was sent, so nothing
// counts.
func TestUnreachable(t *testing.T) {
	s := newSetup(t, Anthropic, &mockmodel.Model{}, 0, func(o *Options) { o.Profiles[0].BaseURL = &url.URL{Scheme: "http", Host: "127.0.0.1:1"} })
	got := send(t, http.MethodPost, s.url+"/v1/messages", `{"model":"fast"}`)
	if end := <-s.ended; got.status != http.StatusBadGateway || end.Class != ClassProvider || end.Usage.Tokens() != 0 || end.Err == nil || strings.Contains(got.body, "127.0.0.1") {
		t.Errorf("%+v, %+v", got, end)
	}
}

func TestNew(t *testing.T) {
	base, _ := url.Parse("https://api.example.com")
	good := Profile{Name: "a", Protocol: Chat, BaseURL: base, Model: "m"}
	ledger, err := loop.NewSharedBudget(limits.Budget{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"":             func(*Options) {},
		"ledger":       func(o *Options) { o.Ledger = nil },
		"protocol":     func(o *Options) { o.Profiles[0].Protocol = "x" },
		"name":         func(o *Options) { o.Profiles[0].Name = "" },
		"twice":        func(o *Options) { o.Profiles = append(o.Profiles, good) },
		"URL":          func(o *Options) { o.Profiles[0].BaseURL = nil },
		"alias":        func(o *Options) { o.Models = map[string]string{"x": "y"} },
		"secret":       func(o *Options) { o.Profiles[0].Secrets = []string{"a secret\n with a line"} },
		"negative":     func(o *Options) { o.Profiles[0].MaxOutputTokens = -1 },
		"short secret": func(o *Options) { o.Profiles[0].Secrets = []string{"test", "test"} },
	} {
		o := Options{Profiles: []Profile{good}, Ledger: ledger}
		change(&o)
		if _, err := New(o); (err == nil) != (name == "" || name == "short secret") || err != nil && bytes.Contains([]byte(err.Error()), []byte("with a line")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
