package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// terminalModes finds in the output of a program which modes of the terminal it has
// changed. A program that is killed doesn't change them back.
type terminalModes struct {
	pending []byte // an unfinished sequence, from its ESC on
	changed []string
	pushed  int // sets of flags on Kitty's stack of the keyboard
	// escaped is set once there was a sequence.
	escaped bool
}

// Sequences that undo a change.
const (
	plainKeypad, plainKeys, usualCursor = "\x1b>", "\x1b[>4m", "\x1b[0 q"
	plainText                           = "\x1b[m"
	// readable makes text readable after any sequence: it ends an unfinished one, and
	// undoes colours, other characters, and a region that scrolls.
	readable = "\x1b\\" + plainText + "\x1b(B\x0f\x1b7\x1b[r\x1b8"
)

// modeResets are the private modes (CSI ? MODE h and l) that programs on the whole
// screen use, with the letter that undoes them.
var modeResets = sync.OnceValue(func() map[string]string {
	resets := map[string]string{"7": "h", "25": "h"} // wrapped lines, and the cursor
	for _, mode := range []string{
		"1",                                                                 // keys of the cursor
		"9", "1000", "1001", "1002", "1003", "1005", "1006", "1015", "1016", // the mouse
		"1004",               // focus
		"2004",               // pastes
		"2026",               // output that waits
		"47", "1047", "1049", // the other screen
	} {
		resets[mode] = "l"
	}
	return resets
})

// maxSequence bounds a sequence that can change a mode.
const maxSequence = 64

// add reads a piece of the output.
func (m *terminalModes) add(p []byte) {
	for len(p) > 0 {
		if len(m.pending) == 0 {
			at := bytes.IndexByte(p, '\x1b')
			if at < 0 {
				return
			}
			p, m.escaped = p[at:], true
		}
		b := p[0]
		p = p[1:]
		if b == '\x1b' || len(m.pending) == maxSequence {
			m.pending = m.pending[:0]
		}
		if b != '\x1b' && len(m.pending) == 0 {
			continue
		}
		m.pending = append(m.pending, b)
		if n := len(m.pending); n == 2 && b != '[' || n > 2 && b >= '@' && b <= '~' {
			m.take(string(m.pending[1:n-1]), b)
			m.pending = m.pending[:0]
		}
	}
}

// take notes what a sequence changes. Its text is without the ESC and the last byte.
func (m *terminalModes) take(text string, last byte) {
	args, isCSI := strings.CutPrefix(text, "[")
	private, isPrivate := strings.CutPrefix(args, "?")
	switch {
	case !isCSI && last == 'c':
		m.changed, m.pushed = nil, 0
	case !isCSI && (last == '=' || last == '>'):
		m.set(plainKeypad, last == '=')
	case !isCSI:
	case isPrivate && (last == 'h' || last == 'l'):
		for mode := range strings.SplitSeq(private, ";") {
			if undo := modeResets()[mode]; undo != "" {
				m.set("\x1b[?"+mode+undo, undo != string(last))
			}
		}
	case last == 'u' && strings.HasPrefix(args, ">"):
		m.pushed++
	case last == 'u' && strings.HasPrefix(args, "<"):
		n, err := strconv.Atoi(args[1:])
		if err != nil {
			n = 1
		}
		m.pushed = max(0, m.pushed-n)
	case last == 'm' && strings.HasPrefix(args, ">4"):
		m.set(plainKeys, args != ">4" && args != ">4;0")
	case last == 'q' && strings.HasSuffix(args, " "):
		m.set(usualCursor, args != " " && args != "0 ")
	}
}

// set notes that a sequence undoes a change, or that nothing is to be undone.
func (m *terminalModes) set(undo string, changed bool) {
	m.changed = slices.DeleteFunc(m.changed, func(s string) bool { return s == undo })
	if changed {
		m.changed = append(m.changed, undo)
	}
}

// reset returns what undoes all changes, the last one first, or "". The next call
// returns "".
func (m *terminalModes) reset() string {
	var out strings.Builder
	if m.pushed > 0 { // the other screen has a stack of its own
		fmt.Fprintf(&out, "\x1b[<%du", m.pushed)
	}
	for _, undo := range slices.Backward(m.changed) {
		out.WriteString(undo)
	}
	m.changed, m.pushed = nil, 0
	if out.Len() > 0 {
		out.WriteString(plainText)
	}
	return out.String()
}
