package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// ParseInput returns the JSON object in a tool call's arguments. Empty arguments and
// null are the empty object. An object inside a JSON string is decoded, because some
// endpoints encode twice. Escapes of half a surrogate pair become U+FFFD: servers
// refuse every later request that has one, and many parsers can't read such a record.
// If the arguments are not an object, ParseInput returns the empty object and a message
// for the model.
func ParseInput(raw string) (json.RawMessage, string) {
	empty := json.RawMessage("{}")
	data := bytes.TrimSpace([]byte(strings.TrimPrefix(raw, "\ufeff")))
	if len(data) == 0 || string(data) == "null" {
		return empty, ""
	}
	if inner, ok := decodeObjectString(data); ok {
		data = bytes.TrimSpace([]byte(inner))
	}
	if !json.Valid(data) {
		return empty, describeSyntax(data)
	}
	if data[0] != '{' {
		return empty, fmt.Sprintf("the arguments must be a JSON object, not %s", jsonKind(data[0]))
	}
	if isNestedDeeper(data, tools.MaxInputDepth) {
		return empty, fmt.Sprintf("the arguments are nested deeper than %d", tools.MaxInputDepth)
	}
	return surrogates().ReplaceAllFunc(data, func(escape []byte) []byte {
		if len(escape) == len(`\ud800`) {
			return []byte(`\ufffd`)
		}
		return escape
	}), ""
}

// surrogates matches a JSON surrogate pair, half of one, or another escape's start.
var surrogates = sync.OnceValue(func() *regexp.Regexp {
	const high, low = `\\u[dD][89abAB][[:xdigit:]]{2}`, `\\u[dD][c-fC-F][[:xdigit:]]{2}`
	return regexp.MustCompile(high + low + "|" + high + "|" + low + `|\\.`)
})

// isNestedDeeper reports whether valid JSON is nested deeper than limit. Many parsers
// can't read records with deeply nested JSON, so it is kept as text.
func isNestedDeeper(data []byte, limit int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			if depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// decodeObjectString decodes data and reports whether it is a JSON string with an
// object in it.
func decodeObjectString(data []byte) (string, bool) {
	var s string
	if data[0] != '"' || json.Unmarshal(data, &s) != nil {
		return "", false
	}
	return s, strings.HasPrefix(strings.TrimSpace(s), "{")
}

// describeSyntax describes the first syntax error in data, with its position and the
// text around it.
func describeSyntax(data []byte) string {
	var v any
	syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(data, &v))
	if !ok {
		return "the arguments are not a JSON object"
	}
	offset := int(min(max(syntax.Offset-1, 0), int64(len(data))))
	if strings.Contains(syntax.Error(), "unexpected end") {
		offset = len(data)
	}
	before := data[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len([]rune(string(before[bytes.LastIndexByte(before, '\n')+1:]))) + 1
	near := strings.ToValidUTF8(string(data[max(offset-20, 0):min(offset+20, len(data))]), "")
	return fmt.Sprintf("the arguments are not valid JSON: %v at line %d, column %d, near %q", syntax, line, column, near)
}

// jsonKind names the kind of a JSON value by its first byte.
func jsonKind(first byte) string {
	switch first {
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	default:
		return "a number"
	}
}
