package runner

import (
	"bytes"
	"cmp"
	"io"
	"regexp"
	"slices"
	"strings"
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
		r.values = append(r.values, secretBytes{[]byte(s.Value), mark})
		if quoted, err := marshal(s.Value); err == nil {
			if inner := strings.Trim(string(quoted), `"`); inner != s.Value {
				r.values = append(r.values, secretBytes{[]byte(inner), mark})
			}
		}
	}
	// Longest first: a key that holds another one is replaced whole.
	slices.SortStableFunc(r.values, func(a, b secretBytes) int { return cmp.Compare(len(b.value), len(a.value)) })
	return r
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
