package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// wire is a provider that sends its messages in order and keeps the requests.
type wire struct {
	mu       sync.Mutex
	answers  []string // JSON of messages
	requests []string
}

func (w *wire) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, string(body))
	finish := "tool_calls"
	if !strings.Contains(w.answers[0], "tool_calls") {
		finish = "stop"
	}
	rw.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(rw, `{"id":"c","model":"m","choices":[{"index":0,"message":%s,"finish_reason":%q}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`, w.answers[0], finish)
	w.answers = w.answers[1:]
}

// wireCall is an assistant's message with one call.
func wireCall(id, name, arguments string) string {
	return fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}]}`, id, name, arguments)
}

// wireTools returns the names of the tools of a request.
func wireTools(t *testing.T, request string) []string {
	t.Helper()
	var r struct {
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range r.Tools {
		names = append(names, tool.Function.Name)
	}
	return names
}

// serverFactory makes a server's tool that fails if its input asks for that.
func serverFactory(name tools.Name, description string) tools.Factory {
	return tools.NewFunc(tools.Definition{
		Name: name, Description: description, Class: tools.ClassNetwork, FullSchema: true,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"fail":{"$ref":"#/$defs/flag"}},"$defs":{"flag":{"anyOf":[{"type":"boolean"},{"type":"null"}]}}}`),
	}, func(_ context.Context, in struct{ Fail bool }) (string, error) {
		if in.Fail {
			return "", errors.New("the server is on fire")
		}
		return "It is done.", nil
	})
}

type alwaysApprover struct {
	mu    sync.Mutex
	asked []approval.Confirmation
}

func (a *alwaysApprover) Approve(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, c)
	return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
}

// TestNamesOnBothSides: in one session, the provider sees wire names, and records, audit, approvals,
// questions and logs have canonical ones.
func TestNamesOnBothSides(t *testing.T) {
	w := &wire{answers: []string{
		wireCall("c1", "search_tools", `{"query":"do"}`),
		wireCall("c2", "srv__do_it", `{"fail":null}`),
		wireCall("c3", "srv__do_it", `{"fail":true}`),
		wireCall("c4", "srv__do_it", `{"fail":"yes"}`),
		wireCall("c5", "srv__other", `{}`),
		`{"role":"assistant","content":"Done."}`,
	}}
	provider := httptest.NewServer(w)
	defer provider.Close()
	model, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: provider.URL, APIKey: testKey}})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	b := newBench(t, "")
	b.opts.Profiles = []loop.Profile{{Model: model}}
	b.opts.Tools = []tools.Factory{serverFactory("srv/do_it", "Do it."), serverFactory("srv/other", "Another.")}
	if b.opts.Policy, err = policy.Preset("sandboxed"); err != nil {
		t.Fatal(err)
	}
	person, broker, grants := &alwaysApprover{}, approval.NewBroker(approval.BrokerOptions{}), filepath.Join(t.TempDir(), "approvals.json")
	broker.Attach("test", person)
	b.opts.Broker, b.opts.Grants = broker, approval.NewGrants(grants)
	report, records := b.run(t.Context())
	if report.Answer != "Done." || len(w.requests) != 6 {
		t.Fatalf("%d requests, %+v", len(w.requests), report)
	}

	// The provider is offered the tool once it is loaded, under its wire name.
	for i, request := range w.requests {
		if got := strings.Contains(strings.Join(wireTools(t, request), " "), "srv__do_it"); got != (i > 0) {
			t.Errorf("request %d: offered %t", i, got)
		}
		if strings.Contains(request, "srv/") {
			t.Errorf("request %d has a canonical name: %s", i, request)
		}
		for _, name := range wireTools(t, request) {
			if name == "srv__other" {
				t.Errorf("request %d offers a tool that is not loaded", i)
			}
		}
	}
	if last := w.requests[5]; strings.Count(last, `"name":"srv__do_it"`) < 3 || !strings.Contains(last, `"$ref":"#/$defs/flag"`) || !strings.Contains(last, `\"srv__other\" is not loaded`) {
		t.Errorf("the last request lacks the definition as it is, or the calls: %s", last)
	}

	// Records are canonical except in what the model read.
	for _, r := range records {
		if r.Kind == record.KindMessage || r.Kind == record.KindToolFailed {
			var m record.Message
			if r.Kind == record.KindMessage && json.Unmarshal(r.Payload, &m) == nil && m.Role == loop.RoleTool {
				continue
			}
			if strings.Contains(string(r.Payload), `"name":"srv__`) || strings.Contains(string(r.Payload), `"tool_name":"srv__`) {
				t.Errorf("%s names a tool as the wire does: %s", r.Kind, r.Payload)
			}
			continue
		}
		if strings.Contains(string(r.Payload), "srv__") {
			t.Errorf("%s has the name of the wire: %s", r.Kind, r.Payload)
		}
		if record.IsAudited(r.Kind) && r.Kind == record.KindConfirmationRequested && !strings.Contains(string(r.Payload), `"tool_name":"srv/do_it"`) {
			t.Errorf("the audit lacks the name: %s", r.Payload)
		}
	}
	var called []tools.Name
	for _, c := range of[record.ToolCalled](t, records) {
		called = append(called, c.Name)
	}
	if diff := cmp.Diff([]tools.Name{"search_tools", "srv/do_it", "srv/do_it"}, called); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	activated := of[record.ToolActivated](t, records)
	if len(activated) != 1 || activated[0].Name != "srv/do_it" || activated[0].By != "search" {
		t.Errorf("activated %+v", activated)
	}
	if invalid := of[record.ToolInputInvalid](t, records); len(invalid) != 1 || invalid[0].Name != "srv/do_it" || !strings.Contains(invalid[0].Errors[0], "/fail: anyOf") {
		t.Errorf("invalid %+v", invalid)
	}
	if failed := of[record.ToolFailed](t, records); len(failed) != 2 || failed[1].Name != "srv/other" || failed[1].Reason != "not_loaded" {
		t.Errorf("failed %+v", failed)
	}

	// The person was asked once, and the answer is kept for this definition.
	if len(person.asked) != 1 || person.asked[0].Name != "srv/do_it" || person.asked[0].Description != "Do it." || person.asked[0].Definition != activated[0].Definition {
		t.Errorf("asked %+v", person.asked)
	}
	list, err := b.opts.Grants.List()
	if err != nil || len(list) != 1 || list[0].Tool != "srv/do_it" || list[0].Definition != activated[0].Definition {
		t.Errorf("approved %+v, %v", list, err)
	}
	for _, path := range []string{grants, filepath.Join(report.Dir, sessiondir.LogFile)} {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "srv/do_it") || strings.Contains(string(text), "srv__") {
			t.Errorf("%s: %v, %s", path, err, text)
		}
	}
}
