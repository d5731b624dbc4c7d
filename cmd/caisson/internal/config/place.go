package config

import (
	"cmp"
	"errors"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// layerText is a file of settings, kept to find the places of values.
type layerText struct {
	path string
	text []byte
}

// addPlace adds the place in a file to an error about a setting, or names the flag or
// variable that set it.
func (c *Config) addPlace(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Line != 0 {
		return err
	}
	file, key := c.user, e.Where
	rest, required := strings.CutPrefix(key, "requirements.")
	origin := cmp.Or(c.origins[key+"."+e.Item], c.origins.find(key))
	name, profile := strings.CutPrefix(origin, "profile ")
	path, workspace := strings.CutPrefix(origin, "workspace ")
	switch {
	case required:
		file, key = c.required, rest
	case profile:
		key = joinKey("profiles", name) + "." + key
	case workspace:
		key = joinKey("workspaces", path) + "." + key
	case !strings.HasPrefix(origin, "user "):
		e.Where = cmp.Or(c.origins.flagOrVariable(key, e.Item), e.Where)
		return err
	}
	if line, column := findKey(file.text, key, e.Item); line > 0 {
		e.File, e.Line, e.Column = file.path, line, column
	}
	return err
}

// IsBuiltin reports whether a setting has its built-in value.
func (c *Config) IsBuiltin(key string) bool { return c.origins.find(key) == "built-in" }

// origins are the names of the layers of settings, by key.
type origins map[string]string

// Prefixes of the origin of settings from flags and variables.
const (
	fromFlag     = "flag "
	fromVariable = "environment "
)

// noteChanges records a layer as the origin of changed settings.
func (o origins) noteChanges(before []Value, f File, from string) {
	was := map[string]string{}
	for _, v := range before {
		was[v.Key] = v.Text
	}
	for _, v := range listValues(f) {
		if text, there := was[v.Key]; !there || text != v.Text {
			o[v.Key] = from
		}
	}
}

// nameSettings names the flag or variable of each setting that came from one.
func (o origins) nameSettings() {
	byKey := map[string]Setting{}
	for _, s := range Settings() {
		byKey[s.Key] = s
	}
	for key, origin := range o {
		s, ok := byKey[key]
		if strings.HasPrefix(key, "env_from.") { // an item of the list
			s, ok = byKey["env_from"], true
		}
		switch {
		case origin == "flags" && strings.HasPrefix(key, "env."):
			o[key] = fromFlag + "--env"
		case origin == "flags" && ok:
			o[key] = fromFlag + "--" + s.Flag
		case origin == "environment" && ok:
			o[key] = fromVariable + s.Env()
		}
	}
}

// flagOrVariable returns the flag or variable that a setting, or an item of its list,
// came from, or "".
func (o origins) flagOrVariable(key, item string) string {
	origin := cmp.Or(o[key+"."+item], o[key])
	for _, prefix := range []string{fromFlag, fromVariable} {
		if name, ok := strings.CutPrefix(origin, prefix); ok {
			return name
		}
	}
	return ""
}

// find returns the origin of a setting, or of the first one below it that is not
// built-in.
func (o origins) find(key string) string {
	if origin, ok := o[key]; ok {
		return origin
	}
	for _, below := range sortedKeys(o) {
		if strings.HasPrefix(below, key+".") && o[below] != "built-in" {
			return o[below]
		}
	}
	return ""
}

// findKey returns the place of a key's value, or of the nearest existing key above it,
// or 0. In a list, it is the place of item.
func findKey(text []byte, key, item string) (line, column int) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return 0, 0
	}
	longest := 0
	for _, doc := range file.Docs {
		eachKey(doc.Body, "", func(path string, n, value ast.Node) {
			if list, ok := value.(*ast.SequenceNode); ok && path == key {
				n = findItem(list, item, n)
			}
			t := n.GetToken()
			if len(path) > longest && (path == key || strings.HasPrefix(key, path+".")) && t != nil && t.Position != nil {
				longest, line, column = len(path), t.Position.Line, t.Position.Column
			}
		})
	}
	return line, column
}

// findItem returns the node of item in a list, or in a mapping of it, or else
// otherwise.
func findItem(list *ast.SequenceNode, item string, otherwise ast.Node) ast.Node {
	v := itemVisitor{item: item, found: otherwise}
	ast.Walk(&v, list)
	return v.found
}

type itemVisitor struct {
	item  string
	found ast.Node
}

func (v *itemVisitor) Visit(n ast.Node) ast.Visitor {
	if text, ok := n.(*ast.StringNode); ok && v.item != "" && text.Value == v.item {
		v.found = n
	}
	return v
}

// eachKey calls f for each key below n, with the node that shows its place and with its
// value. The place is the value, or the key if the value has several lines.
func eachKey(n ast.Node, above string, f func(path string, n, value ast.Node)) {
	entry := func(v *ast.MappingValueNode) {
		path := joinKey(above, v.Key.GetToken().Value)
		switch v.Value.(type) {
		case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode:
			f(path, v.Key, v.Value)
		default:
			f(path, v.Value, v.Value)
		}
		eachKey(v.Value, path, f)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			entry(v)
		}
	case *ast.MappingValueNode:
		entry(n)
	}
}
