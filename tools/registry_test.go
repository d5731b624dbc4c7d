package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// probeDefinition returns a valid definition of a tool that names paths.
func probeDefinition(name string, class Class) Definition {
	def := Definition{
		Name: Name(name), Description: "A tool of the tests.", Class: class, Runs: PlaceHost, EnabledByDefault: true,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}}}`),
		Paths:       func(json.RawMessage) []string { return nil },
	}
	if class == ClassWrite || class == ClassExecute {
		def.Runs = PlaceSandbox
	}
	return def
}

// probeTool is a tool of any definition.
type probeTool struct{ def Definition }

func (p *probeTool) Definition() Definition { return p.def }

func (p *probeTool) Execute(context.Context, *Call) (Output, error) {
	return Output{Success: true}, nil
}

func probeFactory(def Definition) Factory { return func() Tool { return &probeTool{def} } }

type emptyTool struct{}

func (emptyTool) Definition() Definition { return probeDefinition("empty", ClassNone) }

func (emptyTool) Execute(context.Context, *Call) (Output, error) { return Output{Success: true}, nil }

// byteTool is a tool with the least state.
type byteTool struct {
	emptyTool
	_ byte
}

// mapTool is a tool whose state is a map.
type mapTool map[string]int

func (mapTool) Definition() Definition { return probeDefinition("empty", ClassNone) }

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
		def := probeDefinition("probe", ClassRead)
		change(&def)
		return probeFactory(def)
	}
	singleton := &probeTool{probeDefinition("probe", ClassRead)}
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
			var r Registry
			err := r.Register(tt.factory)
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
			if len(r.All()) != 0 {
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
		var r Registry
		if err := r.Register(probeFactory(probeDefinition(tt.first, ClassRead))); err != nil {
			t.Fatal(err)
		}
		def := probeDefinition(tt.second, ClassNone)
		var re *RegistrationError
		if err := r.Register(probeFactory(def)); !errors.As(err, &re) || !strings.Contains(err.Error(), "is taken by tool") {
			t.Errorf("%q beside %q: error is %v, want a collision", tt.second, tt.first, err)
		}
		if got, _ := r.Find(tt.first); got == nil || got.Definition.Class != ClassRead {
			t.Errorf("%q was replaced", tt.first)
		}
	}
}

// What a server declares has a hash, which changes with every part of it.
func TestDefinitionHash(t *testing.T) {
	inspect := func(change func(*Definition)) (Definition, error) {
		def := Definition{Name: "srv/a", Description: "d", InputSchema: []byte(`{"type":"object"}`), Class: ClassNetwork, Runs: PlaceHost, FullSchema: true}
		change(&def)
		f := NewFunc(def, func(context.Context, struct{}) (string, error) { return "", nil })
		def, _ = Inspect(f)
		return def, CheckFactory(f)
	}
	base, err := inspect(func(*Definition) {})
	if err != nil || !isHash(base.Hash) {
		t.Fatalf("hash is %q: %v", base.Hash, err)
	}
	for what, tt := range map[string]struct {
		change func(*Definition)
		same   bool
	}{
		"space in the schema": {func(d *Definition) { d.InputSchema = []byte(`{ "type": "object" }`) }, true},
		"timeout":             {func(d *Definition) { d.Timeout = 1 }, true},
		"name":                {func(d *Definition) { d.Name = "srv/b" }, false},
		"description":         {func(d *Definition) { d.Description = "e" }, false},
		"schema":              {func(d *Definition) { d.InputSchema = []byte(`{"type":"object","title":"t"}`) }, false},
		"its own":             {func(d *Definition) { d.Hash = strings.Repeat("ab", 32) }, false},
	} {
		def, err := inspect(tt.change)
		if err != nil || (def.Hash == base.Hash) != tt.same {
			t.Errorf("%s: hash is %q, was %q: %v", what, def.Hash, base.Hash, err)
		}
	}
	for what, change := range map[string]func(*Definition){
		"no hash":                  func(d *Definition) { d.Hash = "abc" },
		"a hash of our own tool":   func(d *Definition) { d.Name, d.FullSchema, d.Hash = "own", false, base.Hash },
		"a full schema of our own": func(d *Definition) { d.Name = "own" },
	} {
		if _, err := inspect(change); err == nil {
			t.Errorf("%s is registered", what)
		}
	}
}
