package shell

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

// approver approves every confirmation, and calls a function first.
type approver struct {
	asked  []approval.Confirmation
	before func() error
	err    error
}

func (a *approver) Approve(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
	a.asked = append(a.asked, c)
	if len(a.asked) == 1 && a.before != nil {
		a.err = a.before()
	}
	return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, nil
}

// TestWhatRunsIsWhatWasApproved exchanges a script or a directory during an
// approval, which must be requested again. A directory that has become a symlink
// is not entered. The control changes a file that the approval doesn't cover.
func TestWhatRunsIsWhatWasApproved(t *testing.T) {
	for name, tc := range map[string]struct {
		input  string
		before func(dir string) error
		asked  int
		covers string
		links  bool
	}{
		"script":        {`{"command":"sh run.sh"}`, func(d string) error { return os.WriteFile(d+"/run.sh", []byte("rm x"), 0o600) }, 2, "run.sh", false},
		"script in cwd": {`{"command":"sh run.sh","cwd":"sub"}`, func(d string) error { return os.WriteFile(d+"/sub/run.sh", []byte("rm x"), 0o600) }, 2, "sub/run.sh", true},
		"cwd becomes a symlink": {`{"command":"ls","cwd":"/workspace/sub"}`, func(d string) error {
			return errors.Join(os.Rename(d+"/sub", d+"/old"), os.Symlink("twin", d+"/sub"))
		}, 2, "", true},
		"control": {`{"command":"sh run.sh","cwd":"sub"}`, func(d string) error { return os.WriteFile(d+"/run.sh", []byte("rm x"), 0o600) }, 1, "sub/run.sh", true},
	} {
		dir := t.TempDir()
		for _, file := range []string{"run.sh", "sub/run.sh", "twin/run.sh"} {
			at := filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte("echo "+file), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }() // only read
		view, err := workspace.NewReader(root, workspace.ReaderOptions{ContainerPath: "/workspace"})
		if err != nil {
			t.Fatal(err)
		}
		var ran []Command
		factory, err := New(runnerFunc(func(_ context.Context, cmd Command) (Result, error) {
			ran = append(ran, cmd)
			return Result{}, nil
		}), Options{View: view})
		if err != nil {
			t.Fatal(err)
		}
		who := &approver{before: func() error { return tc.before(dir) }}
		broker := approval.NewBroker(approval.BrokerOptions{})
		defer broker.Attach("test", who)()
		policy, err := policy.Preset("strict")
		if err != nil {
			t.Fatal(err)
		}
		d, err := dispatch.New(dispatch.Options{Policy: policy, Broker: broker, Emit: func(dispatch.Event) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Register(factory); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Round(t.Context(), []tools.Call{{ID: "a", Name: Name, Input: json.RawMessage(tc.input)}}); err != nil || who.err != nil {
			t.Fatal(name, err, who.err)
		}
		if len(who.asked) != tc.asked || len(ran) != 1 || ran[0].NoLinks != tc.links {
			t.Errorf("%s: asked %d times, want %d; ran %+v", name, len(who.asked), tc.asked, ran)
		}
		if covers := who.asked[0].Covers; tc.covers != "" && (len(covers) != 1 || covers[0] != tc.covers) {
			t.Errorf("%s: the answer covers %q, want %q", name, covers, tc.covers)
		}
		for i, c := range who.asked {
			if c.Changed != (i > 0) {
				t.Errorf("%s: question %d says changed %t", name, i, c.Changed)
			}
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestDeclaredApprovalCoversScripts checks that the approval of a declared tool
// covers the scripts of its command, as for the shell tool.
func TestDeclaredApprovalCoversScripts(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/run.sh", nil, 0o600), os.Mkdir(dir+"/sub", 0o700), os.WriteFile(dir+"/sub/run.sh", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }() // only read
	view, err := workspace.NewReader(root, workspace.ReaderOptions{ContainerPath: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	project := func(d Declared, input string) (tools.Projection, error) {
		t.Helper()
		d.Name = "probe"
		d.Description = "A probe."
		d.InputSchema = json.RawMessage(oneArgument)
		factory, err := NewDeclared(noRunner, d, Options{View: view})
		if err != nil {
			t.Fatal(err)
		}
		return factory().(tools.Projector).Project(t.Context(), &tools.Call{ID: "a", Name: "probe", Input: json.RawMessage(input)})
	}
	for want, declared := range map[string][]Declared{
		"run.sh": {
			{Template: Template{Argv: []string{"./run.sh"}}},
			{Template: Template{Argv: []string{"sh", "{{file}}"}}},
			{Template: Template{Script: "ls; sh run.sh"}},
		},
		"sub/run.sh": {
			{Template: Template{Argv: []string{"./run.sh"}}, Dir: "sub"},
			{Template: Template{Script: "sh run.sh"}, Dir: "sub"},
		},
	} {
		for _, d := range declared {
			shown, err := project(d, `{"file":"run.sh"}`)
			if err != nil || !slices.Equal(shown.Covers, []string{want}) || shown.State == "" {
				t.Errorf("%+v covers %q, want %q, %v", d, shown.Covers, want, err)
			}
		}
	}
	shell, err := New(noRunner, Options{View: view})
	if err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{`{"command":"sh run.sh","cwd":"../other"}`, `{"command":1}`} {
		if shown, err := shell().(tools.Projector).Project(t.Context(), &tools.Call{Input: json.RawMessage(input)}); err == nil {
			t.Errorf("%s is refused when it is run, and projected as %+v", input, shown)
		}
	}
	for _, input := range []string{`{"file":{}}`, `{"file":"--help"}`} {
		if shown, err := project(Declared{Template: Template{Argv: []string{"sh", "{{file}}"}}}, input); err == nil || shown.State != "" {
			t.Errorf("%s is refused when it is run, and projected as %+v", input, shown)
		}
	}
}
