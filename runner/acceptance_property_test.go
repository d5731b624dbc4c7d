package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// twisted is a model whose calls have odd ids: none, the same one repeatedly, or an invalid one.
type twisted struct {
	loop.Model
	ids []string
	n   int
}

func (m *twisted) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	r, err := m.Model.Complete(ctx, req, onDelta)
	for _, b := range r.Message.Blocks {
		if b.ToolUse != nil && len(m.ids) > 0 {
			b.ToolUse.ProviderID = m.ids[m.n%len(m.ids)]
			m.n++
		}
	}
	return r, err
}

// wildCall is one call as a model might write it.
type wildCall struct{ tool, raw string }

// wildCalls are good calls, and bad ones of every kind. "hang" cancels itself.
var wildCalls = []wildCall{
	{"read_file", `{"path":"f"}`},
	{"read_file", `{"path":"../outside"}`},
	{"read_file", `{"path":"missing"}`},
	{"read_file", `{"path":"f","path":"g"}`},
	{"read_file", `{"path":`},
	{"read_file", `[1]`},
	{"read_file", `{"path":1,"more":true}`},
	{"list_dir", ``},
	{"glob", `{"pattern":"*"}`},
	{"write_file", `{"path":"new","content":"x"}`},
	{"write_file", `{"path":"link/new","content":"x"}`},
	{"patch_file", `{"path":"f","old":"x","new":"y"}`},
	{"delete_file", `{"path":"f"}`},
	{"shell", `{"command":"ok"}`},
	{"shell", `{"command":"fails"}`},
	{"shell", `{"command":"unknown"}`},
	{"shell", `{"command":"hang"}`},
	{"shell", `{"command":"hang"}`},
	{"shell", `{"command":"dies"}`},
	{"shell", `{"command":"bursts"}`},
	{"shell", `{"command":"ok","cwd":"/etc"}`},
	{"nope", `{}`},
	{"Read_File", `{"path":"f"}`},
	{"a/b", `{}`},
	{"a__b", `{"x":`},
	{"\x1b[2J", `{}`},
}

type wildSession struct {
	Turns    [][]wildCall
	IDs      []string
	Preset   string
	Asked    string // nobody, or a person who says this
	OnPrompt dispatch.OnPrompt
	CancelAt int // records before the session is cancelled; 0 is never
}

func drawSession(rt *rapid.T) wildSession {
	calls := rapid.SliceOfN(rapid.SampledFrom(wildCalls), 1, 9)
	return wildSession{
		Turns:    rapid.SliceOfN(calls, 1, 3).Draw(rt, "turns"),
		IDs:      rapid.SliceOfN(rapid.SampledFrom([]string{"", "call_1", "call_1", "call_2", "\x00", strings.Repeat("x", 300)}), 0, 4).Draw(rt, "ids"),
		Preset:   rapid.SampledFrom([]string{"ci", "ci", "default", "strict", "readonly"}).Draw(rt, "preset"),
		Asked:    rapid.SampledFrom([]string{"", "allow", "allow", "deny", "odd"}).Draw(rt, "asked"),
		OnPrompt: rapid.SampledFrom([]dispatch.OnPrompt{dispatch.OnPromptDeny, dispatch.OnPromptAllow, dispatch.OnPromptFail}).Draw(rt, "on prompt"),
		CancelAt: rapid.SampledFrom([]int{0, 0, 0, 5, 9, 14, 20, 30}).Draw(rt, "cancel at"),
	}
}

// TestAnySessionEndsEveryCallOnce: whatever a model writes (unknown tools, repeated ids, bad
// arguments, concurrent calls), and whatever is denied, cancelled or lost, each call has exactly
// one result and one terminal record, with the results in order, and nothing refused has run.
func TestAnySessionEndsEveryCallOnce(t *testing.T) {
	seen := map[string]bool{}
	check := func(rt fataler, w wildSession) {
		records := playWild(t, rt, w)
		if problems := callProblems(records); len(problems) > 0 {
			rt.Fatalf("%s", strings.Join(problems, "\n"))
		}
		for _, r := range records {
			var p struct {
				Class  tools.ErrorClass `json:"error_class"`
				Reason loop.StopReason  `json:"reason"`
			}
			_ = json.Unmarshal(r.Payload, &p)
			seen[strings.TrimSpace(fmt.Sprint(r.Kind, " ", p.Class))] = true
			if r.Kind == record.KindSessionEnded {
				seen["ended "+string(p.Reason)] = true
			}
		}
	}
	// Each kind of end at least once.
	shell := func(command string) [][]wildCall {
		return [][]wildCall{{{"shell", `{"command":"` + command + `"}`}, {"nope", `{}`}, {"read_file", `[1]`}, {"read_file", `{"path":"../x"}`}}}
	}
	for _, w := range []wildSession{
		{Turns: shell("ok"), Preset: "ci"},
		{Turns: shell("hang"), Preset: "ci"},
		{Turns: shell("dies"), Preset: "ci"},
		{Turns: shell("ok"), Preset: "default", OnPrompt: dispatch.OnPromptFail},
		{Turns: shell("ok"), Preset: "default", Asked: "deny"},
		{Turns: [][]wildCall{{{"read_file", `{"path":"missing"}`}}}, Preset: "ci"},
	} {
		check(t, w)
	}
	rapid.Check(t, func(rt *rapid.T) { check(rt, drawSession(rt)) })
	for _, want := range []string{
		"tool.called", "tool.completed", "tool.input_invalid", "tool.failed not_found", "tool.failed permission_denied", "tool.failed cancelled",
		"tool.failed execution_error", "tool.failed user_denied", "tool.confirmation_requested", "tool.confirmation_resolved",
		"turn.cancelled", "sandbox.lost", "ended answered", "ended cancelled", "ended sandbox_lost", "ended no_approver",
	} {
		if !seen[want] {
			t.Errorf("no session had %q, so this test doesn't show what it says", want)
		}
	}
}

// fataler is a test, or one try of a property.
type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// playWild runs one session and returns its records.
func playWild(t *testing.T, rt fataler, w wildSession) []record.Record {
	var turns strings.Builder
	for _, calls := range w.Turns {
		turns.WriteString("  - calls:\n")
		for _, c := range calls {
			fmt.Fprintf(&turns, "      - {tool: %q, raw: %q}\n", c.tool, c.raw)
		}
	}
	turns.WriteString("  - text: done\n")
	b := newBench(t, turns.String())
	b.opts.Profiles = []loop.Profile{{Model: &twisted{Model: b.opts.Profiles[0].Model, ids: w.IDs}}}
	b.file("f", "x\n")
	if err := os.Symlink("..", b.dir+"/link"); err != nil {
		rt.Fatal(err)
	}
	var err error
	if b.opts.Policy, err = policy.Preset(w.Preset); err != nil {
		rt.Fatal(err)
	}
	b.opts.OnPrompt = w.OnPrompt
	if w.Asked != "" {
		b.opts.Broker = approval.NewBroker(approval.BrokerOptions{})
		b.opts.Broker.Attach("test", answerer(w.Asked))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	interrupted := &Interrupted{Signal: 2}
	b.backend.Scripts = map[string]fakesandbox.Script{
		"ok": fakesandbox.WriteText("fine\n"), "dies": fakesandbox.EndSandbox(false), "bursts": fakesandbox.EndSandbox(true),
		"fails": func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
			return sandbox.ExitStatus{Code: 3}
		},
		"hang": func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			cancel(interrupted)
			return fakesandbox.WaitForEnd(make(chan struct{}))(ctx, box, cmd)
		},
	}
	written := 0
	b.opts.Mirror = func(record.Record, []byte) { // one at a time
		if written++; written == w.CancelAt {
			cancel(interrupted)
		}
	}
	r, err := Run(ctx, b.opts)
	if err != nil {
		rt.Fatal(err)
	}
	b.backend.RequireGone(t)
	text, err := os.Open(r.Dir + "/" + record.TraceFile)
	if err != nil {
		rt.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	trace, err := record.ReadTrace(text)
	if err != nil || trace.Torn {
		rt.Fatalf("trace: torn %v, %v", trace.Torn, err)
	}
	return trace.Records
}

// answerer is a person who always answers the same, or something odd.
type answerer string

func (a answerer) Approve(context.Context, approval.Confirmation) (approval.Answer, error) {
	if a == "odd" {
		return approval.Answer{Decision: "perhaps", Scope: "for ever"}, nil
	}
	return approval.Answer{Decision: approval.Decision(a), Scope: approval.ScopeOnce}, nil
}

// callProblems lists calls without exactly one terminal record and one result in its place.
func callProblems(records []record.Record) []string {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if len(records) == 0 || records[len(records)-1].Kind != record.KindSessionEnded {
		bad("the last record is not session.ended")
	}
	type life struct {
		called, ended, answered int
		denied                  bool
	}
	calls := map[string]*life{}
	var open []string // asked and not answered yet
	for _, r := range records {
		var p struct {
			CallID   string            `json:"tool_use_id"`
			Decision approval.Decision `json:"decision"`
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			bad("record %d: %v", r.Seq, err)
			continue
		}
		c := calls[p.CallID]
		if c == nil && strings.HasPrefix(string(r.Kind), "tool.") {
			bad("%s is of the call %q, which nobody made", r.Kind, p.CallID)
			continue
		}
		switch r.Kind {
		case record.KindToolCalled:
			c.called++
			if c.denied || c.ended > 0 {
				bad("call %s was denied, or had ended, and ran", p.CallID)
			}
		case record.KindToolCompleted, record.KindToolFailed, record.KindToolInputInvalid:
			if c.ended++; c.answered > 0 {
				bad("call %s ended behind its result", p.CallID)
			}
			if r.Kind == record.KindToolCompleted && c.called != 1 {
				bad("call %s completed and was called %d times", p.CallID, c.called)
			}
		case record.KindConfirmationResolved:
			c.denied = p.Decision != approval.DecisionAllow
		case record.KindMessage:
			var m record.Message
			if err := json.Unmarshal(r.Payload, &m); err != nil {
				bad("record %d: %v", r.Seq, err)
			}
			for _, b := range m.Blocks {
				if u := b.ToolUse; u != nil {
					if calls[u.ID] != nil || !strings.HasPrefix(u.ID, "tu_") {
						bad("id %q is used twice, or not ours", u.ID)
					}
					calls[u.ID] = new(life)
					open = append(open, u.ID)
				}
				if res := b.ToolResult; res != nil {
					if len(open) == 0 || open[0] != res.ToolUseID {
						bad("result of %s, waiting are %q", res.ToolUseID, open)
						continue
					}
					open = open[1:]
					calls[res.ToolUseID].answered++
				}
			}
		}
	}
	for id, c := range calls {
		if c.ended != 1 || c.answered != 1 || c.called > 1 {
			bad("call %s has %d terminal records, %d results, %d tool.called", id, c.ended, c.answered, c.called)
		}
	}
	slices.Sort(problems)
	return problems
}

// TestCallProblemsAreSeen is the control, with one fault in each list of records.
func TestCallProblemsAreSeen(t *testing.T) {
	const asked = `message {"role":"assistant","blocks":[{"tool_use":{"id":"tu_1","name":"x","input":{}}}]}`
	const called, done, failed = `tool.called {"tool_use_id":"tu_1"}`, `tool.completed {"tool_use_id":"tu_1"}`, `tool.failed {"tool_use_id":"tu_1"}`
	const answer = `message {"role":"tool","blocks":[{"tool_result":{"tool_use_id":"tu_1","content":[]}}]}`
	const end = `session.ended {}`
	parse := func(lines ...string) []record.Record {
		var records []record.Record
		for i, line := range lines {
			kind, payload, _ := strings.Cut(line, " ")
			records = append(records, record.Record{Seq: int64(i + 1), Kind: record.Kind(kind), Payload: json.RawMessage(payload)})
		}
		return records
	}
	if problems := callProblems(parse(asked, called, done, answer, end)); len(problems) > 0 {
		t.Errorf("a good session has problems: %q", problems)
	}
	for name, lines := range map[string][]string{
		"no end of the call":    {asked, called, answer, end},
		"two ends":              {asked, called, done, failed, answer, end},
		"no result":             {asked, called, done, end},
		"two results":           {asked, called, done, answer, answer, end},
		"called twice":          {asked, called, called, done, answer, end},
		"completed, not called": {asked, done, answer, end},
		"runs after its end":    {asked, failed, called, answer, end},
		"runs though denied":    {asked, `tool.confirmation_resolved {"tool_use_id":"tu_1","decision":"deny"}`, called, done, answer, end},
		"end behind the result": {asked, called, answer, done, end},
		"id used twice":         {asked, asked, called, done, answer, end},
		"nobody's call":         {called, done, end},
		"cut":                   {asked, called, done, answer},
	} {
		if len(callProblems(parse(lines...))) == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
}
