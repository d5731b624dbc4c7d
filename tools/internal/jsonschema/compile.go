// Package jsonschema validates JSON values with schemas of JSON Schema, draft
// 2020-12 (https://json-schema.org/draft/2020-12/json-schema-validation), and
// returns every problem of a value with its place. Numbers are exact, patterns are
// those of package regexp, format is an annotation.
//
// [Compile] is for schemas of our own: it refuses references, the unevaluated
// keywords, and keywords that other drafts know. [CompileForeign] is for schemas
// that others wrote.
//
// Every command of the program waits for the initialization of what it links, so
// this package imports nothing that initializes much: a library that compiles the
// schemas of the drafts was a third of the start (docs/design/dispatch.md).
package jsonschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Schema is a compiled schema, for any number of goroutines. That of [Compile] is a
// tree: each part of it is applied at most once to each part of a value. That of
// [CompileForeign] is a graph, and the work of one validation is bounded.
type Schema struct {
	never bool // the schema false
	// ref is the target of $ref, and foreign reports that the work has to be bounded.
	ref     *Schema
	foreign bool

	types   []string   // none accepts every type
	allowed []valueSet // enum and const: each must hold the value

	bounds     []numberBound
	multipleOf *big.Rat
	length     countRange
	pattern    *pattern

	prefixItems   []*Schema
	items         *Schema
	itemCount     countRange
	contains      *Schema
	containsCount countRange
	unique        bool

	properties        []namedSchema
	patternProperties []patternSchema
	additional        *Schema
	propertyNames     *Schema
	propertyCount     countRange
	required          []string
	dependentRequired []dependency
	dependentSchemas  []namedSchema

	allOf, anyOf, oneOf             []*Schema
	not, condition, then, otherwise *Schema
}

// numberBound is a keyword that compares a number.
type numberBound struct {
	keyword string
	value   *big.Rat
	accepts func(compared int) bool
}

// countRange bounds a number of characters, items or properties. A maximum of -1
// is none.
type countRange struct{ minimum, maximum int }

// valueSet is a set of values, by their keys.
type valueSet struct {
	keys []string
	text string // for a message
}

type namedSchema struct {
	name   string
	schema *Schema
}

type patternSchema struct {
	pattern *pattern
	schema  *Schema
}

type dependency struct {
	name     string
	required []string
}

// Compile compiles a schema whose numbers are json.Number, within the exponents
// that strictjson.CheckNumber accepts. If it can't be used, the problems are all
// that is wrong with it, each as "path: message" with the path as a JSON pointer.
// Keywords that no draft knows are annotations.
func Compile(doc any) (*Schema, []string) {
	var c compiler
	s := c.compileSchema(doc)
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return s, nil
}

// compiler collects the problems of a schema. Its methods return a zero value
// where they add one.
type compiler struct {
	path     []string
	problems []string
	// foreign is set by [CompileForeign], nil otherwise.
	foreign *foreignCompiler
}

func (c *compiler) addProblem(format string, args ...any) {
	c.problems = append(c.problems, formatPath(c.path)+": "+fmt.Sprintf(format, args...))
}

// within compiles the part of a schema that has this key.
func (c *compiler) within(key string, compile func()) {
	c.path = append(c.path, key)
	compile()
	c.path = c.path[:len(c.path)-1]
}

// newSchema returns a schema that accepts every value.
func newSchema() *Schema {
	return &Schema{
		length: countRange{0, -1}, itemCount: countRange{0, -1}, propertyCount: countRange{0, -1}, containsCount: countRange{1, -1},
	}
}

func (c *compiler) compileSchema(doc any) *Schema {
	s := newSchema()
	if c.foreign != nil {
		if known := c.foreign.remember(c.path, s); known != nil {
			return known
		}
	}
	switch doc := doc.(type) {
	case bool:
		s.never = !doc
	case map[string]any:
		if c.foreign != nil {
			c.compileForeignObject(s, doc)
			return s
		}
		for _, key := range slices.Sorted(maps.Keys(doc)) {
			c.within(key, func() { c.compileKeyword(s, key, doc[key]) })
		}
	default:
		c.addProblem("must be a schema, which is an object, true or false")
	}
	return s
}

func (c *compiler) compileKeyword(s *Schema, key string, v any) {
	switch key {
	case "type":
		s.types = c.compileTypes(v)
	case "enum":
		s.allowed = append(s.allowed, newValueSet(c.readList(v)))
	case "const":
		s.allowed = append(s.allowed, newValueSet([]any{v}))
	case "minimum":
		c.addBound(s, key, v, func(compared int) bool { return compared >= 0 })
	case "maximum":
		c.addBound(s, key, v, func(compared int) bool { return compared <= 0 })
	case "exclusiveMinimum":
		c.addBound(s, key, v, func(compared int) bool { return compared > 0 })
	case "exclusiveMaximum":
		c.addBound(s, key, v, func(compared int) bool { return compared < 0 })
	case "multipleOf":
		if s.multipleOf = c.readNumber(v); s.multipleOf.Sign() <= 0 {
			c.addProblem("must be a number above 0")
		}
	case "minLength":
		s.length.minimum = c.readCount(v)
	case "maxLength":
		s.length.maximum = c.readCount(v)
	case "pattern":
		s.pattern = c.compilePattern(c.readString(v))
	case "minItems":
		s.itemCount.minimum = c.readCount(v)
	case "maxItems":
		s.itemCount.maximum = c.readCount(v)
	case "uniqueItems":
		s.unique = c.readBool(v)
	case "minContains":
		s.containsCount.minimum = c.readCount(v)
	case "maxContains":
		s.containsCount.maximum = c.readCount(v)
	case "minProperties":
		s.propertyCount.minimum = c.readCount(v)
	case "maxProperties":
		s.propertyCount.maximum = c.readCount(v)
	case "required":
		s.required = c.readNames(v)
	case "title", "description", "format":
		c.readString(v)
	case "$schema":
		if !strings.Contains(c.readString(v), "//json-schema.org/") {
			c.addProblem("is a dialect that is not supported")
		}
	default:
		c.compileApplicator(s, key, v)
	}
}

// unsupported are keywords that change what a schema accepts, in this draft or in
// an earlier one, and that this package does not implement.
var unsupported = []string{
	"$ref", "$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties", "additionalItems", "dependencies",
}

// compileApplicator compiles a keyword that applies schemas.
func (c *compiler) compileApplicator(s *Schema, key string, v any) {
	switch key {
	case "prefixItems":
		s.prefixItems = c.compileSchemas(v)
	case "items":
		s.items = c.compileSchema(v)
	case "contains":
		s.contains = c.compileSchema(v)
	case "properties":
		s.properties = c.compileNamed(v)
	case "patternProperties":
		for _, n := range c.compileNamed(v) {
			s.patternProperties = append(s.patternProperties, patternSchema{c.compilePattern(n.name), n.schema})
		}
	case "additionalProperties":
		s.additional = c.compileSchema(v)
	case "propertyNames":
		s.propertyNames = c.compileSchema(v)
	case "dependentRequired":
		object := c.readObject(v)
		for _, name := range slices.Sorted(maps.Keys(object)) {
			s.dependentRequired = append(s.dependentRequired, dependency{name, c.readNames(object[name])})
		}
	case "dependentSchemas":
		s.dependentSchemas = c.compileNamed(v)
	case "allOf":
		s.allOf = c.compileSchemas(v)
	case "anyOf":
		s.anyOf = c.compileSchemas(v)
	case "oneOf":
		s.oneOf = c.compileSchemas(v)
	case "not":
		s.not = c.compileSchema(v)
	case "if":
		s.condition = c.compileSchema(v)
	case "then":
		s.then = c.compileSchema(v)
	case "else":
		s.otherwise = c.compileSchema(v)
	default:
		if slices.Contains(unsupported, key) {
			c.addProblem("is not supported")
		}
	}
}

func (c *compiler) compileSchemas(v any) []*Schema {
	list := c.readList(v)
	schemas := make([]*Schema, len(list))
	for i, doc := range list {
		c.within(strconv.Itoa(i), func() { schemas[i] = c.compileSchema(doc) })
	}
	return schemas
}

func (c *compiler) compileNamed(v any) []namedSchema {
	object := c.readObject(v)
	schemas := make([]namedSchema, 0, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		c.within(name, func() { schemas = append(schemas, namedSchema{name, c.compileSchema(object[name])}) })
	}
	return schemas
}

func (c *compiler) compilePattern(text string) *pattern {
	p, err := newPattern(text)
	if err != nil {
		c.addProblem("%v", err)
	}
	return p
}

func (c *compiler) addBound(s *Schema, keyword string, v any, accepts func(compared int) bool) {
	s.bounds = append(s.bounds, numberBound{keyword, c.readNumber(v), accepts})
}

var typeNames = []string{"string", "number", "integer", "boolean", "null", "object", "array"}

func (c *compiler) compileTypes(v any) []string {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var names []string
	for _, e := range list {
		name, _ := e.(string)
		if !slices.Contains(typeNames, name) {
			c.addProblem("must be one of %s, or a list of them", strings.Join(typeNames, ", "))
			return nil
		}
		if slices.Contains(names, name) {
			c.addProblem("%q is listed twice", name)
			return nil
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		c.addProblem("must not be an empty list")
	}
	return names
}

// readList reads a list, which must not be empty.
func (c *compiler) readList(v any) []any {
	list, _ := v.([]any)
	if len(list) == 0 {
		c.addProblem("must be a list with at least one value")
	}
	return list
}

func (c *compiler) readNames(v any) []string {
	list, ok := v.([]any)
	names := make([]string, len(list))
	for i, e := range list {
		name, isText := e.(string)
		ok = ok && isText && !slices.Contains(names[:i], name)
		names[i] = name
	}
	if !ok {
		c.addProblem("must be a list of different strings")
	}
	return names
}

func (c *compiler) readObject(v any) map[string]any {
	object, ok := v.(map[string]any)
	if !ok {
		c.addProblem("must be an object")
	}
	return object
}

func (c *compiler) readString(v any) string {
	text, ok := v.(string)
	if !ok {
		c.addProblem("must be a string")
	}
	return text
}

func (c *compiler) readBool(v any) bool {
	b, ok := v.(bool)
	if !ok {
		c.addProblem("must be true or false")
	}
	return b
}

func (c *compiler) readNumber(v any) *big.Rat {
	n, ok := v.(json.Number)
	if !ok {
		c.addProblem("must be a number")
		return new(big.Rat)
	}
	return exactValue(n)
}

// readCount reads a number of characters, items or properties.
func (c *compiler) readCount(v any) int {
	if n, ok := v.(json.Number); ok {
		if r := exactValue(n); r.IsInt() && r.Num().IsInt64() && r.Sign() >= 0 {
			return int(min(r.Num().Int64(), math.MaxInt32))
		}
	}
	c.addProblem("must be a whole number of at least 0")
	return 0
}

// exactValue returns the value of a number that strictjson.CheckNumber accepts.
func exactValue(n json.Number) *big.Rat {
	r, _ := new(big.Rat).SetString(string(n))
	return r
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// EscapeKey returns a key as a part of a JSON pointer, clipped.
func EscapeKey(key string) string { return pointerEscapes.Replace(utf8text.Clip(key, 80)) }

func formatPath(keys []string) string {
	if len(keys) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, key := range keys {
		b.WriteString("/" + EscapeKey(key))
	}
	return b.String()
}
