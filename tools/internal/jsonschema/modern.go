package jsonschema

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Keywords by what they hold.
var (
	stringKeywords = []string{"title", "description", "format", "$comment", "contentEncoding", "contentMediaType"}
	boolKeywords   = []string{"deprecated", "readOnly", "writeOnly"}
	listKeywords   = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	namedKeywords  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
	partKeywords   = []string{
		"items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
	}
	droppedKeywords = []string{
		"$id", "$schema", "$vocabulary", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "additionalItems", "dependencies",
	}
)

// Modern is a schema of draft 2020-12.
type Modern struct {
	Schema any
	// Ignored are meaningful keywords that were left out, each as "path: message".
	Ignored []string
	// Problems say why the schema can't be used, each as "path: message".
	Problems []string
}

// Modernize returns a schema of draft 7, 2019-09 or 2020-12, as $schema says, in
// the words of draft 2020-12, so that validators and providers read it by the same
// rules. Annotations of a wrong type are left out. A reference must lead to a part
// of the same schema.
func Modernize(doc any) Modern {
	m := modernizer{root: doc}
	if root, ok := doc.(map[string]any); ok {
		m.id, _ = root["$id"].(string)
		m.id = strings.TrimSuffix(m.id, "#")
		dialect, _ := root["$schema"].(string)
		if dialect != "" && !strings.Contains(dialect, "//json-schema.org/") {
			m.ignore([]string{"$schema"}, "is a dialect that is not supported")
		}
		m.old = slices.ContainsFunc([]string{"draft-04", "draft-06", "draft-07"}, func(draft string) bool { return strings.Contains(dialect, draft) })
	}
	schema := m.rewrite(doc, nil)
	slices.Sort(m.problems)
	slices.Sort(m.ignored)
	return Modern{schema, m.ignored, m.problems}
}

type modernizer struct {
	root any
	// id is the identifier of the whole schema, or "".
	id string
	// old reports a draft before 2019-09, in which keywords beside $ref don't
	// count.
	old      bool
	ignored  []string
	problems []string
}

func (m *modernizer) ignore(path []string, why string) {
	m.ignored = append(m.ignored, formatPath(path)+": "+why)
}

func (m *modernizer) addProblem(path []string, format string, args ...any) {
	m.problems = append(m.problems, formatPath(path)+": "+fmt.Sprintf(format, args...))
}

// rewrite returns the schema at a path in modern words.
func (m *modernizer) rewrite(v any, path []string) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := maps.Clone(s)
	if _, referring := s["$ref"]; referring && m.old {
		maps.DeleteFunc(out, func(key string, _ any) bool { return !slices.Contains([]string{"$ref", "$defs", "definitions"}, key) })
	}
	m.rewriteIdentifier(s["$id"], out, path)
	if list, ok := out["items"].([]any); ok {
		delete(out, "items")
		if len(list) > 0 {
			out["prefixItems"] = list
		}
		if rest, ok := out["additionalItems"]; ok {
			out["items"] = rest
		}
	}
	if m.old {
		splitDependencies(out)
	}
	for bound, limit := range map[string]string{"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"} {
		if exclusive, ok := s[bound].(bool); ok {
			delete(out, bound)
			if n, given := s[limit]; given && exclusive {
				out[bound] = n
				delete(out, limit)
			}
		}
	}
	if ref, ok := out["$ref"].(string); ok {
		out["$ref"] = m.rewriteReference(ref, append(slices.Clip(path), "$ref"))
	}
	for _, key := range []string{"$dynamicRef", "$recursiveRef", "dependencies"} {
		if _, there := out[key]; there && !(m.old && key == "dependencies") {
			m.ignore(append(slices.Clip(path), key), "is not supported in this draft")
		}
	}
	maps.DeleteFunc(out, func(key string, value any) bool { return !isKept(key, value) })
	return mapParts(out, path, m.rewrite)
}

// rewriteIdentifier keeps a part's identifier if it is a plain name, as drafts
// before 2019-09 write anchors.
func (m *modernizer) rewriteIdentifier(id any, out map[string]any, path []string) {
	text, ok := id.(string)
	if !ok || len(path) == 0 {
		return
	}
	if name, isPlain := strings.CutPrefix(text, "#"); isPlain && isAnchor(name) {
		out["$anchor"] = name
	} else {
		m.addProblem(append(slices.Clip(path), "$id"), "only the whole schema can have an identifier")
	}
}

// splitDependencies rewrites a keyword that later drafts have split.
func splitDependencies(s map[string]any) {
	object, _ := s["dependencies"].(map[string]any)
	required, schemas := map[string]any{}, map[string]any{}
	for name, value := range object {
		if _, isList := value.([]any); isList {
			required[name] = value
		} else {
			schemas[name] = value
		}
	}
	if len(required) > 0 {
		s["dependentRequired"] = required
	}
	if len(schemas) > 0 {
		s["dependentSchemas"] = schemas
	}
}

func isKept(key string, value any) bool {
	text, isString := value.(string)
	_, isBool := value.(bool)
	_, isList := value.([]any)
	_, isObject := value.(map[string]any)
	switch {
	case slices.Contains(droppedKeywords, key):
		return false
	case slices.Contains(stringKeywords, key):
		return isString
	case slices.Contains(boolKeywords, key):
		return isBool
	case slices.Contains(partKeywords, key):
		return isObject || isBool
	case key == "examples":
		return isList
	case key == "$anchor":
		return isString && isAnchor(text)
	}
	return true
}

// mapParts replaces the schemas in a schema object, which it changes and returns.
func mapParts(s map[string]any, path []string, replace func(part any, path []string) any) map[string]any {
	path = slices.Clip(path)
	for key, value := range s {
		below := append(path, key)
		list, isList := value.([]any)
		object, isObject := value.(map[string]any)
		switch {
		case slices.Contains(listKeywords, key) && isList:
			parts := make([]any, len(list))
			for i, part := range list {
				parts[i] = replace(part, append(slices.Clip(below), strconv.Itoa(i)))
			}
			s[key] = parts
		case slices.Contains(namedKeywords, key) && isObject:
			named := make(map[string]any, len(object))
			for name, part := range object {
				named[name] = replace(part, append(slices.Clip(below), name))
			}
			s[key] = named
		case slices.Contains(partKeywords, key):
			s[key] = replace(value, below)
		}
	}
	return s
}

// rewriteReference returns a reference in one spelling, without the schema's own
// identifier.
func (m *modernizer) rewriteReference(ref string, path []string) string {
	base, fragment, _ := strings.Cut(ref, "#")
	if base != "" && base != m.id {
		m.addProblem(path, "leads to another document, and none is loaded")
		return ref
	}
	text, err := url.PathUnescape(fragment)
	if err != nil {
		return "#" + fragment // the library describes the problem
	}
	// A part that isn't a schema by its place would be applied without being counted.
	if text = m.renameItems(text); !isSchemaPath(text) {
		m.addProblem(path, "leads to a part that is no schema by its place; move it to $defs")
	}
	return "#" + (&url.URL{Fragment: text}).EscapedFragment() // the spelling that checkChains reads
}

// renameItems follows a list of items to its new name.
func (m *modernizer) renameItems(fragment string) string {
	if !strings.HasPrefix(fragment, "/") {
		return fragment
	}
	tokens := strings.Split(fragment, "/")
	renamed := slices.Clone(tokens)
	for i := 1; i < len(tokens); i++ {
		if _, isList := findPart(m.root, tokens[1:i+1]).([]any); isList && tokens[i] == "items" {
			renamed[i] = "prefixItems"
		}
	}
	return strings.Join(renamed, "/")
}

// isSchemaPath reports whether a reference's fragment leads to a schema, judging by
// the keywords on the way. "/$defs/x" and "/properties/a/items/0" do.
func isSchemaPath(fragment string) bool {
	if fragment == "" || fragment[0] != '/' {
		return true
	}
	tokens := strings.Split(fragment[1:], "/")
	for len(tokens) > 0 {
		key := tokens[0]
		tokens = tokens[1:]
		switch {
		case slices.Contains(listKeywords, key), slices.Contains(namedKeywords, key):
			if len(tokens) == 0 {
				return false
			}
			tokens = tokens[1:]
		case !slices.Contains(partKeywords, key):
			return false
		}
	}
	return true
}

// loosen returns a modern schema without the keywords that would wrongly refuse
// values after a part of the schema was left out.
func loosen(v any, path []string) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v
	}
	s = maps.Clone(s)
	for _, key := range []string{"not", "if", "then", "else", "maxContains", "unevaluatedItems", "unevaluatedProperties"} {
		delete(s, key)
	}
	if s["patternProperties"] != nil {
		delete(s, "additionalProperties")
	}
	if oneOf, ok := s["oneOf"]; ok && addToAllOf(s, map[string]any{"anyOf": oneOf}) {
		delete(s, "oneOf")
	}
	return mapParts(s, path, loosen)
}

// addToAllOf adds a schema that must also accept the value. It returns false if
// allOf is not a list, which the library will refuse.
func addToAllOf(s map[string]any, part any) bool {
	all, isList := s["allOf"].([]any)
	if s["allOf"] != nil && !isList {
		return false
	}
	s["allOf"] = append(slices.Clip(all), part)
	return true
}

// isAnchor reports whether s can be a schema's plain name.
func isAnchor(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || r == '-' || r == '.')) {
			return false
		}
	}
	return s != ""
}

// findPart returns the part of a document at a path, or nil.
func findPart(doc any, path []string) any {
	for _, key := range path {
		switch part := doc.(type) {
		case map[string]any:
			doc = part[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(part) {
				return nil
			}
			doc = part[i]
		default:
			return nil
		}
	}
	return doc
}

// splitPointer returns the keys of a JSON pointer in a reference.
func splitPointer(fragment string) []string {
	if text, err := url.PathUnescape(fragment); err == nil {
		fragment = text
	}
	if fragment == "" {
		return nil
	}
	keys := strings.Split(fragment[1:], "/")
	for i, key := range keys {
		keys[i] = strings.ReplaceAll(strings.ReplaceAll(key, "~1", "/"), "~0", "~")
	}
	return keys
}
