package redact

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"sync"
)

// percentDepth is how often a text may be percent-encoded: a URL in the query
// of another one is encoded twice.
const percentDepth = 2

var percentEscape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
})

// span is a part of a text that encodes a secret.
type span struct {
	from, to int
	mark     []byte
}

// percentSpans returns the spans of text, in order, that encode a secret with
// some of its bytes percent-encoded (RFC 3986, 2.1), in upper or lower case.
func (r *Redactor) percentSpans(text []byte) []span {
	if !percentEscape().Match(text) {
		return nil
	}
	var spans []span
	visitDecodings(text, func(decoded []byte, at []int) {
		r.eachKnown(decoded, func(from, to int, mark []byte) { spans = append(spans, span{at[from], at[to], mark}) })
	})
	return mergeSpans(spans)
}

// visitDecodings calls visit with text as it is, percent-decoded once, and
// twice, each also with + as a space, as in forms. at has the offset in text of
// each byte and of the end.
func visitDecodings(text []byte, visit func(decoded []byte, at []int)) {
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

// unfinishedAt returns the first offset from which the rest of text is the
// beginning of a known secret, percent-encoded or not. If there is none, it
// returns len(text).
func (r *Redactor) unfinishedAt(text []byte) int {
	first := len(text)
	visitDecodings(text, func(decoded []byte, at []int) {
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

func (r *Redactor) replacePercent(text []byte) []byte {
	s := splicer{text: text}
	for _, encoded := range r.percentSpans(text) {
		s.replace(encoded.from, encoded.to, encoded.mark)
	}
	return s.result()
}

// decodePercent decodes each %XX once. It returns nil if there is none.
func decodePercent(text []byte, at []int) (out []byte, place []int) {
	done := 0
	for _, e := range percentEscape().FindAllIndex(text, -1) {
		out = append(append(out, text[done:e[0]]...), hexValue(text[e[0]+1])<<4|hexValue(text[e[0]+2]))
		place = append(place, at[done:e[0]+1]...)
		done = e[1]
	}
	if out == nil {
		return nil, nil
	}
	return append(out, text[done:]...), append(place, at[done:]...)
}

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// mergeSpans sorts spans by their beginnings and joins overlapping ones.
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
