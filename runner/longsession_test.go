package runner

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// pageReader is a tool of class read that returns a page of text.
type pageReader struct{ page }

func (p *pageReader) Definition() tools.Definition {
	d := p.page.Definition()
	d.Class, d.Runs = tools.ClassRead, tools.PlaceHost
	return d
}

// longModel makes two calls with 2 kB of arguments per turn, and then answers. It counts its
// requests by size, and writes summaries.
type longModel struct {
	n, summaries, largest int
}

func (m *longModel) Complete(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Response, error) {
	size := 0
	for _, message := range req.Messages {
		for _, b := range message.Blocks {
			switch {
			case b.Text != nil:
				size += len(b.Text.Text)
			case b.ToolUse != nil:
				size += len(b.ToolUse.Input)
			case b.ToolResult != nil:
				for _, c := range b.ToolResult.Content {
					size += len(c.Text)
				}
			}
		}
	}
	m.largest = max(m.largest, size)
	r := loop.Response{Message: loop.NewText(loop.RoleAssistant, "Done."), Usage: limits.Usage{InputTokens: int64(size) / 4}}
	if len(req.Tools) == 0 {
		m.summaries++
		r.Message = loop.NewText(loop.RoleAssistant, "Pages were read.")
		return r, nil
	}
	if m.n++; m.n%3 != 0 {
		r.Message = loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: &loop.ToolUse{
			ProviderID: fmt.Sprintf("call_%d", m.n), Name: "page", Raw: fmt.Sprintf(`{"path":"f%d","text":%q}`, m.n, strings.Repeat("text ", 400)),
		}}}}
	}
	return r, nil
}

func (*longModel) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "fake", Model: "long", Recorded: true}
}

// heapBytes returns the bytes of live objects.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // objects kept by finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// growLongSession runs a session of 500 turns with 6 MB of conversation, and returns how much the
// heap grew from the 50th to the last turn.
func growLongSession(t *testing.T, window int64) (grown int64, m *longModel, report Report) {
	t.Helper()
	b := newBench(t, "")
	m = &longModel{}
	b.opts.Profiles = []loop.Profile{{Model: m, ContextWindow: window}}
	b.opts.Budget = limits.Budget{}
	b.opts.Tools = []tools.Factory{func() tools.Tool { return &pageReader{page{text: strings.Repeat("func main() {}\n", 270)}} }}
	s := b.opened()
	var early int64
	for i := range 500 {
		if r := startTurn(t, s, fmt.Sprintf("Turn %d.", i)); r.Reason != loop.StopAnswered || r.Usage.ToolCalls != 2 {
			t.Fatalf("turn %d: %+v", i, r)
		}
		if i == 49 {
			early = heapBytes()
		}
	}
	grown = heapBytes() - early
	runtime.KeepAlive(s)
	return grown, m, s.Close()
}

// TestLongSessionMemory checks that a session of 500 turns does not grow, because summarised messages
// are dropped. The control, without a known window, keeps them.
func TestLongSessionMemory(t *testing.T) {
	grown, m, report := growLongSession(t, 60_000)
	t.Logf("grown by %d kB, %d summaries, largest request %d kB", grown>>10, m.summaries, m.largest>>10)
	if grown > 1<<20 || m.summaries < 5 || m.largest > 240_000 {
		t.Errorf("grown by %d kB, %d summaries, largest request %d kB", grown>>10, m.summaries, m.largest>>10)
	}
	messages, compacted := 0, record.ContextCompacted{}
	for _, r := range (&bench{t: t}).records(report) {
		switch r.Kind {
		case record.KindMessage:
			messages++
		case record.KindContextCompacted:
			compacted = of[record.ContextCompacted](t, []record.Record{r})[0]
		}
	}
	if messages != 1+500*6 || compacted.Messages < messages*9/10 {
		t.Errorf("%d messages are recorded, and a summary stands for %d", messages, compacted.Messages)
	}
	if control, m, _ := growLongSession(t, 0); control < 5<<20 || m.summaries > 0 {
		t.Errorf("without a window: grown by %d kB, %d summaries", control>>10, m.summaries)
	}
}

// TestRememberCall checks that the remembered calls are bounded and include the newest.
func TestRememberCall(t *testing.T) {
	j := newEventRecorder(nil, nil)
	for i := range 3 * maxRemembered {
		j.rememberCall(fmt.Sprint(i), "called")
		j.rememberCall(fmt.Sprint(i), "completed")
	}
	if len(j.calls) != maxRemembered || len(j.recent) != maxRemembered || j.calls[fmt.Sprint(2*maxRemembered)] != "completed" {
		t.Errorf("%d calls, %d in order", len(j.calls), len(j.recent))
	}
}
