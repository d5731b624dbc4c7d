package runner

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
)

// percentDepth is how often a text can be percent-encoded for a secret in it to
// be found: a URL within the query of another one is encoded twice.
const percentDepth = 2

var percentEscape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// span is a part of a text that stands for a secret.
type span struct {
	from, to int
	mark     []byte
}

// percentSpans returns the places where text holds a secret with any of its bytes
// percent-encoded (RFC 3986, 2.1), in upper or lower case, in order.
func (r *redactor) percentSpans(text []byte) []span {
	if !percentEscape.Match(text) {
		return nil
	}
	var spans []span
	decodings(text, func(decoded []byte, at []int) {
		r.eachKnown(decoded, func(from, to int, mark []byte) { spans = append(spans, span{at[from], at[to], mark}) })
	})
	return mergeSpans(spans)
}

// decodings calls visit with text as it is, percent-decoded once, and twice, each
// also with + as a space, as forms write it. at has the place in text of each byte
// and of the end.
func decodings(text []byte, visit func(decoded []byte, at []int)) {
	at := make([]int, len(text)+1)
	for i := range at {
		at[i] = i
	}
	for depth := 0; text != nil && depth <= percentDepth; depth++ {
		visit(text, at)
		if bytes.IndexByte(text, '+') >= 0 {
			visit(bytes.ReplaceAll(text, []byte("+"), []byte(" ")), at)
		}
		text, at = decodePercent(text, at)
	}
}

// unfinished returns where in text a known secret may begin that text ends in,
// percent-encoded or not, or len(text).
func (r *redactor) unfinished(text []byte) int {
	first := len(text)
	decodings(text, func(decoded []byte, at []int) {
		for _, v := range r.values {
			for n := min(len(v.value)-1, len(decoded)); n > 0; n-- {
				if bytes.HasSuffix(decoded, v.value[:n]) {
					first = min(first, at[len(decoded)-n])
					break
				}
			}
		}
	})
	return first
}

// percent replaces percent-encoded secrets.
func (r *redactor) percent(text []byte) []byte {
	spans := r.percentSpans(text)
	if len(spans) == 0 {
		return text
	}
	var out []byte
	done := 0
	for _, s := range spans {
		out = append(append(out, text[done:s.from]...), s.mark...)
		done = s.to
	}
	return append(out, text[done:]...)
}

// decodePercent decodes each %XX once. It returns nil where there is none.
func decodePercent(text []byte, at []int) (out []byte, place []int) {
	done := 0
	for _, e := range percentEscape.FindAllIndex(text, -1) {
		out = append(append(out, text[done:e[0]]...), unhex(text[e[0]+1])<<4|unhex(text[e[0]+2]))
		place = append(place, at[done:e[0]+1]...)
		done = e[1]
	}
	if out == nil {
		return nil, nil
	}
	return append(out, text[done:]...), append(place, at[done:]...)
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// mergeSpans orders spans by their beginnings and joins those that overlap.
func mergeSpans(spans []span) []span {
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.from < out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}
