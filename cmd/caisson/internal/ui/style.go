package ui

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/tools"
)

// style paints text if on.
type style struct{ on bool }

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(t string) string   { return s.paint("1", t) }
func (s style) dim(t string) string    { return s.paint("2", t) }
func (s style) red(t string) string    { return s.paint("31", t) }
func (s style) green(t string) string  { return s.paint("32", t) }
func (s style) yellow(t string) string { return s.paint("33", t) }
func (s style) cyan(t string) string   { return s.paint("36", t) }

// safeLine makes foreign text safe to show in one line.
func safeLine(s string) string {
	safe, _ := tools.Display(s)
	return safe
}

// fitWidth cuts a line to width cells, with an ellipsis.
func fitWidth(s string, width int) string { return ansi.Truncate(s, max(width, 1), "…") }

// lastLines returns the last n lines of live output, safe and with tabs expanded. A
// carriage return restarts its line, as on a terminal, so that a progress bar shows its
// last state.
func lastLines(text string, n int) []string {
	text = strings.TrimRight(text, "\r\n")
	if text == "" || n == 0 {
		return nil
	}
	all := strings.Split(text, "\n")
	all = all[max(len(all)-n, 0):]
	out := make([]string, 0, len(all))
	for _, l := range all {
		l = strings.TrimRight(l, "\r")
		if i := strings.LastIndexByte(l, '\r'); i >= 0 {
			l = l[i+1:]
		}
		// Programs use colours despite TERM=dumb. Remove them, and escape everything
		// else that a terminal would obey.
		out = append(out, safeLine(replaceTabs(ansi.Strip(l))))
	}
	return out
}

// lastRows returns the last n rows of a text wrapped at blanks.
func lastRows(text string, cells, n int) []string {
	rows := Wrap(lastLines(text, n), cells)
	return rows[max(len(rows)-n, 0):]
}

// signWords replaces the signs that begin our lines.
var signWords = strings.NewReplacer("✓ ", "done: ", "✗ ", "failed: ", "● ", "", "! ", "warning: ", "? ", "question: ", "› ", "you: ")

// spellSign replaces the sign at the beginning of one of our lines by a word.
func spellSign(l string) string {
	if strings.HasPrefix(l, verbatimIndent) {
		return l
	}
	body := strings.TrimLeft(l, " ")
	_, size := utf8.DecodeRuneInString(body)
	if !strings.HasPrefix(body[size:], " ") {
		return l
	}
	return l[:len(l)-len(body)] + signWords.Replace(body[:size+1]) + body[size+1:]
}

// formatElapsed formats a time for people: 40ms, 1.4s, 12s, 2m5s.
func formatElapsed(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%dms", max(d, 0).Milliseconds())
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}
