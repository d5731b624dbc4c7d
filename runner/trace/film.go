package trace

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	uv "github.com/charmbracelet/ultraviolet"

	"github.com/caisson-run/caisson/runner/internal/emulator"
	"github.com/caisson-run/caisson/runner/record"
)

// Bounds of the film of one recording.
const (
	maxScreens     = 200
	maxFilm        = 512 << 10 // bytes of HTML
	maxFilmColumns = 300
	maxFilmRows    = 100
	maxCharacter   = 16 // bytes of a cell's character
	// maxPause is the longest time that passes without output.
	maxPause = 2 * time.Second
	// filmTime bounds the work for one recording, and filmsTime the work for a page.
	// Recordings are foreign text.
	filmTime  = 10 * time.Second
	filmsTime = 30 * time.Second
	// maxCast bounds a recording, castLine a line of it.
	maxCast  = 16 << 20
	castLine = 4 << 20
)

// Film is what a terminal showed, as screens in order.
type Film struct {
	Seq     int64 // of the step
	Screens []template.HTML
	Rows    int // of the largest screen
	// Seconds is how long it plays, without long pauses.
	Seconds int
	// Problem says why there are no screens, or "".
	Problem string
}

// castEvent is a line of a recording after the first: its time, kind and text.
type castEvent struct {
	time time.Duration
	kind string
	text string
}

// ReadFilm renders the recording of a step. It returns nil if the step has none, or if
// its file was removed.
func ReadFilm(s Session, step Step) *Film {
	r := step.Recording
	if r == nil || !filepath.IsLocal(r.Path) {
		return nil
	}
	file, err := record.OpenRegular(filepath.Join(s.Dir, r.Path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	film := &Film{Seq: step.Seq}
	if err == nil {
		err = film.render(file, r)
		_ = file.Close() // only read
	}
	if err != nil {
		return &Film{Problem: err.Error()}
	}
	return film
}

// render reads the recording twice: its length decides how far apart the screens are. The emulator
// is foreign code that gets foreign text: if it panics, the recording can't be shown.
func (f *Film) render(file io.ReadSeeker, r *record.Recording) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the recording can't be shown: %v", v)
		}
	}()
	sum := sha256.New()
	length := time.Duration(0)
	if r.Bytes > maxCast {
		return errors.New("the recording is too large to show")
	}
	if err := readCast(io.TeeReader(io.LimitReader(file, maxCast), sum), func(int, int) {}, func(e castEvent) error {
		length = e.time
		return nil
	}); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != r.SHA256 {
		return errors.New("the recording was changed: its hash differs from the record")
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	p := &projector{film: f, length: length, screens: maxScreens, ends: time.Now().Add(filmTime)}
	if err := readCast(io.LimitReader(file, maxCast), p.begin, p.show); err != nil {
		return err
	}
	p.takeScreen()
	f.Seconds = int(max(length.Seconds(), float64(len(f.Screens))/10)) + 1
	return nil
}

// readCast reads a recording in asciicast v2, without long pauses.
func readCast(r io.Reader, begin func(columns, rows int), event func(castEvent) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, castLine)
	var header struct{ Version, Width, Height int }
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &header) != nil || header.Version != 2 {
		return errors.New("the recording is not an asciicast of version 2")
	}
	begin(header.Width, header.Height)
	var at, before time.Duration
	for lines.Scan() {
		var parts [3]any
		if json.Unmarshal(lines.Bytes(), &parts) != nil {
			return errors.New("the recording has a damaged line")
		}
		seconds, _ := parts[0].(float64)
		kind, _ := parts[1].(string)
		text, _ := parts[2].(string)
		now := time.Duration(min(max(seconds, 0), 1e6) * float64(time.Second))
		at += min(max(now-before, 0), maxPause)
		before = max(now, before)
		if err := event(castEvent{at, kind, text}); err != nil {
			return err
		}
	}
	return lines.Err()
}

// projector plays a recording and takes its screens.
type projector struct {
	film *Film
	// length is the recording's. screens is how many pieces of equal time it has.
	length  time.Duration
	screens int
	ends    time.Time
	bytes   int
	piece   int

	emulator *emulator.Emulator
}

func (p *projector) begin(columns, rows int) {
	columns, rows = p.fit(columns, rows)
	p.emulator = emulator.New(columns, rows)
}

// fit bounds a size and remembers the largest height.
func (p *projector) fit(columns, rows int) (_, _ int) {
	columns, rows = min(max(columns, 1), maxFilmColumns), min(max(rows, 1), maxFilmRows)
	p.film.Rows = max(p.film.Rows, rows)
	return columns, rows
}

// show plays an event. Before the first one in a new piece of time it takes a screen.
func (p *projector) show(e castEvent) error {
	if time.Now().After(p.ends) {
		return errors.New("the recording takes too long to show")
	}
	if piece := p.pieceOf(e.time); piece > p.piece {
		p.takeScreen()
		p.piece = p.pieceOf(e.time) // takeScreen may have changed their number
	}
	switch e.kind {
	case "o":
		return emulator.Play(p.emulator, e.text, p.ends)
	case "r":
		var columns, rows int
		if _, err := fmt.Sscanf(e.text, "%dx%d", &columns, &rows); err == nil {
			p.emulator.Resize(p.fit(columns, rows))
		}
	}
	return nil
}

func (p *projector) pieceOf(at time.Duration) int {
	return int(int64(at) * int64(p.screens-1) / max(int64(p.length), 1))
}

// takeScreen adds the screen if it differs from the one before. If the film gets too large, it drops
// every second one, and takes half as many from then on.
func (p *projector) takeScreen() {
	screen := p.screenHTML(true)
	if len(screen) > maxFilm/2 {
		screen = p.screenHTML(false)
	}
	if n := len(p.film.Screens); n > 0 && p.film.Screens[n-1] == screen {
		return
	}
	p.film.Screens = append(p.film.Screens, screen)
	p.bytes += len(screen)
	for p.bytes > maxFilm && len(p.film.Screens) > 1 {
		last := len(p.film.Screens) - 1
		kept := p.film.Screens[:0]
		p.bytes = 0
		for i, s := range p.film.Screens {
			if (last-i)%2 == 0 {
				kept = append(kept, s)
				p.bytes += len(s)
			}
		}
		p.film.Screens = slices.Clip(kept)
		p.screens = max(p.screens/2, 2)
	}
}

// screenHTML returns the screen as escaped text, with elements only for its colours.
func (p *projector) screenHTML(coloured bool) template.HTML {
	var out strings.Builder
	for y := range p.emulator.Height() {
		if y > 0 {
			out.WriteByte('\n')
		}
		p.writeLine(&out, y, coloured)
	}
	return template.HTML(strings.TrimRight(out.String(), "\n")) //nolint:gosec // writeLine escapes
}

func (p *projector) writeLine(out *strings.Builder, y int, coloured bool) {
	var run strings.Builder
	style := ""
	flush := func() {
		text := html.EscapeString(displayLine(run.String()))
		run.Reset()
		if style != "" && text != "" {
			text = `<span style="` + style + `">` + text + `</span>`
		}
		out.WriteString(text)
	}
	end := p.emulator.Width()
	for ; end > 0; end-- { // without what is empty at the end
		if c := p.emulator.CellAt(end-1, y); c != nil && (strings.TrimSpace(c.Content) != "" || coloured && cellStyle(c) != "") {
			break
		}
	}
	for x := 0; x < end; {
		c := p.emulator.CellAt(x, y)
		text, next, width := " ", "", 1
		if c != nil {
			if c.Content != "" {
				text = c.Content
			}
			if len(text) > maxCharacter {
				text = "\ufffd"
			}
			if coloured {
				next = cellStyle(c)
			}
			width = max(c.Width, 1)
		}
		if next != style {
			flush()
			style = next
		}
		run.WriteString(text)
		x += width
	}
	flush()
}

// cellStyle returns the style of a cell as CSS. Colours are hexadecimal digits,
// so that no text of the recording gets in.
func cellStyle(c *uv.Cell) string {
	fg, bg := hexColour(c.Style.Fg), hexColour(c.Style.Bg)
	if c.Style.Attrs&uv.AttrReverse != 0 {
		if fg == "" {
			fg = "#ddd"
		}
		if bg == "" {
			bg = "#111"
		}
		fg, bg = bg, fg
	}
	style := ""
	if fg != "" {
		style = "color:" + fg
	}
	if bg != "" {
		style += ";background:" + bg
	}
	if c.Style.Attrs&uv.AttrBold != 0 {
		style += ";font-weight:700"
	}
	return strings.TrimPrefix(style, ";")
}

func hexColour(c color.Color) string {
	if c == nil {
		return ""
	}
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}
