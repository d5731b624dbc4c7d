package runner

import (
	"bytes"
	"cmp"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Secret is a value that must reach no record and no log.
type Secret struct {
	// Name is what stands in its place, such as OPENAI_API_KEY.
	Name  string
	Value string
}

// minSecretBytes keeps a secret that is an ordinary word, such as the "x" that
// servers without authentication are given, from blanking all text.
const minSecretBytes = 8

// redactor replaces secrets: the values that it was given, as they are and as
// JSON writes them, and the shapes of well-known keys. The zero value knows
// the shapes only. It is safe for concurrent use.
type redactor struct {
	values []secretBytes
	shapes *regexp.Regexp
}

type secretBytes struct{ value, mark []byte }

// keyShapes are prefixes that providers give their keys, so that a key which
// a file of the workspace holds is not copied around either: OpenAI and
// Anthropic (sk-), GitHub (ghp_, gho_, ghs_, ghu_, ghr_, github_pat_), AWS
// (AKIA), Google (AIza), Slack (xox…), Groq (gsk_).
const keyShapes = `^(sk-[A-Za-z0-9_-]{20,}|gh[posur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|xox[abprs]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{40,})\b`

func newRedactor(secrets []Secret) *redactor {
	r := &redactor{shapes: regexp.MustCompile(keyShapes)}
	for _, s := range secrets {
		if len(s.Value) < minSecretBytes {
			continue
		}
		mark := []byte("[redacted:" + s.Name + "]")
		// As it is, as JSON writes it, and as JSON writes a text of JSON, such as
		// arguments that a model got wrong.
		for value, times := s.Value, 0; times < 3; times++ {
			r.values = append(r.values, secretBytes{[]byte(value), mark})
			quoted := quotedInner(value)
			if quoted == value {
				break
			}
			value = quoted
		}
	}
	// Longest first: a key that holds another one is replaced whole.
	slices.SortStableFunc(r.values, func(a, b secretBytes) int { return cmp.Compare(len(b.value), len(a.value)) })
	return r
}

// quotedInner is a text as it stands between the quotes of JSON.
func quotedInner(text string) string {
	quoted, err := marshal(text)
	if err != nil || len(quoted) < 2 {
		return text
	}
	return string(quoted[1 : len(quoted)-1])
}

// json is bytes for a text that is JSON: a character may be written as an
// escape there, as a model may write its arguments, and is the same character.
func (r *redactor) json(text []byte) []byte { return r.bytes(plainEscapes(text)) }

// plainEscapes writes escapes of characters that need none as the characters:
// "\u0061" as "a", "\/" as "/". text must be valid JSON; what it means is the same.
func plainEscapes(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u`)) && !bytes.Contains(text, []byte(`\/`)) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' || i+1 == len(text) {
			out = append(out, text[i])
			i++
			continue
		}
		switch r, n := escapedRune(text[i:]); {
		case text[i+1] == '/':
			out = append(out, '/')
			i += 2
		case n > 0 && r >= ' ' && r != '"' && r != '\\' && !invisible(r):
			out = utf8.AppendRune(out, r)
			i += n
		default: // another escape, the backslash's own among them
			out = append(out, text[i], text[i+1])
			i += 2
		}
	}
	return out
}

// escapedRune reads a \u escape, or a pair of them, at the start of text; n is 0
// where there is none, or half a pair.
func escapedRune(text []byte) (r rune, n int) {
	unit := func(at int) rune {
		if len(text) < at+6 || text[at] != '\\' || text[at+1] != 'u' {
			return -1
		}
		v, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(v)
	}
	switch r := unit(0); {
	case r < 0:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	default:
		if r = utf16.DecodeRune(r, unit(6)); r == utf8.RuneError {
			return 0, 0
		}
		return r, 12
	}
}

// bytes returns text without secrets; text itself is not changed.
func (r *redactor) bytes(text []byte) []byte {
	for _, s := range r.values {
		text = bytes.ReplaceAll(text, s.value, s.mark)
	}
	return r.keys(text)
}

// keys replaces what has the shape of a key. Only where a key begins is the
// regular expression asked: "sk-" alone is in every task-list and disk-image.
func (r *redactor) keys(text []byte) []byte {
	var out []byte
	done := 0
	for i := 0; i < len(text); i++ {
		if c := text[i]; c != 's' && c != 'g' && c != 'A' && c != 'x' {
			continue
		}
		if !keyBegins(text[i:]) || !freeBefore(text[:i]) {
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
		out = append(append(out, text[done:i]...), "[redacted:key]"...)
		done = i + at[1]
		i = done - 1
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

// keyBegins says whether text begins as some key does.
func keyBegins(text []byte) bool {
	if len(text) < 4 {
		return false
	}
	switch text[0] {
	case 's':
		return text[1] == 'k' && text[2] == '-'
	case 'A':
		return text[1] == 'K' && text[2] == 'I' && text[3] == 'A' || text[1] == 'I' && text[2] == 'z' && text[3] == 'a'
	case 'x':
		return text[1] == 'o' && text[2] == 'x'
	case 'g':
		return text[1] == 'h' && text[3] == '_' || text[1] == 's' && text[2] == 'k' && text[3] == '_' || bytes.HasPrefix(text, []byte("github_pat_"))
	}
	return false
}

// freeBefore says whether a key can begin behind text: not inside a word. Text
// is redacted as JSON too, where what stands before a key may be the letter of
// an escape: in "\nsk-…" it is an n.
func freeBefore(text []byte) bool {
	n := len(text)
	if n == 0 {
		return true
	}
	c := text[n-1]
	word := c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	switch {
	case !word:
		return true
	case n >= 2 && text[n-2] == '\\' && strings.IndexByte("nrtbf", c) >= 0:
		return true
	}
	if n < 6 || text[n-6] != '\\' || text[n-5] != 'u' {
		return false
	}
	for _, c := range text[n-4:] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// writer redacts each Write by itself: for a log, which writes an entry at once.
func (r *redactor) writer(w io.Writer) io.Writer { return redactingWriter{r, w} }

type redactingWriter struct {
	r *redactor
	w io.Writer
}

func (w redactingWriter) Write(p []byte) (int, error) {
	if _, err := w.w.Write(w.r.bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
