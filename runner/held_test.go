package runner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestAToolOfAServer: a tool with a server's name is offered under its wire name, and recorded and
// reported under its canonical one.
func TestAToolOfAServer(t *testing.T) {
	b := newBench(t, `  - calls: [{tool: load_tool, input: {name: srv__do_it}}, {tool: load_tool, input: {name: srv__refused}}]
  - calls: [{tool: srv__do_it, input: {}}, {tool: srv__do_it, input: {nope: 1}}, {tool: srv__refused, input: {}}]
  - text: Done.
`)
	declare := func(name tools.Name, script string) shell.Declared {
		return shell.Declared{Name: name, Description: "Does it.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Template: shell.Template{Script: script}}
	}
	b.opts.Declared = []shell.Declared{declare("srv/do_it", "do it"), declare("srv/refused", "refused")}
	b.opts.Policy.Tools = map[string]policy.Mode{"srv/*": policy.ModeAuto, "srv/refused": policy.ModeDeny}
	b.backend.Scripts["do it"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		return sandbox.ExitStatus{}
	}
	report, records := b.run(t.Context())
	called, completed := of[record.ToolCalled](t, records), of[record.ToolCompleted](t, records)
	invalid, failed := of[record.ToolInputInvalid](t, records), of[record.ToolFailed](t, records)
	if len(called) != 3 || called[2].Name != "srv/do_it" || len(completed) != 2 || completed[1].Name != "srv/do_it" || !completed[1].Success {
		t.Errorf("called %+v, completed %+v", called, completed)
	}
	if len(invalid) != 1 || invalid[0].Name != "srv/do_it" || len(failed) != 2 || failed[0].Reason != "not_permitted" || failed[1].Name != "srv/refused" || failed[1].Reason != "mode_deny" {
		t.Errorf("invalid %+v, failed %+v", invalid, failed)
	}
	text, err := os.ReadFile(filepath.Join(report.Dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	if activated := of[record.ToolActivated](t, records); len(activated) != 1 || activated[0].Name != "srv/do_it" || activated[0].By != "load" || len(activated[0].Definition) != 64 {
		t.Errorf("activated %+v", activated)
	}
	if n := strings.Count(string(text), `"srv/do_it"`); n < 5 {
		t.Errorf("the records name the tool %d times", n)
	}
	for _, key := range []string{`"tool_name":"srv__`} {
		if strings.Contains(string(text), key) {
			t.Errorf("a record says %s…, the wire name", key)
		}
	}
}

// TestAnAbandonedCallLosesItsSandbox: a call that does not end is given up and its container
// destroyed. The control runs on the host.
func TestAnAbandonedCallLosesItsSandbox(t *testing.T) {
	for place, want := range map[tools.Place]sandbox.State{tools.PlaceSandbox: sandbox.StateStopped, tools.PlaceHost: sandbox.StateRunning} {
		b := newBench(t, "  - calls: [{tool: shell, input: {command: ready}}]\n  - text: Done.\n")
		b.backend.Scripts["ready"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
			return sandbox.ExitStatus{}
		}
		s, err := Open(t.Context(), b.opts)
		if err != nil {
			t.Fatal(err)
		}
		turn, err := s.Start("do it")
		if err != nil {
			t.Fatal(err)
		}
		turn.Report()
		box := b.backend.Sandboxes[0]
		o := s.dispatcherOptions()
		if o.Abandon < dispatch.DefaultAbandon || o.OnAbandon == nil {
			t.Fatalf("a call is given up after %v, told %t", o.Abandon, o.OnAbandon != nil)
		}
		o.Abandon, o.Broker, o.Allow, o.Emit = time.Millisecond, nil, nil, func(dispatch.Event) error { return nil }
		d, err := dispatch.New(o)
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan struct{})
		if err := d.Register(func() tools.Tool { return &deafTool{place, over} }); err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(t.Context())
		result := make(chan tools.Result, 1)
		go func() {
			results, _ := d.Round(running, []tools.Call{{ID: "a", Name: "deaf", Input: json.RawMessage(`{}`)}})
			result <- results[0]
		}()
		over <- struct{}{} // it runs
		stop()
		if r := <-result; r.Class != tools.ErrorCancelled {
			t.Errorf("%s: the call ended as %q", place, r.Class)
		}
		if got := box.State(); got != want {
			t.Errorf("%s: the sandbox is %s, want %s", place, got, want)
		}
		close(over)
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s.Close()
	}
}

// deafTool ignores cancellation and runs until over is closed.
type deafTool struct {
	place tools.Place
	over  chan struct{}
}

func (d *deafTool) Definition() tools.Definition {
	def := tools.Definition{Name: "deaf", Description: "Does not end.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Class: tools.ClassRead, Runs: d.place, EnabledByDefault: true}
	if d.place == tools.PlaceSandbox {
		def.Class = tools.ClassExecute
	}
	return def
}

func (d *deafTool) Execute(context.Context, *tools.Call) (tools.Output, error) {
	<-d.over
	for range d.over {
	}
	return tools.Output{}, nil
}
