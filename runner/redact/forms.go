package redact

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

// minBase64Bytes is the length of the shortest piece of base64 that is replaced:
// ordinary text holds no 10 given characters, which are 60 bits.
const minBase64Bytes = 10

// secretForms returns a secret and the forms that programs write it in: a string of
// JSON, also within another one, a form value without escapes, base64. The secret is
// first. [Redactor.percentSpans] finds forms with percent escapes.
func secretForms(secret string) []string {
	forms := []string{secret}
	quoted := quotedInner(secret)
	forms = append(forms, quoted, quotedInner(quoted), strings.ReplaceAll(quoted, "/", `\/`))
	html, _ := json.Marshal(secret) // with the escapes that are meant for HTML
	forms = append(forms, string(html[1:len(html)-1]), strings.ReplaceAll(secret, " ", "+"))
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			if inner := base64Inner(enc, secret, before); len(inner) >= minBase64Bytes {
				forms = append(forms, inner)
			}
		}
	}
	var all []string
	for _, f := range forms {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// base64Inner returns the base64 digits that a secret alone determines in a longer
// encoded text, where before bytes of its group of three precede it: the digits that
// it shares with the text around it are left out.
func base64Inner(enc *base64.Encoding, secret string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), secret...))
	bits := 8 * (before + len(secret))
	return text[(8*before+5)/6 : bits/6]
}
