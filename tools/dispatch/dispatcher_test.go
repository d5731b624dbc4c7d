package dispatch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestLookupTakesBothForms(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")},
		fakeTool{def: testDefinition("srv/do_it", tools.ClassRead)}, fakeTool{def: testDefinition("read_file", tools.ClassRead)})
	for name, want := range map[string]tools.Name{"srv/do_it": "srv/do_it", "srv__do_it": "srv/do_it", "read_file": "read_file"} {
		if def, ok := d.Lookup(name); !ok || def.Name != want {
			t.Errorf("Lookup(%q) gives %q, %t, want %q", name, def.Name, ok, want)
		}
		if r := roundOK(t, d, call("c", name, `{}`))[0]; r.Name != want {
			t.Errorf("a call of %q is recorded as %q, want %q", name, r.Name, want)
		}
	}
	if !d.Unregister("srv__do_it") || d.Unregister("srv/do_it") {
		t.Error("Unregister takes either form, once")
	}
	if _, ok := d.Lookup("srv__do_it"); ok {
		t.Error("an unregistered tool is still found")
	}
	if err := d.Register(fakeTool{def: testDefinition("srv/do_it", tools.ClassRead)}.factory()); err != nil {
		t.Errorf("a name that was given back is refused: %v", err)
	}
}

func TestDefinitionsAreFilteredAndFilled(t *testing.T) {
	off, admin := testDefinition("confer", tools.ClassNone), testDefinition("admin_tool", tools.ClassRead)
	off.EnabledByDefault, admin.RequiresAdmin = false, true
	all := []fakeTool{{def: off}, {def: admin}, {def: testDefinition("write_file", tools.ClassWrite)}, {def: testDefinition("shell", tools.ClassExecute)}}
	names := func(d *Dispatcher) (list []tools.Name) {
		for _, def := range d.Definitions() {
			list = append(list, def.Name)
		}
		return list
	}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed")}, all...)
	if diff := cmp.Diff([]tools.Name{"shell", "write_file"}, names(d)); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	for _, name := range []string{"confer", "admin_tool"} {
		r := roundOK(t, d, call("c_"+name, name, `{}`))[0]
		wantText(t, r, true, `Tool "`+name+`" is not permitted in this session.`)
		wantEvents(t, rec, "c_"+name, "failed permission_denied")
	}
	open := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "sandboxed"), Allow: func(tools.Definition) bool { return true }}, all...)
	if diff := cmp.Diff([]tools.Name{"admin_tool", "confer", "shell", "write_file"}, names(open)); diff != "" {
		t.Errorf("offered to an administrator (-want +got):\n%s", diff)
	}
	want := map[tools.Name]time.Duration{"admin_tool": time.Minute, "confer": time.Minute, "write_file": time.Minute, "shell": 10 * time.Minute}
	for _, def := range open.Definitions() {
		if def.Timeout != want[def.Name] || def.ResultBytes != tools.DefaultResultBytes {
			t.Errorf("%s has timeout %v and %d result bytes", def.Name, def.Timeout, def.ResultBytes)
		}
	}
}

func TestRulesThatMatchNoTool(t *testing.T) {
	rules := preset(t, "default")
	rules.Tools = map[string]policy.Mode{
		"shell": policy.ModeDeny, "shel": policy.ModeDeny, "srv/*": policy.ModeDeny, "srv__do_it": policy.ModeDeny, "srv/do_it": policy.ModeDeny, "other/*": policy.ModeDeny, "shell/*": policy.ModeDeny, "/*": policy.ModeDeny,
	}
	d := newDispatcher(t, &recorder{}, Options{Policy: rules},
		fakeTool{def: testDefinition("shell", tools.ClassExecute)}, fakeTool{def: testDefinition("srv/do_it", tools.ClassRead)})
	if diff := cmp.Diff([]string{"/*", "other/*", "shel", "shell/*"}, d.UnmatchedRules()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	emit := func(Event) error { return nil }
	for name, opts := range map[string]Options{
		"no Emit":              {},
		"bad OnPrompt":         {Emit: emit, OnPrompt: "ask"},
		"bad mode":             {Emit: emit, Policy: policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassRead: "yes"}}},
		"bad class":            {Emit: emit, Policy: policy.Policy{RelaxedModes: map[tools.Class]policy.Mode{"READ": policy.ModeAuto}}},
		"bad tool mode":        {Emit: emit, Policy: policy.Policy{Tools: map[string]policy.Mode{"shell": ""}}},
		"relative trust":       {Emit: emit, Policy: policy.Policy{RelaxedWorkspaces: []string{"src"}}},
		"negative concurrency": {Emit: emit, Concurrency: -1},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
