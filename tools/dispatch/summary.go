package dispatch

import (
	"encoding/json"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of what a confirmation shows. Longer text is elided in the middle with a
// count; clients can still get the exact bytes.
const (
	maxSummaryBytes = 200
	maxShownInput   = 8 << 10
	maxShownDiff    = 256 << 10
	maxUnaskedDiff  = 16 << 10

	maxShownDescription = 2 << 10
)

// summaryLine describes an input in one line that is safe for display.
func summaryLine(def tools.Definition, input json.RawMessage) string {
	text := ""
	switch {
	case def.Summary != nil:
		text = def.Summary(input)
	case def.Paths != nil:
		if paths := def.Paths(input); len(paths) > 0 {
			text = paths[0]
		}
	}
	if text == "" {
		text = string(input)
	}
	safe, _ := tools.Display(utf8text.ClipMiddle(text, maxSummaryBytes))
	return utf8text.ClipMiddle(safe, maxSummaryBytes)
}
