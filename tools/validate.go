package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// maxProblems bounds the problems that the model is told of.
const maxProblems = 20

// Bounds of a call's input. A model's whole answer is a few hundred kilobytes at
// most, and schemas of real tools nest four deep.
const (
	MaxInputBytes = 4 << 20
	MaxInputDepth = 64
)

type inputSchema struct {
	root    *jsonschema.Schema
	aliases map[string]string
	offered json.RawMessage
}

// compileSchema checks and compiles a definition's schema. It returns every
// problem.
func compileSchema(def Definition) (*inputSchema, []string) {
	doc, err := strictjson.Decode(def.InputSchema, maxSchemaBytes, maxSchemaDepth)
	if err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	var problems, more []string
	var compiled *jsonschema.Schema
	if def.FullSchema {
		if problems = checkFull(doc); len(problems) == 0 {
			compiled, more = jsonschema.CompileForeign(doc)
		}
	} else {
		problems = checkSubset(doc)
		compiled, more = jsonschema.Compile(closeObjects(doc))
	}
	problems = append(problems, checkAliases(def.Aliases, doc)...)
	if problems = append(problems, more...); len(problems) > 0 {
		slices.Sort(problems)
		if over := len(problems) - maxProblems; over > 0 && def.FullSchema {
			problems = append(problems[:maxProblems], fmt.Sprintf("and %d more", over))
		}
		return nil, problems
	}
	offered := def.InputSchema
	if def.FullSchema {
		offered = offeredSchema(doc)
	}
	return &inputSchema{root: compiled, aliases: maps.Clone(def.Aliases), offered: offered}, nil
}

// checkAliases requires that every alias leads to a property and is not one itself.
func checkAliases(aliases map[string]string, doc any) []string {
	root, _ := doc.(map[string]any)
	props, _ := root["properties"].(map[string]any)
	var problems []string
	for _, alias := range slices.Sorted(maps.Keys(aliases)) {
		if props[alias] != nil {
			problems = append(problems, fmt.Sprintf("/properties/%s: is also an alias", jsonschema.EscapeKey(alias)))
		}
		if props[aliases[alias]] == nil {
			problems = append(problems, fmt.Sprintf("/properties: alias %q leads to %q, which is not a property", alias, aliases[alias]))
		}
	}
	return problems
}

// closeObjects copies a schema's subset keywords. An object with properties but
// without additionalProperties accepts no others, so that an unknown argument is an
// error. Integers have 64 bits.
func closeObjects(v any) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v
	}
	c := map[string]any{}
	for _, key := range subsetKeywords {
		if v, ok := s[key]; ok {
			c[key] = v
		}
	}
	if s["type"] == "integer" {
		for keyword, bound := range map[string]int64{"minimum": math.MinInt64, "maximum": math.MaxInt64} {
			if _, said := s[keyword]; !said {
				c[keyword] = json.Number(strconv.FormatInt(bound, 10))
			}
		}
	}
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

// acceptInput returns the canonical JSON that is hashed, shown and executed, or
// every problem of the input.
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
	if problems := s.root.ValidateInput(object, maxProblems); len(problems) > 0 {
		return nil, problems
	}
	if canonical, err = strictjson.Canonical(jsonschema.WriteIntegers(object)); err != nil {
		return nil, []string{"/: " + err.Error()}
	}
	return canonical, nil
}

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
			problems = append(problems, fmt.Sprintf("/%s: means the same as %q, give only %q", jsonschema.EscapeKey(alias), other, target))
		}
		from[target] = alias
		object[target] = v
		delete(object, alias)
	}
	return problems
}
