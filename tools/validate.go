package tools

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of the message of a schema failure: the model needs the paths, not its own
// megabyte back.
const (
	maxProblems     = 20
	maxProblemBytes = 400
)

// Bounds of a call's input. A model's whole answer is a few hundred kilobytes
// at most, so the first is generous; schemas of real tools nest four deep.
const (
	// MaxInputBytes bounds the JSON text of one input.
	MaxInputBytes = 4 << 20
	// MaxInputDepth bounds its nesting.
	MaxInputDepth = 64
)

// inputSchema validates the inputs of one tool.
type inputSchema struct {
	compiled *jsonschema.Schema
	aliases  map[string]string
}

// noLoader refuses every reference: a schema stands by itself.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("load %q: references are not followed", url)
}

// newSchemaCompiler returns a compiler of JSON Schema, Draft 7, that follows no
// references.
func newSchemaCompiler() *jsonschema.Compiler {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft7)
	compiler.UseLoader(noLoader{})
	return compiler
}

// compileSchema checks a definition's schema against the subset and compiles
// it. The problems list everything that is wrong with it.
func compileSchema(def Definition) (*inputSchema, []string) {
	doc, err := strictjson.Decode(def.InputSchema, maxSchemaBytes, maxSchemaDepth)
	if err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	problems := checkSubset(doc)
	problems = append(problems, checkAliases(def.Aliases, doc)...)
	if len(problems) > 0 {
		return nil, problems
	}
	const location = "schema:///input.json"
	compiler := newSchemaCompiler()
	if err := compiler.AddResource(location, closeObjects(doc)); err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	compiled, err := compiler.Compile(location)
	if err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	return &inputSchema{compiled: compiled, aliases: maps.Clone(def.Aliases)}, nil
}

// checkAliases wants every alias to lead to a property, and to be none itself.
func checkAliases(aliases map[string]string, doc any) []string {
	root, _ := doc.(map[string]any)
	props, _ := root["properties"].(map[string]any)
	var problems []string
	for _, alias := range slices.Sorted(maps.Keys(aliases)) {
		if props[alias] != nil {
			problems = append(problems, fmt.Sprintf("/properties/%s: is also an alias", pointerEscape(alias)))
		}
		if props[aliases[alias]] == nil {
			problems = append(problems, fmt.Sprintf("/properties: alias %q leads to %q, which is not a property", alias, aliases[alias]))
		}
	}
	return problems
}

// closeObjects copies a schema as it is compiled. An object that lists its
// properties and has no additionalProperties accepts no others, so that an
// unknown argument is an error and never silently dropped; format is an
// annotation (docs/specification.md §7) and is left out, because Draft 7 asserts it.
func closeObjects(v any) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v
	}
	c := maps.Clone(s)
	delete(c, "format")
	if props, ok := s["properties"].(map[string]any); ok {
		closed := make(map[string]any, len(props))
		for name, sub := range props {
			closed[name] = closeObjects(sub)
		}
		c["properties"] = closed
		if _, said := s["additionalProperties"]; !said {
			c["additionalProperties"] = false
		}
	}
	if items, ok := s["items"]; ok {
		c["items"] = closeObjects(items)
	}
	return c
}

// acceptInput turns a model's input into the canonical JSON that is hashed, shown
// and executed, or returns everything that is wrong with it.
func (s *inputSchema) acceptInput(input []byte) (canonical []byte, problems []string) {
	if len(input) == 0 {
		input = []byte("{}")
	}
	v, err := strictjson.Decode(input, MaxInputBytes, MaxInputDepth)
	if err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, []string{"/: input must be a JSON object"}
	}
	if problems := s.rewriteAliases(object); len(problems) > 0 {
		return nil, problems
	}
	if err := s.compiled.Validate(object); err != nil {
		return nil, validationProblems(err)
	}
	if canonical, err = strictjson.Canonical(object); err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	return canonical, nil
}

// rewriteAliases renames other spellings of arguments to the schema's own.
func (s *inputSchema) rewriteAliases(object map[string]any) []string {
	var problems []string
	from := map[string]string{}
	for _, alias := range slices.Sorted(maps.Keys(s.aliases)) {
		v, given := object[alias]
		if !given {
			continue
		}
		target := s.aliases[alias]
		if _, both := object[target]; both {
			other := target
			if from[target] != "" {
				other = from[target]
			}
			problems = append(problems, fmt.Sprintf("/%s: means the same as %q, give only %q", pointerEscape(alias), other, target))
		}
		from[target] = alias
		object[target] = v
		delete(object, alias)
	}
	return problems
}

// validationProblems flattens a validator's error into "path: message" lines.
func validationProblems(err error) []string {
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []string{"/: " + err.Error()}
	}
	var problems []string
	for _, unit := range invalid.BasicOutput().Errors {
		path := unit.InstanceLocation
		if path == "" {
			path = "/"
		}
		problems = append(problems, utf8text.Clip(path+": "+unit.Error.String(), maxProblemBytes))
	}
	slices.Sort(problems)
	if over := len(problems) - maxProblems; over > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more", over))
	}
	return problems
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func pointerEscape(key string) string { return pointerEscapes.Replace(utf8text.Clip(key, 80)) }
