package jsonschema

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// foreignCompiler holds the state of compiling a schema that others wrote.
type foreignCompiler struct {
	root any
	// id is the identifier of the whole schema, "" for none.
	id string
	// old reports a draft before 2019-09, in which the keywords beside $ref do not
	// count.
	old bool
	// known are the compiled parts by their paths, and paths the reverse.
	known map[string]*Schema
	paths map[*Schema]string
	// loose leaves out what would refuse values wrongly once a keyword is left out, and
	// inexact reports that one was.
	loose, inexact bool
}

// CompileForeign compiles a schema of draft 7, 2019-09 or 2020-12 that is not trusted,
// such as that of a server's tool. Nothing is loaded: $ref leads to a part of
// the same schema, and may be recursive if it goes into the value. What
// no draft knows is an annotation. [Schema.Validate] gives up after [MaxSteps].
//
// The schema may accept more than its author means, never less: what this package
// can't express is left out (a pattern that needs backtracking, the unevaluated
// keywords, $dynamicRef), and with it, in the whole schema, what inverts or counts:
// not, if, maxContains, and that oneOf accepts only one.
func CompileForeign(doc any) (*Schema, []string) {
	s, problems, inexact := compileForeign(doc, false)
	if inexact && len(problems) == 0 {
		s, problems, _ = compileForeign(doc, true)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return s, nil
}

func compileForeign(doc any, loose bool) (s *Schema, problems []string, inexact bool) {
	f := &foreignCompiler{root: doc, known: map[string]*Schema{}, paths: map[*Schema]string{}, loose: loose}
	if root, ok := doc.(map[string]any); ok {
		f.id, _ = root["$id"].(string)
		f.id = strings.TrimSuffix(f.id, "#")
		dialect, _ := root["$schema"].(string)
		f.old = slices.ContainsFunc([]string{"draft-04", "draft-06", "draft-07"}, func(draft string) bool { return strings.Contains(dialect, draft) })
	}
	c := compiler{foreign: f}
	s = c.compileSchema(doc)
	s.foreign = true
	if len(c.problems) == 0 {
		c.checkLoops()
	}
	return s, c.problems, f.inexact
}

// remember keeps the schema at a path, or returns the one that is there already.
func (f *foreignCompiler) remember(path []string, s *Schema) *Schema {
	key := joinPointer(path)
	if known := f.known[key]; known != nil {
		return known
	}
	f.known[key], f.paths[s] = s, formatPath(path)
	return nil
}

// joinPointer returns a path as a JSON pointer, whole.
func joinPointer(path []string) string {
	var b strings.Builder
	for _, key := range path {
		b.WriteString("/" + pointerEscapes.Replace(key))
	}
	return b.String()
}

// compileForeignObject compiles a schema object.
func (c *compiler) compileForeignObject(s *Schema, doc map[string]any) {
	f := c.foreign
	if id, ok := doc["$id"].(string); ok && len(c.path) > 0 && !strings.HasPrefix(id, "#") {
		c.within("$id", func() { c.addProblem("only the whole schema can have an identifier") })
	}
	if ref, ok := doc["$ref"]; ok {
		c.within("$ref", func() { s.ref = c.resolveRef(ref) })
		if f.old {
			s = newSchema() // what is beside it is checked, and does not count
		}
	}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		c.within(key, func() { c.compileForeignKeyword(s, key, doc) })
	}
}

// compileForeignKeyword compiles a keyword that drafts disagree about, or that can't be
// expressed; the others are compiled as those of our own schemas.
func (c *compiler) compileForeignKeyword(s *Schema, key string, doc map[string]any) {
	f, v := c.foreign, doc[key]
	list, isList := v.([]any)
	flag, isBool := v.(bool)
	switch {
	case slices.Contains([]string{"$ref", "$schema", "title", "description", "format", "additionalItems"}, key):
	case slices.Contains([]string{"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"}, key):
		f.inexact = true
	case key == "$defs" || key == "definitions": // providers check them too
		c.compileNamed(v)
	case key == "items" && isList:
		c.compileItemList(s, list, doc)
	case key == "dependencies":
		if f.old {
			c.compileDependencies(s, v)
		}
	case key == "exclusiveMinimum" && isBool:
		if limit, ok := doc["minimum"]; ok && flag {
			c.addBound(s, key, limit, func(compared int) bool { return compared > 0 })
		}
	case key == "exclusiveMaximum" && isBool:
		if limit, ok := doc["maximum"]; ok && flag {
			c.addBound(s, key, limit, func(compared int) bool { return compared < 0 })
		}
	case key == "pattern":
		s.pattern = c.compileForeignPattern(c.readString(v))
	case key == "patternProperties":
		c.compilePatternProperties(s, v)
	case key == "additionalProperties" && f.loose && doc["patternProperties"] != nil:
	case f.loose && slices.Contains([]string{"not", "if", "then", "else", "maxContains"}, key):
	case f.loose && key == "oneOf":
		anyOf := newSchema()
		anyOf.anyOf = c.compileSchemas(v)
		s.allOf = append(s.allOf, anyOf)
	default:
		c.compileKeyword(s, key, v)
	}
}

// compileItemList compiles items as earlier drafts have it: a list of schemas, and
// additionalItems for the rest.
func (c *compiler) compileItemList(s *Schema, list []any, doc map[string]any) {
	if len(list) > 0 {
		s.prefixItems = c.compileSchemas(list)
	}
	if rest, ok := doc["additionalItems"]; ok {
		path := c.path
		c.path = append(slices.Clone(path[:len(path)-1]), "additionalItems")
		s.items = c.compileSchema(rest)
		c.path = path
	}
}

func (c *compiler) compileDependencies(s *Schema, v any) {
	object := c.readObject(v)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		c.within(name, func() {
			if _, isList := object[name].([]any); isList {
				s.dependentRequired = append(s.dependentRequired, dependency{name, c.readNames(object[name])})
				return
			}
			s.dependentSchemas = append(s.dependentSchemas, namedSchema{name, c.compileSchema(object[name])})
		})
	}
}

func (c *compiler) compilePatternProperties(s *Schema, v any) {
	for _, n := range c.compileNamed(v) {
		if p := c.compileForeignPattern(n.name); p != nil {
			s.patternProperties = append(s.patternProperties, patternSchema{p, n.schema})
		}
	}
}

// compileForeignPattern returns nil for a pattern that package regexp can't express.
func (c *compiler) compileForeignPattern(text string) *pattern {
	p, err := newPattern(text)
	switch {
	case err == nil:
		return p
	case err == errPatternSize: //nolint:errorlint // newPattern returns it as it is
		c.addProblem("%v", err)
	default:
		c.foreign.inexact = true
	}
	return nil
}

// resolveRef compiles what a reference leads to.
func (c *compiler) resolveRef(v any) *Schema {
	f := c.foreign
	ref, ok := v.(string)
	if !ok {
		c.addProblem("must be a string")
		return nil
	}
	base, fragment, _ := strings.Cut(ref, "#")
	if base != "" && base != f.id {
		c.addProblem("leads to another document, and none is loaded")
		return nil
	}
	fragment, err := url.PathUnescape(fragment)
	path, found := []string(nil), err == nil
	switch {
	case !found || fragment == "":
	case fragment[0] == '/':
		for token := range strings.SplitSeq(fragment[1:], "/") {
			path = append(path, strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~"))
		}
	case IsAnchor(fragment):
		path, found = findAnchor(f.root, fragment, nil)
	default:
		found = false
	}
	target, there := findPart(f.root, path)
	if !found || !there {
		c.addProblem("leads to nothing")
		return nil
	}
	from := c.path
	c.path = path
	s := c.compileSchema(target)
	c.path = from
	return s
}

// IsAnchor reports whether a plain name can be that of a schema.
func IsAnchor(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || r == '-' || r == '.')) {
			return false
		}
	}
	return s != ""
}

// findPart returns the part of a document at a path.
func findPart(doc any, path []string) (any, bool) {
	for _, key := range path {
		switch part := doc.(type) {
		case map[string]any:
			next, ok := part[key]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(part) || strconv.Itoa(i) != key {
				return nil, false
			}
			doc = part[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// findAnchor returns the path of the schema that has a plain name.
func findAnchor(doc any, name string, path []string) ([]string, bool) {
	switch doc := doc.(type) {
	case map[string]any:
		if doc["$anchor"] == name || doc["$id"] == "#"+name {
			return slices.Clone(path), true
		}
		for _, key := range slices.Sorted(maps.Keys(doc)) {
			if found, ok := findAnchor(doc[key], name, append(path, key)); ok {
				return found, true
			}
		}
	case []any:
		for i, part := range doc {
			if found, ok := findAnchor(part, name, append(path, strconv.Itoa(i))); ok {
				return found, true
			}
		}
	}
	return nil, false
}

// checkLoops adds a problem for each schema that leads back to itself at the same
// value: no value would ever be accepted.
func (c *compiler) checkLoops() {
	const open, done = 1, 2
	state := map[*Schema]int{}
	var visit func(s *Schema)
	visit = func(s *Schema) {
		state[s] = open
		for _, next := range s.inPlace() {
			switch state[next] {
			case open:
				c.problems = append(c.problems, c.foreign.paths[next]+": leads back to itself without going into the value")
			case 0:
				visit(next)
			}
		}
		state[s] = done
	}
	for _, s := range slices.SortedFunc(maps.Keys(c.foreign.paths), func(a, b *Schema) int {
		return strings.Compare(c.foreign.paths[a], c.foreign.paths[b])
	}) {
		if state[s] == 0 {
			visit(s)
		}
	}
}

// inPlace returns the schemas that are applied to the same value as s.
func (s *Schema) inPlace() []*Schema {
	list := slices.Concat(s.allOf, s.anyOf, s.oneOf)
	for _, d := range s.dependentSchemas {
		list = append(list, d.schema)
	}
	for _, one := range []*Schema{s.ref, s.not, s.condition, s.then, s.otherwise} {
		if one != nil {
			list = append(list, one)
		}
	}
	return list
}
