package skill

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of a SKILL.md.
const (
	MaxFrontMatterBytes = 8 << 10
	MaxBodyBytes        = 64 << 10
	// MaxDescription is in characters; a longer one is cut.
	MaxDescription = 1024
	// maxFileBytes bounds what is read of a file.
	maxFileBytes = MaxFrontMatterBytes + MaxBodyBytes + 64
)

// Document is the content of a SKILL.md.
type Document struct {
	Name, Description string
	// Declares reports whether the front matter has allowed-tools. AllowedTools are
	// its entries as written.
	Declares     bool
	AllowedTools []string
	Body         string
	// Warnings are problems that don't prevent use.
	Warnings []string
}

// FormatError reports that a SKILL.md can't be used.
type FormatError struct {
	// Line counts from 1; 0 is none.
	Line    int
	Problem string
}

func (e *FormatError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
	}
	return e.Problem
}

var skillName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
})

func isName(s string) bool { return len(s) <= 64 && skillName().MatchString(s) }

// Parse parses the SKILL.md of a directory, or of an unknown one if dir is "". A
// name such as "Make Release" stands for its directory's, make-release. The error
// is a [*FormatError].
func Parse(text []byte, dir string) (Document, error) {
	var d Document
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if !utf8.Valid(text) {
		return d, &FormatError{Problem: "it is not UTF-8"}
	}
	header, body, err := splitFrontMatter(strings.ReplaceAll(string(text), "\r\n", "\n"))
	if err != nil {
		return d, err
	}
	d.Body = body
	values, err := parseFrontMatter(header)
	if err != nil {
		return d, err
	}
	return d, d.setValues(values, dir)
}

// splitFrontMatter splits text after the next line that is "---".
func splitFrontMatter(text string) (header, body string, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimRight(first, " \t") != "---" {
		return "", "", &FormatError{Line: 1, Problem: `no front matter: the first line must be "---"`}
	}
	at := 0
	for line := range strings.Lines(rest) {
		if strings.TrimRight(line, " \t\n") == "---" {
			header, body = rest[:at], strings.Trim(rest[at+len(line):], "\n")
			switch {
			case len(header) > MaxFrontMatterBytes:
				return "", "", &FormatError{Problem: fmt.Sprintf("its front matter has more than %d bytes", MaxFrontMatterBytes)}
			case len(body) > MaxBodyBytes:
				return "", "", &FormatError{Problem: fmt.Sprintf("its body has more than %d bytes", MaxBodyBytes)}
			}
			return header, body, nil
		}
		at += len(line)
	}
	return "", "", &FormatError{Problem: `the front matter does not end: a line "---" is missing`}
}

// parseFrontMatter returns the values of a YAML mapping. It does not decode them,
// so that aliases are never expanded.
func parseFrontMatter(header string) (map[string]ast.Node, error) {
	// The YAML library does not end on some texts with control characters.
	if i := strings.IndexFunc(header, func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' || r == 0x7f }); i >= 0 {
		return nil, &FormatError{Line: strings.Count(header[:i], "\n") + 2, Problem: "a control character in the front matter"}
	}
	file, err := parser.ParseBytes([]byte(header), 0)
	if err != nil {
		e := &FormatError{Problem: "its front matter is not YAML: " + err.Error()}
		if y, ok := errors.AsType[yaml.Error](err); ok {
			e.Problem = "its front matter is not YAML: " + y.GetMessage()
			if t := y.GetToken(); t != nil && t.Position != nil {
				e.Line = t.Position.Line + 1
			}
		}
		return nil, e
	}
	values := map[string]ast.Node{}
	var pairs []*ast.MappingValueNode
	for i, doc := range file.Docs {
		if i > 0 { // the parser finds duplicate keys only within one document
			return nil, &FormatError{Problem: "its front matter has more than one YAML document"}
		}
		switch body := doc.Body.(type) {
		case *ast.MappingNode:
			pairs = append(pairs, body.Values...)
		case *ast.MappingValueNode:
			pairs = append(pairs, body)
		case nil, *ast.CommentGroupNode:
		default:
			return nil, &FormatError{Line: 2, Problem: "its front matter is not a mapping of keys to values"}
		}
	}
	for _, pair := range pairs {
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			return nil, &FormatError{Line: lineOf(pair.Key), Problem: "a key of its front matter is not plain text"}
		}
		name := key.Value
		if declaresTools(name) {
			name = allowedToolsKey
		}
		if _, twice := values[name]; twice {
			return nil, &FormatError{Line: lineOf(pair.Key), Problem: "its front matter has " + name + " twice, in two spellings"}
		}
		values[name] = pair.Value
	}
	return values, nil
}

const allowedToolsKey = "allowed-tools"

// declaresTools reports whether a key is allowed-tools in any spelling. A capital
// letter must not lose a restriction.
func declaresTools(key string) bool {
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(key))
	return plain == "allowedtools"
}

func (d *Document) setValues(values map[string]ast.Node, dir string) error {
	for _, field := range []struct {
		key string
		set *string
	}{{"name", &d.Name}, {"description", &d.Description}} {
		text, ok := scalarText(values[field.key])
		if *field.set = strings.TrimSpace(text); !ok || *field.set == "" {
			return &FormatError{Line: lineOf(values[field.key]), Problem: "its front matter has no " + field.key}
		}
	}
	switch written := clip(d.Name, 80); {
	case isName(d.Name):
		if dir != "" && d.Name != dir {
			d.Warnings = append(d.Warnings, fmt.Sprintf("its name is not that of its directory, %q", clip(dir, 80)))
		}
	case isName(dir) && strings.NewReplacer(" ", "-", "_", "-").Replace(strings.ToLower(d.Name)) == dir:
		d.Name = dir
		d.Warnings = append(d.Warnings, fmt.Sprintf("its name %q is not valid; it is used as %s, as its directory is called", written, dir))
	default:
		return &FormatError{Line: lineOf(values["name"]), Problem: fmt.Sprintf("its name %q must be 1 to 64 of a-z, 0-9 and single hyphens between them", written)}
	}
	if clipped := clip(d.Description, MaxDescription); clipped != d.Description {
		d.Description = clipped
		d.Warnings = append(d.Warnings, fmt.Sprintf("its description has more than %d characters and was cut", MaxDescription))
	}
	node, ok := values[allowedToolsKey]
	if d.Declares = ok; ok {
		d.AllowedTools = d.listTools(node)
	}
	return nil
}

// listTools returns the entries of an allowed-tools value. If it is neither text
// nor a list, it has none and allows no tool.
func (d *Document) listTools(node ast.Node) []string {
	if text, ok := scalarText(node); ok {
		return splitNames(text)
	}
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		if _, empty := node.(*ast.NullNode); !empty && node != nil {
			d.Warnings = append(d.Warnings, "its allowed-tools is neither text nor a list, so it allows no tool")
		}
		return []string{}
	}
	names := []string{}
	for _, entry := range list.Values {
		text, ok := scalarText(entry)
		if !ok {
			d.Warnings = append(d.Warnings, "an entry of its allowed-tools is no text, and is left out")
			continue
		}
		names = append(names, splitNames(text)...)
	}
	return names
}

// splitNames splits text at spaces and commas outside parentheses.
func splitNames(text string) []string {
	depth := 0
	names := strings.FieldsFunc(text, func(r rune) bool {
		switch r {
		case '(':
			depth++
		case ')':
			depth = max(depth-1, 0)
		}
		return depth == 0 && strings.ContainsRune(" \t\n,", r)
	})
	if names == nil {
		return []string{}
	}
	return names
}

// scalarText returns the text of a plain value. Anchors, aliases and tags have
// none.
func scalarText(node ast.Node) (text string, ok bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// lineOf returns the line of a node in the file, or 0.
func lineOf(node ast.Node) int {
	if node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return 0
	}
	return node.GetToken().Position.Line + 1
}

func clip(text string, limit int) string {
	n := 0
	for i := range text {
		if n == limit {
			return text[:i]
		}
		n++
	}
	return text
}
