package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/policy"
)

// A model finds a server's tool, calls it, and still has it in the resumed session.
func TestModelFindsTools(t *testing.T) {
	b, _ := newServerBench(t, inSandbox("one"), inSandbox("two"))
	const turns = `  - calls: [{tool: one__echo, input: {text: early}}]
  - calls: [{tool: search_tools, input: {query: echo, server: "mcp:one"}}]
  - calls: [{tool: one__echo, input: {text: hello}}, {tool: two__echo, input: {text: hello}}]
  - text: Done.
`
	b.opts.Profiles = []loop.Profile{{Model: player(t, turns)}}
	r, records := b.run(t.Context())
	if r.Answer != "Done." {
		t.Fatalf("%+v", r)
	}
	activated := of[record.ToolActivated](t, records)
	if len(activated) != 1 || activated[0].Name != "one/echo" {
		t.Errorf("activated %+v", activated)
	}
	var called []tools.Name
	for _, p := range of[record.ToolCalled](t, records) {
		called = append(called, p.Name)
	}
	if diff := cmp.Diff([]tools.Name{"search_tools", "one/echo"}, called); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	for _, p := range of[record.ToolFailed](t, records) {
		if p.Reason != "not_loaded" && p.Reason != "unknown_tool" {
			t.Errorf("failed %+v", p)
		}
	}

	again := b.reopen(turns + "  - calls: [{tool: one__echo, input: {text: again}}]\n  - text: Done again.\n")
	again.opts.Task = "once more"
	_, records = again.run(t.Context())
	var last record.ToolCompleted
	for _, p := range of[record.ToolCompleted](t, records) {
		last = p
	}
	if n := len(of[record.ToolCompleted](t, records)); n != 3 || last.Name != "one/echo" || !last.Success {
		t.Errorf("%d calls completed, the last %+v; failed %+v", n, last, of[record.ToolFailed](t, records))
	}
	if n := len(of[record.ToolActivated](t, records)); n != 1 {
		t.Errorf("%d activations", n)
	}
}

// The policy's refusal of a call comes first, even if the server's tool was not loaded.
func TestDeniedToolIsNotCalledUnloaded(t *testing.T) {
	b, _ := newServerBench(t, inSandbox("one"), inSandbox("two"))
	b.opts.Policy.Tools["one/echo"] = policy.ModeDeny
	b.opts.Profiles = []loop.Profile{{Model: player(t, `  - calls: [{tool: search_tools, input: {query: echo}}]
  - calls: [{tool: one__echo, input: {text: hello}}, {tool: two__echo, input: {text: hello}}]
  - text: Done.
`)}}
	_, records := b.run(t.Context())
	failed, completed := of[record.ToolFailed](t, records), of[record.ToolCompleted](t, records)
	if len(failed) != 1 || failed[0].Name != "one/echo" || failed[0].Reason != "mode_deny" {
		t.Errorf("failed %+v", failed)
	}
	if len(completed) != 2 || completed[1].Name != "two/echo" {
		t.Errorf("completed %+v", completed)
	}
}

// A server that hangs doesn't prevent finding the tools of others.
func TestSearchBesideAServerThatHangs(t *testing.T) {
	defer func(was time.Duration) { searchWait = was }(searchWait)
	searchWait = time.Second
	hanging := inSandbox("hanging")
	hanging.Args = []string{"hang"}
	b, _ := newServerBench(t, inSandbox("one"), hanging)
	b.backend.Scripts["hang"] = func(ctx context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		select {
		case <-ctx.Done():
		case <-box.Done():
		}
		return sandbox.ExitStatus{Code: -1, Signal: 9}
	}
	s := b.opened()
	for _, query := range []string{`{"query":"echo","server":"one"}`, `{"query":"servers"}`} {
		r, err := s.Call(t.Context(), "search_tools", json.RawMessage(query))
		text := boundary.ResultText(r.Content)
		if err != nil || r.IsError || !strings.Contains(text, "one__echo: Echo. (text)") && !strings.Contains(text, "- hanging: 0 tools (it is starting)\n- one: 1 tools") {
			t.Errorf("%s: %q, %v", query, text, err)
		}
	}
	s.Close()
}

// Rules for tools of a configured server are reported as unmatched once the server has started
// without such a tool.
func TestRulesAboutServers(t *testing.T) {
	missing := inSandbox("missing")
	missing.Args = []string{"no-program"}
	b, _ := newServerBench(t, inSandbox("one"), missing)
	for _, key := range []string{"one__nothing", "one/misspelt", "one/read_mcp_resource", "missing/echo", "other/*"} {
		b.opts.Policy.Tools[key] = policy.ModeDeny
	}
	s := b.opened()
	if _, err := s.StartServers(t.Context()); err != nil {
		t.Fatal(err)
	}
	var warnings []string
	for _, w := range of[record.Warning](t, b.records(s.Close())) {
		warnings = append(warnings, w.Message)
	}
	want := []string{
		`the policy's rule for "other/*" matches no tool`, `the policy's rule for "one/misspelt" matches no tool`,
		`the policy's rule for "one/read_mcp_resource" matches no tool`, `the policy's rule for "one__nothing" matches no tool`,
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// serveManyTools serves MCP servers over HTTP, each at its own path with 40 tools.
func serveManyTools(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				ProtocolVersion, Name string
			}
		}
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		}
		answer := `{}`
		switch m.Method {
		case "initialize":
			answer = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`, m.Params.ProtocolVersion)
		case "tools/list":
			var list []string
			for i := range 40 {
				list = append(list, fmt.Sprintf(`{"name":"paint_%d","description":"Paints part %d of bridge %s.","inputSchema":{"type":"object","properties":{"colour":{"type":"string"}}}}`, i, i, r.URL.Path[2:]))
			}
			answer = `{"tools":[` + strings.Join(list, ",") + `]}`
		case "tools/call":
			answer = fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, r.URL.Path+" did "+m.Params.Name)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A session with 12 servers of 40 tools offers its model only the loaded ones.
func TestManyToolsInSession(t *testing.T) {
	url := serveManyTools(t)
	var servers []MCPServer
	for i := range 12 {
		servers = append(servers, MCPServer{
			Server: mcp.Server{Name: fmt.Sprintf("s%d", i), URL: fmt.Sprintf("%s/s%d", url, i)},
			Egress: EgressOptions{Private: map[string][]netip.Prefix{"127.0.0.1": {netip.MustParsePrefix("127.0.0.1/32")}}},
		})
	}
	w := &wire{answers: []string{
		wireCall("c1", "search_tools", `{"query":"paint bridge","server":"s11"}`),
		wireCall("c2", "load_tool", `{"name":"s7/paint_8"}`),
		wireCall("c3", "s7__paint_8", `{"colour":"red"}`),
		`{"role":"assistant","content":"Done."}`,
	}}
	provider := httptest.NewServer(w)
	defer provider.Close()
	model, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: provider.URL, APIKey: testKey}})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	b, _ := newServerBench(t, servers...)
	b.opts.Profiles = []loop.Profile{{Model: model}}
	s := b.opened()
	if _, err := s.StartServers(t.Context()); err != nil {
		t.Fatal(err)
	}
	report := b.takes(s)
	records := b.records(report)
	if n := len(of[record.MCPServerStarted](t, records)); n != len(servers) || report.Answer != "Done." {
		t.Fatalf("%d servers started, %+v", n, report)
	}
	for i, request := range w.requests {
		var offered []string
		for _, name := range wireTools(t, request) {
			if strings.Contains(name, "__") {
				offered = append(offered, name)
			}
		}
		if i == 0 && len(offered) > 0 || i > 0 && (len(offered) == 0 || len(offered) > 11) || i > 1 && !slices.Contains(offered, "s7__paint_8") {
			t.Errorf("request %d offers %q", i, offered)
		}
		if strings.Contains(request, "of bridge 10.") {
			t.Errorf("request %d has a tool that is not loaded", i)
		}
	}
	if last := w.requests[len(w.requests)-1]; !strings.Contains(last, "/s7 did paint_8") {
		t.Errorf("the last request lacks the result: %s", last)
	}
}
