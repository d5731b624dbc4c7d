package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// makeSafe makes a text safe to show on one line of a terminal.
func makeSafe(s string) string {
	safe, _ := tools.Display(s)
	return safe
}

// page collects lines of output.
type page struct{ strings.Builder }

// line adds a line, safe to show and without blanks at its end.
func (p *page) line(format string, args ...any) {
	p.WriteString(strings.TrimRight(makeSafe(fmt.Sprintf(format, args...)), " ") + "\n")
}

// show writes a document to standard output: as JSON, or as the lines that describe adds.
func (a *app) show(asJSON bool, document any, describe func(p *page)) error {
	if asJSON {
		return writeJSON(a.stdout, document)
	}
	var p page
	describe(&p)
	_, err := io.WriteString(a.stdout, p.String())
	return err
}

// say writes one line to standard output.
func (a *app) say(format string, args ...any) error {
	return a.show(false, nil, func(p *page) { p.line(format, args...) })
}

// warn writes a line about this program to standard error.
func (a *app) warn(text string) { a.printLines("caisson: " + makeSafe(oneParagraph(text))) }

// table is a list in columns: their titles, and the cells of an entry.
type table[T any] struct {
	titles []string
	cells  func(entry T) []string
	// none is the line for an empty list; "" means the titles alone.
	none string
}

// showTable writes a list to standard output: as JSON, or as a table.
func showTable[T any](a *app, asJSON bool, list []T, t table[T]) error {
	switch {
	case asJSON:
		return writeJSON(a.stdout, record.NonNil(list))
	case len(list) == 0 && t.none != "":
		return a.say("%s", t.none)
	}
	return t.write(a, a.stdout, list)
}

// write writes a list as a table, as wide as the terminal is.
func (t table[T]) write(a *app, to io.Writer, list []T) error {
	rows := [][]string{t.titles}
	for _, entry := range list {
		cells := t.cells(entry)
		for i, cell := range cells {
			cells[i] = makeSafe(cell)
		}
		rows = append(rows, cells)
	}
	columns := 0
	if a.terminal(to) {
		columns, _ = a.size()
	}
	return ui.WriteTable(to, columns, rows)
}

// writeJSON writes a JSON value for people and programs: characters that a terminal would
// obey or hide are escaped, and mean the same.
func writeJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = w.Write(append(record.SafeJSON(text), '\n'))
	return err
}

// usedText returns how long ago something was used.
func usedText(last time.Time, inUse bool) string {
	if inUse {
		return "now"
	}
	return doctor.FormatAge(last, time.Now())
}
