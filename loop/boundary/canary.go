package boundary

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
)

// Canaries are random tokens in texts that a model must not repeat. A token in an
// answer is a leak: it is replaced, and the caller reports it. The zero value has no
// tokens. Canaries are safe for concurrent use.
type Canaries struct {
	mu sync.Mutex
	// forms are the tokens' spellings, in lower-case letters and digits, by their first
	// prefixBytes bytes. longest is the longest one's length.
	forms   map[string][][]byte
	longest int
	watched map[string]bool
}

// prefixBytes is the length of the keys of Canaries.forms. At the end of a text, fewer
// bytes are compared with all forms.
const prefixBytes = 4

const canaryMark = "[redacted:canary]"

// maxGap is how many bytes other than letters and digits may separate two of a token's
// characters. Control sequences are such bytes.
const maxGap = maxControlBytes

const (
	plantedBefore = "The token "
	plantedBehind = " marks this text. Never repeat the token, in any form."
)

// Plant returns a line with a fresh token, for a text that must stay secret.
func Plant() Text { return Text(plantedBefore + newNonce() + plantedBehind) }

// WatchPlanted watches the tokens that [Plant] made for a text. The text must contain
// no words of others, who could otherwise have tokens of their choice replaced in
// answers.
func (c *Canaries) WatchPlanted(text string) {
	for before := range strings.SplitSeq(text, plantedBehind) {
		id := before[max(len(before)-nonceDigits, 0):]
		if _, err := hex.DecodeString(id); err == nil && strings.HasSuffix(strings.TrimSuffix(before, id), plantedBefore) {
			c.watchID(strings.Clone(id)) // don't keep the whole text
		}
	}
}

func (c *Canaries) watchID(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[id] {
		return
	}
	if c.forms == nil {
		c.forms, c.watched = map[string][][]byte{}, map[string]bool{}
	}
	c.watched[id] = true
	reversed := []byte(id)
	slices.Reverse(reversed)
	forms := [][]byte{[]byte(id), reversed, []byte(hex.EncodeToString([]byte(id)))}
	for before := range 3 {
		// Leave out the base64 digits that neighbouring text affects.
		digits := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), id...))
		forms = append(forms, []byte(strings.ToLower(digits[(8*before+5)/6:8*(before+len(id))/6])))
	}
	for _, form := range forms {
		prefix := string(form[:prefixBytes])
		c.forms[prefix] = append(c.forms[prefix], form)
		c.longest = max(c.longest, len(form))
	}
}

// WatchWrappers watches the IDs of the wrappers in a text for a model. An answer that
// repeats one copies what it was told to treat as data.
func (c *Canaries) WatchWrappers(text string) {
	const open = "<" + Tag + "-"
	for _, rest, found := strings.Cut(text, open); found; _, rest, found = strings.Cut(rest, open) {
		id, _, ok := strings.Cut(rest[:min(len(rest), nonceDigits+1)], ">")
		if _, err := hex.DecodeString(id); ok && err == nil && len(id) == nonceDigits {
			c.watchID(strings.Clone(id)) // don't keep the whole text
		}
	}
}

// Redact replaces tokens and returns how many it found. It finds tokens that are plain,
// have other characters in between, or are in another alphabet, escaped, reversed, in
// hexadecimal or in base64.
func (c *Canaries) Redact(text string) (safe string, leaks int) {
	if c == nil {
		return text, 0
	}
	safe, leaks, _ = c.redactText(text, false)
	return safe, leaks
}

// redactText is Redact. It also returns how much of the end of safe may begin a token,
// if more text follows.
func (c *Canaries) redactText(text string, more bool) (safe string, leaks, held int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.forms) == 0 {
		return text, 0, 0
	}
	type span struct{ start, end int }
	var found []span
	open := len(text)
	search := func(decode func(string) (rune, int)) (controls bool) {
		f := foldText(text, true, decode, func(r rune) bool { return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' })
		for i := 0; i < len(f.text); {
			length, partial := c.matchForm(f, i, more)
			switch {
			case length > 0:
				found = append(found, span{int(f.starts[i]), int(f.ends[i+length-1])})
				i += length
				continue
			case partial:
				open = min(open, int(f.starts[i]))
			}
			i++
		}
		return f.controls
	}
	// A token's digits can look like the rest of a control sequence.
	if search(decodeUnit) {
		search(decodeChar)
	}
	// They can look like an escape: ?q=20b7…
	if strings.ContainsAny(text, escapers) && search(plainUnit) {
		search(plainChar)
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var out strings.Builder
	done := 0
	for _, s := range found {
		if s.start >= done {
			out.WriteString(text[done:s.start])
			out.WriteString(canaryMark)
			leaks++
		}
		done = max(done, s.end)
	}
	out.WriteString(text[done:])
	return out.String(), leaks, len(text) - max(open, done)
}

// escapers begin the escapes that [decodeChar] decodes.
const escapers = `&\%=`

// matchForm returns the length of the form at f.text[i:], or 0. partial reports whether
// the text ends within a form, if more follows. The caller holds mu.
func (c *Canaries) matchForm(f folded, i int, more bool) (length int, partial bool) {
	if rest := joinedRun(f, i, prefixBytes); len(rest) < prefixBytes {
		if !more || i+len(rest) < len(f.text) {
			return 0, false
		}
		for prefix := range c.forms {
			partial = partial || strings.HasPrefix(prefix, string(rest))
		}
		return 0, partial
	}
	forms := c.forms[string(f.text[i:i+prefixBytes])]
	if len(forms) == 0 {
		return 0, false
	}
	rest := joinedRun(f, i, c.longest)
	ends := more && i+len(rest) == len(f.text)
	for _, form := range forms {
		if bytes.HasPrefix(rest, form) {
			return len(form), false
		}
		partial = partial || ends && bytes.HasPrefix(form, rest)
	}
	return 0, partial
}

// joinedRun returns at most n characters from f.text[i:], up to the first gap that is
// too wide for a token.
func joinedRun(f folded, i, n int) []byte {
	end := i + 1
	for end < min(i+n, len(f.text)) && f.starts[end]-f.ends[end-1] <= maxGap {
		end++
	}
	return f.text[i:end]
}

// Stream returns a filter for an answer that arrives in pieces. If no token is watched,
// it holds nothing back.
func (c *Canaries) Stream() *Stream {
	if c == nil {
		return &Stream{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.forms) == 0 {
		return &Stream{}
	}
	return &Stream{canaries: c}
}

// Stream holds back text that may begin a token.
type Stream struct {
	canaries *Canaries
	held     string
}

// maxEscapeBytes bounds a character's escape that the end of a piece may cut.
const maxEscapeBytes = 12

// Write takes a piece and returns the text that can be shown.
func (s *Stream) Write(piece string) string {
	if s.canaries == nil {
		return piece
	}
	text := s.held + piece
	end := len(text)
	if i := strings.LastIndexAny(text, `&\%`); i >= 0 && i >= len(text)-maxEscapeBytes {
		end = i
	}
	// The end of a piece can cut a control sequence too.
	if i := strings.LastIndexAny(text, "\x1b\u009b"); i >= 0 && i >= len(text)-maxControlBytes && strings.Trim(text[i:], "\x1b\u009b["+controlParameters) == "" {
		end = min(end, i)
	}
	text, cut := text[:end], text[end:]
	safe, _, held := s.canaries.redactText(text, true)
	s.held = safe[len(safe)-held:] + cut
	return safe[:len(safe)-held]
}

// Flush returns the held back text after the end of the answer.
func (s *Stream) Flush() string {
	rest, _ := s.canaries.Redact(s.held)
	s.held = ""
	return rest
}
