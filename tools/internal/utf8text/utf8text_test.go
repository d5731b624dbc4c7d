package utf8text

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		s    string
		n    int
		want string
	}{
		{"abcd", 4, "abcd"},
		{"abcde", 4, "a…"},
		{"abcd", 3, "…"},
		{"ab", 1, "…"},
		{"", 0, ""},
		{"éaé", 4, "…"},
		{"aéé", 4, "a…"},
		{"\x80\x80\x80\x80\x80", 4, "…"},
	} {
		if got := Clip(tt.s, tt.n); got != tt.want {
			t.Errorf("Clip(%q, %d) is %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
}

func TestClipMiddle(t *testing.T) {
	for in, want := range map[string]string{"0123456789": "0123456789", "0123456789a": "012…789a"} {
		if got := ClipMiddle(in, 10); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBoundedTextKeepsBothEndsAndCountsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Repair(rapid.String().Draw(t, "text"))
		limit := rapid.IntRange(0, 64).Draw(t, "limit")
		got, cut := Bound(s, limit)
		if cut != (len(s) > limit) || !utf8.ValidString(got) {
			t.Fatalf("cut %t, %q", cut, got)
		}
		if !cut {
			if got != s {
				t.Fatalf("changed %q to %q", s, got)
			}
			return
		}
		head, tail := Split(s, limit)
		if !strings.HasPrefix(s, head) || !strings.HasSuffix(s, tail) || len(head)+len(tail) > limit {
			t.Fatalf("ends %q and %q of %q", head, tail, s)
		}
		if limit-len(head)-len(tail) > 2*(utf8.UTFMax-1) {
			t.Fatalf("kept only %d of %d bytes", len(head)+len(tail), limit)
		}
		note := fmt.Sprintf("[… %d of %d bytes left out …]", len(s)-len(head)-len(tail), len(s))
		if !strings.Contains(got, note) {
			t.Fatalf("%q lacks %q", got, note)
		}
	})
}
