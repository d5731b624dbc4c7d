// Package redact removes secrets from texts: given values, in any form in which
// programs write them, private keys, and keys of well-known providers.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Secret is a value that must not reach a record or a log.
type Secret struct {
	// Name replaces the value, such as OPENAI_API_KEY.
	Name  string
	Value string
}

// minSecretBytes is the length of the shortest value that is replaced. A
// shorter one, such as the "x" that is sent to servers without authentication,
// may be an ordinary word.
const minSecretBytes = 8

// Redactor replaces secrets: known values, as they are and in the forms of
// secretForms, private keys, and keys of well-known shapes. It is safe for
// concurrent use.
type Redactor struct {
	values []secretBytes
	shapes *regexp.Regexp
	// starts has the values by their first two bytes, and begins is the set of
	// these bytes. So a text is scanned once, however many values there are.
	starts map[uint16][]secretBytes
	begins [1 << 16 / 64]uint64
}

type secretBytes struct{ value, mark []byte }

// keyShapes matches providers' keys by their prefixes, so that no key in a file
// of the workspace is copied either: OpenAI and Anthropic (sk-), GitHub (ghp_,
// gho_, ghs_, ghu_, ghr_, github_pat_), GitLab (glpat-), AWS (AKIA, ASIA),
// Google (AIza), Slack (xox…), Groq (gsk_), xAI (xai-), Hugging Face (hf_), npm
// (npm_), PyPI (pypi-), Docker (dckr_pat_), Stripe (sk_live_, sk_test_,
// rk_live_).
const keyShapes = `^(sk-[A-Za-z0-9_-]{20,}|gh[posur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}|glpat-[A-Za-z0-9_-]{20,}|A[KS]IA[A-Z0-9]{16}|` +
	`AIza[A-Za-z0-9_-]{35}|xox[abprs]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36,}|` +
	`pypi-[A-Za-z0-9_-]{50,}|dckr_pat_[A-Za-z0-9_-]{20,}|[sr]k_(live|test)_[A-Za-z0-9]{20,})\b`

// keyStarts has the prefixes of these keys by their first byte.
var keyStarts = func() (starts [256][][]byte) {
	for _, p := range []string{
		"sk-", "sk_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "gsk_", "AKIA", "ASIA", "AIza",
		"xox", "xai-", "hf_", "npm_", "pypi-", "dckr_pat_", "rk_",
	} {
		starts[p[0]] = append(starts[p[0]], []byte(p))
	}
	return starts
}()

// New returns a Redactor of the given secrets, private keys and well-known
// keys.
func New(secrets []Secret) *Redactor {
	r := &Redactor{shapes: regexp.MustCompile(keyShapes)}
	for _, s := range secrets {
		if len(s.Value) < minSecretBytes {
			continue
		}
		mark := []byte("[redacted:" + s.Name + "]")
		for _, form := range secretForms(s.Value) {
			r.values = append(r.values, secretBytes{[]byte(form), mark})
		}
	}
	// Longest first: a secret that contains another one is replaced whole.
	slices.SortStableFunc(r.values, func(a, b secretBytes) int { return cmp.Compare(len(b.value), len(a.value)) })
	r.indexValues()
	return r
}

func (r *Redactor) indexValues() {
	r.starts = map[uint16][]secretBytes{}
	for _, s := range r.values {
		two := binary.BigEndian.Uint16(s.value)
		r.starts[two] = append(r.starts[two], s)
		r.begins[two/64] |= 1 << (two % 64)
	}
}

// splicer copies a text with some pieces replaced.
type splicer struct {
	text []byte
	out  []byte // nil until a piece is replaced
	done int    // the end of the last one
}

// replace replaces text[from:to], which follows the pieces replaced before. with
// is not empty.
func (s *splicer) replace(from, to int, with []byte) {
	s.out = append(append(s.out, s.text[s.done:from]...), with...)
	s.done = to
}

// result returns the text itself if nothing was replaced.
func (s *splicer) result() []byte {
	if s.out == nil {
		return s.text
	}
	return append(s.out, s.text[s.done:]...)
}

func (r *Redactor) replaceKnown(text []byte) []byte {
	s := splicer{text: text}
	r.eachKnown(text, s.replace)
	return s.result()
}

// eachKnown calls found for each value in text, in order.
func (r *Redactor) eachKnown(text []byte, found func(from, to int, mark []byte)) {
	for i := 0; i+minSecretBytes <= len(text); i++ {
		two := binary.BigEndian.Uint16(text[i:])
		if r.begins[two/64]&(1<<(two%64)) == 0 {
			continue
		}
		for _, s := range r.starts[two] {
			if bytes.HasPrefix(text[i:], s.value) {
				found(i, i+len(s.value), s.mark)
				i += len(s.value) - 1
				break
			}
		}
	}
}

// quotedInner returns a text as it stands between the quotes of JSON.
func quotedInner(text string) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // it works for every string
	quoted := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	return string(quoted[1 : len(quoted)-1])
}

// JSON is like [Redactor.Bytes] for JSON. It decodes each string, so that it
// finds a key whatever its escapes, such as in a model's arguments. The result
// is still JSON. It treats a text that is not JSON as Bytes does.
func (r *Redactor) JSON(text []byte) []byte {
	s := splicer{text: text}
	for i := 0; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		end := stringEnd(text[i:])
		if end == 0 {
			return r.Bytes(text)
		}
		if safe, changed := r.redactLiteral(text[i : i+end]); changed {
			s.replace(i, i+end, safe)
		}
		i += end - 1
	}
	return s.result()
}

// stringEnd returns the length of the JSON string at the start of text, with
// its quotes, or 0 if it has no end.
func stringEnd(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// redactLiteral redacts one JSON string and reports whether that changed it.
func (r *Redactor) redactLiteral(quoted []byte) ([]byte, bool) {
	value := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(value, '\\') >= 0 {
		var ok bool
		if value, ok = unquote(quoted); !ok {
			value = r.Bytes(quoted)
			return value, !bytes.Equal(value, quoted)
		}
	}
	safe := r.Bytes(value)
	if bytes.Equal(safe, value) {
		return nil, false
	}
	return []byte(`"` + quotedInner(string(safe)) + `"`), true
}

// shortEscapes maps JSON's one-letter escapes to their characters.
var shortEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unquote returns the value of a JSON string, and false if it is invalid. It
// decodes short escapes itself, the only ones in most texts, in a third of the
// time of [json.Unmarshal].
func unquote(quoted []byte) ([]byte, bool) {
	rest := quoted[1 : len(quoted)-1]
	value := make([]byte, 0, len(rest))
	for {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return append(value, rest...), true
		}
		c := shortEscapes[rest[i+1]] // a string doesn't end with half of an escape
		if c == 0 {
			break
		}
		value, rest = append(append(value, rest[:i]...), c), rest[i+2:]
	}
	var s string
	err := json.Unmarshal(quoted, &s)
	return []byte(s), err == nil
}

// Bytes returns text without secrets. It does not change text.
func (r *Redactor) Bytes(text []byte) []byte { return r.redactAfter(nil, text) }

// Text returns text without secrets.
func (r *Redactor) Text(text string) string { return string(r.Bytes([]byte(text))) }

// redactAfter is like Bytes for a text that follows before, which decides
// whether a key can begin at its start.
func (r *Redactor) redactAfter(before, text []byte) []byte {
	return r.replaceKeys(before, redactPEM(r.replacePercent(r.replaceKnown(text))))
}

// lookBehind is the number of bytes before a key that are examined.
const lookBehind = 40

var keyMark = []byte("[redacted:key]")

// replaceKeys replaces keys of well-known shapes. The regular expression runs
// only where a key may begin: every task-list and disk-image contains "sk-".
func (r *Redactor) replaceKeys(before, text []byte) []byte {
	s := splicer{text: text}
	for i := 0; i < len(text); i++ {
		if !keyBegins(text[i:]) {
			continue
		}
		behind := text[max(0, i-lookBehind):i]
		if i < lookBehind {
			behind = append(slices.Clone(before), behind...)
		}
		if !freeBefore(behind) && !gluedKey(behind, text[i:]) {
			continue
		}
		end := i
		for end < len(text) && keyByte(text[end]) {
			end++
		}
		at := r.shapes.FindIndex(text[i:end])
		if at == nil {
			continue
		}
		s.replace(i, i+at[1], keyMark)
		i += at[1] - 1
	}
	return s.result()
}

func keyBegins(text []byte) bool {
	return slices.ContainsFunc(keyStarts[text[0]], func(p []byte) bool { return bytes.HasPrefix(text, p) })
}

// freeBefore reports whether a key can begin after text: not inside a word.
// Text may be JSON, where the byte before a key may belong to an escape: in
// "\nsk-…" it is an n.
func freeBefore(text []byte) bool {
	n := len(text)
	if n == 0 {
		return true
	}
	c := text[n-1]
	switch {
	case c == '-' || !keyByte(c):
		return true
	case n >= 2 && text[n-2] == '\\' && isOneOf(c, "nrtbf"):
		return true
	case n >= 3 && text[n-3] == '%' && hexByte(text[n-2]) && hexByte(c): // as in a URL
		return true
	case endsInCSI(text): // as grep colours its matches
		return true
	}
	if n < 6 || text[n-6] != '\\' || text[n-5] != 'u' {
		return false
	}
	for _, c := range text[n-4:] {
		if !hexByte(c) {
			return false
		}
	}
	return true
}

// gluedKey reports whether a key may follow an underscore, as in TOKEN_ghp_….
// Keys with - or _ after their prefix look too much like names for that.
func gluedKey(before, text []byte) bool {
	return bytes.HasSuffix(before, []byte("_")) && !bytes.HasPrefix(text, []byte("sk-")) && !bytes.HasPrefix(text, []byte("pypi-")) && !bytes.HasPrefix(text, []byte("glpat-"))
}

const (
	digits  = "0123456789"
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

func isOneOf(c byte, set string) bool { return strings.IndexByte(set, c) >= 0 }

func hexByte(c byte) bool { return isOneOf(c, digits+"abcdefABCDEF") }

// endsInCSI reports whether text ends in a control sequence of terminals
// (ECMA-48, 5.4: ESC [, parameters, a final byte), with its escape character as
// it is or escaped.
func endsInCSI(text []byte) bool {
	head, ok := bytes.CutSuffix(bytes.TrimRight(text[:len(text)-1], digits+":;<=>?"), []byte("["))
	return ok && slices.ContainsFunc([]string{"\x1b", `\u001b`, `\x1b`, `\e`, `\033`}, func(escape string) bool {
		return bytes.HasSuffix(head, []byte(escape))
	})
}

// endsInOpenCSI reports whether text ends in a control sequence without its final
// byte.
func endsInOpenCSI(text []byte) bool {
	return bytes.HasSuffix(bytes.TrimRight(text, digits+":;<=>?"), []byte("\x1b["))
}

// LogWriter returns a writer to w that redacts each Write separately: for a log
// in which each entry is one Write of one line of JSON.
func (r *Redactor) LogWriter(w io.Writer) io.Writer { return logWriter{r, w} }

type logWriter struct {
	r *Redactor
	w io.Writer
}

func (w logWriter) Write(p []byte) (int, error) {
	if _, err := w.w.Write(w.r.JSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// minBase64Bytes is the length of the shortest piece of base64 that is
// replaced: 10 characters, or 60 bits, don't occur in ordinary text by chance.
const minBase64Bytes = 10

// secretForms returns a secret, followed by the forms in which programs write
// it: in a JSON string, also within another one, as a form value without
// escapes, and in base64. [Redactor.percentSpans] finds forms with percent
// escapes.
func secretForms(secret string) []string {
	forms := []string{secret}
	quoted := quotedInner(secret)
	forms = append(forms, quoted, quotedInner(quoted), strings.ReplaceAll(quoted, "/", `\/`))
	html, _ := json.Marshal(secret) // with the escapes for HTML
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

// base64Inner returns the base64 digits that depend only on the secret in a
// longer encoded text, if before bytes of its group of three precede it. It
// leaves out digits shared with the text around it.
func base64Inner(enc *base64.Encoding, secret string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), secret...))
	bits := 8 * (before + len(secret))
	return text[(8*before+5)/6 : bits/6]
}
