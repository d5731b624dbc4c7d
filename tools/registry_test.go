package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type emptyTool struct{}

func (emptyTool) Definition() Definition { return testDefinition("empty", ClassNone) }

func (emptyTool) Execute(context.Context, *Call) (Output, error) { return Output{Success: true}, nil }

// byteTool is a tool with the least state.
type byteTool struct {
	emptyTool
	_ byte
}

// mapTool is a tool whose state is a map.
type mapTool map[string]int

func (mapTool) Definition() Definition { return testDefinition("empty", ClassNone) }

func (mapTool) Execute(context.Context, *Call) (Output, error) { return Output{Success: true}, nil }

// alternating is a factory that makes the tools in turn.
func alternating(tools ...Tool) Factory {
	made := 0
	return func() Tool {
		made++
		return tools[(made-1)%len(tools)]
	}
}

func TestRegistrationRefuses(t *testing.T) {
	with := func(change func(*Definition)) Factory {
		def := testDefinition("probe", ClassRead)
		change(&def)
		return fakeTool{def: def}.factory()
	}
	singleton := &fakeTool{def: testDefinition("probe", ClassRead)}
	tests := []struct {
		name    string
		factory Factory
		want    string // "" where it is accepted
	}{
		{"good", with(func(*Definition) {}), ""},
		{"a type without fields has no state to share", func() Tool { return &emptyTool{} }, ""},
		{"a value is a copy", func() Tool { return emptyTool{} }, ""},
		{"no factory", nil, "factory is nil"},
		{"nil tool", func() Tool { return nil }, "factory gives nil"},
		{"panic", func() Tool { panic("boom") }, "factory or definition panics"},
		{"singleton", func() Tool { return singleton }, "factory gives the same object twice"},
		{"nil tool later", alternating(emptyTool{}, nil), "factory gives nil"},
		{"singleton of one byte", alternating(new(byteTool)), "factory gives the same object twice"},
		{"singleton of a map", alternating(mapTool{}), "factory gives the same object twice"},
		{"maps", func() Tool { return mapTool{} }, ""},
		{"tools of two types", alternating(emptyTool{}, new(byteTool)), ""},
		{"bad name", with(func(d *Definition) { d.Name = "read__file" }), "must be snake_case"},
		{"no description", with(func(d *Definition) { d.Description = "" }), "description is missing"},
		{"no class", with(func(d *Definition) { d.Class = "" }), `class is ""`},
		{"no place", with(func(d *Definition) { d.Runs = "" }), `place is ""`},
		{"write on the host", with(func(d *Definition) { d.Class = ClassWrite }), "must run in the sandbox"},
		{"execute on the host", with(func(d *Definition) { d.Class = ClassExecute }), "must run in the sandbox"},
		{"state of another's", with(func(d *Definition) { d.Class, d.Runs = ClassWrite, PlaceState }), "only the memory tools keep state on the host"},
		{"state of ours", with(func(d *Definition) { d.Name, d.Class, d.Runs, d.Paths = "memory_add", ClassWrite, PlaceState, nil }), ""},
		{"state that names paths", with(func(d *Definition) {
			d.Name, d.Class, d.Runs = "memory_add", ClassWrite, PlaceState
			d.Paths = func(json.RawMessage) []string { return nil }
		}), "name no path of a workspace"},
		{"state that executes", with(func(d *Definition) { d.Name, d.Class, d.Runs = "memory_add", ClassExecute, PlaceState }), "only the memory tools"},
		{"state that only reads", with(func(d *Definition) { d.Name, d.Runs = "memory_add", PlaceState }), "only the memory tools"},
		{"parallel read", with(func(d *Definition) { d.Parallel = true }), "only an execute tool can be parallel"},
		{"negative timeout", with(func(d *Definition) { d.Timeout = -1 }), "timeout is negative"},
		{"least timeout", with(func(d *Definition) { d.Timeout = 1 }), ""},
		{"negative result bound", with(func(d *Definition) { d.ResultBytes = -1 }), "result bound is negative"},
		{"least result bound", with(func(d *Definition) { d.ResultBytes = 1 }), ""},
		{"schema outside the subset", with(func(d *Definition) {
			d.InputSchema = json.RawMessage(`{"type":"object","properties":{"a":{"oneOf":[]}}}`)
		}), "/properties/a/oneOf: keyword is not allowed in tool schemas"},
		{"alias of nothing", with(func(d *Definition) { d.Aliases = map[string]string{"p": "q"} }), `alias "p" leads to "q", which is not a property`},
		{"alias that is a property", with(func(d *Definition) { d.Aliases = map[string]string{"text": "path"} }), "/properties/text: is also an alias"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r registry
			err := r.add(tt.factory)
			if tt.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var re *RegistrationError
			if tt.name == "panic" && (errors.Unwrap(err) == nil || errors.Unwrap(err).Error() != "panic: boom") {
				t.Errorf("the cause is %v", errors.Unwrap(err))
			}
			if check := CheckFactory(tt.factory); check == nil || check.Error() != err.Error() {
				t.Errorf("CheckFactory gives %v", check)
			}
			if !errors.As(err, &re) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %v, want a *RegistrationError with %q", err, tt.want)
			}
			if len(r.all()) != 0 {
				t.Errorf("a tool that was refused is registered")
			}
		})
	}
}

func TestNamesCollideUnderBothForms(t *testing.T) {
	tests := []struct{ first, second string }{
		{"shell", "shell"}, {"srv/a", "srv/a"}, {"srv/a/b", "srv/a__b"}, {"a/b__c", "a/b/c"},
	}
	for _, tt := range tests {
		var r registry
		if err := r.add(fakeTool{def: testDefinition(tt.first, ClassRead)}.factory()); err != nil {
			t.Fatal(err)
		}
		def := testDefinition(tt.second, ClassNone)
		var re *RegistrationError
		if err := r.add(fakeTool{def: def}.factory()); !errors.As(err, &re) || !strings.Contains(err.Error(), "is taken by tool") {
			t.Errorf("%q beside %q: error is %v, want a collision", tt.second, tt.first, err)
		}
		if got, _ := r.find(tt.first); got == nil || got.def.Class != ClassRead {
			t.Errorf("%q was replaced", tt.first)
		}
	}
}

func TestLookupTakesBothForms(t *testing.T) {
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "default")},
		fakeTool{def: testDefinition("srv/do_it", ClassRead)}, fakeTool{def: testDefinition("read_file", ClassRead)})
	for name, want := range map[string]Name{"srv/do_it": "srv/do_it", "srv__do_it": "srv/do_it", "read_file": "read_file"} {
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
	if err := d.Register(fakeTool{def: testDefinition("srv/do_it", ClassRead)}.factory()); err != nil {
		t.Errorf("a name that was given back is refused: %v", err)
	}
}

func TestDefinitionsAreFilteredAndFilled(t *testing.T) {
	off, admin := testDefinition("confer", ClassNone), testDefinition("admin_tool", ClassRead)
	off.EnabledByDefault, admin.RequiresAdmin = false, true
	tools := []fakeTool{{def: off}, {def: admin}, {def: testDefinition("write_file", ClassWrite)}, {def: testDefinition("shell", ClassExecute)}}
	names := func(d *Dispatcher) (list []Name) {
		for _, def := range d.Definitions() {
			list = append(list, def.Name)
		}
		return list
	}
	rec := &recorder{}
	d := newDispatcher(t, rec, Options{Policy: preset(t, "sandboxed")}, tools...)
	if diff := cmp.Diff([]Name{"shell", "write_file"}, names(d)); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	for _, name := range []string{"confer", "admin_tool"} {
		r := roundOK(t, d, call("c_"+name, name, `{}`))[0]
		wantText(t, r, true, `Tool "`+name+`" is not permitted in this session.`)
		wantEvents(t, rec, "c_"+name, "failed permission_denied")
	}
	all := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "sandboxed"), Allow: func(Definition) bool { return true }}, tools...)
	if diff := cmp.Diff([]Name{"admin_tool", "confer", "shell", "write_file"}, names(all)); diff != "" {
		t.Errorf("offered to an administrator (-want +got):\n%s", diff)
	}
	want := map[Name]time.Duration{"admin_tool": time.Minute, "confer": time.Minute, "write_file": time.Minute, "shell": 10 * time.Minute}
	for _, def := range all.Definitions() {
		if def.Timeout != want[def.Name] || def.ResultBytes != DefaultResultBytes {
			t.Errorf("%s has timeout %v and %d result bytes", def.Name, def.Timeout, def.ResultBytes)
		}
	}
}

func TestRulesThatMatchNoTool(t *testing.T) {
	policy := preset(t, "default")
	policy.Tools = map[string]Mode{
		"shell": ModeDeny, "shel": ModeDeny, "srv/*": ModeDeny, "srv__do_it": ModeDeny, "srv/do_it": ModeDeny, "other/*": ModeDeny, "shell/*": ModeDeny, "/*": ModeDeny,
	}
	d := newDispatcher(t, &recorder{}, Options{Policy: policy},
		fakeTool{def: testDefinition("shell", ClassExecute)}, fakeTool{def: testDefinition("srv/do_it", ClassRead)})
	if diff := cmp.Diff([]string{"/*", "other/*", "shel", "shell/*"}, d.UnmatchedRules()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	emit := func(Event) error { return nil }
	for name, opts := range map[string]Options{
		"no Emit":              {},
		"bad OnPrompt":         {Emit: emit, OnPrompt: "ask"},
		"bad mode":             {Emit: emit, Policy: Policy{Classes: map[Class]Mode{ClassRead: "yes"}}},
		"bad class":            {Emit: emit, Policy: Policy{TrustedOverrides: map[Class]Mode{"READ": ModeAuto}}},
		"bad tool mode":        {Emit: emit, Policy: Policy{Tools: map[string]Mode{"shell": ""}}},
		"relative trust":       {Emit: emit, Policy: Policy{TrustedWorkspaces: []string{"src"}}},
		"negative concurrency": {Emit: emit, Concurrency: -1},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
