package tools

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestDisplay(t *testing.T) {
	tests := []struct {
		name, in, want string
		hidden         bool
	}{
		{"printable text is left alone", `git commit -m "Größe ändern" # 変更 ✓ 🚀 \x1b`, `git commit -m "Größe ändern" # 変更 ✓ 🚀 \x1b`, false},
		{"combining marks", "e\u0301", "e\u0301", false},
		{"newline and tab are shown, not hidden", "a\n\tb", `a\n\tb`, false},
		{"carriage return", "safe\rrm -rf", `safe\rrm -rf`, true},
		{"escape sequences", "\x1b[2J\x1b[8m\x1b]52;c;x\a", `\x1b[2J\x1b[8m\x1b]52;c;x\x07`, true},
		{"C1", "a\u009b31m", `a\u009b31m`, true},
		{"raw C1 byte", "a\x9b31m", `a\x9b31m`, true},
		{"NUL, backspace, DEL", "a\x00\b\x7f", `a\x00\x08\x7f`, true},
		{"bidirectional override", "a\u202etxt.exe", `a\u202etxt.exe`, true},
		{"bidirectional isolates", "\u2066a\u2069", `\u2066a\u2069`, true},
		{"zero width", "a\u200bb\ufeffc\u2060", `a\u200bb\ufeffc\u2060`, true},
		{"soft hyphen", "a\u00adb", `a\u00adb`, true},
		{"tags", "a\U000e0041\U000e007f", `a\U000e0041\U000e007f`, true},
		{"variation selectors", "a\ufe01\U000e0100", `a\ufe01\U000e0100`, true},
		{"emoji presentation", "❤\ufe0f", "❤\ufe0f", false},
		{"blank letters", "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", `\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0`, true},
		{"first and last of a width", "\x7f\u0080\uffff", `\x7f\u0080\uffff`, true},
		{"odd spaces", "a\u2003b\u2028c\u2029", `a\u2003b\u2028c\u2029`, true},
		{"invalid UTF-8", "a\xc3(", `a\xc3(`, true},
		{"replacement character itself", "a\ufffd", "a\ufffd", false},
		{"private use", "\ue000", `\ue000`, true},
		{"blanks that are not spaces", "a\u00a0b\u3000c\u1680", `a\u00a0b\u3000c\u1680`, true},
		{"thousands of them", "a" + strings.Repeat("\u00a0", 5000) + "b", `a\u00a0{×5000}b`, true},
		{"eight of them", strings.Repeat("\a", 8), strings.Repeat(`\x07`, 8), true},
		{"nine of them", strings.Repeat("\a", 9) + "b", `\x07{×9}b`, true},
		{"newlines and tabs are not counted", strings.Repeat("\n", 10) + strings.Repeat("\t", 9), strings.Repeat(`\n`, 10) + strings.Repeat(`\t`, 9), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, hidden := Display(tt.in); got != tt.want || hidden != tt.hidden {
				t.Errorf("Display(%q) is %q, %t, want %q, %t", tt.in, got, hidden, tt.want, tt.hidden)
			}
		})
	}
	if got, hidden := DisplayLines("a\n\tb\r\n"); got != "a\n\tb\\r\n" || !hidden {
		t.Errorf("DisplayLines gives %q, %t", got, hidden)
	}
}

// TestModelLines: blanks and single joiners stay, and what hides or reorders text doesn't.
func TestModelLines(t *testing.T) {
	const plain = "Qui\u202f? «\u00a0Moi\u00a0»\n\t\u3000👩\u200d💻 می\u200cخواهم ❤\ufe0f ❤\ufe0f\u200d🔥"
	if got := ModelLines(plain); got != plain {
		t.Errorf("it became %q", got)
	}
	if got := ModelLines("\u200da\u200d\u200cb\u200c\u200c \u200d\n\u200cc\u200d"); got != `\u200d`+"a\u200d"+`\u200c`+"b\u200c"+`\u200c \u200d`+"\n"+`\u200c`+"c\u200d" {
		t.Errorf("joiners became %q", got)
	}
	if got := ModelLines("a\ufe0f\u200d\ufe0f\u200cb\ufe0f\ufe0f\u200c\ufe0f \ufe0f"); got != "a\ufe0f\u200d"+`\ufe0f`+"\u200cb\ufe0f"+`\ufe0f`+"\u200c"+`\ufe0f \ufe0f` {
		t.Errorf("joiners and variation selectors became %q", got)
	}
	if got := ModelLines("a\x1b\u202e\u200b\u2060\U000e0041\r\xff"); got != `a\x1b\u202e\u200b\u2060\U000e0041\r\xff` {
		t.Errorf("it became %q", got)
	}
}

// unsafeRune is the test's own idea of what a terminal must not get, made from
// categories and not from the code under test.
func unsafeRune(r rune, lines bool) bool {
	if lines && (r == '\n' || r == '\t') {
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

func FuzzDisplay(f *testing.F) {
	seeds := []string{"", "ls -l", "\x1b[2J", "a\u202eb", "\xff\xfe", "\U000e0041", "a\n\tb", "\u009b"}
	tripped := false
	for _, s := range seeds {
		f.Add(s)
		tripped = tripped || strings.ContainsFunc(s, func(r rune) bool { return unsafeRune(r, false) })
	}
	if !tripped {
		f.Fatal("no seed holds anything unsafe, so this test shows nothing")
	}
	f.Fuzz(func(t *testing.T, s string) {
		for lines, display := range map[bool]func(string) (string, bool){false: Display, true: DisplayLines} {
			safe, hidden := display(s)
			if !utf8.ValidString(safe) {
				t.Fatalf("%q gives invalid UTF-8 %q", s, safe)
			}
			if strings.ContainsFunc(safe, func(r rune) bool { return unsafeRune(r, lines) }) {
				t.Fatalf("%q gives unsafe %q", s, safe)
			}
			if !hidden && !lines {
				back := strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(s)
				if back != safe {
					t.Fatalf("%q was changed to %q, and nothing is said to be hidden", s, safe)
				}
			}
			if again, more := display(safe); again != safe || more {
				t.Fatalf("%q is not safe yet: %q", safe, again)
			}
		}
	})
}

func TestElide(t *testing.T) {
	if got := Elide("0123456789", 10); got != "0123456789" {
		t.Errorf("short text became %q", got)
	}
	if got, want := Elide("01äääää89", 4), "01 [… 5 characters (10 bytes) not shown …] 89"; got != want {
		t.Errorf("elided %q, want %q", got, want)
	}
	if got, want := Elide("\x80\x80\x80\x80\x80", 4), " [… 5 characters (5 bytes) not shown …] "; got != want {
		t.Errorf("text that is no UTF-8 is elided to %q, want %q", got, want)
	}
}
