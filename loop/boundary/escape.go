package boundary

import (
	"html"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// escapedOpener replaces the "<" of an escaped tag. Unlike "&lt;", it stays the same
// under every decoding.
const escapedOpener = "[lt]"

// escapeTags replaces the opening bracket of everything in text that a model could take
// for a tag with one of the names. Names have only letters. It handles any case, wide
// or look-alike brackets and letters, invisible characters, other separators, HTML
// entities, and percent and backslash escapes. All other text stays unchanged.
func escapeTags(text string, names []string) string {
	var out strings.Builder
	done := 0
	for i := 0; i < len(text); {
		// Fast path: most bytes need no decoding.
		if c := text[i]; c < utf8.RuneSelf && c != '<' && c != '&' && c != '\\' && c != '%' && c != '=' {
			i++
			continue
		}
		r, n := decodeChar(text[i:])
		if r == '<' && slices.ContainsFunc(names, func(name string) bool { return isTagName(text[i+n:], name) }) {
			out.WriteString(text[done:i])
			out.WriteString(escapedOpener)
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return text
	}
	out.WriteString(text[done:])
	return out.String()
}

// isTagName reports whether rest, the text after an opening bracket, starts with a
// tag's name. Anything but letters, digits and brackets may precede each letter. The
// next bracket, even if already escaped, ends the search, so that all searches for a
// name read a text a few times at most.
func isTagName(rest, name string) bool {
	// Bit i means that the text so far can be read as the name's first i letters. There can
	// be more than one reading: a terminal takes a letter as a control sequence's last
	// character, a model may not.
	readings, all := uint32(1), uint32(1)<<len(name)
	brackets := 0 // in control sequences, where other searches begin
	for readings != 0 && readings&all == 0 && rest != "" {
		r, n := decodeChar(rest)
		if r == '[' && strings.HasPrefix(rest, escapedOpener) {
			return false
		}
		if sequence := controlLength(rest[n:], r); sequence > 0 {
			if strings.ContainsAny(rest[n:n+sequence], "<=") {
				brackets++
			}
			if brackets > maxBrackets {
				return true // no honest text has them
			}
			n += sequence
			last := rest[n-1]
			if last == '\\' { // it may begin an escape
				n--
			}
			readings |= addLetter(readings, name, foldRune(rune(last)))
		} else if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '<' || r == '>' {
			readings = addLetter(readings, name, r)
		}
		rest = rest[n:]
	}
	return readings&all != 0
}

// maxBrackets bounds the control sequences with a bracket that a search goes past.
const maxBrackets = 8

// addLetter returns those of [isTagName]'s readings that r continues, with it.
func addLetter(readings uint32, name string, r rune) uint32 {
	longer := uint32(0)
	for i := range len(name) {
		if readings&(1<<i) != 0 && r == rune(name[i]) {
			longer |= 1 << (i + 1)
		}
	}
	return longer
}

// decodeChar decodes the first character of s, plain or escaped, and folds it to the
// ASCII letter or bracket that it resembles, if any. n is its length in s, at least 1.
func decodeChar(s string) (r rune, n int) {
	switch s[0] {
	case '&':
		r, n = decodeEntity(s)
	case '\\':
		r, n = decodeBackslash(s)
	case '%':
		r, n = decodeHex(s, 1, 2)
	case '=': // quoted-printable
		if r, n = decodeHex(s, 1, 2); r != '<' && r != ' ' {
			n = 0
		}
	}
	if n == 0 {
		return plainChar(s)
	}
	return foldRune(r), n
}

// plainChar is decodeChar for a text in which nothing is escaped.
func plainChar(s string) (r rune, n int) {
	r, n = utf8.DecodeRuneInString(s)
	return foldRune(r), n
}

// decodeUnit is decodeChar with a terminal control sequence as part of its first
// character.
func decodeUnit(s string) (r rune, n int) {
	r, n = decodeChar(s)
	return r, n + controlLength(s[n:], r)
}

// plainUnit is decodeUnit for a text in which nothing is escaped.
func plainUnit(s string) (r rune, n int) {
	r, n = plainChar(s)
	return r, n + controlLength(s[n:], r)
}

// beginsControl reports whether a character begins a terminal control sequence.
func beginsControl(r rune) bool { return r == '\x1b' || r == '\u009b' }

// controlLength returns the length of the rest of a terminal control sequence, such as
// the [31m of a color, after its first character. It is 0 after others.
func controlLength(rest string, first rune) int {
	if !beginsControl(first) {
		return 0
	}
	parameters, ok := strings.CutPrefix(rest, "[")
	if !ok && first == '\x1b' {
		return 0
	}
	final := strings.TrimLeft(parameters[:min(len(parameters), maxControlBytes)], controlParameters)
	if final == "" || final[0] < '@' || final[0] > '~' {
		return 0
	}
	return len(rest) - len(parameters) + min(len(parameters), maxControlBytes) - len(final) + 1
}

const (
	maxControlBytes   = 64
	controlParameters = "0123456789;:<=>? !\"#$'()*+,-./" // without what begins an escape
)

const maxEntityBytes = 32

// decodeEntity decodes an HTML entity: any character by name or number. The semicolon
// is optional for brackets and numbers, and any number of "amp;" may precede. Like the
// other decoders, it returns zeros if s doesn't start with one.
func decodeEntity(s string) (r rune, n int) {
	rest, more := s[1:], true
	for more {
		rest, more = cutPrefixFold(rest, "amp")
		rest = strings.TrimPrefix(rest, ";")
	}
	if after, ok := cutPrefixFold(rest, "lt"); ok {
		return '<', len(s) - len(strings.TrimPrefix(after, ";"))
	}
	if after, ok := cutPrefixFold(rest, "gt"); ok {
		return '>', len(s) - len(strings.TrimPrefix(after, ";"))
	}
	number, ok := strings.CutPrefix(rest, "#")
	if !ok {
		return decodeEntityName(s, rest)
	}
	base := rune(10)
	if hex, ok := cutPrefixFold(number, "x"); ok {
		number, base = hex, 16
	}
	v, after := cutNumber(number, base)
	if after == number {
		return
	}
	return v, len(s) - len(strings.TrimPrefix(after, ";"))
}

func decodeEntityName(s, rest string) (r rune, n int) {
	end := 0
	for end < min(len(rest), maxEntityBytes) && digitValue(rest[end], 36) >= 0 {
		end++
	}
	if end == 0 || !strings.HasPrefix(rest[end:], ";") {
		return
	}
	decoded := html.UnescapeString("&" + rest[:end+1])
	if decoded[0] == '&' {
		return
	}
	r, _ = utf8.DecodeRuneInString(decoded) // a mark may follow it
	return r, len(s) - len(rest) + end + 1
}

// maxBackslashes bounds the backslashes before an escape that is decoded.
const maxBackslashes = 16

// decodeBackslash decodes \x3c, \u003c, \u{3c}, \U0000003c, \74, and CSS's \3c, after
// up to [maxBackslashes] backslashes.
func decodeBackslash(s string) (r rune, n int) {
	offset := 1
	for offset < min(len(s), maxBackslashes) && s[offset] == '\\' {
		offset++
	}
	if offset == len(s) {
		return
	}
	if after, ok := cutPrefixFold(strings.TrimLeft(s[offset:], "0"), "3c"); ok {
		return '<', len(s) - len(after)
	}
	switch c := s[offset]; {
	case c == 'x' || c == 'X':
		return decodeHex(s, offset+1, 2)
	case c == 'u' || c == 'U':
		if braced, ok := strings.CutPrefix(s[offset+1:], "{"); ok {
			v, after := cutNumber(braced, 16)
			if rest, ok := strings.CutPrefix(after, "}"); ok && after != braced {
				return v, len(s) - len(rest)
			}
			return
		}
		if v, end := decodeHex(s, offset+1, 8); end > 0 && v <= unicode.MaxASCII {
			return v, end
		}
		return decodeHex(s, offset+1, 4)
	case c == '0' || c == '1':
		return decodeNumber(s, offset, 3, 8)
	default:
		return decodeNumber(s, offset, 2, 8)
	}
}

func decodeHex(s string, offset, n int) (rune, int) { return decodeNumber(s, offset, n, 16) }

// decodeNumber decodes exactly n digits at an offset. It returns their value and end,
// or an end of 0 if there are fewer digits.
func decodeNumber(s string, offset, n int, base rune) (v rune, end int) {
	if len(s) < offset+n {
		return
	}
	v, after := cutNumber(s[offset:offset+n], base)
	if after != "" {
		return v, 0
	}
	return v, offset + n
}

// cutNumber returns the value of s's leading digits, at most the largest rune, and the
// rest.
func cutNumber(s string, base rune) (v rune, after string) {
	for s != "" && digitValue(s[0], base) >= 0 {
		v = min(v*base+digitValue(s[0], base), unicode.MaxRune)
		s = s[1:]
	}
	return v, s
}

// cutPrefixFold is [strings.CutPrefix] for a prefix in any case.
func cutPrefixFold(s, prefix string) (after string, found bool) {
	n := min(len(s), len(prefix))
	if !strings.EqualFold(s[:n], prefix) {
		return s, false
	}
	return s[n:], true
}

// digitValue returns the value of a digit in base 8, 10, 16 or 36, or -1.
func digitValue(b byte, base rune) rune {
	v := rune(b|0x20-'a') + 10 // 16 or more unless b is a letter from a to f
	if '0' <= b && b <= '9' {
		v = rune(b - '0')
	}
	if v >= base {
		return -1
	}
	return v
}

// foldRune returns the lower-case ASCII character that r resembles, or r. r may be a
// letter of another script, form or with a mark, or a bracket.
func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			return r | 0x20
		}
		return r
	}
	for _, a := range alphabets {
		if a.first <= r && r < a.first+a.letters {
			return 'a' + (r-a.first)%26
		}
	}
	switch {
	case '！' <= r && r <= '～': // full width
		return foldRune(r - '！' + '!')
	case 0xE0020 <= r && r <= 0xE007E: // tag characters
		return foldRune(r - 0xE0000)
	}
	if ascii, ok := lookalikes()[r]; ok {
		return ascii
	}
	return r
}

// alphabets are blocks of letters from a to z, possibly repeated.
var alphabets = []struct{ first, letters rune }{
	{0x1D400, 13 * 52},           // mathematical
	{'Ⓐ', 52},                    // circled, both cases
	{'⒜', 26},                    // in parentheses
	{0x1F110, 26}, {0x1F130, 26}, // in parentheses, squared
	{0x1F150, 26}, {0x1F170, 26}, {0x1F1E6, 26}, // white on black, regional indicators
}

// lookalikes maps characters to the ASCII bracket or letter that they resemble.
var lookalikes = sync.OnceValue(func() map[rune]rune {
	folds := map[rune]rune{}
	for ascii, alike := range map[rune]string{
		'<': "﹤‹\u2329〈⟨⟪˂ᐸ❮❬❰≺≪⧼⦑⦉《«𝈶ᚲ",
		'>': "﹥›\u232a〉⟩⟫˃ᐳ❯❭❱≻≫⧽⦒⦊》»𝈷",
		'a': "аАɑαΑàáâãäåāăąÀÁÂÃÄÅĀᴀªᵃ",
		'b': "вВβΒᏏьƄʙ",
		'c': "сСϲⅽçćčÇĆČᴄℂⅭ",
		'd': "ԁⅾďđðᴅⅮ",
		'e': "еЕεΕèéêëēėęěÈÉÊËĒᴇℯᵉ",
		'f': "ϝƒꜰ",
		'g': "ɡցġğǧɢℊ",
		'h': "һНΗհʜℎ",
		'i': "іІıιΙⅰìíîïĩīĮįÌÍÎÏİɪⅠℹ",
		'j': "јЈϳĵᴊ",
		'k': "кКκΚķᴋ",
		'l': "ⅼӏłĺļľʟℓⅬ",
		'm': "мМΜⅿᴍⅯ",
		'n': "ոηńñňŃÑŇΝɴℕ",
		'o': "оОοΟօσòóôõöøōőÒÓÔÕÖØŌᴏºℴ",
		'p': "рРρΡᴘ",
		'q': "ԛզ",
		'r': "гŕřʀᴦ",
		's': "ѕЅśšşŚŠŞſꜱ",
		't': "тТτΤťţŤŢᴛ",
		'u': "υսùúûüūÙÚÛÜŪᴜ",
		'v': "ѵνᴠⅴⅤ",
		'w': "ԝѡωᴡ",
		'x': "хХχΧⅹⅩ",
		'y': "уУүγΥýÿʏ",
		'z': "ΖźżžŹŻŽᴢ",
	} {
		for _, r := range alike {
			folds[r] = ascii
		}
	}
	return folds
})
