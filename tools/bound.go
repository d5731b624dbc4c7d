package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxImageBytes bounds one picture of a result: what providers accept.
const maxImageBytes = 5 << 20

// repairText makes text valid UTF-8, and writes NUL, which some providers and
// parsers refuse, as its picture. Other controls are left to who renders.
func repairText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	return strings.ReplaceAll(s, "\x00", "␀")
}

// boundText keeps a head and a tail of at most limit bytes together and says
// between them how many of how many were left out. It cuts at runes' edges,
// and adds its note to the limit.
func boundText(s string, limit int) (text string, cut bool) {
	if len(s) <= limit {
		return s, false
	}
	head, tail := splitText(s, limit)
	omitted := len(s) - len(head) - len(tail)
	return fmt.Sprintf("%s\n[… %d of %d bytes left out …]\n%s", head, omitted, len(s), tail), true
}

// splitText gives the first and the last bytes of a text, limit in all, each
// whole runes.
func splitText(s string, limit int) (head, tail string) {
	h := limit / 2
	for h > 0 && !utf8.RuneStart(s[h]) {
		h--
	}
	t := len(s) - (limit - limit/2)
	for t < len(s) && !utf8.RuneStart(s[t]) {
		t++
	}
	return s[:h], s[t:]
}

// boundBlocks repairs and bounds what the model gets: all text together is at
// most limit bytes plus the notes of what was cut, and a picture that is too
// large becomes a sentence.
func boundBlocks(blocks []Block, limit int) (bounded []Block, cut bool) {
	left := limit
	for i, b := range blocks {
		if len(b.Image) > 0 {
			if len(b.Image) <= maxImageBytes {
				bounded = append(bounded, Block{Image: b.Image, MediaType: b.MediaType})
				continue
			}
			cut = true
			b.Text = fmt.Sprintf("[a picture of %d bytes was left out, at most %d are shown]", len(b.Image), maxImageBytes)
		}
		if left == 0 && b.Text != "" {
			note := fmt.Sprintf("[… %d more blocks left out …]", len(blocks)-i)
			return append(bounded, Block{Text: note}), true
		}
		text, short := boundText(repairText(b.Text), left)
		left -= min(left, len(text))
		cut = cut || short
		bounded = append(bounded, Block{Text: text})
	}
	return bounded, cut
}

// blocksSize is the number of bytes of a result.
func blocksSize(blocks []Block) int {
	n := 0
	for _, b := range blocks {
		n += len(b.Text) + len(b.Image)
	}
	return n
}

// blocksText is all the text of a result.
func blocksText(blocks []Block) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}
