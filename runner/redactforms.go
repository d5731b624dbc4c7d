package runner

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

// minBase64Bytes keeps what is left of a short secret in base64 from being found
// in ordinary text: 10 characters are 60 bits.
const minBase64Bytes = 10

// secretForms are a secret and what programs make of it on its way into a text: a
// string of JSON, once and twice, the part of a form that needs no escape, base64.
// The secret is first. [redactor.percentSpans] finds those with escapes.
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

// base64Inner is what base64 has of a secret wherever it stands in what is
// encoded: behind so many bytes of a group of three, and without the characters
// that it shares with what is around it.
func base64Inner(enc *base64.Encoding, secret string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), secret...))
	bits := 8 * (before + len(secret))
	return text[(8*before+5)/6 : bits/6]
}
