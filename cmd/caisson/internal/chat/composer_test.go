package chat

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"
)

// typeKeys sends a terminal's bytes to a composer and returns the actions except edits.
func typeKeys(c *composer, bytes string) []action {
	var d keyDecoder
	var acts []action
	for _, k := range append(d.addBytes([]byte(bytes)), d.endWait()...) {
		if a := c.pressKey(k); a != actEdit && a != actNone {
			acts = append(acts, a)
		}
	}
	return acts
}

func TestComposer(t *testing.T) {
	for _, tt := range []struct{ keys, want string }{
		{"abc", "abc|"},
		{"abc\x1b[D\x1b[Dx", "ax|bc"},
		{"one\ntwo", "one\ntwo|"},
		{"one\x1b\rtwo\x1b[13;2uthree", "one\ntwo\nthree|"},
		{"one\ntwo\x1b[Ax", "onex|\ntwo"},
		{"one\nlonger\x1b[A\x1b[Bx", "one\nlonx|ger"},
		{"漢字e\u0301\x7f", "漢字|"},
		{"👩‍🚀x\x1b[D\x7f", "|x"},
		{"hello big world\x17", "hello big |"},
		{"hello big world\x1bb\x1bbX", "hello X|big world"},
		{"hello\x1b[1;5DX", "X|hello"},
		{"hello\nworld\x15", "hello\n|"},
		{"hello\nworld\x01\x0b", "hello\n|"},
		{"hello\x01\x04\x1b[3~", "|llo"},
		{"\x1b[200~a\rb\tc\x1b[201~!", "a\nb\tc!|"},
		{"\x1b[Hx\x1b[Fy", "xy|"},
	} {
		var c composer
		acts := typeKeys(&c, tt.keys)
		if got := c.text[:c.cursor] + "|" + c.text[c.cursor:]; got != tt.want || len(acts) > 0 {
			t.Errorf("%q: %q and %v, want %q", tt.keys, got, acts, tt.want)
		}
	}
}

// A paste with line ends and controls sends and stops nothing. The control types the
// same, and does.
func TestPasteIsOneInsertion(t *testing.T) {
	const text = "rm -rf /\r\x03\x04\x18\ty\r"
	var c composer
	if acts := typeKeys(&c, pasteStart+text+pasteEnd); len(acts) > 0 || !strings.HasPrefix(c.text, "rm -rf /\n") {
		t.Errorf("a paste: %v, %q", acts, c.text)
	}
	var control composer
	if acts := typeKeys(&control, text); len(acts) < 3 {
		t.Errorf("positive control: typed, it does %v", acts)
	}
}

func TestHistory(t *testing.T) {
	var c composer
	for _, text := range []string{"one", "two\nlines", "two\nlines"} {
		c.setDraft(text)
		c.takeDraft()
	}
	typeKeys(&c, "draft")
	for _, want := range []string{"two\nlines", "two\nlines", "one", "one"} { // first to the line above
		typeKeys(&c, "\x1b[A")
		if c.text != want {
			t.Errorf("%q, want %q", c.text, want)
		}
	}
	typeKeys(&c, "\x1b[B\x1b[B\x1b[B")
	if c.text != "draft" {
		t.Errorf("the draft is %q", c.text)
	}
	c.setDraft("")
	if acts := typeKeys(&c, "\x1b[A"); len(acts) != 1 || acts[0] != actTakeBack {
		t.Errorf("Up on an empty draft: %v", acts)
	}
}

func TestCompletion(t *testing.T) {
	c := composer{complete: func(text string) []string {
		var found []string
		for _, name := range []string{"/copy", "/cost", "/diff"} {
			if strings.HasPrefix(name, text) {
				found = append(found, name)
			}
		}
		return found
	}}
	typeKeys(&c, "/d\t")
	if c.text != "/diff" || len(c.menu) > 0 {
		t.Errorf("%q, menu %v", c.text, c.menu)
	}
	c.setDraft("")
	typeKeys(&c, "/c\t")
	if c.text != "/copy" || len(c.menu) != 2 {
		t.Errorf("%q, menu %v", c.text, c.menu)
	}
	typeKeys(&c, "\t")
	if c.text != "/cost" {
		t.Errorf("the second is %q", c.text)
	}
	typeKeys(&c, "\x1b")
	if c.text != "/cost" || c.menu != nil {
		t.Errorf("after Esc: %q, menu %v", c.text, c.menu)
	}
	if acts := typeKeys(&c, "\r"); len(acts) != 1 || acts[0] != actSend {
		t.Errorf("Enter: %v", acts)
	}
}

// Whatever is typed, the draft is valid text with its cursor between two characters,
// and its rows fit.
func TestDraftsFit(t *testing.T) {
	keys := rapid.SampledFrom([]string{
		"a", "word ", "漢", "e\u0301", "\u0301", "🇩", "🇪", "👩‍🚀", "\t", "\n", "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B", "\x7f", "\x1b[3~", "\x17", "\x15", "\x0b", "\x1bb", "\x1bf", "\x01", "\x05",
		pasteStart + "\x1b[2J\u202e\x9b1m\r" + pasteEnd, "\x1b", "\x18",
	})
	rapid.Check(t, func(rt *rapid.T) {
		var c composer
		for _, k := range rapid.SliceOfN(keys, 0, 60).Draw(rt, "keys") {
			typeKeys(&c, k)
		}
		if c.cursor < 0 || c.cursor > len(c.text) || !utf8.ValidString(c.text) || c.cursor < len(c.text) && !utf8.RuneStart(c.text[c.cursor]) {
			rt.Fatalf("cursor %d in %q", c.cursor, c.text)
		}
		cells, most := rapid.IntRange(12, 80).Draw(rt, "cells"), rapid.IntRange(1, 8).Draw(rt, "rows")
		l := layOut(c.text, c.cursor, cells, most)
		if len(l.rows) == 0 || len(l.rows) > most || l.row < 0 || l.row >= len(l.rows) {
			rt.Fatalf("row %d of %q", l.row, l.rows)
		}
		if ansi.StringWidth(l.before+l.at) > ansi.StringWidth(l.rows[l.row])+1 || l.at == "" {
			rt.Errorf("the cursor stands behind %q at %q of %q", l.before, l.at, l.rows[l.row])
		}
		for _, row := range l.rows {
			if w := ansi.StringWidth(row); w > cells {
				rt.Errorf("%d cells of %d: %q", w, cells, row)
			}
			if strings.ContainsFunc(row, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 || r == '\u202e' }) {
				rt.Errorf("a control in %q", row)
			}
		}
	})
}
