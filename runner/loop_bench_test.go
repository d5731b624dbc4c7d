package runner

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// page is a tool that returns 4 kB of text. Its class is write in the sandbox, so each call must
// be synced first.
type page struct{ text string }

func (*page) Definition() tools.Definition {
	return tools.Definition{
		Name: "page", Description: "Returns a page.", Class: tools.ClassWrite, Runs: tools.PlaceSandbox, EnabledByDefault: true,
		InputSchema: []byte(`{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}}}`),
	}
}

func (p *page) Execute(context.Context, *tools.Call) (tools.Output, error) {
	return tools.Output{Content: []tools.Block{{Text: p.text}}, Success: true}, nil
}

// callingModel calls the tool page once in each round. It takes no time, so the time between two
// answers is the loop's.
type callingModel struct {
	rounds int
	calls  []time.Time
}

func (m *callingModel) Complete(context.Context, loop.Request, func(loop.Delta)) (loop.Response, error) {
	m.calls = append(m.calls, time.Now())
	r := loop.Response{Message: loop.NewText(loop.RoleAssistant, "done"), Usage: limits.Usage{InputTokens: 1}}
	if n := len(m.calls); n <= m.rounds {
		use := &loop.ToolUse{ProviderID: fmt.Sprintf("call_%d", n), Name: "page", Raw: fmt.Sprintf(`{"path":"f%d.go","text":%q}`, n, strings.Repeat("some text ", 100))}
		r.Message = loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: "I look."}}, {ToolUse: use}}}
	}
	return r, nil
}

func (*callingModel) Info() loop.ModelInfo { return loop.ModelInfo{Provider: "bench", Model: "calls"} }

// BenchmarkLoop measures a turn of 500 rounds with one call each, without model and tool time, with
// and without syncs. It reports medians of all rounds, of those near the tenth, and of the last.
func BenchmarkLoop(b *testing.B) {
	const rounds = 500
	for name, sync := range map[string]func(*os.File) error{"unsynced": func(*os.File) error { return nil }, "synced": nil} {
		b.Run(name, func(b *testing.B) {
			var all, early, late []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				m := &callingModel{rounds: rounds}
				runBenchmarkTurn(b, m, sync)
				var took []time.Duration
				for i := range rounds {
					took = append(took, m.calls[i+1].Sub(m.calls[i]))
				}
				all, early, late = append(all, took...), append(early, took[5:25]...), append(late, took[rounds-20:]...)
			}
			for unit, took := range map[string][]time.Duration{"ns/round": all, "ns/round-10": early, "ns/round-500": late} {
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2]), unit)
			}
		})
	}
}

// runBenchmarkTurn runs a turn with its own records and dispatcher.
func runBenchmarkTurn(b *testing.B, m loop.Model, sync func(*os.File) error) {
	b.Helper()
	rec, err := record.NewRecorder(record.RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000", Sync: sync})
	if err != nil {
		b.Fatal(err)
	}
	defer rec.Close()
	rules, err := policy.Preset("sandboxed")
	if err != nil {
		b.Fatal(err)
	}
	events := newEventRecorder(rec, nil)
	events.direct = map[tools.Name]bool{"page": true} // as if the sandbox ran
	d, err := dispatch.New(dispatch.Options{Policy: rules, Emit: events.toolEvent})
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("func main() { fmt.Println(\"<hello>\") }\n", 100)
	if err := d.Register(func() tools.Tool { return &page{text: text} }); err != nil {
		b.Fatal(err)
	}
	out, err := loop.Run(b.Context(), loop.Options{
		Profiles: []loop.Profile{{Model: m}}, Dispatcher: d, System: loop.SystemPrompt(loop.PromptOptions{}),
		Messages: []loop.Message{loop.NewText(loop.RoleUser, "Do it.")}, Session: "ses_01JD0000000000000000000000", Turn: "trn_1", Emit: events.loopEvent,
	})
	if err != nil || out.Reason != loop.StopAnswered || out.Usage.ToolCalls == 0 {
		b.Fatal(err, out.Reason, out.Err)
	}
}
