// Package secrettest draws secrets and texts that hold them, for tests of what
// removes secrets.
package secrettest

import (
	"encoding/json"
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// value draws what keys and passwords are made of, and what JSON, HTML and
// patterns find hard.
var value = rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ0189-_./+=\"\\<>&'% ü\u2028\t")), 8, 40, -1)

// filler draws the text around a secret.
var filler = rapid.SampledFrom([]string{"", " ", "x", "\n", "some words ", "-", "sk-", "[redacted:", `\`, `"`, "é", "\x1b[0m", strings.Repeat("padding ", 700), strings.Repeat("k", 5000)})

// DrawValues draws one to three secrets, of which none is part of a filler.
func DrawValues(t *rapid.T) []string {
	values := rapid.SliceOfNDistinct(value, 1, 3, rapid.ID).Draw(t, "secrets")
	for i, v := range values {
		if strings.Contains(strings.Repeat("padding ", 7), v) || strings.Trim(v, "k- x") == "" {
			values[i] += "Q9Z"
		}
	}
	return values
}

// DrawText draws a text with secrets in it.
func DrawText(t *rapid.T, values []string) string {
	var b strings.Builder
	for range rapid.IntRange(1, 6).Draw(t, "parts") {
		b.WriteString(filler.Draw(t, "before"))
		b.WriteString(rapid.SampledFrom(values).Draw(t, "secret"))
	}
	b.WriteString(filler.Draw(t, "after"))
	return b.String()
}

// FindLeak returns a secret that a text holds, as it is or in JSON's spelling,
// and "" where it holds none.
func FindLeak(text string, values []string) string {
	for _, v := range values {
		for _, form := range []string{v, Quote(v)} {
			if strings.Contains(text, form) {
				return form
			}
		}
	}
	return ""
}

// Quote returns a text as it stands between the quotes of JSON.
func Quote(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // which works for every string
	quoted := strings.TrimSuffix(b.String(), "\n")
	return quoted[1 : len(quoted)-1]
}

// DrawEscaped returns a text as JSON with escapes that it does not need.
func DrawEscaped(t *rapid.T, text string) string {
	var b strings.Builder
	every := rapid.IntRange(1, 9).Draw(t, "escape every")
	for i, r := range []rune(text) {
		switch {
		case i%every == 0 && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r == '/':
			b.WriteString(`\/`)
		default:
			b.WriteString(Quote(string(r)))
		}
	}
	return b.String()
}

// VisitStrings calls visit for every string of a decoded JSON value, its keys
// included.
func VisitStrings(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, e := range v {
			VisitStrings(e, visit)
		}
	case map[string]any:
		for k, e := range v {
			visit(k)
			VisitStrings(e, visit)
		}
	}
}
