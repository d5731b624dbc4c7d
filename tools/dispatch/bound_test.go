package dispatch

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

func TestBoundBlocks(t *testing.T) {
	tests := []struct {
		name   string
		blocks []tools.Block
		limit  int
		want   []tools.Block
		cut    bool
	}{
		{"none", nil, 10, nil, false},
		{"fits", []tools.Block{{Text: "0123456789"}}, 10, []tools.Block{{Text: "0123456789"}}, false},
		{"one over", []tools.Block{{Text: "0123456789a"}}, 10, []tools.Block{{Text: "01234\n[… 1 of 11 bytes left out …]\n6789a"}}, true},
		{"inside a rune", []tools.Block{{Text: "aääääb"}}, 6, []tools.Block{{Text: "aä\n[… 4 of 10 bytes left out …]\näb"}}, true},
		{"shared by blocks", []tools.Block{{Text: "0123456"}, {Text: "abcdef"}, {Text: "x"}}, 10, []tools.Block{
			{Text: "0123456"}, {Text: "a\n[… 3 of 6 bytes left out …]\nef"}, {Text: "[… 1 more blocks left out …]"},
		}, true},
		{"invalid UTF-8 and NUL", []tools.Block{{Text: "a\xff\xfeb\x00c"}}, 20, []tools.Block{{Text: "a\ufffdb␀c"}}, false},
		{"picture", []tools.Block{{Image: []byte{1}, MediaType: "image/png"}}, 1, []tools.Block{{Image: []byte{1}, MediaType: "image/png"}}, false},
		{"empty text", []tools.Block{{Text: ""}, {Text: "a"}, {}}, 10, []tools.Block{{Text: "a"}}, false},
		{"picture of another type", []tools.Block{{Image: []byte{1}, MediaType: "image/svg\x1b+xml"}}, 10, []tools.Block{
			{Text: `[a picture of type "image/svg\\x1b+xml" was left out; PNG, JPEG, GIF and WebP are shown]`},
		}, true},
		{"picture of a type with a long name", []tools.Block{{Image: []byte{1}, MediaType: strings.Repeat("a", 41)}}, 10, []tools.Block{
			{Text: `[a picture of type "` + strings.Repeat("a", 37) + `…" was left out; PNG, JPEG, GIF and WebP are shown]`},
		}, true},
		{"picture too large", []tools.Block{{Image: make([]byte, maxImageBytes+1)}}, 100, []tools.Block{
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

func TestBoundedPicturesAndBlocks(t *testing.T) {
	picture := tools.Block{Image: make([]byte, 3<<20), MediaType: "image/png"}
	got, cut := boundBlocks(slices.Repeat([]tools.Block{picture}, 7), 10, 0)
	if shown := blocksSize(got); !cut || shown < 15<<20 || shown > maxImagesBytes+1000 || !strings.Contains(got[6].Text, "left out") {
		t.Errorf("cut %t, %d bytes of pictures", cut, shown)
	}
	largest := tools.Block{Image: make([]byte, maxImageBytes), MediaType: "image/png"}
	full := []tools.Block{largest, largest, largest, {Image: largest.Image[:maxImagesBytes-3*maxImageBytes], MediaType: "image/png"}}
	if got, cut := boundBlocks(full, 10, 0); cut || blocksSize(got) != maxImagesBytes {
		t.Errorf("cut %t, %d bytes of pictures", cut, blocksSize(got))
	}
	small := tools.Block{Image: []byte{1}, MediaType: "image/png"}
	got, cut = boundBlocks(slices.Repeat([]tools.Block{small}, maxImages+1), 10, 0)
	if !cut || got[maxImages-1].Image == nil || got[maxImages].Image != nil {
		t.Errorf("cut %t, blocks %+v", cut, got)
	}
	got, cut = boundBlocks(slices.Repeat([]tools.Block{{Text: "a"}}, 1000), 5000, 0)
	if !cut || len(got) != maxBlocks+1 || got[maxBlocks].Text != "[… 936 more blocks left out …]" {
		t.Errorf("cut %t, %d blocks, the last %+v", cut, len(got), got[len(got)-1])
	}
}

// Workers' results are bounded in characters, not only in bytes.
func TestBoundedCharacters(t *testing.T) {
	for _, tt := range []struct {
		text         string
		bytes, chars int
		want         string
	}{
		{"äöüß", 100, 4, "äöüß"},
		{"äöüßé", 100, 4, "äö\n[… 1 of 5 characters left out …]\nßé"},
		{"äöüßé", 100, 3, "ä\n[… 2 of 5 characters left out …]\nßé"},
		{"abcde", 100, 4, "ab\n[… 1 of 5 characters left out …]\nde"},
		{"ab", 100, 1, "\n[… 1 of 2 characters left out …]\nb"},
		{"äöüßé", 20, 4, "äö\n[… 1 of 5 characters left out …]\nßé"}, // its note is longer than the text
		{"äöüßé", 8, 4, "äö\n[… 1 of 5 characters left out …]\nßé"},
		{"äöüßé", 7, 4, "ä\n[… 4 of 10 bytes left out …]\nßé"},
		{"äöüßé", 4, 4, "ä\n[… 6 of 10 bytes left out …]\né"},
		{"äöüßé", 100, 0, "äöüßé"},
	} {
		got, cut := boundBlocks([]tools.Block{{Text: tt.text}}, tt.bytes, tt.chars)
		if blocksText(got) != tt.want || cut != (tt.want != tt.text) {
			t.Errorf("%q in %d bytes and %d characters: %q, cut %t", tt.text, tt.bytes, tt.chars, blocksText(got), cut)
		}
	}
	blocks, cut := boundBlocks([]tools.Block{{Text: "äöüß"}, {Text: "x"}}, 100, 4)
	if diff := cmp.Diff([]tools.Block{{Text: "äöüß"}, {Text: "[… 1 more blocks left out …]"}}, blocks); diff != "" || !cut {
		t.Errorf("cut %t, blocks (-want +got):\n%s", cut, diff)
	}
	got, _ := boundBlocks([]tools.Block{{Text: strings.Repeat("é", 3000)}, {Text: strings.Repeat("é", 3000)}, {Text: "x"}}, 50_000, 4000)
	if n := strings.Count(blocksText(got), "é"); n != 4000 || len(got) != 3 {
		t.Errorf("%d characters in %d blocks", n, len(got))
	}
}
