package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// SchemaNames are the files that [Schema] knows.
func SchemaNames() []string { return []string{"user", "project", "requirements"} }

// Schema is a JSON Schema (Draft 7, which editors know best) of a configuration
// file: the user's, a workspace's own ("project"), or an administrator's. It is
// made from the types that files are read into.
func Schema(name string) (map[string]any, error) {
	var s schemaMaker
	var root map[string]any
	switch name {
	case "user":
		s = schemaMaker{descriptions: descriptions(), references: true}
		root = s.object("", reflect.TypeFor[File]())
		profile := s.object("", reflect.TypeFor[File]())
		delete(profile["properties"].(map[string]any), "profiles")
		profile["description"] = "named sets of these settings, taken by --profile"
		root["properties"].(map[string]any)["profiles"] = map[string]any{
			"type": "object", "description": "named sets of these settings", "additionalProperties": profile,
		}
	case "project":
		s = schemaMaker{descriptions: descriptions(), tightens: true}
		s.descriptions[refusePrivateKey] = refusePrivate
		root = s.object("", reflect.TypeFor[Project]())
	case "requirements":
		s = schemaMaker{descriptions: descriptions(), references: true}
		maps.Copy(s.descriptions, requirementDescriptions())
		root = s.object("", reflect.TypeFor[Requirements]())
	default:
		return nil, fmt.Errorf("there is no schema of %q; there are %s", name, strings.Join(SchemaNames(), ", "))
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Caisson configuration: " + name
	return root, s.err
}

func requirementDescriptions() map[string]string {
	return map[string]string{
		"backends":                "backends that may be chosen; absent means any",
		"images":                  "images that may be chosen; one ending in * allows what begins like it",
		"refuse_runner_as_owner":  "refuse accept_runner_as_owner",
		"refuse_system_workspace": "refuse accept_system_workspace",
		refusePrivateKey:          refusePrivate,
	}
}

// schemaMaker makes one schema.
type schemaMaker struct {
	descriptions map[string]string
	// references says that strings may hold ${VAR}; tightens that the file
	// holds only what is stricter.
	references, tightens bool
	err                  error
}

// reference is what a value can be where the environment gives it.
func reference() map[string]any {
	return map[string]any{"type": "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`}
}

func (s *schemaMaker) object(key string, t reflect.Type) map[string]any {
	properties := map[string]any{}
	for _, f := range fields(t) {
		if f.typ != reflect.TypeFor[map[string]File]() {
			properties[f.name] = s.value(joinKey(key, f.name), f.typ)
		}
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func (s *schemaMaker) value(key string, t reflect.Type) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	out := s.shape(key, t)
	if text := s.descriptions[key]; text != "" {
		out["description"] = text
	} else if s.err == nil {
		s.err = fmt.Errorf("key %s has no description: add it to config/keys.go", key)
	}
	return out
}

func (s *schemaMaker) shape(key string, t reflect.Type) map[string]any {
	if scalar, ok := reflect.TypeAssert[interface{ jsonSchema() map[string]any }](reflect.Zero(t)); ok {
		return s.orReference(scalar.jsonSchema())
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.object(key, t)
	case reflect.Map:
		out := map[string]any{"type": "object", "additionalProperties": s.value(key+".NAME", t.Elem())}
		if slices.Contains(classKeys(), key) {
			out["propertyNames"] = map[string]any{"enum": []string{"none", "read", "write", "execute", "network"}}
		}
		return out
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.shape(key+".NAME", t.Elem())}
	case reflect.Bool:
		if s.tightens {
			return map[string]any{"const": key != "instruction_files"}
		}
		return map[string]any{"type": "boolean"}
	case reflect.String:
		if w := s.words(key); w != nil {
			return s.orReference(map[string]any{"enum": w})
		}
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	if s.err == nil {
		s.err = fmt.Errorf("key %s is of type %v, which has no schema: give it a jsonSchema method", key, t)
	}
	return map[string]any{}
}

// words are those of a key; in a file that tightens, those that do.
func (s *schemaMaker) words(key string) []string {
	all := words(key)
	if !s.tightens {
		return all
	}
	switch key {
	case "git":
		return []string{"ro"}
	case "mode":
		return []string{"overlay"}
	case "on_prompt":
		return []string{"deny", "fail"}
	}
	return slices.DeleteFunc(all, func(w string) bool { return w == "auto" })
}

func (s *schemaMaker) orReference(shape map[string]any) map[string]any {
	if !s.references {
		return shape
	}
	return map[string]any{"anyOf": []any{shape, reference()}}
}
