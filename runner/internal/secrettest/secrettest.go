// Package secrettest draws secrets, and texts that contain them, for tests of redaction.
package secrettest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// value draws characters of keys and passwords, and ones that are hard in JSON, HTML and patterns.
var value = rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ0189-_./+=\"\\<>&'% ü\u2028\t")), 8, 40, -1)

var filler = rapid.SampledFrom([]string{"", " ", "x", "\n", "some words ", "-", "sk-", "[redacted:", `\`, `"`, "é", "\x1b[0m", strings.Repeat("padding ", 700), strings.Repeat("k", 5000)})

// DrawValues draws one to three secrets, none of which is part of a filler.
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

// FindLeak returns a secret that a text contains, as it is or in JSON's spelling, or "".
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

// Quote returns a text as it appears between JSON's quotes.
func Quote(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // never fails for a string
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

// VisitStrings calls visit for every string of a decoded JSON value, including keys.
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

// LowerEscapes writes the hex digits of %XX in lower case, as some programs do.
func LowerEscapes(text string) string {
	return regexp.MustCompile(`%..`).ReplaceAllStringFunc(text, strings.ToLower)
}

// PercentEncode percent-encodes each nth byte.
func PercentEncode(s string, n int, format string) string {
	var out strings.Builder
	for i := range len(s) {
		if i%n == 0 {
			fmt.Fprintf(&out, format, s[i])
			continue
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// PrivateKeys returns keys in the formats that programs write, by their names.
func PrivateKeys(t testing.TB) map[string]string {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(ecKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, headers map[string]string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: der}))
	}
	return map[string]string{
		"PKCS 8":    block("PRIVATE KEY", nil, pkcs8),
		"EC":        block("EC PRIVATE KEY", nil, sec1),
		"encrypted": block("RSA PRIVATE KEY", map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-128-CBC,00112233445566778899AABBCCDDEEFF"}, pkcs8),
		"OpenSSH":   block("OPENSSH PRIVATE KEY", nil, pkcs8[:400]),
		"OpenPGP":   "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n" + strings.TrimPrefix(strings.Replace(block("X", nil, pkcs8), "-----END X-----", "=aB3/\n-----END PGP PRIVATE KEY BLOCK-----", 1), "-----BEGIN X-----\n"),
	}
}
