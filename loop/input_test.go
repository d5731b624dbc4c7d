package loop

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// inputCases returns arguments as models write them, each with the parsed object or
// a part of the error message.
func inputCases() map[string]struct{ raw, want, says string } {
	return map[string]struct{ raw, want, says string }{
		"object":            {raw: `{"path": "a"}`, want: `{"path": "a"}`},
		"nothing":           {raw: "", want: "{}"},
		"white space":       {raw: " \n\t", want: "{}"},
		"null":              {raw: "null", want: "{}"},
		"half pairs":        {raw: `{"a\ud83d":"\ud604 \uD83D\uDE00 \ud83d\ud83d\ude00 \udE00\ud83d \\ud83d \n"}`, want: `{"a\ufffd":"\ud604 \uD83D\uDE00 \ufffd\ud83d\ude00 \ufffd\ufffd \\ud83d \n"}`},
		"byte order mark":   {raw: "\ufeff{}", want: "{}"},
		"encoded twice":     {raw: `"{\"path\":\"a\"}"`, want: `{"path":"a"}`},
		"around it":         {raw: "  {\"a\":1}\n", want: `{"a":1}`},
		"array":             {raw: `["a"]`, says: "must be a JSON object, not an array"},
		"string":            {raw: `"ls"`, says: "not a string"},
		"number":            {raw: `-3`, says: "not a number"},
		"boolean":           {raw: `true`, says: "not a boolean"},
		"cut":               {raw: `{"path": "a`, says: `unexpected end of JSON input at line 1, column 12, near "{\"path\": \"a"`},
		"single quotes":     {raw: `{'path': 'a'}`, says: "at line 1, column 2"},
		"second line":       {raw: "{\"a\": 1,\n  b: 2}", says: "at line 2, column 3"},
		"after wide runes":  {raw: `{"ä": é}`, says: "at line 1, column 7"},
		"two objects":       {raw: `{}{"a":1}`, says: "at line 1, column 3"},
		"fenced":            {raw: "```json\n{}\n```", says: "at line 1, column 1"},
		"trailing comma":    {raw: `{"a":1,}`, says: "at line 1, column 8"},
		"twice, cut":        {raw: `"{\"path\""`, says: "unexpected end"},
		"as deep as can be": {raw: nestedObject(64), want: nestedObject(64)},
		"too deep":          {raw: nestedObject(65), says: "nested deeper than 64"},
		"5,000 deep":        {raw: nestedObject(5000), says: "nested deeper than 64"},
		"wide, not deep":    {raw: `{"a":[` + strings.Repeat(`{},`, 70) + strings.Repeat(`[],`, 70) + `1]}`, want: `{"a":[` + strings.Repeat(`{},`, 70) + strings.Repeat(`[],`, 70) + `1]}`},
		"what is near":      {raw: `{"a":"0123456789012345", b: "abcdefghijklmnopqrstuvwxyz"}`, says: `column 26, near "\"0123456789012345\", b: \"abcdefghijklmnop"`},
		"brackets in text":  {raw: `{"a":"` + strings.Repeat(`[{\"`, 100) + `"}`, want: `{"a":"` + strings.Repeat(`[{\"`, 100) + `"}`},
		"very deep":         {raw: strings.Repeat(`{"a":`, 1e5), says: "exceeded max depth"},
		"very deep, whole":  {raw: strings.Repeat(`[`, 1e5) + strings.Repeat(`]`, 1e5), says: "exceeded max depth"},
		"invalid utf-8":     {raw: "{\"a\xff\": \xff}", says: "invalid character"},
	}
}

func nestedObject(depth int) string {
	return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
}

func TestParseInput(t *testing.T) {
	for name, tt := range inputCases() {
		t.Run(name, func(t *testing.T) {
			got, said := ParseInput(tt.raw)
			if tt.says == "" && (string(got) != tt.want || said != "") {
				t.Errorf("ParseInput() = %s, %q, want %s", got, said, tt.want)
			}
			if tt.says != "" && (string(got) != "{}" || !strings.Contains(said, tt.says)) {
				t.Errorf("ParseInput() = %s, %q, want {} and %q", got, said, tt.says)
			}
			if len(said) > 300 {
				t.Errorf("the message has %d bytes", len(said))
			}
		})
	}
}

func FuzzParseInput(f *testing.F) {
	n := 0
	for _, tt := range inputCases() {
		if len(tt.raw) < 1000 {
			f.Add(tt.raw)
			n++
		}
	}
	if n == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, said := ParseInput(raw)
		var object map[string]any
		if err := json.Unmarshal(got, &object); err != nil || object == nil {
			t.Errorf("ParseInput(%q) = %q: %v", raw, got, err)
		}
		if said != "" && string(got) != "{}" || !utf8.ValidString(said) || len(said) > 500 {
			t.Errorf("ParseInput(%q) = %q, %q", raw, got, said)
		}
	})
}
