package chat

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
)

// joinDraft joins messages to one draft.
func joinDraft(texts []string) string {
	var all []string
	for _, t := range texts {
		if strings.TrimSpace(t) != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, "\n\n")
}

// readDraft brings back the draft of a session that is resumed.
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

// writeDraft keeps the draft, with the messages that wait, for when the process dies.
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
