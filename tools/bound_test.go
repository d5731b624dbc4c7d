package tools

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestBoundBlocks(t *testing.T) {
	tests := []struct {
		name   string
		blocks []Block
		limit  int
		want   []Block
		cut    bool
	}{
		{"none", nil, 10, nil, false},
		{"fits", []Block{{Text: "0123456789"}}, 10, []Block{{Text: "0123456789"}}, false},
		{"one over", []Block{{Text: "0123456789a"}}, 10, []Block{{Text: "01234\n[… 1 of 11 bytes left out …]\n6789a"}}, true},
		{"inside a rune", []Block{{Text: "aääääb"}}, 6, []Block{{Text: "aä\n[… 4 of 10 bytes left out …]\näb"}}, true},
		{"shared by blocks", []Block{{Text: "0123456"}, {Text: "abcdef"}, {Text: "x"}}, 10, []Block{
			{Text: "0123456"}, {Text: "a\n[… 3 of 6 bytes left out …]\nef"}, {Text: "[… 1 more blocks left out …]"},
		}, true},
		{"invalid UTF-8 and NUL", []Block{{Text: "a\xff\xfeb\x00c"}}, 20, []Block{{Text: "a\ufffdb␀c"}}, false},
		{"picture", []Block{{Image: []byte{1}, MediaType: "image/png"}}, 1, []Block{{Image: []byte{1}, MediaType: "image/png"}}, false},
		{"picture too large", []Block{{Image: make([]byte, maxImageBytes+1)}}, 100, []Block{
			{Text: "[a picture of 5242881 bytes was left out, at most 5242880 are shown]"},
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, cut := boundBlocks(tt.blocks, tt.limit, 0)
			if diff := cmp.Diff(tt.want, got); diff != "" || cut != tt.cut {
				t.Errorf("cut %t, blocks (-want +got):\n%s", cut, diff)
			}
		})
	}
}

func TestBoundedTextKeepsBothEndsAndCountsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := repairText(rapid.String().Draw(t, "text"))
		limit := rapid.IntRange(0, 64).Draw(t, "limit")
		got, cut := boundText(s, limit)
		if cut != (len(s) > limit) || !utf8.ValidString(got) {
			t.Fatalf("cut %t, %q", cut, got)
		}
		if !cut {
			if got != s {
				t.Fatalf("changed %q to %q", s, got)
			}
			return
		}
		head, tail := splitText(s, limit)
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

func TestElide(t *testing.T) {
	if got := elide("0123456789", 10); got != "0123456789" {
		t.Errorf("short text became %q", got)
	}
	if got, want := elide("01äääää89", 4), "01 [… 5 characters (10 bytes) not shown …] 89"; got != want {
		t.Errorf("elided %q, want %q", got, want)
	}
}
