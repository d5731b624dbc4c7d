package main

import (
	"strings"
	"testing"
)

// TestTerminalModes finds what is to be undone in output that arrives at once and byte by
// byte.
func TestTerminalModes(t *testing.T) {
	for output, want := range map[string]string{
		"": "",
		"plain\x1b[31m\x1b[2J\x1b]0;title\a\x1b[6n\x1b[4h":      "",
		"\x1b[?1049h\x1b[?1000;1006h\x1b[?2004h\x1b[?25l":       "\x1b[?25h\x1b[?2004l\x1b[?1006l\x1b[?1000l\x1b[?1049l\x1b[m",
		"\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l":              "", // a program that ends by itself
		"\x1b[?25h\x1b[?7h\x1b[?1000l":                          "",
		"\x1b[?25l\x1b[?25l":                                    "\x1b[?25h\x1b[m",
		"\x1b[?9999h\x1b[?12h\x1b[25h":                          "",
		"\x1b[?1049h\x1b[>1u\x1b[>3u":                           "\x1b[<2u\x1b[?1049l\x1b[m",
		"\x1b[>1u\x1b[>1u\x1b[<u\x1b[<5u":                       "",
		"\x1b[>4;2m\x1b[4 q\x1b=":                               "\x1b>\x1b[0 q\x1b[>4m\x1b[m",
		"\x1b[>4;2m\x1b[4 q\x1b=\x1b[>4;0m\x1b[0 q\x1b>":        "",
		"\x1b[?1003h\x1bc":                                      "",
		"\x1b[?10\x1b[?1003h":                                   "\x1b[?1003l\x1b[m",
		"\x1b[?1;" + strings.Repeat("1;", 100) + "h\x1b[?2004h": "\x1b[?2004l\x1b[m",
	} {
		var whole, pieces terminalModes
		whole.add([]byte(output))
		for i := range len(output) {
			pieces.add([]byte{output[i]})
		}
		got, again := whole.reset(), whole.reset()
		if got != want || again != "" || pieces.reset() != want || whole.escaped != strings.Contains(output, "\x1b") {
			t.Errorf("%q: %q, then %q, want %q", output, got, again, want)
		}
	}
}
