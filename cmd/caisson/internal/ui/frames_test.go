package ui

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// stage drives a live renderer on a screen, step by step. Everything in the live region
// has a liveMark.
type stage struct {
	t         *testing.T
	screen    *screen
	renderer  *Renderer
	now       time.Time
	committed []string
	call      int
	footer    Footer
	// late makes the renderer see the previous size.
	late          bool
	columns, rows int
}

const liveMark = "≈"

func newStage(t *testing.T, columns, rows int, reflow, told bool) *stage {
	s := &stage{t: t, screen: &screen{t: t, columns: columns, rows: rows, reflow: reflow}, now: begun}
	s.renderer = New(Options{
		Out: s.screen, Live: true, Colour: true, Reflow: told, Tick: make(chan time.Time),
		Size:   s.size,
		Now:    func() time.Time { return s.now },
		Footer: func(cells, lines int) Footer { return s.fitFooter(cells, lines) },
	})
	t.Cleanup(s.renderer.Close)
	return s
}

// size returns the screen's size, unless the renderer doesn't know it yet.
func (s *stage) size() (columns, rows int) {
	if !s.late {
		s.columns, s.rows = s.screen.columns, s.screen.rows
	}
	return s.columns, s.rows
}

// draft sets a composer of some lines, with the cursor in one of them.
func (s *stage) draft(text string, rows, row, column int) {
	line := SureWidth(liveMark + text + " ")
	s.footer = Footer{Row: row % rows}
	for range rows {
		s.footer.Lines = append(s.footer.Lines, line)
	}
	for rest := line; ; column-- {
		cluster, _ := ansi.FirstGraphemeCluster(rest, ansi.GraphemeWidth)
		if s.footer.At = cluster; column <= 0 || len(cluster) == len(rest) {
			break
		}
		s.footer.Before += cluster
		rest = rest[len(cluster):]
	}
}

// fitFooter cuts the footer to a screen, as a composer lays out its draft.
func (s *stage) fitFooter(cells, lines int) Footer {
	f := s.footer
	f.Lines = append([]string(nil), f.Lines[:min(len(f.Lines), lines)]...)
	f.Row = min(f.Row, len(f.Lines)-1)
	for i, l := range f.Lines {
		f.Lines[i] = fitWidth(l, cells)
	}
	if ansi.StringWidth(f.Before+f.At) > cells {
		f.Before, f.At = "", liveMark
	}
	return f
}

func (s *stage) frame() {
	s.now = s.now.Add(framePeriod)
	s.renderer.mu.Lock()
	defer s.renderer.mu.Unlock()
	s.renderer.frame++
	s.renderer.drawRegion()
}

func (s *stage) print(text string) {
	text = fmt.Sprintf("#%d# %s", len(s.committed), text)
	s.committed = append(s.committed, text)
	s.renderer.Print(text)
}

func (s *stage) begin(text string) {
	s.call++
	s.renderer.Record(newRecord(s.t, record.ToolCalled{CallID: fmt.Sprint(s.call), Name: liveMark, Summary: text}))
}

func (s *stage) output(text string) {
	s.renderer.Delta(runner.Delta{CallID: fmt.Sprint(s.call), Text: liveMark + text + "\n"})
}

// question is shown and answered, with a resize in between.
func (s *stage) question(text string, columns, rows int) {
	defer s.renderer.Suspend()()
	text = fmt.Sprintf("#%d# %s", len(s.committed), text)
	s.committed = append(s.committed, text+" y > y")
	s.renderer.writeDirect(text)
	s.renderer.choose(" y > ")
	s.screen.resize(columns, rows)
	s.screen.echo("y\n")
}

// end closes the renderer and returns the screen's content.
func (s *stage) end() string {
	s.renderer.Close()
	return s.screen.String()
}

// ids matches the committed lines on a screen.
var ids = regexp.MustCompile(`#\d+#`)

// faults reports remains of the live region, and committed lines that are missing,
// duplicated or out of order. If the terminal cuts lines, their ends may be missing.
func (s *stage) faults(shown string) string {
	if strings.Contains(shown, liveMark) || strings.ContainsAny(shown, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") {
		return "rows of the live region are left"
	}
	var want []string
	for i := range s.committed {
		want = append(want, fmt.Sprintf("#%d#", i))
	}
	if got := ids.FindAllString(shown, -1); strings.Join(got, "") != strings.Join(want, "") {
		return fmt.Sprintf("committed lines are %v", got)
	}
	if s.screen.reflow && squeeze(shown) != squeeze(strings.Join(s.committed, "")) {
		return "committed lines were changed"
	}
	return ""
}

func squeeze(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}

// Whatever is shown, on terminals that rewrap lines and others, and however their size
// changes, nothing of the live region is left, and each committed line is there once
// and in order.
func TestResizesLeaveNothingBehind(t *testing.T) {
	words := rapid.StringOfN(rapid.SampledFrom([]rune("ab -漢e\u0301/🇩👍\U0001f3fd❤\ufe0f")), 0, 120, -1)
	rapid.Check(t, func(rt *rapid.T) {
		size := func() (int, int) {
			columns := rapid.IntRange(40, 200).Draw(rt, "columns") // small ones more often
			if rapid.Bool().Draw(rt, "wide") {
				columns = 240 - columns
			}
			return columns, rapid.IntRange(17, 60).Draw(rt, "rows")
		}
		columns, rows := size()
		s := newStage(t, columns, rows, rapid.Bool().Draw(rt, "reflow"), false)
		s.renderer.opts.Reflow = s.screen.reflow
		s.renderer.view.chat = rapid.Bool().Draw(rt, "chat")
		rt.Repeat(map[string]func(*rapid.T){
			"frame": func(*rapid.T) { s.frame() },
			"turn":  func(*rapid.T) { s.renderer.view.turn = !s.renderer.view.turn },
			"print": func(rt *rapid.T) { s.print(words.Draw(rt, "line")) },
			"begin": func(rt *rapid.T) { s.begin(words.Draw(rt, "summary")) },
			"draft": func(rt *rapid.T) {
				rows := rapid.IntRange(1, 4).Draw(rt, "rows")
				s.draft(words.Draw(rt, "draft")+strings.Repeat(" long", 16), rows, rapid.IntRange(0, 3).Draw(rt, "row"), 90-rapid.IntRange(0, 90).Draw(rt, "column"))
				s.renderer.Draw()
			},
			"output": func(rt *rapid.T) { s.output(words.Draw(rt, "output")) },
			"key": func(*rapid.T) {
				if len(s.renderer.region.lines) > 0 && s.footer.Lines == nil {
					s.screen.echo("^C")
				}
			},
			"resize":   func(*rapid.T) { s.screen.resize(size()) },
			"resizes":  func(*rapid.T) { s.screen.resize(size()); s.screen.resize(size()); s.frame() },
			"question": func(rt *rapid.T) { columns, rows := size(); s.question(words.Draw(rt, "question"), columns, rows) },
		})
		if fault := s.faults(s.end()); fault != "" {
			rt.Errorf("%s:\n%s", fault, s.screen)
		}
	})
}

// Rows of a composer are counted. A count that ignores the new width leaves rows
// behind. One that uses it although the terminal doesn't rewrap erases committed lines.
// A frame that begins at the cursor leaves the text before it.
func TestNaiveFramesLeaveRows(t *testing.T) {
	for _, reflow := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			s := newStage(t, 100, 24, reflow, told)
			for range 10 {
				s.print("line")
			}
			s.renderer.view.chat = true // without a turn
			s.draft(strings.Repeat("y", 70), 3, 2, 0)
			s.renderer.Draw()
			s.screen.resize(40, 24)
			s.renderer.Draw()
			if fault := s.faults(s.end()); (fault == "") != (told == reflow) {
				t.Errorf("reflow %t, counted for %t: %q\n%s", reflow, told, fault, s.screen)
			}
		}
	}
	s := newStage(t, 80, 24, true, true)
	s.begin("sleep")
	s.frame()
	s.screen.echo("^C")
	_, _ = s.screen.Write([]byte(strings.ReplaceAll(s.renderer.eraseSequence(80), "\r", "")))
	if s.faults(s.screen.String()) == "" {
		t.Error("positive control: no glyph is left where the frame begins at the cursor")
	}
	s.renderer.region = region{}
}

// While a call runs, the renderer may know another width than the terminal has, whether
// it rewraps lines or not: nothing of the region is left. The control counts rows there
// too, and leaves some.
func TestLateSizesLeaveNothingBehind(t *testing.T) {
	left := 0
	for _, counted := range []bool{false, true} {
		rapid.Check(t, func(rt *rapid.T) {
			reflow := rapid.Bool().Draw(rt, "reflow")
			s := newStage(t, 100, 40, reflow, reflow)
			s.screen.keeps = reflow && rapid.Bool().Draw(rt, "keeps") // told in time, then
			s.begin(strings.Repeat("a long command ", 8))
			s.draft(strings.Repeat("word ", 15), 2, 1, 30)
			for range rapid.IntRange(1, 20).Draw(rt, "steps") {
				s.late = rapid.Bool().Draw(rt, "late") && !s.screen.keeps
				s.screen.resize(rapid.IntRange(40, 200).Draw(rt, "columns"), rapid.IntRange(20, 60).Draw(rt, "rows"))
				if rapid.Bool().Draw(rt, "print") {
					s.print("committed")
				}
				s.output(strings.Repeat("output ", rapid.IntRange(0, 20).Draw(rt, "output")))
				s.frame()
				if counted {
					s.countRows()
				}
			}
			s.late = false
			switch fault := s.faults(s.end()); {
			case fault == "":
			case counted:
				left++
			default:
				rt.Errorf("%s:\n%s", fault, s.screen)
			}
		})
	}
	if left == 0 {
		t.Error("positive control: nothing is left where rows are counted")
	}
}

// countRows redraws the region of the last frame, with the cursor in its composer.
func (s *stage) countRows() {
	r := s.renderer
	r.mu.Lock()
	defer r.mu.Unlock()
	counted := region{lines: r.region.lines, cursor: len(r.region.lines) - 1, at: liveMark}
	r.replaceRegion(counted)
}

// The rows above a composer's cursor are counted at the new width. The control assumes
// that the cursor is in the first one, and leaves some.
func TestCursorInFooter(t *testing.T) {
	for _, counted := range []bool{true, false} {
		s := newStage(t, 100, 24, true, true)
		s.renderer.view.chat = true // without a turn
		s.print("line")
		s.print("line")
		s.draft(strings.Repeat("word ", 15), 2, 0, 70)
		s.renderer.Draw()
		if !counted {
			s.renderer.region.before, s.renderer.region.at = "", liveMark
		}
		s.screen.resize(50, 24)
		s.draft("", 1, 0, 0)
		s.renderer.Draw()
		if fault := s.faults(s.end()); (fault == "") != counted {
			t.Errorf("counted %t: %s:\n%s", counted, fault, s.screen)
		}
	}
}

// A frame is one write inside mode 2026. Without changes there is none.
func TestFrames(t *testing.T) {
	s := newStage(t, 80, 24, true, true)
	var frames []string
	s.screen.onWrite = func(text string) { frames = append(frames, text) }
	s.begin("sleep 10")
	for range 20 {
		s.print("line")
	}
	if len(frames) > 0 {
		t.Errorf("written before the frame: %q", frames)
	}
	s.frame()
	if len(frames) != 1 || !strings.HasPrefix(frames[0], "\x1b[?2026h") || !strings.HasSuffix(frames[0], "\x1b[?2026l") {
		t.Fatalf("frames: %q", frames)
	}
	s.renderer.mu.Lock()
	for range 5 {
		s.renderer.drawRegion()
	}
	s.renderer.mu.Unlock()
	if len(frames) != 1 {
		t.Errorf("nothing has changed, and %d frames were drawn", len(frames)-1)
	}
	s.frame()
	if len(frames) != 2 {
		t.Errorf("%d frames", len(frames))
	}
	if framePeriod < time.Second/8 {
		t.Errorf("a frame each %s is more than eight a second", framePeriod)
	}
}

func TestTheRegionIsBounded(t *testing.T) {
	for _, rows := range []int{2, 5, 10, 20, 24, 100} {
		s := newStage(t, 80, rows, true, true)
		for i := range 12 {
			s.begin(fmt.Sprint("call ", i))
			s.output("one\ntwo\nthree\nfour\nfive\nsix")
			s.frame()
			if n, most := len(s.renderer.region.lines), max(min(rows*2/5, 8), 1); n > most {
				t.Errorf("%d lines on a screen of %d rows: %q", n, rows, s.renderer.region.lines)
			}
		}
	}
}
