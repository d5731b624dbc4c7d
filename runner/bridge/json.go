package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of JSON. Schemas and the arguments of tool calls have the
// most levels.
const maxDepth = 200

// member is a member of a JSON object. Its key and value are as they were sent, and
// name is the decoded key.
type member struct {
	name       string
	key, value []byte
}

// object is the members of a JSON object in their order. Members that nobody touches
// stay as they were sent, byte for byte.
type object []member

// Bounds of a body. Their memory and time are spent before its budget is known.
const (
	maxValues  = 1_000_000
	maxMembers = 1_000 // of the body itself
	maxTools   = 1_000 // in each list
)

// parseBody parses a request's body. It refuses what JSON parsers read in different
// ways: invalid UTF-8, very deep nesting and, in each object that is read, a name
// that occurs twice.
func parseBody(data []byte) (object, error) {
	data = bytes.TrimSpace(data)
	switch {
	case !utf8.Valid(data) || !json.Valid(data):
		return nil, errors.New("the body is not valid JSON")
	case data[0] != '{':
		return nil, errors.New("the body is not a JSON object")
	}
	switch depth, values := measure(data); {
	case depth > maxDepth:
		return nil, fmt.Errorf("the body is nested deeper than %d levels", maxDepth)
	case values > maxValues:
		return nil, fmt.Errorf("the body has more than %d values", maxValues)
	}
	o, err := parseObject(data)
	if len(o) > maxMembers {
		return nil, fmt.Errorf("the body has more than %d members", maxMembers)
	}
	return o, err
}

// measure returns the depth of nesting of a valid JSON text, and the number of its
// commas. Each array and object has at most one value more than commas.
func measure(data []byte) (deepest, values int) {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		case ',':
			values++
		}
	}
	return deepest, values
}

func isTooDeep(data []byte) bool {
	depth, _ := measure(data)
	return depth > maxDepth
}

// endOfString returns the index behind the string that begins at i.
func endOfString(data []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(data[i:], '"')
		escapes := 0
		for data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

func skipSpace(data []byte, i int) int {
	for data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r' {
		i++
	}
	return i
}

// endOfValue returns the index behind the value that begins at i.
func endOfValue(data []byte, i int) int {
	depth := 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			continue
		default:
			if depth == 0 && i+1 < len(data) && !strings.ContainsRune(",]} \t\n\r", rune(data[i+1])) {
				continue // inside a number or a name such as true
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// elements returns the elements of a valid JSON array, or nil for another value.
func elements(raw []byte) [][]byte {
	if len(raw) == 0 || raw[0] != '[' {
		return nil
	}
	var list [][]byte
	for i := skipSpace(raw, 1); raw[i] != ']'; {
		end := endOfValue(raw, i)
		list = append(list, raw[i:end])
		i = skipSpace(raw, end)
		if raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return list
}

// parseObject returns the members of a valid JSON object. Two names that differ only
// in case or underscores count as the same: some servers read either.
func parseObject(raw []byte) (object, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errors.New("a JSON object was expected")
	}
	var o object
	seen := map[string]bool{}
	for i := skipSpace(raw, 1); raw[i] != '}'; {
		end := endOfString(raw, i)
		m := member{key: raw[i:end]}
		if err := json.Unmarshal(m.key, &m.name); err != nil {
			return nil, err
		}
		if folded := foldName(m.name); seen[folded] {
			return nil, fmt.Errorf("the member %s occurs twice in an object", shorten(m.name))
		} else {
			seen[folded] = true
		}
		i = skipSpace(raw, skipSpace(raw, end)+1)
		end = endOfValue(raw, i)
		m.value = raw[i:end]
		o = append(o, m)
		i = skipSpace(raw, end)
		if raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return o, nil
}

// foldName returns a name without case and underscores.
func foldName(name string) string {
	return strings.ReplaceAll(strings.ToLower(strings.ToUpper(name)), "_", "")
}

// shorten quotes a text of the agent for an error.
func shorten(text string) string {
	if len(text) > 100 {
		text = text[:100] + "…"
	}
	return strconv.Quote(text)
}

// encode returns the object as JSON.
func (o object) encode() []byte {
	n := 2
	for _, m := range o {
		n += len(m.key) + len(m.value) + 2
	}
	out := append(make([]byte, 0, n), '{')
	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, m.key...), ':'), m.value...)
	}
	return append(out, '}')
}

func encodeArray(list [][]byte) []byte {
	return slices.Concat([]byte("["), bytes.Join(list, []byte(",")), []byte("]"))
}

// find returns the index of a member by its folded name, or -1.
func (o object) find(folded string) int {
	return slices.IndexFunc(o, func(m member) bool { return foldName(m.name) == folded })
}

// value returns a member's value by its folded name, or nil if there is none or it is
// null.
func (o object) value(folded string) []byte {
	if i := o.find(folded); i >= 0 && string(o[i].value) != "null" {
		return o[i].value
	}
	return nil
}

// text returns a member's value if that is a string, else "".
func (o object) text(folded string) string {
	text, _ := decodeString(o.value(folded))
	return text
}

func decodeString(raw []byte) (text string, ok bool) {
	ok = len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil
	return text, ok
}

// set replaces a member's value, or adds the member with the name at the end.
func (o *object) set(name string, value []byte) {
	if i := o.find(foldName(name)); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{name: name, key: quote(name), value: value})
}

// remove removes a member, if there is one.
func (o *object) remove(folded string) {
	*o = slices.DeleteFunc(*o, func(m member) bool { return foldName(m.name) == folded })
}

// quote returns a string as JSON.
func quote(text string) []byte {
	data, err := json.Marshal(text)
	if err != nil {
		return []byte(`""`) // can't happen: strings have a JSON form
	}
	return data
}
