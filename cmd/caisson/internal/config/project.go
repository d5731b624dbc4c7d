package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/tools/policy"
)

// ProjectPath is the file with a workspace's own settings.
const ProjectPath = ".caisson/config.yaml"

// MaxProjectBytes bounds a workspace's file, which is parsed before a user has read it.
// A file that sets every key is below 4 KiB.
const MaxProjectBytes = 16 << 10

// The YAML library's memory grows with the square of the nesting (1 GiB for 32 KiB of
// "- "), so bound that before parsing a stranger's file. A file of settings nests four
// deep.
const maxProjectBrackets = 256

var nestedOnOneLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[ \t]*([-?][ \t]+){8}`)
})

// ProjectFile is a workspace's own file, read once: the same bytes are hashed, trusted
// and parsed.
type ProjectFile struct {
	Path string
	Text []byte
}

// SHA256 returns the hash of the text in hexadecimal.
func (p ProjectFile) SHA256() string { return hashHex(p.Text) }

// parseProject reads a workspace's file. It refuses unknown keys and loosening values.
// Its error is an [Error] with the place.
func parseProject(f ProjectFile) (Project, error) {
	var p Project
	if err := checkNesting(f); err != nil {
		return p, err
	}
	err := parseWith(f.Path, f.Text, onlyPlain, &p)
	if e, ok := errors.AsType[*Error](err); ok {
		return p, explainForeign(e)
	}
	if err != nil {
		return p, err
	}
	return p, p.check(f)
}

// checkNesting refuses a file for which the YAML library would need too much memory.
func checkNesting(f ProjectFile) error {
	switch {
	case len(f.Text) > MaxProjectBytes:
		return &Error{Where: f.Path, Message: fmt.Sprintf("larger than %d bytes", MaxProjectBytes)}
	case bytes.Count(f.Text, []byte("["))+bytes.Count(f.Text, []byte("{")) > maxProjectBrackets, nestedOnOneLine().Match(f.Text):
		return &Error{Where: f.Path, Message: "nested too deeply, or too many brackets, for a file of settings"}
	}
	return nil
}

// onlyPlain refuses syntax that a plain file of settings doesn't need, and values from
// the environment.
func onlyPlain(body ast.Node) error {
	var v plainVisitor
	ast.Walk(&v, body)
	return v.err
}

// plainVisitor keeps the first error.
type plainVisitor struct{ err error }

func (v *plainVisitor) Visit(n ast.Node) ast.Visitor {
	if v.err != nil || n == nil {
		return nil
	}
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		v.err = errorAt(n, errors.New("anchors, aliases, merges and tags are not taken from a workspace"))
	case *ast.StringNode:
		if strings.Contains(n.Value, "${") {
			v.err = errorAt(n, errors.New("a workspace's file takes no values from the environment"))
		}
	}
	return v
}

var unknownField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^unknown field "([^"]*)"$`)
})

// explainForeign explains that a workspace may not set a key that users may.
func explainForeign(e *Error) error {
	m := unknownField().FindStringSubmatch(e.Message)
	if m != nil && slices.ContainsFunc(keysOf(reflect.TypeFor[File]()), func(k key) bool { return k.field.name == m[1] }) {
		e.Message = fmt.Sprintf("a workspace can't set %q: its file can only tighten", m[1])
		e.Hint = "take the key out; it belongs into your own configuration"
	}
	return e
}

// check refuses values that would loosen or have no meaning.
func (p Project) check(f ProjectFile) error {
	wrong := func(key, item, message, hint string) error {
		e := &Error{Where: f.Path, Message: key + ": " + message, Hint: hint}
		e.Line, e.Column = findKey(f.Text, key, item)
		return e
	}
	loosens := func(key, got, only string) error {
		return wrong(key, "", got+" would loosen, and a workspace can only tighten", "write "+only+", or take the key out")
	}
	for _, k := range keysOf(reflect.TypeFor[Project]()) {
		order := k.tagWords("tighten")
		if order == nil {
			continue
		}
		stricter := order[:len(order)-1]
		if v := reflect.ValueOf(p).FieldByIndex(k.index); !v.IsNil() && !slices.Contains(stricter, wordOf(v)) {
			return loosens(k.name, wordOf(v), strings.Join(stricter, " or "))
		}
	}
	if _, err := parseRules("fetch.allow", p.Fetch.Allow); err != nil {
		e := err.(*Error) //nolint:errorlint // parseRules returns no other
		return wrong(e.Where, e.Item, e.Message, e.Hint)
	}
	if p.Policy == nil {
		return nil
	}
	if err := checkModes("policy.", reflect.ValueOf(*p.Policy)); err != nil {
		e := err.(*Error) //nolint:errorlint // checkModes returns no other
		return wrong(e.Where, "", e.Message, e.Hint)
	}
	for _, group := range []struct {
		key   string
		modes map[string]string
	}{{"policy.default", p.Policy.Default}, {"policy.tools", p.Policy.Tools}, {"policy.commands", p.Policy.Commands}} {
		for _, name := range sortedKeys(group.modes) {
			if group.modes[name] == string(policy.ModeAuto) {
				return loosens(joinKey(group.key, name), "auto", "prompt or deny")
			}
		}
	}
	for _, layer := range p.Policy.tighteningLayers() {
		if err := layer.Validate(); err != nil {
			return wrong("policy", "", strings.TrimPrefix(err.Error(), "check policy: "), "")
		}
	}
	if p.Policy.Preset != nil {
		if _, err := policy.Preset(*p.Policy.Preset); err != nil {
			return wrong("policy.preset", "", err.Error(), "")
		}
	}
	return nil
}

// tightenBy applies a workspace's file where it is stricter. Its policy is kept
// separate: higher layers can't change it.
func (c *Config) tightenBy(p Project) error {
	tightenValue(reflect.ValueOf(&c.Bounds).Elem(), reflect.ValueOf(p.Bounds))
	if err := cmp.Or(c.Fetch.narrowTo(ProjectPath, p.Fetch), c.Egress.narrowTo(ProjectPath, p.Egress)); err != nil {
		return err
	}
	c.Project = p
	return nil
}

func (p *PolicyRules) tighteningLayers() []policy.Policy {
	if p == nil {
		return nil
	}
	full := Policy{PolicyRules: *p}
	return full.tighteningLayers(ProjectPath)
}
