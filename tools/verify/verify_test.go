package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a dispatcher with the tools, and a workspace in a real directory.
type fixture struct {
	t    *testing.T
	root string
	d    *dispatch.Dispatcher
}

func newFixture(t *testing.T, r commandRunner) *fixture {
	t.Helper()
	f := &fixture{t: t, root: filepath.Join(t.TempDir(), "ws")}
	outside := filepath.Join(filepath.Dir(f.root), "outside")
	for path, text := range map[string]string{
		filepath.Join(f.root, "hello.txt"): "Hello, world\n", filepath.Join(f.root, "sub", "data.json"): `{"n": 3, "list": ["a"]}`,
		filepath.Join(f.root, "empty"): "", filepath.Join(outside, "canary"): "canary",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../outside/canary", filepath.Join(f.root, "link")), os.Truncate(filepath.Join(f.root, "empty"), 0)); err != nil {
		t.Fatal(err)
	}
	dir, err := workspace.OpenDir(f.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	view, err := workspace.NewReader(dir, workspace.ReaderOptions{ContainerPath: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := policy.Preset("sandboxed")
	if err != nil {
		t.Fatal(err)
	}
	f.d, err = dispatch.New(dispatch.Options{Policy: policy, Emit: func(dispatch.Event) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.d.Close(context.WithoutCancel(t.Context())) })
	all := []tools.Factory{New(Options{View: view})}
	if r != nil {
		sh, err := NewShell(r, Options{View: view, CommandTime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sh)
	}
	for _, one := range all {
		if err := f.d.Register(one); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// call makes one call with checks written as JSON.
func (f *fixture) call(name tools.Name, checks string) tools.Result {
	f.t.Helper()
	got, err := f.d.Round(f.t.Context(), []tools.Call{{ID: "tu_1", Name: name, Input: json.RawMessage(`{"checks":[` + checks + `]}`)}})
	if err != nil {
		f.t.Fatal(err)
	}
	return got[0]
}

// report makes a call that must complete, and returns its report.
func (f *fixture) report(name tools.Name, checks string) Report {
	f.t.Helper()
	got := f.call(name, checks)
	var r Report
	if err := json.Unmarshal([]byte(got.Content[0].Text), &r); err != nil || got.Class != "" || got.IsError == r.AllPassed {
		f.t.Fatalf("%s: %+v, %v", checks, got, err)
	}
	return r
}

func TestChecks(t *testing.T) {
	f := newFixture(t, nil)
	const sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"
	for _, tt := range []struct {
		check, reason string
		passed        bool
	}{
		{`{"kind":"contains","target_text":"a total of 3","value":"total"}`, `"total" is in it`, true},
		{`{"kind":"contains","target_text":"a total of 3","value":"Total"}`, `"Total" is not in it`, false},
		{`{"kind":"contains","target_text":"a total of 3","value":"TOTAL","case_insensitive":true}`, `"TOTAL" is in it`, true},
		{`{"kind":"contains","path":"hello.txt","value":"world"}`, `"world" is in it`, true},
		{`{"kind":"contains","path":"/workspace/hello.txt","value":"world"}`, `"world" is in it`, true},
		{`{"kind":"contains","target_text":"","value":"x"}`, `"x" is not in it`, false},
		{`{"kind":"contains","target_text":"x","value":""}`, "value is empty, which every text contains", false},
		{`{"kind":"contains","target_text":"x","value":3}`, "value must be a string", false},
		{`{"kind":"contains","target_text":"x"}`, "needs value", false},
		{`{"kind":"contains","value":"x"}`, "needs target_text or path", false},
		{`{"kind":"contains","value":"x","target_text":"x","path":"hello.txt"}`, "give target_text or path, not both", false},
		{`{"kind":"contains","path":"missing","value":"x"}`, `"missing": no such file or directory`, false},
		{`{"kind":"contains","path":"sub","value":"x"}`, `"sub": is a directory, not a file`, false},
		{`{"kind":"not_contains","target_text":"abc","value":"x"}`, `"x" is not in it`, true},
		{`{"kind":"not_contains","target_text":"abc","value":"b"}`, `"b" is in it`, false},
		{`{"kind":"not_contains","path":"missing","value":"b"}`, `"missing": no such file or directory`, false},
		{`{"kind":"contains_any","target_text":"abc","values":["x","b"]}`, `"b" is in it`, true},
		{`{"kind":"contains_any","target_text":"abc","values":["x","y"]}`, "none of 2 values is in it", false},
		{`{"kind":"contains_all","target_text":"abc","values":["a","b"]}`, "all 2 values are in it", true},
		{`{"kind":"contains_all","target_text":"abc","values":["a","x","y"]}`, `not in it: "x", "y"`, false},
		{`{"kind":"contains_all","target_text":"abc"}`, "needs values, at least one", false},
		{`{"kind":"contains_all","target_text":"abc","values":[""]}`, "one of values is empty, which every text contains", false},
		{`{"kind":"contains_all","target_text":"abc","value":"a","values":["a"]}`, "value means nothing for contains_all", false},
		{`{"kind":"regex_match","path":"hello.txt","value":"^hello.*d$","case_insensitive":true}`, "no match", false},
		{`{"kind":"regex_match","path":"hello.txt","value":"(?m)^hello.*d$","case_insensitive":true}`, `matches "Hello, world"`, true},
		{`{"kind":"regex_match","target_text":"abc","value":"(b"}`, "bad pattern (RE2 syntax): error parsing regexp: missing closing ): `(b`", false},
		{`{"kind":"regex_match","target_text":"abc","value":"(?=b)"}`, "bad pattern (RE2 syntax): error parsing regexp: invalid or unsupported Perl syntax: `(?=`", false},
		{`{"kind":"min_length","target_text":"übung","value":5}`, "5 characters, at least 5 are needed", true},
		{`{"kind":"min_length","target_text":"übung","value":6}`, "5 characters, at least 6 are needed", false},
		{`{"kind":"min_length","target_text":"x","value":"6"}`, "needs value, a whole number", false},
		{`{"kind":"min_length","target_text":"x","value":-1}`, "value must be a whole number of at least 0", false},
		{`{"kind":"min_length","target_text":"x","value":1,"case_insensitive":true}`, "case_insensitive means nothing for min_length", false},
		{`{"kind":"json_schema","path":"sub/data.json","schema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}`, "valid", true},
		{`{"kind":"json_schema","path":"sub/data.json","schema":{"required":["m"],"properties":{"n":{"type":"string"}}}}`, `/: missing property "m"; /n: got number, want string`, false},
		{`{"kind":"json_schema","target_text":"{","schema":{}}`, "not JSON: unexpected EOF", false},
		{`{"kind":"json_schema","target_text":"1 2","schema":{}}`, "not JSON: more data after the value", false},
		{`{"kind":"json_schema","target_text":"1","schema":false}`, "/: no value is accepted here", false},
		{`{"kind":"json_schema","target_text":"1"}`, "needs schema", false},
		{`{"kind":"json_schema","target_text":"1","schema":{"type":"nonsense"}}`, "the schema can't be used: ", false},
		{`{"kind":"json_schema","target_text":"1","schema":{"$ref":"#"}}`, "the schema can't be used: /: leads back to itself", false},
		{`{"kind":"json_schema","target_text":"1","schema":{"allOf":[{"$ref":"file:///etc/passwd"}]}}`, "the schema can't be used: /allOf/0/$ref: leads to another document", false},
		{`{"kind":"json_schema","target_text":"{\"$ref\":1}","schema":{"properties":{"$ref":{"type":"integer"}},"required":["$ref"]}}`, "valid", true},
		{`{"kind":"sha256","target_text":"hello","value":"` + strings.ToUpper(sum) + `"}`, "the SHA-256 is " + sum, true},
		{`{"kind":"sha256","target_text":"hellO","value":"` + sum + `"}`, "the SHA-256 is ", false},
		{`{"kind":"sha256","path":"empty","value":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`, "the SHA-256 is e3b0c", true},
		{`{"kind":"sha256","path":"missing","value":"` + sum + `"}`, `"missing": no such file or directory`, false},
		{`{"kind":"sha256","target_text":"hello","value":"abc"}`, "value must be 64 hexadecimal digits", false},
		{`{"kind":"file_exists","path":"hello.txt"}`, "a file of 13 bytes", true},
		{`{"kind":"file_exists","path":"sub"}`, "it is there, and is no file but dir", false},
		{`{"kind":"file_exists","path":"missing"}`, `"missing": no such file or directory`, false},
		{`{"kind":"file_exists"}`, "needs path", false},
		{`{"kind":"file_exists","path":"hello.txt","target_text":"x"}`, "target_text means nothing for file_exists", false},
	} {
		r := f.report(Name, tt.check)
		got := r.Results[0]
		if got.Passed != tt.passed || !strings.HasPrefix(got.Reason, tt.reason) || r.AllPassed != tt.passed || got.ID != "check1" {
			t.Errorf("%s\n is %v, %q\nwant %v, %q", tt.check, got.Passed, got.Reason, tt.passed, tt.reason)
		}
	}
}

func TestReport(t *testing.T) {
	f := newFixture(t, nil)
	r := f.report(Name, `{"kind":"contains","target_text":"a<b","value":"<"},{"kind":"file_exists","id":"x","path":"no"},{"kind":"min_length","target_text":"","value":0}`)
	want := Report{
		Tool: "verify", Run: 3, Summary: "2 of 3 checks passed",
		Results: []Result{
			{ID: "check1", Kind: "contains", Passed: true, Reason: `"<" is in it`},
			{ID: "x", Kind: "file_exists", Reason: r.Results[1].Reason},
			{ID: "check3", Kind: "min_length", Passed: true, Reason: "0 characters, at least 0 are needed"},
		},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInvalid checks which inputs the schema refuses: above all no checks, and
// commands in verify.
func TestInvalid(t *testing.T) {
	f := newFixture(t, nil)
	for _, checks := range []string{
		``, `{}`, `{"kind":"nonsense"}`, `{"kind":"Contains"}`, `3`, `{"kind":"contains","target_text":3,"value":"x"}`, `{"kind":"contains","extra":1}`,
		`{"kind":"contains","value":["x"]}`, `{"kind":"shell","cmd":"true"}`, `{"kind":"contains","cmd":"true"}`, `{"kind":"contains_any","values":"x"}`,
		strings.TrimSuffix(strings.Repeat(`{"kind":"file_exists","path":"x"},`, maxChecks+1), ","),
	} {
		if got := f.call(Name, checks); got.Class != tools.ErrorValidation {
			t.Errorf("%.80s: %+v", checks, got)
		}
	}
	for _, top := range []string{`{}`, `{"checks":[{"kind":"file_exists","path":"x"}],"allow_shell":true}`, `{"checks":null}`} {
		got, err := f.d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: Name, Input: json.RawMessage(top)}})
		if err != nil || got[0].Class != tools.ErrorValidation {
			t.Errorf("%s: %+v, %v", top, got, err)
		}
	}
	if got := f.call(Name, `{"kind":"contains","path":"../outside/canary","value":"canary"}`); got.Class != tools.ErrorPermissionDenied {
		t.Errorf("path outside the workspace: %+v", got)
	}
	r := f.report(Name, `{"kind":"contains","path":"link","value":"canary"},{"kind":"file_exists","path":"link"},{"kind":"sha256","path":"link","value":"`+strings.Repeat("0", 64)+`"}`)
	for _, one := range r.Results {
		if one.Passed || strings.Contains(one.Reason, "is in it") || strings.Contains(one.Reason, "SHA-256") {
			t.Errorf("symlink to the outside: %+v", one)
		}
	}
}

// TestCosts checks small inputs that could take very long: each is refused or
// ends, and none passes.
func TestCosts(t *testing.T) {
	f := newFixture(t, nil)
	if err := os.WriteFile(filepath.Join(f.root, "long"), []byte(strings.Repeat("a", maxTextBytes)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(f.root, "huge"), nil, 0o644), os.Truncate(filepath.Join(f.root, "huge"), 1<<40)); err != nil {
		t.Fatal(err)
	}
	numbers := "[" + strings.TrimSuffix(strings.Repeat("1,", 100_000), ",") + "]"
	if err := os.WriteFile(filepath.Join(f.root, "numbers"), []byte(numbers), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.root, "text"), []byte(`"`+strings.Repeat("a", 4_000_000)+`"`), 0o644); err != nil {
		t.Fatal(err)
	}
	consts := strings.TrimSuffix(strings.Repeat(`{"const":"x"},`, 600), ",")
	many := `{"items":{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"type":"string"},`, 500), ",") + `]}}`
	for check, reason := range map[string]string{
		`{"kind":"regex_match","path":"long","value":"(?:a?){999}z"}`:                                                    "the pattern is too large",
		`{"kind":"regex_match","path":"long","value":"((a*)*)*b"}`:                                                       "",
		`{"kind":"regex_match","target_text":"a","value":"(x{1000}){1000}"}`:                                             "bad pattern",
		`{"kind":"contains","path":"huge","value":"x"}`:                                                                  "the file is larger than 4 MiB",
		`{"kind":"sha256","path":"huge","value":"` + strings.Repeat("0", 64) + `"}`:                                      "the file is larger than 256 MiB",
		`{"kind":"json_schema","target_text":"[1e999999]","schema":{"items":{"minimum":0}}}`:                             "the JSON holds a number 1e999999 is out of range",
		`{"kind":"json_schema","target_text":"` + strings.Repeat("9", 101) + `","schema":{"multipleOf":7}}`:              "the JSON holds a number 999",
		`{"kind":"json_schema","path":"numbers","schema":` + many + `}`:                                                  "/: the schema takes more than",
		`{"kind":"json_schema","path":"text","schema":{"pattern":"(?:a?){999}z"}}`:                                       "/: the schema takes more than",
		`{"kind":"json_schema","path":"text","schema":{"allOf":[` + consts + `]}}`:                                       `/: value must be "x"`,
		`{"kind":"json_schema","target_text":"` + strings.Repeat("[", 20_000) + `","schema":{}}`:                         "not JSON",
		`{"kind":"json_schema","target_text":"` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `","schema":{}}`: "the JSON is nested deeper than 100",
	} {
		got := f.report(Name, check).Results[0]
		if got.Passed || !strings.HasPrefix(got.Reason, reason) {
			t.Errorf("%.100s: %+v, want %q", check, got, reason)
		}
	}
}

// fakeRunner returns the outcome of each command from a table.
type fakeRunner struct {
	answers map[string]Ended
	err     error
	ran     []Command
}

func (s *fakeRunner) RunCheck(_ context.Context, c Command) (Ended, error) {
	s.ran = append(s.ran, c)
	return s.answers[c.Script], s.err
}

func TestShell(t *testing.T) {
	s := &fakeRunner{answers: map[string]Ended{
		"true": {}, "false": {Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}}, Stdout: "why not"}, "three": {Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 3}}, Stdout: "three"}, "slow": {Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, TimedOut: true, Signal: 15}}},
		"oom": {Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, OOMKilled: true}}}, "killed": {Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9}}}, "long": {Stdout: "beginning", Cut: true},
	}}
	f := newFixture(t, s)
	for _, tt := range []struct {
		check, reason string
		passed        bool
		code          int // -1 is none
	}{
		{`{"kind":"shell","cmd":"true"}`, "exit code 0", true, 0},
		{`{"kind":"shell","cmd":"false"}`, `exit code 1, expected 0; standard output begins: "why not"`, false, 1},
		{`{"kind":"shell","cmd":"three","expect_exit":3,"expect_stdout_contains":"thr"}`, "exit code 3", true, 3},
		{`{"kind":"shell","cmd":"three","expect_exit":3.0,"expect_stdout_contains":"four"}`, `exit code 3, and "four" is not in its standard output`, false, 3},
		{`{"kind":"shell","cmd":"long","expect_stdout_contains":"x"}`, `exit code 0, and "x" is not in its standard output, of which only`, false, 0},
		{`{"kind":"shell","cmd":"slow","timeout_seconds":2}`, "timed out after 2s", false, -1},
		{`{"kind":"shell","cmd":"oom"}`, "ended: out of memory", false, -1},
		{`{"kind":"shell","cmd":"killed"}`, "killed by signal 9 (SIGKILL)", false, -1},
		{`{"kind":"shell"}`, "needs cmd", false, -1},
		{`{"kind":"shell","cmd":"true","path":"x"}`, "path means nothing for shell", false, -1},
		{`{"kind":"file_exists","path":"hello.txt"}`, "a file of 13 bytes", true, -1},
		{`{"kind":"file_exists","path":"hello.txt","expect_exit":1}`, "expect_exit means nothing for file_exists", false, -1},
	} {
		r := f.report(ShellName, tt.check)
		got, code := r.Results[0], -1
		if got.ExitCode != nil {
			code = *got.ExitCode
		}
		if got.Passed != tt.passed || !strings.HasPrefix(got.Reason, tt.reason) || code != tt.code || r.Tool != "verify_shell" {
			t.Errorf("%s: %+v, exit code %d, want %+v", tt.check, got, code, tt)
		}
	}
	if s.ran[0].Timeout <= 50*time.Second || s.ran[0].Timeout > time.Minute {
		t.Errorf("timeout of a command without one is %v", s.ran[0].Timeout)
	}
	s.err = tools.ErrSandboxLost
	_, err := f.d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: ShellName, Input: json.RawMessage(`{"checks":[{"kind":"file_exists","path":"hello.txt"},{"kind":"shell","cmd":"true"}]}`)}})
	if !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("lost sandbox: %v", err)
	}
}

func TestShellIsCancelled(t *testing.T) {
	why := fmt.Errorf("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	e := engine{runner: cancelRunner(func(ctx context.Context) { cancel(why); <-ctx.Done() }), commandTime: time.Minute}
	r, err := e.runChecks(ctx, "verify_shell", []check{{Kind: kindShell, Command: "a"}, {Kind: kindShell, Command: "b"}})
	if !errors.Is(err, why) || r.AllPassed || len(r.Results) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// cancelRunner is a commandRunner that returns when its context ends.
type cancelRunner func(ctx context.Context)

func (s cancelRunner) RunCheck(ctx context.Context, _ Command) (Ended, error) {
	s(ctx)
	return Ended{}, nil
}

// TestCommandsShareTheirTime checks that the commands of a call share one limit
// of time.
func TestCommandsShareTheirTime(t *testing.T) {
	s := &fakeRunner{answers: map[string]Ended{}}
	e := engine{runner: s, commandTime: 1500 * time.Millisecond}
	left := e.commandTime
	if r, err := e.checkShell(t.Context(), check{Kind: kindShell, Command: "a"}, &left); err != nil || !r.Passed || s.ran[0].Timeout > e.commandTime {
		t.Errorf("%+v, %v, %v", r, err, s.ran)
	}
	left = 0
	if r, err := e.checkShell(t.Context(), check{Kind: kindShell, Command: "a"}, &left); err != nil || r.Passed || !strings.HasPrefix(r.Reason, "not run: ") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestDefinitions(t *testing.T) {
	f := newFixture(t, &fakeRunner{})
	plain, _ := f.d.Lookup("verify")
	sh, _ := f.d.Lookup("verify_shell")
	if plain.Class != tools.ClassRead || plain.Runs != tools.PlaceHost || sh.Class != tools.ClassExecute || sh.Runs != tools.PlaceSandbox {
		t.Errorf("%v %v, %v %v", plain.Class, plain.Runs, sh.Class, sh.Runs)
	}
	if strings.Contains(string(plain.InputSchema), "cmd") || strings.Contains(string(plain.InputSchema), kindShell) {
		t.Error("verify offers commands")
	}
	raw := json.RawMessage(`{"checks":[{"kind":"shell","cmd":"make test"},{"kind":"file_exists","path":"a"}]}`)
	if got := sh.Summary(raw); got != "2 checks: make test" {
		t.Errorf("summary %q", got)
	}
	two := json.RawMessage(`{"checks":[{"kind":"shell","cmd":"git status"},{"kind":"shell","cmd":"rm -rf /"}]}`)
	if diff := cmp.Diff([]string{"git status", "rm -rf /"}, sh.Commands(two)); diff != "" || plain.Commands != nil {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a"}, sh.Paths(raw)); diff != "" {
		t.Error(diff)
	}
	for name, err := range map[string]error{"no runner": second(NewShell(nil, Options{}))} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }
