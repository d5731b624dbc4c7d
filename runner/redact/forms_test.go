package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
)

// streamed redacts a text in pieces of a size, as it comes from a command.
func streamed(t *testing.T, r *Redactor, text string, piece int) string {
	t.Helper()
	var out bytes.Buffer
	s := r.NewWriter(&out)
	for rest := text; rest != ""; {
		n := min(piece, len(rest))
		if _, err := s.Write([]byte(rest[:n])); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A known secret is found in every form that programs make of it, in one piece
// and across the borders of a stream. The control is a redactor that knows only
// the value.
func TestEncodedSecrets(t *testing.T) {
	forms := map[string]func(string) string{
		"base64":           func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64, behind 1": func(s string) string { return base64.StdEncoding.EncodeToString([]byte("u" + s + ":x")) },
		"base64, behind 2": func(s string) string { return base64.StdEncoding.EncodeToString([]byte("me" + s + "\n")) },
		"base64, basic":    func(s string) string { return base64.StdEncoding.EncodeToString([]byte("oauth2:" + s)) },
		"base64 of URLs":   func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("a?" + s + "??")) },
		"a query":          url.QueryEscape,
		"a path":           url.PathEscape,
		"lower case":       func(s string) string { return secrettest.LowerEscapes(url.QueryEscape(s)) },
		"user information": func(s string) string { return url.UserPassword("x", s).String() },
		"each byte":        func(s string) string { return secrettest.PercentEncode(s, 1, "%%%02X") },
		"some bytes":       func(s string) string { return secrettest.PercentEncode(s, 3, "%%%02x") },
		"mixed case": func(s string) string {
			return secrettest.PercentEncode(s[:3], 1, "%%%02X") + secrettest.PercentEncode(s[3:], 1, "%%%02x")
		},
		"twice": func(s string) string {
			return secrettest.PercentEncode(secrettest.PercentEncode(s, 1, "%%%02X"), 3, "%%%02x")
		},
		"a query in a path": func(s string) string { return url.PathEscape(url.QueryEscape(s)) },
		"JSON":              secrettest.Quote,
		"JSON in JSON":      func(s string) string { return secrettest.Quote(`{"k":"` + secrettest.Quote(s) + `"}`) },
		"JSON for HTML": func(s string) string {
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		},
	}
	for _, secret := range []string{"correct horse/battery+staple?&<>", "p4ssw0rd", "ab\"cd\\ef/gh", "ünïcode-schlüssel", "\xff\xfe\xfd/binary/\x00\x01~~"} {
		r := New([]Secret{{"KEY", secret}})
		naive := &Redactor{shapes: r.shapes, values: []secretBytes{{[]byte(secret), []byte("[redacted:KEY]")}}}
		naive.indexValues()
		hidden := 0
		for name, form := range forms {
			text := form(secret)
			if got := string(r.Bytes([]byte("x " + text + " y"))); !strings.Contains(got, "[redacted:KEY]") || strings.Contains(got, text) {
				t.Errorf("%q as %s: %q", secret, name, got)
			}
			if !bytes.Contains(naive.Bytes([]byte(text)), []byte("[redacted:KEY]")) {
				hidden++
			}
			for _, at := range []int{chunkBytes - 3, chunkBytes, chunkBytes + MaxKeyBytes - 5} {
				if got := streamed(t, r, strings.Repeat(" ", at)+text+strings.Repeat(" ", MaxKeyBytes+100), MaxKeyBytes); !strings.Contains(got, "[redacted:KEY]") {
					t.Errorf("%q as %s at %d: it got through", secret, name, at)
				}
			}
		}
		if hidden < 5 {
			t.Errorf("%q: only %d forms hide it from who knows the value alone", secret, hidden)
		}
	}
}

func encodePEM(kind string, headers map[string]string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: der})
}

// The lines of a private key are replaced, however a text has them, even if a
// stream's borders or head cut them.
func TestPrivateKeys(t *testing.T) {
	r := New(nil)
	for kind, key := range secrettest.PrivateKeys(t) {
		lines := strings.Split(strings.TrimSpace(key), "\n")
		numbered, diff := "", ""
		for i, line := range lines {
			numbered += fmt.Sprintf("%6d\t%s\n", i+1, line)
			diff += "+" + line + "\n"
		}
		for name, text := range map[string]string{
			"as it is": key, "numbered": numbered, "a diff": diff, "carriage returns": strings.ReplaceAll(key, "\n", "\r\n"),
			"in a string": `{"private_key": "` + strings.ReplaceAll(key, "\n", `\n`) + `"}`, "quoted": "> " + strings.ReplaceAll(key, "\n", "\n> "),
			"the beginning": strings.Join(lines[:len(lines)-2], "\n") + "\nthat was head\n", "indented": "    " + strings.ReplaceAll(key, "\n", "\n    "),
		} {
			check := func(where, got string) {
				t.Helper()
				for _, line := range lines[1 : len(lines)-1] {
					if len(line) >= minPEMLine && strings.Contains(got, line) && strings.Contains(text, line) {
						t.Fatalf("%s, %s, %s: %q is left", kind, name, where, line)
					}
				}
				if !strings.Contains(got, "[redacted:private key]") || name == "the beginning" && !strings.Contains(got, "that was head") {
					t.Errorf("%s, %s, %s: %q", kind, name, where, strings.TrimSpace(got))
				}
			}
			check("at once", string(r.Bytes([]byte(text))))
			for _, at := range []int{chunkBytes - 10, chunkBytes - 300, chunkBytes, chunkBytes + MaxKeyBytes - 15, chunkBytes + MaxKeyBytes - 200} {
				body := strings.Repeat("some text\n", at/10+1)[:at]
				got := streamed(t, r, body+"\n"+text+"\n"+strings.Repeat("more\n", MaxKeyBytes), MaxKeyBytes)
				check(fmt.Sprint("at ", at), got)
				if !strings.HasPrefix(got, body) {
					t.Errorf("%s, %s at %d: what stands before it was changed", kind, name, at)
				}
			}
		}
	}
	// Public keys, certificates, and texts about keys stay.
	public := string(encodePEM("CERTIFICATE", nil, bytes.Repeat([]byte("public"), 99))) + string(encodePEM("PUBLIC KEY", nil, bytes.Repeat([]byte("public"), 99)))
	for _, text := range []string{
		public, "look for -----BEGIN PRIVATE KEY----- in it, and for an extraordinarily-long-word", "-----BEGIN RSA PRIVATE KEY-----\n…\n-----END RSA PRIVATE KEY-----\n",
		`regexp.MustCompile("-----BEGIN (RSA )?PRIVATE KEY-----")`, "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n1\n2\n3 ordinary words\n",
	} {
		if got := string(r.Bytes([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
		if got := streamed(t, r, strings.Repeat(" ", chunkBytes-5)+text+strings.Repeat(" ", chunkBytes), 1<<20); !strings.Contains(got, text) {
			t.Errorf("%q was changed in a stream", text)
		}
	}
}

// TestLinesOfPrivateKeys tests what a line of a private key is, and what may be
// between two.
func TestLinesOfPrivateKeys(t *testing.T) {
	const begin, end, line, mark = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG", "[redacted:private key]"
	longest := begin + "\n" + line + "+/" + strings.Repeat("\n"+line, 1558)
	if len(longest) != maxPEMBytes {
		t.Fatalf("%d bytes", len(longest))
	}
	for text, want := range map[string]string{
		"a " + begin + "\n" + line + "\nabc=\n" + end + " b": "a " + begin + mark + "\n" + end + " b",
		begin + line + "\nQ\n" + end:                         begin + mark + "\n" + end,
		begin + "\n" + line + "\nab\n=xY3z\n" + end:          begin + mark + "\n" + end,
		begin + "\n" + line[:minPEMLine] + "\nwords":         begin + mark + "\nwords",
		begin + "\n" + line[:minPEMLine-1] + "\nwords":       begin + "\n" + line[:minPEMLine-1] + "\nwords",
		begin + "\n123456 " + line + " words":                begin + mark + " words",
		begin + "\n1234567 " + line + " words":               begin + "\n1234567 " + line + " words",
		begin + "\n     2→" + line + "\n     3→" + end:       begin + mark + "→" + end,
		begin + "\n+Version: 1\n+" + line + "\n+" + end:      begin + mark + "\n+" + end,
		begin + "+" + line:                                   begin + mark,
		begin + `\n` + line + `\`:                            begin + mark + `\`,
		begin + `\r\n\t\"\\` + line + `\n`:                   begin + mark + `\n`,
		begin + `\x` + line:                                  begin + `\x` + line,
		begin + "\n> | \"" + line + "\", '" + line + "'":     begin + mark + "'",
		begin + "\n" + line + "\n" + begin + "\n" + line:     begin + mark + "\n" + begin + mark,
		"-----BEGIN " + begin + "\n" + line:                  "-----BEGIN " + begin + mark,
		longest + "\n" + line:                                begin + mark + "\n" + line,
	} {
		if got := string(redactPEM([]byte(text))); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// A stream is cut before a private key, or what may become one, and not within
// it.
func TestCutsOfPrivateKeys(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIIEvQIBADANBgkqhkiG\n", 10)
	last := len(strings.TrimSpace(key))
	ended := key + "-----END PRIVATE KEY-----\n"
	words := "-----BEGIN " + strings.Repeat("words ", 100)
	for _, c := range []struct {
		buf      string
		at, want int
	}{
		{key, len(key), 0},
		{key, 50, 0},
		{ended, last, 0},
		{ended, last + 1, last + 1},
		{ended, len(ended), len(ended)},
		{"--- a\n-----BEGIN", 16, 6},
		{"a -", 3, 2},
		{"a - b", 5, 5},
		{"a- " + key, 200, 3},
		{ended + key, len(ended) + 200, len(ended)},
		{words, maxPEMMark - 1, 0},
		{words, maxPEMMark, maxPEMMark},
		{key + "some words\n", len(key) + 11, len(key) + 11},
		{key[:28], 28, 0},
		{key + "Proc-Ty", len(key) + 7, 0},
		{key + "MII+", len(key) + 4, 0},
		{key + "12", len(key) + 2, 0},
		{key + "-----END PRIV", len(key) + 13, 0},
		{"", 0, 0},
		{strings.Repeat(" ", 300) + key + strings.Repeat("MIIEvQIBADANBgkqhkiG\n", maxPEMBytes/21), 300 + maxPEMBytes, 300},
	} {
		if got := pemCut([]byte(c.buf), c.at); got != c.want {
			t.Errorf("%.60q… of %d bytes at %d: %d, want %d", c.buf, len(c.buf), c.at, got, c.want)
		}
	}
}

// A name before a key, joined by an underscore, does not hide it.
func TestKeysBehindUnderscores(t *testing.T) {
	r := New(nil)
	for _, text := range []string{"x_ghp_0123456789abcdefABCDEF0123456789abcd", "TOKEN_AKIAIOSFODNN7EXAMPLE", "my_gsk_" + strings.Repeat("aB3d", 10), "a_xoxb-0123456789-abc"} {
		if got := string(r.Bytes([]byte(text))); !strings.Contains(got, "_[redacted:key]") {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []string{"x_sk-some-long-class-name-of-a-page", "a_pypi-" + strings.Repeat("word-", 12), "my_npm_config_registry_of_this_project_here", "x_hf_model", "the_AKIA_words"} {
		if got := string(r.Bytes([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestOrdinaryTextStays reads this module's own sources and pages, and text
// that resembles keys. Nothing but the tests' own keys is replaced.
func TestOrdinaryTextStays(t *testing.T) {
	r := New([]Secret{{"KEY", "correct-horse-battery-staple"}, {"OTHER", "p4ssw0rd/with+all"}})
	files, bytesRead := 0, 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*.json", "../../docs/design/*.md", "../../*/*.go", "../../*/*/*.go", "../../go.sum"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files, bytesRead = files+1, bytesRead+len(text)
			if got := r.Bytes(text); !bytes.Equal(got, text) {
				t.Errorf("%s was changed", path)
			}
		}
	}
	if files < 200 || bytesRead < 1<<19 {
		t.Errorf("only %d files of %d bytes were read: they show little", files, bytesRead)
	}
}

// BenchmarkRedact redacts 1 MiB of a command's output, with ten known keys.
func BenchmarkRedact(b *testing.B) {
	var secrets []Secret
	for i := range 10 {
		secrets = append(secrets, Secret{fmt.Sprint("KEY_", i), fmt.Sprintf("%02d-key/of+a-service-with-a-usual-length", i)})
	}
	r := New(secrets)
	text := []byte(strings.Repeat("ok  \tgithub.com/caisson-run/caisson/runner\t3.2s  --- PASS: TestAll (0.01s) task-list disk-image\n", 11_000))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if got := r.Bytes(text); len(got) != len(text) {
			b.Fatal("changed")
		}
	}
}

func TestFormsOfASecret(t *testing.T) {
	forms := secretForms("p<a> b/c")
	for _, want := range []string{"p<a> b/c", `p<a> b\/c`, `p\u003ca\u003e b/c`, "p<a>+b/c"} {
		if !slices.Contains(forms, want) {
			t.Errorf("%q is missing in %q", want, forms)
		}
	}
}
