package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// parseInput makes the JSON object of a tool call from the arguments as the
// model wrote them. Nothing at all, and null, are the empty object; an object
// inside a JSON string is taken out of it, because some endpoints encode twice.
// Where the arguments are no object the second result says where and why, in
// words for the model, and the first is the empty object.
func parseInput(raw string) (json.RawMessage, string) {
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
	return json.RawMessage(data), ""
}

// isNestedDeeper reports whether valid JSON is nested deeper than most. What is
// deeper than a tool takes is kept as text: many parsers could not read a record
// that holds it as JSON.
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

// decodeObjectString returns the content of a JSON string that holds an object.
func decodeObjectString(data []byte) (string, bool) {
	var s string
	if data[0] != '"' || json.Unmarshal(data, &s) != nil {
		return "", false
	}
	return s, strings.HasPrefix(strings.TrimSpace(s), "{")
}

// describeSyntax says where data stops being JSON, with what stands there.
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

// jsonKind names a JSON value by its first byte.
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
