package runner

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// TestSpecification9InRecords runs the examples of the dispatcher specification
// (docs/internal/specification.md §9), and checks the fields that its catalogue names, and the
// cause of each record. We decided that a failure before tool.called hangs below the model's call,
// and so does a question, and that no files are an empty list, not null. Example 9.4 is in e2e,
// TestSpecification9_4OnEachBackend.
func TestSpecification9InRecords(t *testing.T) {
	deny := approval.NewBroker(approval.BrokerOptions{})
	deny.Attach("http", answerer("deny"))
	const readme = `{"path":"README.md"}`
	for name, tc := range map[string]struct {
		calls  string
		broker *approval.Broker
		want   []string
	}{
		"9.1 a read": {`{tool: read_file, input: {path: README.md}}`, nil, []string{
			`llm.call_completed > tool.called {"input_hash":"SHA256","input_size_bytes":20,"side_effects":"read","tool_name":"read_file","tool_use_id":"tu_1"}`,
			`tool.called > tool.completed {"command_executed":null,"files_modified":[],"latency_ms":"MS","output_size_bytes":14,"success":true,"tool_use_id":"tu_1"}`,
		}},
		"9.2 an escape": {`{tool: read_file, input: {path: ../../etc/passwd}}`, nil, []string{
			`llm.call_completed > tool.failed {"error_class":"permission_denied","error_message":"TEXT","files_modified":[],"latency_ms":"MS","tool_use_id":"tu_1"}`,
		}},
		"9.3 a denied write": {`{tool: write_file, input: {path: src/auth.ts, content: x}}`, deny, []string{
			`llm.call_completed > tool.confirmation_requested {"command_summary":null,"confirmation_request_id":"ID","expires_at":"TIME","input_summary":"src/auth.ts","projected_modifications":["src/auth.ts"],"runs":"sandbox","scopes":["once","session"],"side_effects":"write","tool_name":"write_file","tool_use_id":"tu_1"}`,
			`tool.confirmation_requested > tool.confirmation_resolved {"client":"http","confirmation_request_id":"ID","decision":"deny","scope":"once","tool_use_id":"tu_1"}`,
			`tool.confirmation_resolved > tool.failed {"error_class":"user_denied","error_message":"TEXT","files_modified":[],"latency_ms":"MS","tool_use_id":"tu_1"}`,
		}},
		"malformed input": {`{tool: read_file, input: {path: 1}}`, nil, []string{
			`llm.call_completed > tool.input_invalid {"tool_name":"read_file","tool_use_id":"tu_1","validation_errors":["/path: got number, want string"]}`,
		}},
		"9.5 three reads": {`{tool: read_file, input: {path: README.md}}, {tool: read_file, input: {path: README.md}}, {tool: read_file, input: {path: README.md}}`, nil, []string{
			`llm.call_completed > tool.called {"input_hash":"SHA256","input_size_bytes":20,"side_effects":"read","tool_name":"read_file","tool_use_id":"tu_1"}`,
			`llm.call_completed > tool.called {"input_hash":"SHA256","input_size_bytes":20,"side_effects":"read","tool_name":"read_file","tool_use_id":"tu_2"}`,
			`llm.call_completed > tool.called {"input_hash":"SHA256","input_size_bytes":20,"side_effects":"read","tool_name":"read_file","tool_use_id":"tu_3"}`,
			`tool.called > tool.completed {"command_executed":null,"files_modified":[],"latency_ms":"MS","output_size_bytes":14,"success":true,"tool_use_id":"tu_1"}`,
			`tool.called > tool.completed {"command_executed":null,"files_modified":[],"latency_ms":"MS","output_size_bytes":14,"success":true,"tool_use_id":"tu_2"}`,
			`tool.called > tool.completed {"command_executed":null,"files_modified":[],"latency_ms":"MS","output_size_bytes":14,"success":true,"tool_use_id":"tu_3"}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "  - calls: ["+tc.calls+"]\n  - text: done\n")
			b.file("README.md", "# Project Foo\n")
			if tc.broker != nil {
				b.opts.Broker = tc.broker
				b.opts.Policy = policy.Policy{Name: "default", Classes: map[tools.Class]policy.Mode{tools.ClassRead: policy.ModeAuto}}
			}
			_, records := b.run(t.Context())
			got := toolRecords(t, records)
			if strings.HasPrefix(name, "9.5") {
				slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[strings.Index(a, ">"):], b[strings.Index(b, ">"):]) })
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			for _, c := range of[record.ToolCalled](t, records) {
				if c.InputHash != fmt.Sprintf("%x", sha256.Sum256([]byte(readme))) {
					t.Errorf("input_hash is %s, want that of the canonical input", c.InputHash)
				}
			}
			// Each result is one TOOL message, in the order of the calls.
			for i, m := range toolMessages(t, records) {
				if len(m.Blocks) != 1 || m.Blocks[0].ToolResult == nil || m.Blocks[0].ToolResult.IsError == strings.Contains(strings.Join(got, ""), "tool.completed") {
					t.Errorf("result %d is %+v", i, m)
				}
			}
			if strings.Contains(name, "write") {
				if _, err := os.Lstat(filepath.Join(b.dir, "src")); err == nil {
					t.Error("the denied write was made")
				}
			}
		})
	}
}

// toolRecords renders the tool.* records with the catalogue's fields, below the kind of their cause.
func toolRecords(t *testing.T, records []record.Record) []string {
	t.Helper()
	kinds, ids := map[string]record.Kind{}, map[string]string{}
	for _, m := range of[record.Message](t, records) {
		for _, b := range m.Blocks {
			if b.ToolUse != nil {
				ids[b.ToolUse.ID] = fmt.Sprintf("tu_%d", len(ids)+1)
			}
		}
	}
	var out []string
	for _, r := range records {
		kinds[r.ID] = r.Kind
		if !strings.HasPrefix(string(r.Kind), "tool.") {
			continue
		}
		var p map[string]any
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatal(err)
		}
		for key, value := range p {
			switch key {
			case "tool_use_id":
				p[key] = ids[fmt.Sprint(value)]
			case "input_hash":
				p[key] = "SHA256"
			case "latency_ms":
				p[key] = "MS"
			case "error_message":
				p[key] = "TEXT"
			case "expires_at":
				p[key] = "TIME"
			case "confirmation_request_id":
				p[key] = "ID"
			case "rule", "summary", "metadata", "display", "hidden_characters", "diff", "reason", "by":
				delete(p, key) // ours, besides the catalogue's
			case "tool_name":
				if k := r.Kind; k == record.KindToolCompleted || k == record.KindToolFailed {
					delete(p, key)
				}
			}
		}
		if r.Kind == record.KindConfirmationRequested {
			delete(p, "input_hash")
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s > %s %s", kinds[r.Parent], r.Kind, text))
	}
	return out
}

func toolMessages(t *testing.T, records []record.Record) []record.Message {
	t.Helper()
	return slices.DeleteFunc(of[record.Message](t, records), func(m record.Message) bool { return m.Role != "tool" })
}
