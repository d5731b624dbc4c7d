package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/workspace"
)

// What the examples of the dispatcher specification (docs/specification.md §9) and
// its list of tests ask of the dispatcher beyond what specification_test.go shows on it from outside.

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
	if f := find[Failed](rec)[0]; f.Reason != "workspace_escape" || f.Ran || f.Message != `"../../etc/passwd": outside the workspace` {
		t.Errorf("tool.failed is %+v", f)
	}
	for i, path := range []string{"README.md", "/home/me/p/README.md", "/workspace/README.md", "a/../b", "."} {
		ran = false
		if r := roundOK(t, d, call(fmt.Sprintf("in_%d", i), "read_file", fmt.Sprintf(`{"path":%q}`, path)))[0]; r.IsError || !ran {
			t.Errorf("%q inside is refused: %q", path, blocksText(r.Content))
		}
	}
}

// A link is for the scope checker to see; its escape refuses, and what the
// tool itself would say is left to the tool.
func TestScopeChecker(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	scope := func(p string) error {
		_, err := root.Stat(p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return &workspace.Error{Kind: workspace.KindNotFound, Path: p, Detail: "no such file", Err: err}
		case err != nil:
			return &workspace.Error{Kind: workspace.KindEscape, Path: p, Detail: "leads outside the workspace", Err: err}
		}
		return nil
	}
	rec := &recorder{}
	read := fakeTool{def: testDefinition("read_file", tools.ClassRead), execute: func(_ context.Context, c *tools.Call) (tools.Output, error) {
		text, err := os.ReadFile(filepath.Join(dir, testPaths(c.Input)[0])) // naive on purpose
		return textOutput(string(text)), err
	}}
	checked := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Scope: scope}, read)
	r := roundOK(t, checked, call("a", "read_file", `{"path":"link/passwd"}`))[0]
	wantText(t, r, true, `"link/passwd": leads outside the workspace`)
	if r := roundOK(t, checked, call("b", "read_file", `{"path":"missing"}`))[0]; r.Class != tools.ErrorExecution {
		t.Errorf("a missing file is refused as %q before the tool can say so", r.Class)
	}
	wantEvents(t, rec, "b", "called read", "failed execution_error")
	broken := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Scope: func(string) error { return errors.New("secret detail") }}, read)
	r = roundOK(t, broken, call("c", "read_file", `{"path":"x"}`))[0]
	if r.Class != tools.ErrorPermissionDenied || strings.Contains(blocksText(r.Content), "secret") {
		t.Errorf("a scope that can't be known gives %q, %q", r.Class, blocksText(r.Content))
	}
	// Positive control: by name alone the link leads out, and the marker is read.
	naive := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, read)
	if r := roundOK(t, naive, call("d", "read_file", `{"path":"link/passwd"}`))[0]; !strings.Contains(blocksText(r.Content), "root:") {
		t.Fatalf("the control does not reach the file outside, so this test shows nothing: %q", blocksText(r.Content))
	}
}

func TestExampleDenied(t *testing.T) {
	rec := &recorder{}
	var shown approval.Confirmation
	deny := approver(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		shown = c
		return approval.Answer{Decision: approval.DecisionDeny}, nil
	})
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerOf(deny)}, fakeTool{def: testDefinition("write_file", tools.ClassWrite)})
	r := roundOK(t, d, call("tu_01HZ_c", "write_file", `{"text":"x","path":"src/auth.ts"}`))[0]
	wantText(t, r, true, "The user denied this operation.")
	wantEvents(t, rec, "tu_01HZ_c", "requested", "resolved deny by user", "failed user_denied")
	want := approval.Confirmation{
		ID: shown.ID, CallID: "tu_01HZ_c", Seq: 1, Name: "write_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox, Summary: "src/auth.ts",
		Input: `{"path":"src/auth.ts","text":"x"}`, Exact: []byte(`{"path":"src/auth.ts","text":"x"}`),
		InputHash: hashInput([]byte(`{"path":"src/auth.ts","text":"x"}`)), Projected: []string{"src/auth.ts"},
		Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeSession}, Expires: shown.Expires,
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("confirmation (-want +got):\n%s", diff)
	}
	if len(shown.ID) != 32 || !shown.Expires.After(time.Now()) {
		t.Errorf("id %q, expires %v", shown.ID, shown.Expires)
	}
}

// A command that ignores SIGTERM returns late, with what there is; the call is
// cancelled all the same. That SIGKILL follows is the sandbox's to show.
func TestExampleCancelShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		started := make(chan struct{})
		cause := errors.New("the user cancelled")
		d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed")}, fakeTool{
			def: testDefinition("shell", tools.ClassExecute),
			execute: func(ctx context.Context, c *tools.Call) (tools.Output, error) {
				if c.ID == "next" {
					return textOutput("fine"), nil
				}
				c.Delta("stdout", "added 1 package")
				close(started)
				<-ctx.Done()
				time.Sleep(5 * time.Second) // the grace until SIGKILL
				return tools.Output{Content: []tools.Block{{Text: "added 1 package"}}, FilesModified: []string{"package-lock.json"}}, nil
			},
		})
		go func() {
			<-started
			time.Sleep(2 * time.Minute)
			d.Cancel(cause)
			d.Cancel(errors.New("again"))
		}()
		r := roundOK(t, d, call("tu_01HZ_d", "shell", `{"text":"npm install"}`))[0]
		wantText(t, r, true, "Cancelled. Files changed before that: package-lock.json.\nOutput until then:\nadded 1 package")
		wantEvents(t, rec, "tu_01HZ_d", "called execute", "delta stdout added 1 package", "failed cancelled")
		f := find[Failed](rec)[0]
		if f.Partial != "added 1 package" || !f.Ran || f.Latency != 2*time.Minute+5*time.Second || len(f.FilesModified) != 1 {
			t.Errorf("tool.failed is %+v", f)
		}
		wantText(t, roundOK(t, d, call("next", "shell", `{}`))[0], false, "fine") // a later round isn't cancelled
	})
}

func TestSixCallsAtFour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{}
		var mu sync.Mutex
		running, most := 0, 0
		d := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, fakeTool{
			def: testDefinition("read_file", tools.ClassRead),
			execute: func(_ context.Context, c *tools.Call) (tools.Output, error) {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				return textOutput(c.ID), nil
			},
		})
		var calls []tools.Call
		for i := range 6 {
			calls = append(calls, call(fmt.Sprint(i), "read_file", `{}`))
		}
		start := time.Now()
		results := roundOK(t, d, calls...)
		if took := time.Since(start); took != 2*time.Second || most != 4 {
			t.Errorf("took %v with up to %d at once, want 2s with 4", took, most)
		}
		for i, r := range results {
			wantText(t, r, false, fmt.Sprint(i))
		}
		checkTerminals(t, rec, calls)
		for i, ev := range find[Called](rec) {
			if ev.CallID != fmt.Sprint(i) {
				t.Errorf("call %s started out of turn, as number %d", ev.CallID, i)
			}
		}
	})
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
		if name == "panics" && !strings.Contains(fmt.Sprint(entries[0].ContextMap()["stack"]), "spec_test.go") {
			t.Errorf("the log has no stack of the panic: %v", entries[0].ContextMap()["stack"])
		}
	}
}

func TestAlwaysAllowThisTool(t *testing.T) {
	rec := &recorder{}
	asked := 0
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Broker: brokerFunc(func(context.Context, approval.Confirmation) (approval.Answer, error) {
		asked++
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, nil
	})}, fakeTool{def: testDefinition("shell", tools.ClassExecute)}, fakeTool{def: testDefinition("other", tools.ClassExecute)})
	roundOK(t, d, call("a", "shell", `{}`))
	roundOK(t, d, call("b", "shell", `{"text":"another input"}`))
	roundOK(t, d, call("c", "other", `{}`))
	wantEvents(t, rec, "a", "requested", "resolved allow by user", "called execute", "completed true")
	wantEvents(t, rec, "b", "resolved allow by session", "called execute", "completed true")
	wantEvents(t, rec, "c", "requested", "resolved allow by user", "called execute", "completed true")
	if asked != 2 {
		t.Errorf("asked %d times, want 2: once a tool", asked)
	}
}
