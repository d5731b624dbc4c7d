package runner

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// minBase64Bytes keeps what is left of a short secret in base64 from being found
// in ordinary text: 10 characters are 60 bits.
const minBase64Bytes = 10

// secretForms are a secret and what programs make of it on its way into a text:
// a string of JSON, once and twice, a part of a URL, base64. The secret is first.
func secretForms(secret string) []string {
	forms := []string{secret}
	quoted := quotedInner(secret)
	forms = append(forms, quoted, quotedInner(quoted), strings.ReplaceAll(quoted, "/", `\/`))
	if html, err := json.Marshal(secret); err == nil { // with the escapes that are meant for HTML
		forms = append(forms, string(html[1:len(html)-1]))
	}
	for _, escaped := range []string{url.QueryEscape(secret), url.PathEscape(secret), strings.ReplaceAll(url.QueryEscape(secret), "+", "%20")} {
		forms = append(forms, escaped, lowerEscapes(escaped))
	}
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

// lowerEscapes writes the hex digits of %XX in lower case, as some programs do.
func lowerEscapes(text string) string {
	out := []byte(text)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:], bytes.ToLower(out[i+1:i+3]))
			i += 2
		}
	}
	return string(out)
}
