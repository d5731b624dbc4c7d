package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// compiled returns a schema as a validator, from its JSON.
func compiled(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("file.json", decodedJSON(t, schema)); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("file.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON reads YAML like an editor's checker.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return decodedJSON(t, v)
}

// decodedJSON returns v as the schema's package decodes it.
func decodedJSON(t *testing.T, v any) any {
	t.Helper()
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(encoded)))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestEveryKeyIsInTheSchema: Schema fails for a key without a description or with an
// unknown type.
func TestEveryKeyIsInTheSchema(t *testing.T) {
	for _, name := range schemaNames {
		compiled(t, name)
	}
	if _, err := Schema("other"); err == nil {
		t.Error("a schema of another file is there")
	}
	known := map[string]bool{}
	for _, file := range []reflect.Type{reflect.TypeFor[File](), reflect.TypeFor[Project](), reflect.TypeFor[Requirements]()} {
		for _, k := range keysOf(file) {
			known[k.name] = true
			if k.tag.Get("doc") == "" {
				t.Errorf("%v: %s has no tag doc or each", file, k.name)
			}
		}
	}
	if !known["policy.dangerous_commands"] || !known["models.NAME.price.input"] {
		t.Fatalf("keys are missing: %v", known)
	}
}

// TestSchemaAndLoaderAgree: both accept and refuse the same.
func TestSchemaAndLoaderAgree(t *testing.T) {
	for _, tc := range []struct {
		schema, text string
		ok           bool
	}{
		{"user", "{}", true},
		{"user", "backend: gvisor\nresources: {memory: 2GiB, cpus: 1.5, pids: 9}", true},
		{"user", "resources: {memory: 1048576, cpus: '2', pids: '9'}\nlimits: {timeout: 1h30m}", true},
		{"user", "image: '${IMG:-host}'\nlimits: {max_rounds: '${N:-3}'}\nbackend: '${B:-auto}'", true},
		{"user", "profiles: {a: {limits: {max_rounds: 3}}}", true},
		{"user", "models: {m: {model: x, temperature: 0.5, price: {input: 1, output: 2}}}", true},
		{"user", "policy: {preset: ci, tools: {shell: deny, 'srv/*': prompt}, default: {execute: prompt_once}}", true},
		{"user", "bakend: gvisor", false},
		{"user", "backend: podman", false},
		{"user", "limits: {max_rounds: 0}", false},
		{"user", "limits: {timeout: 5}", false},
		{"user", "resources: {memory: 2 potatoes}", false},
		{"user", "profiles: {a: {profiles: {}}}", false},
		{"user", "workspaces: {~/a: {env: {A: b}, env_from: [C]}}", true},
		{"user", "workspaces: {/a: {workspaces: {}}}", false},
		{"user", "mounts: [{from: ~/a, to: /a, read_only: true}]", true},
		{"user", "mounts: [{from: ~/a, to: /a, mode: ro}]", false},
		{"user", "caches: [go, ~/.gradle]", true},
		{"user", "cache_use: shared", false},
		{"project", "cache_use: frozen", true},
		{"project", "cache_use: writable", false},
		{"user", "isolation: process", true},
		{"user", "isolation: vm", false},
		{"project", "isolation: auto", true},
		{"project", "isolation: process", false},
		{"requirements", "isolation: namespaces", true},
		{"user", "policy: {default: {shell: deny}}", false},
		{"user", "policy: {tools: {shell: never}}", false},
		{"user", "stream: maybe", false},
		{"user", "submounts: x", false},
		{"project", "git: ro\nmode: overlay\non_prompt: fail\nrefuse_lost: true\ninstruction_files: false\nlimits: {max_rounds: 3}", true},
		{"project", "policy: {preset: readonly, tools: {shell: prompt}, dangerous_commands: [x]}", true},
		{"project", "git: commit", false},
		{"project", "model: x", false},
		{"project", "policy: {tools: {shell: auto}}", false},
		{"project", "policy: {relaxed_workspaces: [/]}", false},
		{"project", "refuse_lost: false", false},
		{"project", "instruction_files: true", false},
		{"requirements", "backends: [gvisor]\nimages: [host]\ngit: ro\nrefuse_lost: true\npolicy: {default: {execute: prompt}}", true},
		{"requirements", "model: x", false},
		{"requirements", "git: rw", false},
	} {
		bySchema := compiled(t, tc.schema).Validate(asJSON(t, tc.text)) == nil
		var err error
		switch tc.schema {
		case "user":
			var c Config
			if c, err = Load(Options{Path: write(t, "c.yaml", tc.text)}); err == nil {
				_, err = c.ToolPolicy("ci")
			}
		case "project":
			_, err = Load(Options{Project: project(tc.text)})
		case "requirements":
			path := write(t, "r.yaml", tc.text)
			if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			_, err = Load(Options{Requirements: path, RequirementsUID: os.Getuid()})
		}
		if bySchema != tc.ok || (err == nil) != tc.ok {
			t.Errorf("%s %q: schema %t, loader %v, want %t", tc.schema, tc.text, bySchema, err, tc.ok)
		}
	}
}

// TestTheDocumentedFileIsValid: each example of docs/configuration.md is one of the
// three files, for its schema and for the loader.
func TestTheDocumentedFileIsValid(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")
	if len(blocks) < 4 {
		t.Fatal("fewer examples in docs/configuration.md than there are kinds of files")
	}
	read := map[string]int{}
	for i, block := range blocks[1:] {
		example, _, _ := strings.Cut(block, "```")
		path := write(t, "config.yaml", example)
		if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		_, user := Load(Options{Path: path})
		_, theirs := Load(Options{Project: &ProjectFile{Path: path, Text: []byte(example)}})
		_, admin := Load(Options{Requirements: path, RequirementsUID: os.Getuid()})
		found := false
		for name, err := range map[string]error{"user": user, "project": theirs, "requirements": admin} {
			if err != nil {
				continue
			}
			found = true
			read[name]++
			if err := compiled(t, name).Validate(asJSON(t, example)); err != nil {
				t.Errorf("example %d, %s: %v", i+1, name, err)
			}
		}
		if !found {
			t.Errorf("example %d is no file: %v", i+1, errors.Join(user, theirs, admin))
		}
	}
	for _, name := range schemaNames {
		if read[name] == 0 {
			t.Errorf("no example of the %s file", name)
		}
	}
}
