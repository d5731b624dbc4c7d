package chat

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestKeys(t *testing.T) {
	for _, tt := range []struct {
		bytes string
		want  []key
	}{
		{"a", []key{{kind: keyText, text: "a"}}},
		{"A", []key{{kind: keyText, text: "A", shift: true}}},
		{"é漢e\u0301", []key{{kind: keyText, text: "é"}, {kind: keyText, text: "漢"}, {kind: keyText, text: "e"}, {kind: keyText, text: "\u0301"}}},
		{"\r", []key{{kind: keyEnter}}},
		{"\n", []key{{kind: keyText, text: "j", ctrl: true}}},
		{"\x1b\r", []key{{kind: keyEnter, alt: true}}},
		{"\x1b[13;2u", []key{{kind: keyEnter, shift: true}}},
		{"\x1b[27;2;13~", []key{{kind: keyEnter, shift: true}}},
		{"\x03", []key{{kind: keyText, text: "c", ctrl: true}}},
		{"\x1b[99;5u", []key{{kind: keyText, text: "c", ctrl: true}}},
		{"\x1b[A\x1bOB", []key{{kind: keyUp}, {kind: keyDown}}},
		{"\x1b[1;5D", []key{{kind: keyLeft, ctrl: true}}},
		{"\x7f\x1b[3~", []key{{kind: keyBackspace}, {kind: keyDelete}}},
		{"\x1b[I\x1b[O", []key{{kind: keyFocus}, {kind: keyBlur}}},
		{"\x1b[200~a\r\nb\x1b[A\rc\x1b[201~d", []key{{kind: keyPaste, text: "a\nb\x1b[A\nc"}, {kind: keyText, text: "d"}}},
		{"\x1b]11;rgb:0/0/0\a\x1b[5;1R\x1bP>|x\x1b\\", nil},
		{"\x9b\xff", nil},
	} {
		var whole, single keyDecoder
		got := slices.Concat(whole.addBytes([]byte(tt.bytes)), whole.endWait())
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: %+v, want %+v", tt.bytes, got, tt.want)
		}
		var one []key
		for i := range len(tt.bytes) {
			one = append(one, single.addBytes([]byte{tt.bytes[i]})...)
		}
		one = append(one, single.endWait()...)
		if typedText(one) != typedText(tt.want) {
			t.Errorf("%q, byte by byte: %+v, want %+v", tt.bytes, one, tt.want)
		}
	}
}

func typedText(keys []key) string {
	var b strings.Builder
	for _, k := range keys {
		if k.kind != keyText && k.kind != keyPaste || k.ctrl {
			b.WriteByte(byte('A' + k.kind))
		}
		b.WriteString(k.text)
	}
	return b.String()
}

func TestEscapeKey(t *testing.T) {
	var d keyDecoder
	if got := d.addBytes([]byte("\x1b")); len(got) > 0 || !d.waitsForMore() {
		t.Errorf("%v before the wait", got)
	}
	if got := d.endWait(); len(got) != 1 || got[0].kind != keyEscape {
		t.Errorf("%v after the wait", got)
	}
}

// The decoder takes any bytes, however they are split, and inserts only text. A paste
// is one insertion.
func TestDecoderTakesAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SliceOfN(rapid.SampledFrom([]string{"\x1b", "[", "200~", pasteStart, pasteEnd, "a", "\r", "\xe6", "漢", "O", "A", "\x9b", "5;2", "\x00", "u", "]", "\a"}), 0, 30).Draw(rt, "pieces")
		var d keyDecoder
		var keys []key
		for _, piece := range text {
			keys = append(keys, d.addBytes([]byte(piece))...)
			if rapid.Bool().Draw(rt, "wait") && d.waitsForMore() {
				keys = append(keys, d.endWait()...)
			}
		}
		keys = append(keys, d.addBytes([]byte(pasteEnd))...)
		keys = append(keys, d.endWait()...)
		if len(d.waiting) > 0 && !d.pasting {
			rt.Errorf("%q is left", d.waiting)
		}
		for _, k := range keys {
			if !utf8.ValidString(k.text) || k.kind == keyText && !k.ctrl && !k.alt && strings.ContainsAny(k.text, "\x00\x1b\r\n") {
				rt.Errorf("key %+v", k)
			}
		}
	})
}
