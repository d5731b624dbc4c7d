package worker_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/verify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is an OpenAI server. Each of its models plays its answers in order, then
// repeats the last.
type provider struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	answers  map[string][]string
	requests map[string][]request
}

// request is a request that a model received.
type request struct {
	raw      []byte
	Model    string
	Messages []struct{ Role, Content string }
}

func (r request) last() string { return r.Messages[len(r.Messages)-1].Content }

// newProvider starts a server. An answer that begins with an exclamation mark is a
// failure's status, echo repeats the last message before what follows the word, and
// role is a valid envelope of the requested role.
func newProvider(t testing.TB, answers map[string][]string) *provider {
	t.Helper()
	p := &provider{t: t, answers: answers, requests: map[string][]request{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serveRequest))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) serveRequest(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	req := request{raw: raw}
	if err != nil || json.Unmarshal(raw, &req) != nil {
		p.t.Errorf("request %q: %v", raw, err)
	}
	p.mu.Lock()
	n := len(p.requests[req.Model])
	p.requests[req.Model] = append(p.requests[req.Model], req)
	all := p.answers[req.Model]
	p.mu.Unlock()
	if len(all) == 0 {
		p.t.Errorf("the model %s is not expected", req.Model)
		return
	}
	text := all[min(n, len(all)-1)]
	if rest, ok := strings.CutPrefix(text, "echo"); ok {
		text = req.last() + rest
	}
	if text == "role" {
		text = roleEnvelope(req.Messages[1].Content)
	}
	if status, ok := strings.CutPrefix(text, "!"); ok {
		code := http.StatusInternalServerError
		_, _ = fmt.Sscan(status, &code)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"error": {"message": "no"}}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"id": "x", "object": "chat.completion", "model": req.Model,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": text}}},
		"usage":   map[string]any{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
	})
}

// roleEnvelope returns a valid envelope of the role whose schema message has.
func roleEnvelope(message string) string {
	for role, answer := range map[worker.Role]any{"proposer": nil, "critic": nil, "synthesizer": "I am the synthesizer."} {
		if strings.Contains(message, `{"const": "`+string(role)+`"}`) {
			return envelope(role, "agree", answer)
		}
	}
	return "no role"
}

func (p *provider) received(model string) []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[model]
}

// roundUSD is the cost of one request to a model of profile.
const roundUSD = 0.00012

func (p *provider) profile(model string) loop.Profile {
	p.t.Helper()
	m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: model, BaseURL: p.URL + "/v1", APIKey: "sk-test"}})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(m.Close)
	return loop.Profile{Name: model, Model: m, Price: &limits.Price{Input: 1, Output: 2}, MaxRetries: new(0)}
}

func call(name string, args any) string {
	data, err := json.Marshal(map[string]any{"name": name, "args": args})
	if err != nil {
		panic(err)
	}
	return "I look.\n<tool_call>" + string(data) + "</tool_call>"
}

func fetchCall(url string) string { return call("fetch", map[string]any{"url": url}) }

func verifyCall(checks ...any) string { return call("verify", map[string]any{"checks": checks}) }

// web is a server of pages, and the tools that may fetch them.
type web struct {
	*httptest.Server
	page   string
	hits   atomic.Int64
	egress *limits.Egress
}

func newWeb(t testing.TB, page string) *web {
	t.Helper()
	w := &web{page: page}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.hits.Add(1)
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(rw, w.page)
	}))
	t.Cleanup(w.Close)
	return w
}

// toolOptions returns options with verify, and with fetch for only the server's pages.
func (w *web) toolOptions(t testing.TB, budget limits.EgressBudget, names ...string) worker.ToolOptions {
	t.Helper()
	allowed, err := rule.ParseFetch(w.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	if budget == (limits.EgressBudget{}) {
		budget = limits.DefaultEgressBudget()
	}
	if w.egress, err = limits.NewEgress(budget); err != nil {
		t.Fatal(err)
	}
	hosts := &limits.Breakers{Name: limits.BreakerFetchHost}
	f, err := fetch.New(fetch.Options{
		Allow: []rule.Rule{allowed}, Private: map[string][]netip.Prefix{"127.0.0.1": {netip.MustParsePrefix("127.0.0.1/32")}},
		Egress: w.egress, Hosts: hosts,
	})
	if err != nil {
		t.Fatal(err)
	}
	pol, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	return worker.ToolOptions{Names: names, Factories: []tools.Factory{f, verify.New(verify.Options{})}, Policy: pol}
}

// canary is a listener that must not be reached.
type canary struct {
	url  string
	hits atomic.Int64
}

func newCanary(t testing.TB) *canary {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{url: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.hits.Add(1)
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return c
}

type events struct{ all []worker.Event }

func (e *events) emit(ev worker.Event) error {
	e.all = append(e.all, ev)
	return nil
}

func (e *events) count(kind string) int {
	n := 0
	for _, ev := range e.all {
		if ev.Kind() == kind {
			n++
		}
	}
	return n
}

func confer(t *testing.T, o worker.ConferOptions) worker.Conference {
	t.Helper()
	if o.Question == "" {
		o.Question = "What does the page say?"
	}
	got, err := worker.Confer(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func statuses(calls []worker.InnerCall) string {
	var out []string
	for i, c := range calls {
		if c.Hop != i+1 {
			out = append(out, "wrong hop")
		}
		out = append(out, c.Name+"="+string(c.Status))
	}
	return strings.Join(out, " ")
}
