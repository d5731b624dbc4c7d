package dispatch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// stateTool returns a tool whose projections have these states in turn; the last
// one repeats, and "" fails. executed gets the state passed to each execution.
func stateTool(states ...string) (tool fakeTool, executed *[]string) {
	var mu sync.Mutex
	executed = new([]string)
	tool.def = testDefinition("write_file", tools.ClassWrite)
	tool.project = func(context.Context, *tools.Call) (tools.Projection, error) {
		mu.Lock()
		defer mu.Unlock()
		state := states[0]
		states = states[min(1, len(states)-1):]
		if state == "" {
			return tools.Projection{}, errors.New("no such file")
		}
		return tools.Projection{Diff: "+" + state, State: state}, nil
	}
	tool.execute = func(_ context.Context, c *tools.Call) (tools.Output, error) {
		mu.Lock()
		defer mu.Unlock()
		*executed = append(*executed, c.Projected)
		return textOutput("done"), nil
	}
	return tool, executed
}

// TestAnswersAreBoundToWhatWasSeen: a tool gets the state that a person was shown
// last, or none.
func TestAnswersAreBoundToWhatWasSeen(t *testing.T) {
	unable := approver(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{}, errors.New("no terminal")
	})
	asked := []string{"requested", "resolved allow by user"}
	ran := []string{"called write", "completed true"}
	for name, tt := range map[string]struct {
		states []string
		ask    approver
		want   string
		events []string
	}{
		"as shown":                        {[]string{"1"}, answering(approval.DecisionAllow, approval.ScopeOnce), "1", slices.Concat(asked, ran)},
		"changed, and shown again":        {[]string{"1", "2"}, answering(approval.DecisionAllow, approval.ScopeOnce), "2", slices.Concat(asked, asked, ran)},
		"changed, and can't be projected": {[]string{"1", "2", ""}, answering(approval.DecisionAllow, approval.ScopeOnce), tools.Unprojected, slices.Concat(asked, asked, ran)},
		"projected only since":            {[]string{"", "1"}, answering(approval.DecisionAllow, approval.ScopeOnce), "1", slices.Concat(asked, asked, ran)},
		"seen by nobody":                  {[]string{"1", "2"}, unable, "", append([]string{"requested", "resolved allow by on_prompt"}, ran...)},
	} {
		tool, executed := stateTool(tt.states...)
		rec := &recorder{}
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(tt.ask), OnPrompt: OnPromptAllow}, tool)
		roundOK(t, d, call("a", "write_file", `{}`))
		if !slices.Equal(*executed, []string{tt.want}) {
			t.Errorf("%s: executed with the states %q, want %q", name, *executed, tt.want)
		}
		wantEvents(t, rec, "a", tt.events...)
	}
}

// TestToolsAreToldOfQuestions: a tool can distinguish a call that was asked about
// from one that the policy runs.
func TestToolsAreToldOfQuestions(t *testing.T) {
	for name, asked := range map[string]bool{"default": false, "strict": true} {
		d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, name), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))},
			readTool("read_file", func(_ context.Context, c *tools.Call) (tools.Output, error) {
				if c.Asked != asked {
					t.Errorf("%s: asked %t", name, c.Asked)
				}
				return textOutput("done"), nil
			}))
		wantText(t, roundOK(t, d, call("a", "read_file", `{}`))[0], false, "done")
	}
}

// TestEditsThatNoOneSawHaveADiff: the end of a call that changed files has its
// diff, safe and bounded, unless a person was shown it. Making the diff binds the
// call to nothing.
func TestEditsThatNoOneSawHaveADiff(t *testing.T) {
	session := func(d *Dispatcher) { roundOK(t, d, call("first", "write_file", `{"path":"f"}`)) }
	long := strings.Repeat("long line\n", maxUnaskedDiff)
	for name, tt := range map[string]struct {
		preset, diff string
		class        tools.Class
		scope        approval.Scope
		before       func(*Dispatcher)
		err          error
		want         string
	}{
		"allowed by the policy":         {"sandboxed", "+1", tools.ClassWrite, "", nil, nil, "+1"},
		"asked":                         {"default", "+1", tools.ClassWrite, approval.ScopeOnce, nil, nil, ""},
		"an earlier answer":             {"default", "+1", tools.ClassWrite, approval.ScopeSession, session, nil, "+1"},
		"not a change of files":         {"sandboxed", "+1", tools.ClassExecute, "", nil, nil, ""},
		"a failed call":                 {"sandboxed", "+1", tools.ClassWrite, "", nil, errors.New("disk full"), ""},
		"no diff":                       {"sandboxed", "", tools.ClassWrite, "", nil, nil, ""},
		"what a terminal would obey":    {"sandboxed", "+\x1b[2J\u202e\n", tools.ClassWrite, "", nil, nil, `+\x1b[2J\u202e` + "\n"},
		"longer than is ever displayed": {"sandboxed", long, tools.ClassWrite, "", nil, nil, tools.Elide(long, maxUnaskedDiff)},
	} {
		t.Run(name, func(t *testing.T) {
			tool := fakeTool{def: testDefinition("write_file", tt.class), project: func(context.Context, *tools.Call) (tools.Projection, error) {
				return tools.Projection{Diff: tt.diff, State: "1"}, nil
			}, execute: func(_ context.Context, c *tools.Call) (tools.Output, error) {
				if c.ID == "a" && tt.scope != approval.ScopeOnce && c.Projected != "" {
					t.Errorf("bound to %q, which no one saw", c.Projected)
				}
				return textOutput("done"), tt.err
			}}
			rec := &recorder{}
			d := newDispatcher(t, rec, Options{Policy: preset(t, tt.preset), Broker: brokerOf(answering(approval.DecisionAllow, tt.scope))}, tool)
			if tt.before != nil {
				tt.before(d)
			}
			if _, err := d.Round(t.Context(), []tools.Call{call("a", "write_file", `{"path":"f"}`)}); err != nil {
				t.Fatal(err)
			}
			got := "no end"
			for _, e := range find[Completed](rec) {
				if e.CallID == "a" {
					got = e.Diff
				}
			}
			if tt.err != nil {
				if len(find[Failed](rec)) != 1 || got != "no end" {
					t.Errorf("the call did not fail: %q", got)
				}
			} else if got != tt.want {
				t.Errorf("diff %q, want %q", got, tt.want)
			}
		})
	}
}

// TestSessionAnswerIsToNoDiff: a call that an answer to another one allows is not
// asked about again because its file has changed.
func TestSessionAnswerIsToNoDiff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tool, _ := stateTool("1", "1", "2")
		rec := &recorder{}
		ask := approver(func(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
			if c.CallID == "a" {
				<-ctx.Done()
			}
			time.Sleep(time.Second)
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, nil
		})
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(ask)}, tool)
		roundOK(t, d, call("a", "write_file", `{"path":"a"}`), call("b", "write_file", `{"path":"b"}`))
		wantEvents(t, rec, "a", "requested", "resolved allow by session", "called write", "completed true")
	})
}

// TestSlowCheckHoldsUpNoOtherCall: while an approved change is compared with the
// file system, a call that is allowed later runs.
func TestSlowCheckHoldsUpNoOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, _ := stateTool("1")
		project, projections := slow.project, 0
		slow.project = func(ctx context.Context, c *tools.Call) (tools.Projection, error) {
			if projections++; projections > 1 {
				time.Sleep(5 * time.Second)
			}
			return project(ctx, c)
		}
		start, ran := time.Now(), time.Duration(0)
		read := readTool("read_file", func(context.Context, *tools.Call) (tools.Output, error) {
			ran = time.Since(start)
			return textOutput("done"), nil
		})
		d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			if c.Class == tools.ClassRead {
				time.Sleep(time.Second)
			}
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, nil
		})}, slow, read)
		roundOK(t, d, call("a", "write_file", `{"path":"a"}`), call("b", "read_file", `{"path":"b"}`))
		if took := time.Since(start); ran != time.Second || took != 5*time.Second {
			t.Errorf("the read ran after %v, the round took %v", ran, took)
		}
	})
}

// TestSecondQuestionKeepsNoSlot: while a person is asked again, other calls run.
func TestSecondQuestionKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, ran := time.Now(), time.Duration(0)
		read := readTool("read_file", func(context.Context, *tools.Call) (tools.Output, error) {
			ran = time.Since(start)
			return textOutput("done"), nil
		})
		write, _ := stateTool("1", "2")
		d := newDispatcher(t, &recorder{}, Options{Concurrency: 1, Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			switch {
			case c.Changed:
				time.Sleep(time.Minute)
			case c.Class == tools.ClassRead:
				time.Sleep(time.Second)
			}
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, nil
		})}, write, read)
		roundOK(t, d, call("a", "write_file", `{"path":"a"}`), call("b", "read_file", `{"path":"b"}`))
		if took := time.Since(start); ran != time.Second || took != time.Minute {
			t.Errorf("the read ran after %v, the round took %v", ran, took)
		}
	})
}

// TestProjectionsThatBreakAreLogged: a projection that fails is common. One that
// panics, or ends its goroutine, is a fault.
func TestProjectionsThatBreakAreLogged(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "default"), Broker: brokerOf(answering(approval.DecisionDeny, approval.ScopeOnce)), Logger: zap.New(core)}, fileTool(nil, true))
	for text, want := range map[string]struct {
		level zapcore.Level
		err   any
	}{"fail": {zap.DebugLevel, "no such file"}, "panic": {zap.ErrorLevel, "panic: boom"}, "exit": {zap.ErrorLevel, errNoReturn.Error()}} {
		roundOK(t, d, call(text, "write_file", `{"path":"a","text":"`+text+`"}`))
		if got := logs.FilterMessage("no projection").TakeAll(); len(got) != 1 || got[0].Level != want.level || got[0].ContextMap()["error"] != want.err {
			t.Errorf("%s: logged %+v, want one line %+v", text, got, want)
		}
		logs.TakeAll()
	}
}
