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
//
// Text is redacted as JSON, where what stands before a key may be the letter of
// an escape: in "\nsk-…" it is an n.
const keyShapes = `(^|[^A-Za-z0-9_]|\\[nrtbf]|\\u[0-9a-f]{4})(sk-[A-Za-z0-9_-]{20,}|gh[posur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|xox[abprs]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{40,})\b`

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
	for _, begin := range keyBeginnings() {
		if bytes.Contains(text, begin) {
			return r.shapes.ReplaceAll(text, []byte("${1}[redacted:key]"))
		}
	}
	return text
}

// keyBeginnings are what every shape begins with: most text has none of them,
// and needs no regular expression.
func keyBeginnings() [][]byte {
	return [][]byte{
		[]byte("sk-"), []byte("ghp_"), []byte("gho_"), []byte("ghs_"), []byte("ghu_"), []byte("ghr_"), []byte("github_pat_"),
		[]byte("AKIA"), []byte("AIza"), []byte("xox"), []byte("gsk_"),
	}
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
