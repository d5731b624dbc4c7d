package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// schemaNames are the names that [Schema] knows.
var schemaNames = []string{"user", "project", "requirements"}

// Schema returns a JSON Schema of a configuration file, made from the Go types that
// files are read into. It is Draft 7, which editors know best.
func Schema(name string) (map[string]any, error) {
	var s schemaMaker
	var root map[string]any
	switch name {
	case "user":
		s = schemaMaker{references: true}
		root = s.objectSchema("", reflect.TypeFor[File]())
		for name, doc := range map[string]string{
			"profiles":   "named sets of these settings, taken by --profile",
			"workspaces": "settings for one workspace, by its path from / or ~/ on",
		} {
			root["properties"].(map[string]any)[name] = map[string]any{
				"type": "object", "description": doc, "additionalProperties": s.objectSchema("", reflect.TypeFor[File]()),
			}
		}
	case "project":
		s = schemaMaker{tightens: true}
		root = s.objectSchema("", reflect.TypeFor[Project]())
	case "requirements":
		s = schemaMaker{references: true}
		root = s.objectSchema("", reflect.TypeFor[Requirements]())
	default:
		return nil, fmt.Errorf("there is no schema of %q; there are %s", name, strings.Join(schemaNames, ", "))
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Caisson configuration: " + name
	return root, s.err
}

type schemaMaker struct {
	// references is set if strings may have ${VAR}, tightens if the file can only make
	// settings stricter.
	references, tightens bool
	err                  error
}

func referenceSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`}
}

func (s *schemaMaker) objectSchema(above string, t reflect.Type) map[string]any {
	properties := map[string]any{}
	for _, f := range fieldsOf(t) {
		properties[f.name] = s.valueSchema(joinKey(above, f.name), f)
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func (s *schemaMaker) valueSchema(name string, f field) map[string]any {
	for f.typ.Kind() == reflect.Pointer {
		f.typ = f.typ.Elem()
	}
	out := s.typeSchema(name, f)
	out["description"] = f.tag.Get("doc")
	return out
}

func (s *schemaMaker) typeSchema(name string, f field) map[string]any {
	if scalar, ok := reflect.TypeAssert[interface{ jsonSchema() map[string]any }](reflect.Zero(f.typ)); ok {
		return s.orReference(scalar.jsonSchema())
	}
	switch f.typ.Kind() {
	case reflect.Struct:
		return s.objectSchema(name, f.typ)
	case reflect.Map:
		entry := field{typ: f.typ.Elem(), tag: entryTag(f.tag)}
		out := map[string]any{"type": "object", "additionalProperties": s.valueSchema(name+".NAME", entry)}
		if names := f.tagWords("names"); names != nil {
			out["propertyNames"] = map[string]any{"enum": names}
		}
		return out
	case reflect.Slice:
		f.typ = f.typ.Elem()
		return map[string]any{"type": "array", "items": s.typeSchema(name, f)}
	case reflect.Bool:
		if order := f.tagWords("tighten"); s.tightens && order != nil {
			return map[string]any{"const": order[0] == "true"}
		}
		return map[string]any{"type": "boolean"}
	case reflect.String:
		if w := s.allowedWords(f); w != nil {
			return s.orReference(map[string]any{"enum": w})
		}
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	if s.err == nil {
		s.err = fmt.Errorf("key %s is of type %v, which has no schema: give it a jsonSchema method", name, f.typ)
	}
	return map[string]any{}
}

// allowedWords returns the words of a key. In a file that tightens, it returns the ones
// that do.
func (s *schemaMaker) allowedWords(f field) []string {
	all := f.words()
	if !s.tightens {
		return all
	}
	if order := f.tagWords("tighten"); order != nil {
		return order[:len(order)-1]
	}
	return slices.DeleteFunc(all, func(w string) bool { return w == "auto" })
}

func (s *schemaMaker) orReference(shape map[string]any) map[string]any {
	if !s.references {
		return shape
	}
	return map[string]any{"anyOf": []any{shape, referenceSchema()}}
}
