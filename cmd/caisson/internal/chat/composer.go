package chat

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
)

// composer is the text that the user writes, with its history. It only holds state: it
// neither draws nor sends.
type composer struct {
	text string
	// cursor is the byte offset in text.
	cursor int
	// history has the messages so far, the newest last. at is the index of the shown
	// one, or len(history) for the draft, which aside keeps meanwhile.
	history []string
	at      int
	aside   string
	// menu has the completions shown below the text. chosen is the marked one.
	menu     []string
	chosen   int
	complete func(text string) []string
}

// action is the effect of a key on the chat.
type action int

const (
	actNone action = iota
	actEdit
	actSend
	actStop
	actEnd
	actEditor
	actTakeBack
)

// pressKey handles a key.
func (c *composer) pressKey(k key) action {
	if k.kind == keyTab {
		return c.completeText()
	}
	c.menu = nil
	switch k.kind {
	case keyEscape:
	case keyText:
		if k.ctrl || k.alt {
			return c.pressControl(k)
		}
		c.insertText(k.text)
	case keyPaste:
		c.insertText(k.text)
	case keyEnter:
		if k.alt || k.shift || k.ctrl {
			c.insertText("\n")
			break
		}
		return actSend
	case keyBackspace:
		if k.ctrl || k.alt {
			c.removeTo(c.wordStart())
			break
		}
		c.removeTo(c.previousBoundary())
	case keyDelete:
		c.removeTo(c.nextBoundary())
	case keyUp:
		return c.moveUp()
	case keyDown:
		c.moveDown()
	case keyLeft:
		if c.cursor = c.previousBoundary(); k.ctrl || k.alt {
			c.cursor = c.wordStart()
		}
	case keyRight:
		if c.cursor = c.nextBoundary(); k.ctrl || k.alt {
			c.cursor = c.wordEnd()
		}
	case keyHome:
		c.cursor = c.lineStart()
	case keyEnd:
		c.cursor = c.lineEnd()
	default:
		return actNone
	}
	return actEdit
}

// The letters with Ctrl or Alt that move the cursor to a place, or remove the text
// between the cursor and a place.
var (
	ctrlMoves   = map[string]func(*composer) int{"a": (*composer).lineStart, "e": (*composer).lineEnd, "b": (*composer).previousBoundary, "f": (*composer).nextBoundary}
	ctrlRemoves = map[string]func(*composer) int{
		"h": (*composer).previousBoundary, "d": (*composer).nextBoundary, "w": (*composer).wordStart, "u": (*composer).lineStart, "k": (*composer).lineEnd,
	}
	altMoves   = map[string]func(*composer) int{"b": (*composer).wordStart, "f": (*composer).wordEnd}
	altRemoves = map[string]func(*composer) int{"d": (*composer).wordEnd}
)

// pressControl handles a letter with a modifier.
func (c *composer) pressControl(k key) action {
	moves, removes := ctrlMoves, ctrlRemoves
	if k.alt {
		moves, removes = altMoves, altRemoves
	}
	switch place := moves[k.text]; {
	case place != nil:
		c.cursor = place(c)
		return actEdit
	case k.alt:
	case k.text == "j":
		c.insertText("\n")
		return actEdit
	case k.text == "m":
		return actSend
	case k.text == "c":
		return actStop
	case k.text == "d" && c.text == "":
		return actEnd
	case k.text == "x":
		return actEditor
	case k.text == "p":
		return c.moveUp()
	case k.text == "n":
		c.moveDown()
		return actEdit
	}
	place := removes[k.text]
	if place == nil {
		return actNone
	}
	c.removeTo(place(c))
	return actEdit
}

func (c *composer) setDraft(text string) {
	c.text, c.cursor, c.at, c.menu = text, len(text), len(c.history), nil
}

// takeDraft moves the draft into the history.
func (c *composer) takeDraft() {
	if c.text != "" && (len(c.history) == 0 || c.history[len(c.history)-1] != c.text) {
		c.history = append(c.history, c.text)
	}
	c.setDraft("")
}

func (c *composer) insertText(text string) {
	c.text = c.text[:c.cursor] + text + c.text[c.cursor:]
	c.cursor += len(text)
}

// removeTo removes the text between the cursor and a place.
func (c *composer) removeTo(at int) {
	from, to := min(at, c.cursor), max(at, c.cursor)
	c.text = c.text[:from] + c.text[to:]
	c.cursor = from
}

// previousBoundary returns the start of the character before the cursor, and
// nextBoundary the end of the one after it.
func (c *composer) previousBoundary() int {
	// The line with the character before the cursor, which can be its end.
	start := strings.LastIndexByte(c.text[:max(c.cursor-1, 0)], '\n') + 1
	return c.cursor - lastCharacter(c.text[start:c.cursor])
}

func (c *composer) nextBoundary() int {
	cluster, _ := ansi.FirstGraphemeCluster(c.text[c.cursor:], ansi.GraphemeWidth)
	return c.cursor + len(cluster)
}

func (c *composer) lineStart() int { return strings.LastIndexByte(c.text[:c.cursor], '\n') + 1 }

func (c *composer) lineEnd() int {
	if n := strings.IndexByte(c.text[c.cursor:], '\n'); n >= 0 {
		return c.cursor + n
	}
	return len(c.text)
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

func (c *composer) wordStart() int {
	at := strings.TrimRightFunc(c.text[:c.cursor], func(r rune) bool { return !isWord(r) })
	return len(strings.TrimRightFunc(at, isWord))
}

func (c *composer) wordEnd() int {
	rest := strings.TrimLeftFunc(c.text[c.cursor:], func(r rune) bool { return !isWord(r) })
	return len(c.text) - len(strings.TrimLeftFunc(rest, isWord))
}

// moveUp moves to the line above, or from the first line to the previous message.
func (c *composer) moveUp() action {
	start := c.lineStart()
	switch {
	case start > 0:
		c.moveTo(strings.LastIndexByte(c.text[:start-1], '\n')+1, countCharacters(c.text[start:c.cursor]))
	case c.text == "" && c.at == len(c.history):
		return actTakeBack // queued messages come before the history
	default:
		c.recallMessage(c.at - 1)
	}
	return actEdit
}

func (c *composer) moveDown() {
	if end := c.lineEnd(); end < len(c.text) {
		c.moveTo(end+1, countCharacters(c.text[c.lineStart():c.cursor]))
		return
	}
	c.recallMessage(c.at + 1)
}

// moveTo moves to a character of the line that begins at start, or to the line's end.
func (c *composer) moveTo(start, column int) {
	c.cursor = start
	for end := c.lineEnd(); column > 0 && c.cursor < end; column-- {
		c.cursor = c.nextBoundary()
	}
}

// countCharacters counts grapheme clusters.
func countCharacters(text string) int {
	n := 0
	for ; text != ""; n++ {
		cluster, _ := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
		text = text[len(cluster):]
	}
	return n
}

// recallMessage shows a message of the history, or the draft after them.
func (c *composer) recallMessage(at int) {
	if at < 0 || at > len(c.history) {
		return
	}
	if c.at == len(c.history) {
		c.aside = c.text
	}
	text := c.aside
	if at < len(c.history) {
		text = c.history[at]
	}
	c.text, c.cursor, c.at = text, len(text), at
}

// completeText completes a command, first to the first completion, then to each in
// turn.
func (c *composer) completeText() action {
	if len(c.menu) > 0 {
		c.chosen = (c.chosen + 1) % len(c.menu)
		c.text, c.cursor = c.menu[c.chosen], len(c.menu[c.chosen])
		return actEdit
	}
	if c.complete == nil || c.cursor != len(c.text) {
		return actNone
	}
	found := c.complete(c.text)
	if len(found) == 0 {
		return actNone
	}
	c.text, c.cursor = found[0], len(found[0])
	if len(found) > 1 {
		c.menu, c.chosen = found, 0
	}
	return actEdit
}

func joinDraft(texts []string) string {
	var all []string
	for _, t := range texts {
		if strings.TrimSpace(t) != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, "\n\n")
}

// readDraft restores a resumed session's draft.
func (c *chat) readDraft() {
	if text, err := os.ReadFile(filepath.Join(c.Dir, draftFile)); err == nil {
		c.mu.Lock()
		c.composer.setDraft(strings.ToValidUTF8(string(text), "\uFFFD"))
		draft := c.composer.text
		c.mu.Unlock()
		if c.Plain && draft != "" {
			c.showLines(append([]string{"a draft is kept:"}, ui.MessageLines(draft, c.Colour)...)...)
		}
	}
}

// writeDraft keeps the draft and the queue in case the process dies.
func (c *chat) writeDraft() {
	c.notes.Stop()
	c.mu.Lock()
	text := joinDraft(append(slices.Clip(c.queue), c.composer.text))
	c.mu.Unlock()
	path := filepath.Join(c.Dir, draftFile)
	if text == "" {
		_ = os.Remove(path) // there may be none
		return
	}
	if err := atomicwriter.WriteFile(path, []byte(text), 0o600); err != nil {
		c.showLines(ui.ErrorLine("the draft can't be kept: "+err.Error(), c.Colour))
	}
}
