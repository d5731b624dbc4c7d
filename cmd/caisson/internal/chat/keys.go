package chat

import (
	"bytes"
	"strings"
	"unicode/utf8"

	uv "github.com/charmbracelet/ultraviolet"
)

// key is one event of the keyboard: a key, a paste, or a line if the terminal edits
// lines.
type key struct {
	kind keyKind
	// text is the inserted text of keyText, keyPaste and keyLine.
	text string
	// With a modifier, the text of keyText is the letter.
	ctrl, alt, shift bool
}

type keyKind int

const (
	keyOther keyKind = iota
	keyText
	keyPaste
	keyLine
	keyEnter
	keyTab
	keyEscape
	keyBackspace
	keyDelete
	keyUp
	keyDown
	keyLeft
	keyRight
	keyHome
	keyEnd
	keyFocus
	keyBlur
	keyEOF
)

// maxSequence bounds an unfinished escape sequence. A longer one is not a sequence.
const maxSequence = 256

// maxPaste bounds a paste, like a message.
const maxPaste = 1 << 20

const (
	pasteStart = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// keyDecoder turns a terminal's bytes into keys.
type keyDecoder struct {
	events  uv.EventDecoder
	waiting []byte
	// pasting is set between the marks of a paste.
	pasting bool
}

// addBytes returns the keys that are complete with more bytes.
func (d *keyDecoder) addBytes(p []byte) []key {
	d.waiting = append(d.waiting, p...)
	return d.decodeKeys(false)
}

// endWait returns the keys of an unfinished sequence: a lone escape is a key.
func (d *keyDecoder) endWait() []key { return d.decodeKeys(true) }

// waitsForMore reports whether a key, but not a paste, needs more bytes.
func (d *keyDecoder) waitsForMore() bool { return !d.pasting && len(d.waiting) > 0 }

func (d *keyDecoder) decodeKeys(all bool) []key {
	var keys []key
	for len(d.waiting) > 0 {
		if d.pasting {
			end := bytes.Index(d.waiting, []byte(pasteEnd))
			if end < 0 {
				break
			}
			keys = append(keys, key{kind: keyPaste, text: pastedText(d.waiting[:end])})
			d.waiting, d.pasting = d.waiting[end+len(pasteEnd):], false
			continue
		}
		if bytes.HasPrefix(d.waiting, []byte(pasteStart)) {
			d.waiting, d.pasting = d.waiting[len(pasteStart):], true
			continue
		}
		if !all && isUnfinished(d.waiting) {
			break
		}
		n, event := d.events.Decode(d.waiting)
		if n == 0 {
			n = 1 // drop an unknown byte
		}
		d.waiting = d.waiting[n:]
		if k := keyOf(event); k.kind != keyOther {
			keys = append(keys, k)
		}
	}
	return keys
}

// isUnfinished reports whether more bytes may change the first key of p.
func isUnfinished(p []byte) bool {
	if p[0] != 0x1b {
		return !utf8.FullRune(p)
	}
	if len(p) == 1 {
		return true
	}
	switch p[1] {
	case 0x1b:
		return isUnfinished(p[1:])
	case '[':
		i := bytes.IndexFunc(p[2:], func(r rune) bool { return r >= 0x40 && r <= 0x7e })
		return i < 0 && len(p) < maxSequence
	case 'O', 'N':
		return len(p) == 2
	case ']', 'P', '_', '^', 'X':
		return !bytes.ContainsAny(p, "\a\x9c") && !bytes.Contains(p, []byte("\x1b\\")) && len(p) < maxSequence
	}
	return !utf8.FullRune(p[1:])
}

// pastedText returns the text of a paste, with LF line ends and without NUL.
func pastedText(p []byte) string {
	text := string(bytes.ToValidUTF8(p[:min(len(p), maxPaste)], []byte("\uFFFD")))
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "").Replace(text)
}

var specialKeys = map[rune]keyKind{
	uv.KeyEnter: keyEnter, uv.KeyKpEnter: keyEnter, uv.KeyTab: keyTab, uv.KeyEscape: keyEscape, uv.KeyBackspace: keyBackspace, uv.KeyDelete: keyDelete,
	uv.KeyUp: keyUp, uv.KeyDown: keyDown, uv.KeyLeft: keyLeft, uv.KeyRight: keyRight, uv.KeyHome: keyHome, uv.KeyEnd: keyEnd,
	uv.KeyKpUp: keyUp, uv.KeyKpDown: keyDown, uv.KeyKpLeft: keyLeft, uv.KeyKpRight: keyRight, uv.KeyKpHome: keyHome, uv.KeyKpEnd: keyEnd,
}

func keyOf(event uv.Event) key {
	switch e := event.(type) {
	case uv.FocusEvent:
		return key{kind: keyFocus}
	case uv.BlurEvent:
		return key{kind: keyBlur}
	case uv.KeyPressEvent:
		k := key{ctrl: e.Mod.Contains(uv.ModCtrl), alt: e.Mod.Contains(uv.ModAlt), shift: e.Mod.Contains(uv.ModShift), text: e.Text}
		if kind, ok := specialKeys[e.Code]; ok {
			k.kind, k.text = kind, ""
			return k
		}
		if k.text == "" && e.Code >= 0x20 && e.Code <= utf8.MaxRune {
			k.text = string(e.Code)
		}
		if k.text == "" || !(k.ctrl || k.alt) && strings.ContainsFunc(k.text, func(r rune) bool { return r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
			return key{}
		}
		k.kind = keyText
		return k
	}
	return key{}
}
