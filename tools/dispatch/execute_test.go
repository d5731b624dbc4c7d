package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/workspace"
)

func readTool(name string, f func(ctx context.Context, c *tools.Call) (tools.Output, error)) fakeTool {
	return fakeTool{def: testDefinition(name, tools.ClassRead), execute: f}
}

func TestUnknownToolIsAnswered(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", nil), readTool("srv/look", nil))
	r := roundOK(t, d, call("a", "raed_file\x1b[2J", `{}`))[0]
	wantText(t, r, true, `There is no tool "raed_file\\x1b[2J". The tools are: read_file, srv__look.`)
	wantEvents(t, rec, "a", "failed not_found")
	if r.Class != tools.ErrorNotFound || r.Name != "raed_file\x1b[2J" {
		t.Errorf("result is %+v", r)
	}
	r = roundOK(t, d, call("b", "x\xff"+strings.Repeat("y", 1<<20), `{}`))[0] // its name goes into records
	if f := find[Failed](rec)[1]; f.Name != r.Name || len(r.Name) > tools.MaxNameBytes || !strings.HasPrefix(string(r.Name), "x\ufffdy") {
		t.Errorf("the name %.100q is recorded as %.100q", r.Name, f.Name)
	}
}

func TestInvalidInputNeverRuns(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", func(context.Context, *tools.Call) (tools.Output, error) {
		t.Error("ran")
		return tools.Output{}, nil
	}))
	broken := call("b", "read_file", `{}`)
	broken.InputError = "arguments are not JSON: unexpected end at byte 12"
	results := roundOK(t, d, call("a", "read_file", `{"path":1,"text":2}`), broken)
	wantText(t, results[0], true, "The input is not valid:\n- /path: got number, want string\n- /text: got number, want string")
	wantText(t, results[1], true, "The input is not valid:\n- arguments are not JSON: unexpected end at byte 12")
	want := []InputInvalid{
		{CallID: "a", Name: "read_file", Errors: []string{"/path: got number, want string", "/text: got number, want string"}},
		{CallID: "b", Name: "read_file", Errors: []string{"arguments are not JSON: unexpected end at byte 12"}},
	}
	if diff := cmp.Diff(want, find[InputInvalid](rec)); diff != "" || len(rec.all()) != 2 {
		t.Errorf("events %v (-want +got):\n%s", rec.all(), diff)
	}
}

func TestDenyModeAsksNobody(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "readonly"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	r := roundOK(t, d, call("a", "shell", `{}`))[0]
	wantEvents(t, rec, "a", "failed permission_denied")
	wantText(t, r, true, `The policy refuses tool "shell" (class execute); don't try it again in this session.`)
	if f := find[Failed](rec)[0]; f.Reason != "mode_deny" || f.LatencyMS != 0 || r.Class != tools.ErrorPermissionDenied || d.Unapproved() != 0 {
		t.Errorf("failed %+v, %d unapproved", f, d.Unapproved())
	}
}

// The whole round is checked before anything runs.
func TestNothingRunsBeforeTheScanIsDone(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", nil))
	roundOK(t, d, call("a", "read_file", `{}`), call("b", "nope", `{}`), call("c", "read_file", `{"path":2}`), call("d", "read_file", `{"path":"../x"}`))
	var order []string
	for _, ev := range rec.all() {
		id, text := brief(ev)
		order = append(order, id+" "+text)
	}
	want := []string{"b failed not_found", "c invalid", "d failed permission_denied", "a called read", "a completed true"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestTimeoutStartsWithTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		slow := readTool("slow", func(ctx context.Context, c *tools.Call) (tools.Output, error) {
			select {
			case <-ctx.Done():
				return tools.Output{}, &tools.Error{Class: tools.ErrorCancelled, Partial: "half", Err: context.Cause(ctx)}
			case <-time.After(6 * time.Second):
				return textOutput("whole"), nil
			}
		})
		slow.def.Timeout = 10 * time.Second
		never := readTool("never", func(ctx context.Context, c *tools.Call) (tools.Output, error) {
			<-ctx.Done()
			return tools.Output{Content: []tools.Block{{Text: "a part"}}}, nil
		})
		never.def.Timeout = 10 * time.Second
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Concurrency: 1}, slow, never)
		// The third waits 16 s for its slot and still has its 10 s.
		results := roundOK(t, d, call("a", "slow", `{}`), call("b", "never", `{}`), call("c", "slow", `{}`))
		wantText(t, results[0], false, "whole")
		wantText(t, results[1], true, "Timed out after 10s.\nOutput until then:\na part")
		wantText(t, results[2], false, "whole")
		wantEvents(t, rec, "b", "called read", "failed timeout")
		if f := find[Failed](rec)[0]; f.LatencyMS != 10_000 || f.Partial != "a part" {
			t.Errorf("failed %+v", f)
		}
		slow.def.Name, slow.def.Timeout = "slower", 2*time.Second
		if err := d.Register(slow.factory()); err != nil {
			t.Fatal(err)
		}
		r := roundOK(t, d, call("d", "slower", `{}`))[0]
		wantText(t, r, true, "Timed out after 2s.\nOutput until then:\nhalf")
	})
}

func TestCancelledToolNeverCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed")}, fakeTool{
			def: testDefinition("write_file", tools.ClassWrite),
			execute: func(ctx context.Context, c *tools.Call) (tools.Output, error) {
				<-ctx.Done()
				out := textOutput("written")
				out.FilesModified = []string{"a.txt"}
				return out, nil // finished all the same
			},
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errors.New("ctrl-c")) })
		results, err := d.Round(ctx, []tools.Call{call("a", "write_file", `{"path":"a.txt"}`), call("b", "write_file", `{"path":"a.txt"}`)})
		if err != nil {
			t.Errorf("a cancellation is no error of the round: %v", err)
		}
		wantEvents(t, rec, "a", "called write", "failed cancelled")
		wantEvents(t, rec, "b", "failed cancelled") // waited for its turn
		for _, f := range find[Failed](rec) {
			if (f.CallID == "a") != (len(f.FilesModified) == 1) {
				t.Errorf("failed %+v", f)
			}
		}
		wantText(t, results[1], true, "Cancelled.")
		again, _ := d.Round(ctx, []tools.Call{call("c", "write_file", `{}`)})
		wantEvents(t, rec, "c", "failed cancelled")
		if again[0].Class != tools.ErrorCancelled {
			t.Errorf("a round under a cancelled context runs: %+v", again[0])
		}
	})
}

func TestToolThatIgnoresCancellationIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged, logs := observer.New(zap.WarnLevel)
		rec := &recorder{}
		var abandoned []string
		release := make(chan struct{})
		deaf := readTool("deaf", func(_ context.Context, c *tools.Call) (tools.Output, error) {
			<-release
			c.Delta("stdout", "much later")
			return textOutput("much later"), nil
		})
		d := newDispatcher(t, rec, Options{
			Policy: preset(t, "default"), Logger: zap.New(logged),
			OnAbandon: func(id string, def tools.Definition) { abandoned = append(abandoned, id+" "+string(def.Name)) },
		}, deaf)
		time.AfterFunc(time.Minute/2, func() { d.Cancel(errors.New("stop")) })
		start := time.Now()
		r := roundOK(t, d, call("a", "deaf", `{}`))[0]
		if took := time.Since(start); took != time.Minute {
			t.Errorf("gave up after %v, want 30s until the cancellation and 30s after", took)
		}
		wantText(t, r, true, "Cancelled. The tool did not stop; it may still have an effect.")
		wantEvents(t, rec, "a", "called read", "warning", "failed cancelled")
		if diff := cmp.Diff([]string{"a deaf"}, abandoned); diff != "" || logs.Len() != 1 {
			t.Errorf("%d warnings, abandoned (-want +got):\n%s", logs.Len(), diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close says %v while a tool still runs", err)
		}
		close(release)
		synctest.Wait()
		wantEvents(t, rec, "a", "called read", "warning", "failed cancelled") // nothing after the end
	})
}

func TestErrorsOfTools(t *testing.T) {
	tests := []struct {
		name         string
		err          error
		class        tools.ErrorClass
		reason, text string
	}{
		{"own", &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "nope", Message: "Not this one.", Visible: true}, tools.ErrorPermissionDenied, "nope", "Not this one."},
		{"own, wrapped", fmt.Errorf("x: %w", &tools.Error{Class: tools.ErrorExecution, Message: "No match.", Visible: true}), tools.ErrorExecution, "", "No match."},
		{"a class that isn't a tool's to give", &tools.Error{Class: tools.ErrorUserDenied, Message: "Hm.", Visible: true}, tools.ErrorExecution, "", "Hm."},
		{"an unknown class", &tools.Error{Class: "strange", Message: "Hm.", Visible: true}, tools.ErrorExecution, "", "Hm."},
		{"missing file", &workspace.Error{Kind: workspace.KindNotFound, Path: "a", Detail: "no such file"}, tools.ErrorExecution, "not_found", `"a": no such file`},
		{"escape", &workspace.Error{Kind: workspace.KindEscape, Path: "a", Detail: "leads out"}, tools.ErrorPermissionDenied, "workspace_escape", `"a": leads out`},
		{"limit", fmt.Errorf("x: %w", &limits.ExceededError{Kind: limits.KindMemory, Limit: 1, Used: 2}), tools.ErrorExecution, "limit_memory", "limit memory reached: used 2 of 1"},
		{"long and invalid", &tools.Error{Class: tools.ErrorExecution, Message: strings.Repeat("\xff\x00", 5000), Visible: true}, tools.ErrorExecution, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recorder{}
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("probe", func(context.Context, *tools.Call) (tools.Output, error) { return tools.Output{}, tt.err }))
			r := roundOK(t, d, call("a", "probe", `{}`))[0]
			f := find[Failed](rec)[0]
			if r.Class != tt.class || f.Class != tt.class || f.Reason != tt.reason || !r.IsError {
				t.Errorf("result %+v, event %+v", r, f)
			}
			if tt.text != "" {
				wantText(t, r, true, tt.text)
			}
			if len(f.Message) > maxMessageBytes || strings.ContainsRune(f.Message, 0) {
				t.Errorf("message of %d bytes: %.80q", len(f.Message), f.Message)
			}
		})
	}
}

func TestErrorsThatEndTheRun(t *testing.T) {
	for _, sentinel := range []error{tools.ErrSandboxStart, tools.ErrSandboxLost, ErrNoApprover, tools.ErrRecord} {
		synctest.Test(t, func(t *testing.T) {
			rec := &recorder{}
			breaks := readTool("breaks", func(context.Context, *tools.Call) (tools.Output, error) {
				time.Sleep(time.Second)
				return tools.Output{}, fmt.Errorf("guest died: %w", sentinel)
			})
			waits := readTool("waits", func(ctx context.Context, _ *tools.Call) (tools.Output, error) {
				<-ctx.Done()
				return tools.Output{}, context.Cause(ctx)
			})
			d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Concurrency: 2}, breaks, waits)
			calls := []tools.Call{call("a", "breaks", `{}`), call("b", "waits", `{}`), call("c", "waits", `{}`)}
			results, err := d.Round(t.Context(), calls)
			if !errors.Is(err, sentinel) || len(results) != 3 {
				t.Fatalf("%v: round ends with %v and %d results", sentinel, err, len(results))
			}
			if strings.Contains(blocksText(results[0].Content), "guest died") || results[0].Class != tools.ErrorExecution {
				t.Errorf("the model sees %q, class %q", blocksText(results[0].Content), results[0].Class)
			}
			if text := map[error]string{tools.ErrSandboxStart: "The sandbox could not start.", tools.ErrSandboxLost: "The sandbox was lost."}[sentinel]; text != "" {
				wantText(t, results[0], true, text)
			}
			for _, r := range results[1:] {
				wantText(t, r, true, "Cancelled: the run has ended.")
			}
			checkTerminals(t, rec, calls)
			wantEvents(t, rec, "c", "failed cancelled") // never started
		})
	}
}

func TestNothingStartsOnceARecordIsLost(t *testing.T) {
	diskFull := errors.New("no space left on device")
	rec := &recorder{}
	ran := map[string]bool{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed"), Concurrency: 1}, fakeTool{
		def: testDefinition("write_file", tools.ClassWrite),
		execute: func(_ context.Context, c *tools.Call) (tools.Output, error) {
			ran[c.ID] = true
			return textOutput("written"), nil
		},
	})
	rec.fail = func(ev Event) error {
		if c, ok := ev.(Called); ok && c.CallID == "b" {
			return diskFull
		}
		return nil
	}
	calls := []tools.Call{call("a", "write_file", `{"path":"a"}`), call("b", "write_file", `{"path":"b"}`), call("c", "write_file", `{"path":"c"}`)}
	results, err := d.Round(t.Context(), calls)
	if !errors.Is(err, tools.ErrRecord) || !errors.Is(err, diskFull) || len(results) != 3 {
		t.Fatalf("round ends with %v and %d results", err, len(results))
	}
	if !ran["a"] || ran["b"] || ran["c"] {
		t.Errorf("ran %v, want a alone", ran)
	}
	checkTerminals(t, rec, calls)
	if _, err := d.Round(t.Context(), []tools.Call{call("d", "write_file", `{}`)}); !errors.Is(err, tools.ErrRecord) || ran["d"] {
		t.Errorf("the next round runs %t and ends with %v", ran["d"], err)
	}
}

func TestLostDeltasStopNothing(t *testing.T) {
	rec := &recorder{fail: func(ev Event) error {
		if _, live := ev.(OutputDelta); live {
			return errors.New("slow reader")
		}
		return nil
	}}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("probe", func(_ context.Context, c *tools.Call) (tools.Output, error) {
		c.Delta("stdout", "x")
		return textOutput("done"), nil
	}))
	wantText(t, roundOK(t, d, call("a", "probe", `{}`))[0], false, "done")
}

func TestResultsAreBoundedAndRepaired(t *testing.T) {
	rec := &recorder{}
	long := strings.Repeat("0123456789", 100)
	probe := readTool("probe", func(_ context.Context, c *tools.Call) (tools.Output, error) {
		c.Delta("stdout", "a\x00\xff")
		c.Delta("stderr", "")
		return tools.Output{Content: []tools.Block{{Text: long}}, Success: false, Command: "probe", Metadata: map[string]any{"exit_code": 1}}, nil
	})
	probe.def.ResultBytes = 20
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, probe)
	r := roundOK(t, d, call("a", "probe", `{}`))[0]
	wantText(t, r, true, "0123456789\n[… 980 of 1000 bytes left out …]\n0123456789")
	if r.Class != "" {
		t.Errorf("a call that ran to its end has the error class %q", r.Class)
	}
	done := find[Completed](rec)[0]
	want := Completed{
		CallID: "a", Name: "probe", OutputBytes: len(blocksText(r.Content)), Truncated: true, LatencyMS: done.LatencyMS,
		FilesModified: []string{}, Command: new("probe"), Metadata: map[string]any{"exit_code": 1},
	}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("tool.completed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]OutputDelta{{CallID: "a", Stream: "stdout", Text: "a␀\ufffd"}}, find[OutputDelta](rec)); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
	// The output of a call that fails is bounded and repaired, too.
	breaks := readTool("probe", func(_ context.Context, c *tools.Call) (tools.Output, error) {
		out := tools.Output{FilesModified: []string{"a\xff"}}
		return out, &tools.Error{Class: tools.ErrorExecution, Message: "Broken.", Visible: true, Partial: "\xff" + long}
	})
	breaks.def.ResultBytes = 20
	broken := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, breaks)
	wantText(t, roundOK(t, broken, call("f", "probe", `{}`))[0], true,
		"Broken. Files changed before that: a\ufffd.\nOutput until then:\n\ufffd0123456\n[… 983 of 1003 bytes left out …]\n0123456789")
	probe.def.ResultBytes = 4
	small := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, probe)
	wantText(t, roundOK(t, small, call("b", "probe", `{}`))[0], true, "01\n[… 996 of 1000 bytes left out …]\n89")
}

func TestCallsOnOnePathKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		var mu sync.Mutex
		content := map[string]string{}
		step := func(read bool) func(context.Context, *tools.Call) (tools.Output, error) {
			return func(_ context.Context, c *tools.Call) (tools.Output, error) {
				time.Sleep(time.Second)
				path := filepath.Base(testPaths(c.Input)[0])
				mu.Lock()
				defer mu.Unlock()
				if read {
					return textOutput(content[path]), nil
				}
				content[path] += c.ID
				return textOutput("ok"), nil
			}
		}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed")},
			fakeTool{def: testDefinition("write_file", tools.ClassWrite), execute: step(false)},
			fakeTool{def: testDefinition("read_file", tools.ClassRead), execute: step(true)})
		calls := []tools.Call{
			call("1", "read_file", `{"path":"a"}`), call("2", "write_file", `{"path":"./a"}`),
			call("3", "write_file", `{"path":"/workspace/a"}`), call("4", "read_file", `{"path":"a"}`), call("5", "read_file", `{"path":"b"}`),
		}
		start := time.Now()
		results := roundOK(t, d, calls...)
		wantText(t, results[0], false, "(no output)")
		wantText(t, results[3], false, "23")
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("took %v, want 4s: four steps on a, beside them b", took)
		}
	})
}

func TestPanickingDefinitionIsContained(t *testing.T) {
	rec := &recorder{}
	tool := readTool("probe", nil)
	tool.def.Paths = func(json.RawMessage) []string { panic("boom") }
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, tool, readTool("other", nil))
	results := roundOK(t, d, call("a", "probe", `{}`), call("b", "other", `{}`))
	if results[0].Class != tools.ErrorExecution || strings.Contains(blocksText(results[0].Content), "boom") {
		t.Errorf("result is %+v", results[0])
	}
	wantText(t, results[1], false, "done")
}

func TestManyCallsOfOneRound(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", func(_ context.Context, c *tools.Call) (tools.Output, error) {
		return textOutput(c.ID), nil
	}))
	var calls []tools.Call
	for i := range 200 {
		calls = append(calls, call(fmt.Sprint(i), "read_file", `{"path":"a"}`))
	}
	for i, r := range roundOK(t, d, calls...) {
		wantText(t, r, false, fmt.Sprint(i))
	}
	checkTerminals(t, rec, calls)
	for i, ev := range find[Called](rec) {
		if ev.CallID != fmt.Sprint(i) {
			t.Fatalf("call %s is reported as number %d", ev.CallID, i)
		}
	}
	if len(d.rounds) != 0 {
		t.Errorf("%d rounds are kept", len(d.rounds))
	}
	if results := roundOK(t, d); len(results) != 0 {
		t.Errorf("no calls give %v", results)
	}
}

func TestClosedDispatcherRunsNothing(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))},
		readTool("read_file", nil), fakeTool{def: testDefinition("shell", tools.ClassExecute)})
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range roundOK(t, d, call("a", "read_file", `{}`), call("b", "shell", `{}`)) {
		wantText(t, r, true, "Cancelled.")
	}
	wantEvents(t, rec, "a", "failed cancelled")
	wantEvents(t, rec, "b", "failed cancelled")
}

// TestResultsAreComplete: the result and the record of a call have its duration and
// its tool's metadata, also after a failure.
func TestResultsAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		out := tools.Output{Content: []tools.Block{{Text: "done"}}, Success: true, FilesModified: []string{"a"}}
		tool := readTool("probe", func(_ context.Context, c *tools.Call) (tools.Output, error) {
			time.Sleep(time.Second)
			out := out
			out.Truncated = strings.Contains(string(c.Input), "cut")
			if strings.Contains(string(c.Input), "fail") {
				return out, errors.New("boom")
			}
			return out, nil
		})
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, tool)
		for i, text := range []string{"", "cut", "fail"} {
			r := roundOK(t, d, call(text, "probe", fmt.Sprintf(`{"text":%q}`, text)))[0]
			if r.Duration != time.Second || !slices.Equal(r.Output.FilesModified, []string{"a"}) {
				t.Errorf("%q: %v, %+v", text, r.Duration, r.Output)
			}
			if text == "fail" {
				if f := find[Failed](rec)[0]; f.LatencyMS != 1000 || !slices.Equal(f.FilesModified, []string{"a"}) {
					t.Errorf("%q: %+v", text, f)
				}
				continue
			}
			if c := find[Completed](rec)[i]; c.LatencyMS != 1000 || c.Truncated != (text == "cut") {
				t.Errorf("%q: %+v", text, c)
			}
		}
	})
}

func TestCloseCancelsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "default")}, readTool("probe", func(ctx context.Context, _ *tools.Call) (tools.Output, error) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return tools.Output{}, context.Cause(ctx)
		}))
		time.AfterFunc(time.Second, func() {
			if err := d.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		start := time.Now()
		wantText(t, roundOK(t, d, call("a", "probe", `{}`))[0], true, "Cancelled.")
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
	})
}

func TestToolThatEndsItsGoroutineFails(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", func(context.Context, *tools.Call) (tools.Output, error) {
		runtime.Goexit()
		return tools.Output{}, nil
	}))
	if r := roundOK(t, d, call("a", "read_file", `{}`))[0]; r.Class != tools.ErrorExecution {
		t.Errorf("result %+v", r)
	}
}

func TestEmptyResultSaysSo(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, readTool("read_file", func(context.Context, *tools.Call) (tools.Output, error) {
		return tools.Output{Success: true}, nil
	}))
	wantText(t, roundOK(t, d, call("a", "read_file", `{}`))[0], false, "(no output)")
}

func TestExampleSimpleRead(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, fakeTool{
		def:     testDefinition("read_file", tools.ClassRead),
		execute: func(context.Context, *tools.Call) (tools.Output, error) { return textOutput("# Project Foo\n"), nil },
	})
	r := roundOK(t, d, call("tu_01HZ_a", "read_file", `{"path": "README.md"}`))[0]
	wantText(t, r, false, "# Project Foo\n")
	wantEvents(t, rec, "tu_01HZ_a", "called read", "completed true")
	got := find[Called](rec)[0]
	want := Called{
		CallID: "tu_01HZ_a", Name: "read_file", Class: tools.ClassRead, InputBytes: len(`{"path":"README.md"}`), Rule: "class read", Summary: "README.md",
	}
	want.InputHash = hashInput([]byte(`{"path":"README.md"}`))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tool.called (-want +got):\n%s", diff)
	}
}

func TestExampleWorkspaceEscape(t *testing.T) {
	rec := &recorder{}
	ran := false
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Workspace: "/home/me/p"}, fakeTool{
		def: testDefinition("read_file", tools.ClassRead),
		execute: func(context.Context, *tools.Call) (tools.Output, error) {
			ran = true
			return textOutput("root:x:0:0"), nil
		},
	})
	// Each is refused by name alone; "inside" are the positive controls.
	outside := []string{"../../etc/passwd", "/etc/passwd", "subdir/../../../etc/passwd", "..", "/home/me/p-evil/x", "/home/me/p/../q", "//etc/passwd", "a\u0000b"}
	for i, path := range outside {
		id := fmt.Sprintf("out_%d", i)
		r := roundOK(t, d, call(id, "read_file", fmt.Sprintf(`{"path":"%s"}`, strings.ReplaceAll(path, "\x00", `\u0000`))))[0]
		why := "outside the workspace"
		if strings.Contains(path, "\x00") {
			why = "a path can't hold a NUL"
		}
		if text := blocksText(r.Content); r.Class != tools.ErrorPermissionDenied || !strings.HasSuffix(text, why) {
			t.Errorf("%q: class %q with %q", path, r.Class, text)
		}
		if ran {
			t.Fatalf("%q ran", path)
		}
	}
	wantEvents(t, rec, "out_0", "failed permission_denied")
	if f := find[Failed](rec)[0]; f.Reason != "workspace_escape" || f.Message != `"../../etc/passwd": outside the workspace` {
		t.Errorf("tool.failed is %+v", f)
	}
	for i, path := range []string{"README.md", "/home/me/p/README.md", "/workspace/README.md", "a/../b", "."} {
		ran = false
		if r := roundOK(t, d, call(fmt.Sprintf("in_%d", i), "read_file", fmt.Sprintf(`{"path":%q}`, path)))[0]; r.IsError || !ran {
			t.Errorf("%q inside is refused: %q", path, blocksText(r.Content))
		}
	}
}

func TestForeignErrorsAreRedactedAndLogged(t *testing.T) {
	logged, logs := observer.New(zap.DebugLevel)
	rec := &recorder{}
	secret := errors.New("dial tcp 10.0.0.5: password is hunter2")
	tool := func(name string, f func() (tools.Output, error)) fakeTool {
		return fakeTool{def: testDefinition(name, tools.ClassRead), execute: func(context.Context, *tools.Call) (tools.Output, error) { return f() }}
	}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Logger: zap.New(logged)},
		tool("foreign", func() (tools.Output, error) { return tools.Output{}, secret }),
		tool("panics", func() (tools.Output, error) { panic(secret) }),
		tool("hidden", func() (tools.Output, error) {
			return tools.Output{}, fmt.Errorf("outer: %w", &tools.Error{Class: tools.ErrorExecution, Message: "hunter2", Err: secret})
		}),
	)
	for i, name := range []string{"foreign", "panics", "hidden"} {
		r := roundOK(t, d, call(name, name, `{}`))[0]
		f := find[Failed](rec)[i]
		text := blocksText(r.Content)
		if r.Class != tools.ErrorExecution || strings.Contains(fmt.Sprint(text, f), "hunter2") {
			t.Errorf("%s: the model or a record sees %q, %+v", name, text, f)
		}
		if !strings.HasPrefix(f.ErrorID, "err_") || len(f.ErrorID) != len("err_")+16 || !strings.Contains(text, f.ErrorID) {
			t.Errorf("%s: error id %q is not in %q", name, f.ErrorID, text)
		}
		entries := logs.FilterField(zap.String("error_id", f.ErrorID)).All()
		if len(entries) != 1 || entries[0].Level != zap.ErrorLevel || !strings.Contains(fmt.Sprint(entries[0].ContextMap()), "hunter2") {
			t.Errorf("%s: the log has %v", name, entries)
		}
		if name == "hidden" && !strings.Contains(fmt.Sprint(entries[0].ContextMap()["error"]), "outer: ") {
			t.Errorf("the log has no word of where it failed: %v", entries[0].ContextMap())
		}
		if name == "panics" && !strings.Contains(fmt.Sprint(entries[0].ContextMap()["stack"]), "execute_test.go") {
			t.Errorf("the log has no stack of the panic: %v", entries[0].ContextMap()["stack"])
		}
	}
}
