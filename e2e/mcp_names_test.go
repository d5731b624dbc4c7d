package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// scriptedProvider answers requests of Chat Completions with one message after the other,
// and keeps the requests.
type scriptedProvider struct {
	answers  []string // JSON of messages
	requests []string
}

// ServeHTTP implements [http.Handler]. A session has one request at a time.
func (p *scriptedProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.requests = append(p.requests, string(body))
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"id":"c","model":"m","choices":[{"index":0,"message":%s}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`, p.answers[0])
	p.answers = p.answers[1:]
}

// allowAlways answers every question with a permission for good.
type allowAlways struct{ asked []tools.Name }

// Approve implements [approval.Approver].
func (a *allowAlways) Approve(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
	a.asked = append(a.asked, c.Name)
	return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, nil
}

// TestServerNames checks, in one recorded session with a server from npm, that the requests
// to the provider have the names that a model can write, and records, questions, approvals
// and the log the canonical ones.
func TestServerNames(t *testing.T) {
	t.Parallel()
	call := func(id, name, arguments string) string {
		return fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}]}`, id, name, arguments)
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		p := &scriptedProvider{answers: []string{
			call("c1", "search_tools", `{"query":"echo"}`), call("c2", "everything__echo", `{"message":"hello"}`), call("c3", "everything__echo", `{"message":"again"}`),
			`{"role":"assistant","content":"Done."}`,
		}}
		provider := httptest.NewServer(p)
		defer provider.Close()
		model, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: provider.URL, APIKey: "key-of-the-test"}})
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		person, broker, grants := &allowAlways{}, approval.NewBroker(approval.BrokerOptions{}), filepath.Join(t.TempDir(), "approvals.json")
		broker.Attach("test", person)
		s := openServers(t, backend, func(o *runner.Options) {
			o.Profiles = []loop.Profile{{Model: model}}
			o.Broker, o.Grants = broker, approval.NewGrants(grants)
			o.Policy.Tools, o.Policy.NoPrompts = nil, false
		}, reference("everything"))
		turn, err := s.Start("echo something")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := turn.Wait(t.Context()); err != nil || r.Answer != "Done." || len(p.requests) != 4 {
			t.Fatalf("%d requests, %+v, %v", len(p.requests), r, err)
		}
		completed := payloads[record.ToolCompleted](s)
		if len(completed) != 3 || completed[1].Name != "everything/echo" || !completed[2].Success {
			t.Errorf("completed %+v", completed)
		}
		for i, request := range p.requests {
			if strings.Contains(request, "everything/") || strings.Contains(request, `"name":"everything__echo"`) != (i > 0) {
				t.Errorf("request %d: %s", i, request)
			}
		}
		if !strings.Contains(p.requests[3], "Echo: again") {
			t.Errorf("the last request lacks the result: %s", p.requests[3])
		}
		list, err := approval.NewGrants(grants).List()
		if err != nil || len(list) != 1 || list[0].Tool != "everything/echo" || !slices.Equal(person.asked, []tools.Name{"everything/echo"}) {
			t.Errorf("asked %v, approved %+v, %v", person.asked, list, err)
		}
		for path, names := range map[string]bool{filepath.Join(s.dir, record.TraceFile): true, grants: true, filepath.Join(s.dir, sessiondir.LogFile): false} {
			text, err := os.ReadFile(path)
			if err != nil || names && !bytes.Contains(text, []byte("everything/echo")) {
				t.Errorf("%s: %v, %s", path, err, text)
			}
			for line := range bytes.Lines(text) { // what search_tools told the model is recorded as it is
				if bytes.Contains(line, []byte("everything__")) && !bytes.Contains(line, []byte(`"role":"tool"`)) {
					t.Errorf("%s has the name of the wire: %s", path, line)
				}
			}
		}
	})
}
