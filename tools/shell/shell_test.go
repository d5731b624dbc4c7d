package shell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

func TestInputBecomesACommand(t *testing.T) {
	var got Command
	keep := runnerFunc(func(_ context.Context, cmd Command) (Result, error) {
		got = cmd
		return Result{}, nil
	})
	d, _ := dispatcherFor(t, keep, Options{HostRoot: "/home/me/p"})
	tests := []struct {
		input   string
		want    Command
		refused string // a part of the text, where nothing runs
	}{
		{input: `{"command":"ls"}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace", Timeout: 10 * time.Minute}}},
		{input: `{"cmd":"ls","workdir":"src","timeout":5}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace/src", Timeout: 5 * time.Second}}},
		{input: `{"command":"ls","cwd":"/workspace/a/../b"}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace/b", Timeout: 10 * time.Minute}}},
		{input: `{"command":"ls","cwd":"."}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace", Timeout: 10 * time.Minute}}},
		{input: `{"command":"ls","cwd":""}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace", Timeout: 10 * time.Minute}}},
		{input: `{"command":"ls","timeout_seconds":600}`, want: Command{Script: "ls", Command: sandbox.Command{Dir: "/workspace", Timeout: 10 * time.Minute}}},

		{input: `{}`, refused: `missing property "command"`},
		{input: `{"command":""}`, refused: "/command: minLength"},
		{input: `{"command":["ls"]}`, refused: "/command: got array, want string"},
		{input: `{"command":"ls","cmd":"id"}`, refused: `means the same as "command"`},
		{input: `{"command":"ls","timeout_seconds":0}`, refused: "/timeout_seconds: minimum"},
		{input: `{"command":"ls","timeout_seconds":-1}`, refused: "/timeout_seconds: minimum"},
		{input: `{"command":"ls","timeout_seconds":1e18}`, refused: "/timeout_seconds: maximum"},
		{input: `{"command":"ls","timeout_seconds":1.5}`, refused: "/timeout_seconds: got number, want integer"},
		{input: `{"command":"ls","timeout_seconds":"5"}`, refused: "/timeout_seconds: got string, want integer"},
		{input: `{"command":"ls","user":"root"}`, refused: `unknown property "user"`},
		{input: `{"command":"ls","privileged":true,"mounts":["/"],"env":{"LD_PRELOAD":"x"}}`, refused: `"privileged"`},
		{input: `{"Command":"ls"}`, refused: `unknown property "Command"`},
		{input: `{"command":"ls","command":"id"}`, refused: `key "command" is given twice`},
		{input: `{"command":"l\u0000s"}`, refused: "NUL"},
		{input: `{"command":"` + strings.Repeat("x", MaxScriptBytes+1) + `"}`, refused: "write it to a file"},
		{input: `{"command":"ls","cwd":".."}`, refused: "outside the workspace"},
		{input: `{"command":"ls","cwd":"/"}`, refused: "outside the workspace"},
		{input: `{"command":"ls","cwd":"/workspace-evil"}`, refused: "outside the workspace"},
		{input: `{"command":"ls","cwd":"/proc/self/fd/7"}`, refused: "outside the workspace"},
		{input: `{"command":"ls","cwd":"a/../../.."}`, refused: "outside the workspace"},
		{input: `{"command":"ls","cwd":"a\u0000b"}`, refused: "NUL"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%.60s", tt.input), func(t *testing.T) {
			got = Command{}
			results, err := d.Round(t.Context(), shellCalls(tt.input))
			if err != nil {
				t.Fatal(err)
			}
			if tt.refused != "" {
				if got.Script != "" || !results[0].IsError || !strings.Contains(resultText(results[0]), tt.refused) {
					t.Errorf("ran %q, model sees %.300q, want %q", got.Script, resultText(results[0]), tt.refused)
				}
				return
			}
			got.Stdout = nil
			got.Stderr = nil
			got.CallID = ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("command (-want +got):\n%s", diff)
			}
		})
	}
}

// The tool checks its directory itself and doesn't rely on the dispatcher.
func TestFolderIsCheckedWithoutADispatcher(t *testing.T) {
	s := &shellTool{opts: Options{Mount: "/workspace", HostRoot: "/home/me/p", Timeout: time.Minute}}
	for cwd, want := range map[string]string{
		"": "/workspace", "a": "/workspace/a", "/workspace": "/workspace", "/home/me/p": "/workspace", "/home/me/p/a/b": "/workspace/a/b",
		"/home/me/p-evil": "", "/home/me": "", "/home/me/p/../q": "", "../x": "", "/etc": "", "\x00": "", "/workspace/../etc": "",
	} {
		if got, ok := s.containerDir(cwd); ok != (want != "") || ok && got != want {
			t.Errorf("%q leads to %q, %t, want %q", cwd, got, ok, want)
		}
	}
	if _, err := s.newCommand(input{Command: "ls", Dir: ".."}); err == nil {
		t.Error("command was run in a directory outside the workspace")
	}
}

func TestRealCommands(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, input string
		success     bool
		want        []string // parts, in order
	}{
		{"output", `{"command":"cat a.txt; echo oops >&2"}`, true, []string{"exit code 0 after", "stdout (6 bytes):\nhello\n", "stderr (5 bytes):\noops\n"}},
		{"exit code", `{"command":"echo x; exit 3"}`, false, []string{"exit code 3 after", "stdout (2 bytes):\nx\n", "stderr: empty"}},
		{"not found", `{"command":"no-such-program"}`, false, []string{"exit code 127", "stdout: empty", "stderr ("}},
		{"signal", `{"command":"kill -9 $$"}`, false, []string{"killed by signal 9 (SIGKILL)"}},
		{"no input", `{"command":"cat"}`, true, []string{"exit code 0", "stdout: empty"}},
		{"timeout", `{"command":"echo before; sleep 60","timeout_seconds":1}`, false, []string{"killed by signal 9", "timed out after 1 s", "stdout (7 bytes):\nbefore\n"}},
		{"long output", `{"command":"yes 0123456789 | head -c 200000"}`, true, []string{"stdout (200000 bytes, the first 24488 and the last 24488 shown):\n0123456789\n", "[… 151024 bytes left out …]", "stderr: empty"}},
		{"binary", `{"command":"printf 'a\\000b\\377c'"}`, true, []string{"stdout (5 bytes):\na␀b\ufffdc\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, events := dispatcherFor(t, hostRunner{dir}, Options{})
			results, err := d.Round(t.Context(), shellCalls(tt.input))
			if err != nil {
				t.Fatal(err)
			}
			r := results[0]
			if r.IsError == tt.success || r.Class != "" {
				t.Errorf("is error %t, class %q", r.IsError, r.Class)
			}
			rest := resultText(r)
			for _, part := range tt.want {
				i := strings.Index(rest, part)
				if i < 0 {
					t.Fatalf("%.400q lacks %q", resultText(r), part)
				}
				rest = rest[i+len(part):]
			}
			if len(resultText(r)) > tools.DefaultResultBytes {
				t.Errorf("%d bytes for the model", len(resultText(r)))
			}
			last, ok := events()[len(events())-1].(dispatch.Completed)
			if !ok || last.Success != tt.success || last.Truncated != (tt.name == "long output") {
				t.Errorf("last event %+v", events()[len(events())-1])
			}
		})
	}
}

func TestCancelledCommandKeepsWhatThereIs(t *testing.T) {
	started := make(chan struct{})
	cause := errors.New("ctrl-c")
	d, events := dispatcherFor(t, runnerFunc(func(ctx context.Context, cmd Command) (Result, error) {
		if _, err := cmd.Stdout.Write([]byte("part\n")); err != nil {
			return Result{}, err
		}
		close(started)
		<-ctx.Done()
		r := Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}, Kill: sandbox.KillReport{Killed: 1}}, Stdout: wholeCapture([]byte("part\n"))}
		return r, fmt.Errorf("run: %w", context.Cause(ctx))
	}), Options{})
	go func() {
		<-started
		d.Cancel(cause)
	}()
	results, err := d.Round(t.Context(), shellCalls(`{"command":"make"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := "Cancelled.\nOutput until then:\nkilled by signal 15 (SIGTERM) after 0.00 s\nThe command was cancelled.\n" +
		"1 process did not stop when asked and had to be killed.\nstdout (5 bytes):\npart\nstderr: empty\n"
	if diff := cmp.Diff(want, resultText(results[0])); diff != "" || results[0].Class != tools.ErrorCancelled {
		t.Errorf("class %q, text (-want +got):\n%s", results[0].Class, diff)
	}
	failed, ok := events()[len(events())-1].(dispatch.Failed)
	if !ok || !strings.Contains(failed.Partial, "part\n") || failed.Class != tools.ErrorCancelled {
		t.Errorf("last event %+v", events()[len(events())-1])
	}
	tool := &shellTool{runner: runnerFunc(func(ctx context.Context, _ Command) (Result, error) { return Result{}, nil }), opts: Options{Mount: "/workspace", Timeout: time.Second}}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := tool.Execute(ctx, &tools.Call{Input: []byte(`{"command":"ls"}`), Delta: func(string, string) {}}); !errors.Is(err, cause) {
		t.Errorf("the error %v doesn't wrap the cause", err)
	}
}

func TestSandboxFailuresEndTheRun(t *testing.T) {
	for _, sentinel := range []error{tools.ErrSandboxStart, tools.ErrSandboxLost} {
		d, _ := dispatcherFor(t, runnerFunc(func(context.Context, Command) (Result, error) {
			return Result{Stdout: wholeCapture([]byte("until then"))}, fmt.Errorf("guest: %w", sentinel)
		}), Options{})
		results, err := d.Round(t.Context(), shellCalls(`{"command":"ls"}`))
		if !errors.Is(err, sentinel) || !results[0].IsError || !strings.Contains(resultText(results[0]), "until then") {
			t.Errorf("round ends with %v and %q", err, resultText(results[0]))
		}
	}
}

// The command's timeout expires before the dispatcher's, however long the grace
// period is, so that the model sees an exit and not an abandoned call.
func TestOwnTimeoutComesFirst(t *testing.T) {
	for _, grace := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			d, events := dispatcherFor(t, runnerFunc(func(ctx context.Context, cmd Command) (Result, error) {
				const killAndProof = 40 * time.Second
				select {
				case <-time.After(cmd.Timeout + max(grace, sandbox.DefaultGrace) + killAndProof):
					return Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, TimedOut: true}}}, nil
				case <-ctx.Done():
					return Result{}, context.Cause(ctx)
				}
			}), Options{Grace: grace})
			results, err := d.Round(t.Context(), shellCalls(`{"command":"sleep 1000000"}`))
			if err != nil || results[0].Class != "" || !strings.Contains(resultText(results[0]), "timed out after 600 s") {
				t.Errorf("grace %v: %v, class %q, text %q", grace, err, results[0].Class, resultText(results[0]))
			}
			if done, ok := events()[len(events())-1].(dispatch.Completed); !ok || done.Success || done.Metadata["timed_out"] != true {
				t.Errorf("grace %v: last event %+v", grace, events()[len(events())-1])
			}
		})
	}
}

func TestLiveOutputReachesTheEvents(t *testing.T) {
	d, events := dispatcherFor(t, hostRunner{t.TempDir()}, Options{})
	if _, err := d.Round(t.Context(), shellCalls(`{"command":"echo out; echo err >&2"}`)); err != nil {
		t.Fatal(err)
	}
	streams := map[string]string{}
	for _, ev := range events() {
		if delta, ok := ev.(dispatch.OutputDelta); ok {
			streams[delta.Stream] += delta.Text
		}
	}
	if diff := cmp.Diff(map[string]string{"stdout": "out\n", "stderr": "err\n"}, streams); diff != "" {
		t.Errorf("live output (-want +got):\n%s", diff)
	}
}

func TestDescriptionFollowsTheOptions(t *testing.T) {
	d, _ := dispatcherFor(t, hostRunner{}, Options{Mount: "/src", Timeout: 90 * time.Second})
	def := d.Definitions()[0]
	for _, part := range []string{"/src", "without network"} {
		if !strings.Contains(def.Description, part) {
			t.Errorf("description lacks %q: %s", part, def.Description)
		}
	}
	if !strings.Contains(string(def.InputSchema), `"maximum": 90`) || def.Timeout != 140*time.Second || def.Class != tools.ClassExecute || def.Runs != tools.PlaceSandbox {
		t.Errorf("definition %+v", def)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	if _, err := New(nil, Options{}); err == nil {
		t.Error("no runner is accepted")
	}
	if _, err := New(hostRunner{}, Options{Timeout: time.Millisecond}); err == nil {
		t.Error("a timeout of a millisecond is accepted")
	}
	if _, err := New(hostRunner{}, Options{Grace: -time.Second}); err == nil {
		t.Error("a negative grace period is accepted")
	}
}
