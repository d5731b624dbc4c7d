package dispatch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of a result's blocks: one picture (as providers accept it), all pictures,
// and the number of blocks.
const (
	maxImageBytes  = 5 << 20
	maxImages      = 8
	maxImagesBytes = 16 << 20
	maxBlocks      = 64
)

type room struct{ bytes, chars, images, imageBytes int }

func (r *room) takeText(s string) (text string, cut bool) {
	text = s
	head, tail := utf8text.SplitChars(s, r.chars)
	switch kept := len(head) + len(tail); {
	case kept > r.bytes:
		text, cut = utf8text.Bound(s, r.bytes)
	case kept < len(s):
		all := utf8.RuneCountInString(s)
		text, cut = fmt.Sprintf("%s\n[… %d of %d characters left out …]\n%s", head, all-r.chars, all, tail), true
	}
	r.bytes -= min(r.bytes, len(text))
	r.chars -= min(r.chars, utf8.RuneCountInString(text))
	return text, cut
}

// takeImage takes room for a picture, or returns a sentence that replaces it.
func (r *room) takeImage(b tools.Block) string {
	switch {
	case len(b.Image) > maxImageBytes:
		return fmt.Sprintf("[a picture of %d bytes was left out, at most %d are shown]", len(b.Image), maxImageBytes)
	case !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, b.MediaType):
		kind, _ := tools.Display(utf8text.Clip(b.MediaType, 40))
		return fmt.Sprintf("[a picture of type %q was left out; PNG, JPEG, GIF and WebP are shown]", kind)
	case r.images == 0 || r.imageBytes < len(b.Image):
		return fmt.Sprintf("[a picture of %d bytes was left out: at most %d pictures and %d bytes of them are shown]",
			len(b.Image), maxImages, maxImagesBytes)
	}
	r.images--
	r.imageBytes -= len(b.Image)
	return ""
}

// boundBlocks repairs and bounds a result: all text has at most limit bytes and, if
// chars is not 0, chars characters, plus notes of what was cut. A sentence replaces
// a picture without room. Empty text is left out, because providers refuse it.
func boundBlocks(blocks []tools.Block, limit, chars int) (bounded []tools.Block, cut bool) {
	left := room{bytes: limit, chars: chars, images: maxImages, imageBytes: maxImagesBytes}
	if chars == 0 {
		left.chars = math.MaxInt
	}
	for i, b := range blocks {
		if len(b.Image) == 0 && b.Text == "" {
			continue
		}
		if len(bounded) == maxBlocks || (left.bytes == 0 || left.chars == 0) && len(b.Image) == 0 {
			note := fmt.Sprintf("[… %d more blocks left out …]", len(blocks)-i)
			return append(bounded, tools.Block{Text: note}), true
		}
		if len(b.Image) > 0 {
			why := left.takeImage(b)
			if why == "" {
				bounded = append(bounded, tools.Block{Image: b.Image, MediaType: b.MediaType})
				continue
			}
			bounded, cut = append(bounded, tools.Block{Text: why}), true
			continue
		}
		text, short := left.takeText(utf8text.Repair(b.Text))
		cut = cut || short
		bounded = append(bounded, tools.Block{Text: text})
	}
	return bounded, cut
}

func blocksSize(blocks []tools.Block) int {
	n := 0
	for _, b := range blocks {
		n += len(b.Text) + len(b.Image)
	}
	return n
}

func blocksText(blocks []tools.Block) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}
