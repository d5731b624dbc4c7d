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

// firstLine returns the first line of a text, at most that many characters of it, safe
// to show. An ellipsis stands for the rest of the text.
func firstLine(text string, most int) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	line = makeSafe(line)
	if runes := []rune(line); len(runes) > most {
		line, more = string(runes[:most]), true
	}
	if more {
		line += "…"
	}
	return line
}

type page struct{ strings.Builder }

// line adds a line, made safe and without trailing blanks.
func (p *page) line(format string, args ...any) {
	p.WriteString(strings.TrimRight(makeSafe(fmt.Sprintf(format, args...)), " ") + "\n")
}

// show writes a document to standard output: as JSON, or as the lines that describe
// adds.
func (a *app) show(asJSON bool, document any, describe func(p *page)) error {
	if asJSON {
		return writeJSON(a.stdout, document)
	}
	var p page
	describe(&p)
	_, err := io.WriteString(a.stdout, p.String())
	return err
}

func (a *app) say(format string, args ...any) error {
	return a.show(false, nil, func(p *page) { p.line(format, args...) })
}

// warn writes a line about this program to standard error.
func (a *app) warn(text string) { a.printLines("caisson: " + makeSafe(oneParagraph(text))) }

// table has the titles of a table and makes the cells of an entry.
type table[T any] struct {
	titles []string
	cells  func(entry T) []string
	// none is the line for an empty list. If "", there are only the titles.
	none string
}

// showTable writes a list to standard output: as JSON or as a table.
func showTable[T any](a *app, asJSON bool, list []T, t table[T]) error {
	switch {
	case asJSON:
		return writeJSON(a.stdout, record.NonNil(list))
	case len(list) == 0 && t.none != "":
		return a.say("%s", t.none)
	}
	return t.write(a, a.stdout, list)
}

// write writes a list as a table that fits the terminal.
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

// writeJSON writes a JSON value for people and programs. It escapes characters that a
// terminal would obey or hide.
func writeJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = w.Write(append(record.SafeJSON(text), '\n'))
	return err
}

func usedText(last time.Time, inUse bool) string {
	if inUse {
		return "now"
	}
	return doctor.FormatAge(last, time.Now())
}
