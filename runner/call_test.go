package runner

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/policy"
)

// A session without a model runs calls with policy, records and sandbox, and reads without a
// sandbox.
func TestCallWithoutModel(t *testing.T) {
	b := newBench(t, "")
	b.file("a.txt", "content\n")
	b.backend.Scripts["echo"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		return sandbox.ExitStatus{}
	}
	s := b.opened()
	if _, err := s.Start("hello"); !errors.Is(err, loop.ErrNoModel) {
		t.Errorf("Start: %v", err)
	}
	read, err := s.Call(t.Context(), "read_file", json.RawMessage(`{"path": "a.txt"}`))
	if err != nil || read.IsError || !strings.Contains(boundary.ResultText(read.Content), "content") {
		t.Errorf("read_file: %+v, %v", read, err)
	}
	if n := len(b.backend.Sandboxes); n != 0 {
		t.Errorf("%d sandboxes for a call that reads", n)
	}
	if run, err := s.Call(t.Context(), "shell", json.RawMessage(`{"command": "echo"}`)); err != nil || run.IsError {
		t.Errorf("shell: %+v, %v", run, err)
	}
	if wrong, err := s.Call(t.Context(), "shell", json.RawMessage(`[]`)); err != nil || !wrong.IsError {
		t.Errorf("arguments that are no object: %+v, %v", wrong, err)
	}
	r := s.Close()
	b.backend.RequireGone(t)
	if r.ExitStatus != OutcomeDone || r.Turns != 3 || r.Usage.Rounds != 0 || r.Usage.ToolCalls != 3 {
		t.Errorf("%+v", r)
	}
	if _, err := s.Call(t.Context(), "read_file", nil); !errors.Is(err, ErrOver) {
		t.Errorf("a call of a closed session: %v", err)
	}
	records := b.records(r)
	for _, rec := range records {
		if strings.HasPrefix(string(rec.Kind), "llm.") || rec.Actor == record.ActorAgent {
			t.Errorf("%s by %s without a model", rec.Kind, rec.Actor)
		}
	}
	turns := of[record.TurnStarted](t, records)
	if len(turns) != 3 || of[record.SessionCreated](t, records)[0].Model.String() != "none" || len(of[record.SandboxStarted](t, records)) != 1 {
		t.Errorf("%d turns", len(turns))
	}
}

// The model is not told of calls beside its turns.
func TestCallBesideTurns(t *testing.T) {
	b := newBench(t, "  - text: First.\n")
	b.file("AGENTS.md", "Be brief.\n")
	b.opts.InstructionFiles = true
	s := b.opened()
	if _, err := s.Call(t.Context(), "read_file", json.RawMessage(`{"path": "AGENTS.md"}`)); err != nil {
		t.Fatal(err)
	}
	if turn := startTurn(t, s, "one"); turn.Answer != "First." {
		t.Errorf("%+v", turn)
	}
	if roles := s.turns.history[0].Role; roles != loop.RoleSystem || len(s.turns.history) != 4 {
		t.Errorf("the history of the model: %+v", s.turns.history)
	}
	r := s.Close()
	if r.Answer != "First." || r.Turns != 2 {
		t.Errorf("%+v", r)
	}
	var actors []record.Actor // of the call's message, the call, and the model's answer
	for _, rec := range b.records(r) {
		if rec.Kind == record.KindToolCalled || rec.Kind == record.KindMessage && strings.Contains(string(rec.Payload), `"assistant"`) {
			actors = append(actors, rec.Actor)
		}
	}
	if want := []record.Actor{record.ActorUser, record.ActorUser, record.ActorAgent}; !slices.Equal(actors, want) {
		t.Errorf("actors %v, want %v", actors, want)
	}
}

// Calls with any arguments get a result and are recorded.
func TestCallWithBadInput(t *testing.T) {
	b := newBench(t, "")
	b.file("a.txt", "content\n")
	s := b.opened()
	calls := map[string]struct {
		tool  tools.Name
		input string
	}{
		"exceeded max depth":           {"read_file", strings.Repeat("[", 20_000)},
		"unexpected end of JSON input": {"read_file", "{"},
		"after top-level value":        {"read_file", `{"path": "a.txt"} {}`},
		"must be a JSON object":        {"read_file", `[1]`},
		`missing property "path"`:      {"read_file", ""},
		"given twice":                  {"read_file", `{"path": "a.txt", "path": "b"}`},
		"not valid UTF-8":              {"read_file", "{\"path\": \"\xff\"}"},
		"NUL":                          {"read_file", `{"path": "\u0000"}`},
		"at most 4194304 are accepted": {"read_file", `{"path": "` + strings.Repeat("a", tools.MaxInputBytes) + `"}`},
		`There is no tool "nothing"`:   {"nothing", `{}`},
		`There is no tool ""`:          {"", `{}`},
		`There is no tool "a\\n`:       {"a\n\x00\xff", `{}`},
	}
	for want, c := range calls {
		r, err := s.Call(t.Context(), c.tool, json.RawMessage(c.input))
		if text := boundary.ResultText(r.Content); err != nil || !r.IsError || !strings.Contains(text, want) {
			t.Errorf("%q, %v; want %q", text, err, want)
		}
	}
	r := s.Close()
	if b.checkSession(r); r.ExitStatus != OutcomeDone || r.Turns != len(calls) {
		t.Errorf("%d turns, ended %s: %v", r.Turns, r.Reason, r.Err)
	}
}

// A call that is cancelled, or whose tool fails, ends alone. Close ends a running one with the
// session, whose end is recorded once.
func TestCallThatEndsBadly(t *testing.T) {
	b := newBench(t, "")
	started := make(chan struct{}, 1)
	newTool := func(name string, run func(context.Context) (string, error)) tools.Factory {
		def := tools.Definition{
			Name: tools.Name(name), Description: "A tool of a test.", Class: tools.ClassNone, InputSchema: json.RawMessage(`{"type": "object", "properties": {"x": {"type": "string"}}}`),
		}
		return tools.NewFunc(def, func(ctx context.Context, _ struct{}) (string, error) { return run(ctx) })
	}
	b.opts.Tools = []tools.Factory{
		newTool("panics", func(context.Context) (string, error) { panic("boom") }),
		newTool("exits", func(context.Context) (string, error) { runtime.Goexit(); return "", nil }),
		newTool("waits", func(ctx context.Context) (string, error) {
			started <- struct{}{}
			<-ctx.Done()
			return "", context.Cause(ctx)
		}),
	}
	s := b.opened()
	for _, name := range []tools.Name{"panics", "exits"} {
		r, err := s.Call(t.Context(), name, nil)
		if text := boundary.ResultText(r.Content); err != nil || !r.IsError || strings.Contains(text, "boom") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-started
		if _, err := s.Call(t.Context(), "panics", nil); err != nil {
			t.Errorf("a second call at the same time: %v", err)
		}
		cancel(cause)
	}()
	if _, err := s.Call(ctx, "waits", nil); !errors.Is(err, cause) {
		t.Errorf("a cancelled call: %v", err)
	}
	if _, err := s.Call(ctx, "panics", nil); !errors.Is(err, cause) {
		t.Errorf("a call that is cancelled before: %v", err)
	}
	if _, err := s.Call(t.Context(), "panics", nil); err != nil {
		t.Errorf("a call after a cancelled one: %v", err)
	}

	var all sync.WaitGroup
	all.Go(func() {
		if _, err := s.Call(t.Context(), "waits", nil); !errors.Is(err, errClosed) {
			t.Errorf("a call of a session that is closed: %v", err)
		}
	})
	<-started
	for range 4 {
		all.Go(func() {
			for {
				if _, err := s.Call(t.Context(), "panics", nil); errors.Is(err, ErrOver) {
					return
				} else if err != nil && !errors.Is(err, errClosed) {
					t.Errorf("a call beside the one that waits: %v", err)
				}
			}
		})
		all.Go(func() { s.Close() })
	}
	all.Wait()
	r := s.Close()
	if b.checkSession(r); r.Reason != loop.StopCancelled || r.Turns != 6 {
		t.Errorf("%d turns, ended %s: %v", r.Turns, r.Reason, r.Err)
	}
}

// TestCallsAtTheSameTime checks that calls run concurrently in one turn, that a cancelled one ends
// alone, and that running calls count towards the limit.
func TestCallsAtTheSameTime(t *testing.T) {
	b := newBench(t, "")
	const n = 4
	started, release := make(chan struct{}, n), make(chan struct{})
	def := tools.Definition{
		Name: "waits", Description: "A tool of a test.", Class: tools.ClassRead, Runs: tools.PlaceHost, EnabledByDefault: true, InputSchema: json.RawMessage(`{"type": "object", "properties": {"x": {"type": "string"}}}`),
	}
	b.opts.Tools = []tools.Factory{func() tools.Tool {
		return outputTool{def, func(ctx context.Context, call *tools.Call) error {
			call.Delta("stdout", "output of "+call.ID)
			started <- struct{}{}
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}}
	}}
	b.opts.SessionBudget.ToolCalls = new(int64(n))
	s := b.opened()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("this one only")
	var all sync.WaitGroup
	var outputs sync.Map
	ended := make(chan struct{})
	for i := range n {
		all.Go(func() {
			callCtx := t.Context()
			if i == 0 {
				callCtx = ctx
			}
			r, err := s.CallTool(callCtx, ToolCall{Name: "waits", Output: func(_, text string) { outputs.Store(i, text) }})
			if i == 0 {
				if !errors.Is(err, cause) {
					t.Errorf("the cancelled call: %v", err)
				}
				close(ended)
				return
			}
			if got, _ := outputs.Load(i); err != nil || r.IsError || got != "output of "+r.ToolUseID {
				t.Errorf("call %d: %+v, %v; output %v", i, r, err, got)
			}
		})
	}
	for range n {
		<-started
	}
	if _, err := s.Call(t.Context(), "waits", nil); !errors.Is(err, ErrOver) {
		t.Errorf("one more than the limit: %v", err)
	}
	cancel(cause)
	<-ended
	close(release)
	all.Wait()
	r := s.Close()
	if b.checkSession(r); r.ExitStatus != OutcomeDone || r.Turns != 1 || r.Usage.ToolCalls != n {
		t.Errorf("%d turns, %+v, ended %s: %v", r.Turns, r.Usage, r.Reason, r.Err)
	}
	if got := of[record.ToolFailed](t, b.records(r)); len(got) != 1 || got[0].Class != tools.ErrorCancelled {
		t.Errorf("failed calls: %+v", got)
	}
}

type outputTool struct {
	def tools.Definition
	run func(ctx context.Context, call *tools.Call) error
}

func (o outputTool) Definition() tools.Definition { return o.def }

func (o outputTool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	return tools.Output{Success: true}, o.run(ctx, call)
}

// TestToolsOfThisProcessAreRecordedFirst checks that a call of class write or execute that needs no
// sandbox is on disk before its tool acts, and that the tool doesn't act if that fails.
func TestToolsOfThisProcessAreRecordedFirst(t *testing.T) {
	b := newBench(t, "")
	b.opts.Memory = memory.NewStore(t.TempDir(), "/w")
	b.opts.Policy.Tools = map[string]policy.Mode{"memory_add": policy.ModeAuto}
	var full error
	b.opts.syncTrace = func(*os.File) error { return full }
	var s *Session
	ran := 0
	for _, class := range []tools.Class{tools.ClassWrite, tools.ClassExecute} {
		def := tools.Definition{
			Name: tools.Name("own_" + class), Description: "A tool of a test.", Class: class, Runs: tools.PlaceSandbox, InputSchema: json.RawMessage(`{"type": "object", "properties": {"x": {"type": "string"}}}`),
		}
		b.opts.Tools = append(b.opts.Tools, tools.NewFunc(def, func(context.Context, struct{}) (string, error) {
			ran++
			records := recordsOf(t, s.rec)
			last := records[len(records)-1]
			if last.Kind != record.KindToolCalled || !strings.Contains(string(last.Payload), "own_"+string(class)) || s.rec.Synced() < int64(len(records)) {
				t.Errorf("%s acts behind %s %s, %d of %d on the disk", class, last.Kind, last.Payload, s.rec.Synced(), len(records))
			}
			return "", nil
		}))
	}
	s = b.opened()
	for _, name := range []tools.Name{"own_write", "own_execute"} {
		if r, err := s.Call(t.Context(), name, nil); err != nil || r.IsError {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if ran != 2 || len(b.backend.Sandboxes) != 0 {
		t.Errorf("%d calls, %d sandboxes", ran, len(b.backend.Sandboxes))
	}
	full = syscall.ENOSPC
	if r, err := s.Call(t.Context(), "memory_add", json.RawMessage(`{"text": "x"}`)); err == nil && !r.IsError {
		t.Errorf("memory_add without its record: %+v", r)
	}
	if kept, err := b.opts.Memory.Read(); err != nil || len(kept.Notes) != 0 {
		t.Errorf("kept %+v, %v", kept, err)
	}
}
