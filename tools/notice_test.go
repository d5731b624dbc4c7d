package tools

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestInputNotices(t *testing.T) {
	for command, want := range map[string]string{
		"curl https://p\u0430ypal.com/x":                       `p\u0430ypal mixes letters that look alike: Latin and Cyrillic`,
		"curl gith\u03c5b.com":                                 `gith\u03c5b mixes letters that look alike: Latin and Greek`,
		"curl \u0430\u0440\u0440\u04cf\u0435.com":              `\u0430\u0440\u0440\u04cf\u0435.com is no plain host name`,
		"curl https://\u0430\u0440\u0440\u04cf\u0435/":         `\u0430\u0440\u0440\u04cf\u0435 is no plain host name`,
		"curl https://münchen.example/":                        `m\u00fcnchen.example is no plain host name`,
		"ssh me@\u0441\u0430\u0441\u0430":                      `\u0441\u0430\u0441\u0430 is no plain host name`,
		"curl \uff47ithub.com":                                 `\uff47ithub.com is no plain host name`,
		"curl example\u3002com":                                `example\u3002com is no plain host name`,
		"npm install r\u0435act":                               `r\u0435act mixes letters that look alike: Latin and Cyrillic`,
		"ls" + strings.Repeat(" ", 5000) + "; rm -rf x":        "5000 blanks in a row",
		"ls" + strings.Repeat("\u00a0", 5000) + "; rm -rf x":   "5000 blanks in a row",
		"ls" + strings.Repeat(" \u3000\t", 100) + "; rm x":     "300 blanks in a row",
		"ls" + strings.Repeat("\n", 400) + "rm x":              "400 line ends in a row",
		"cat Größe.txt отчёт.txt 変更.md; echo 5μs # naïve café": "",
		"curl https://github.com/x y@example.com":              "",
		"if true; then\n" + strings.Repeat(" ", 40) + "ls\nfi": "",
	} {
		input, err := json.Marshal(map[string]any{"command": command, "nested": []any{1, nil}})
		if err != nil {
			t.Fatal(err)
		}
		got := InputNotices(input)
		if want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%.60q: %q, want %q", command, got, want)
		}
		for _, notice := range got {
			if strings.IndexFunc(notice, func(r rune) bool { return r > unicode.MaxASCII || r < ' ' }) >= 0 {
				t.Errorf("%.60q: the notice %q is not safe to show", command, notice)
			}
		}
	}
}

// TestNoticesAtTheirBounds: of equal notices one is given, and of others the first
// eight; a run is counted from its length on, wherever it stands.
func TestNoticesAtTheirBounds(t *testing.T) {
	for text, want := range map[string]int{
		"\u0430a \u0430a": 1,
		"\u0430a \u0430b \u0430c \u0430d \u0430e \u0430f \u0430g \u0430h":         maxNotices,
		"\u0430a \u0430b \u0430c \u0430d \u0430e \u0430f \u0430g \u0430h \u0430i": maxNotices,
		strings.Repeat(" ", longBlank-1):                                          0,
		strings.Repeat(" ", longBlank):                                            1,
		"a" + strings.Repeat("\t", longBlank-1):                                   0,
		"a" + strings.Repeat("\t", longBlank) + "b":                               1,
		"a" + strings.Repeat("\n", longEmpty-1) + "b\n\n":                         0,
		strings.Repeat("\r", longEmpty):                                           1,
		"\uff0e":                                                                  0,
		"\u0430\u0435.com":                                                        1,
	} {
		input, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := InputNotices(input); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
	blanks := `"` + strings.Repeat(" ", longBlank) + `"`
	for _, input := range []string{`{` + blanks + `:1}`, `{"a":[1,` + blanks + `]}`} {
		if got := InputNotices(json.RawMessage(input)); len(got) != 1 {
			t.Errorf("%s: %q", input, got)
		}
	}
	if got := InputNotices(json.RawMessage(`{`)); got != nil {
		t.Errorf("no JSON: %q", got)
	}
}

func TestSpellOut(t *testing.T) {
	if got, want := spellOut("a\x7f\u0080\uffff\U00010000"), "a\x7f\\u0080\\uffff\\U00010000"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPassesForLatin(t *testing.T) {
	for label, want := range map[string]bool{
		"a-1": true, "аа": true, "аб": false, "бa": false, "ı": true, "ɡ": true, "ɑ": true, "\u0080": false, "\x7f": true,
		"\uff00": false, "\uff01": true, "\uff5e": true, "\uff5f": false,
		"\U0001d3ff": false, "\U0001d400": true, "\U0001d7ff": true, "\U0001d800": false,
	} {
		if got := passesForLatin(label); got != want {
			t.Errorf("%+q: %t", label, got)
		}
	}
}
