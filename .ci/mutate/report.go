//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// A row is the counts of a package.
type row struct {
	pkg                                               string
	killed, timedOut, explained, survived, notCovered int
	invalid                                           int
}

// A reporter writes what became of each mutant.
type reporter struct {
	mu    sync.Mutex
	lines *os.File
	known map[string]bool
}

func newReporter(path string, known map[string]bool) (*reporter, error) {
	w := &reporter{known: known}
	if path == "" {
		return w, nil
	}
	var err error
	w.lines, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	return w, err
}

func (w *reporter) report(r *row, m *mutant, v verdict, by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	alive := v == survived || v == notCovered
	explained := alive && w.known[m.Key]
	switch {
	case explained:
		r.explained++
	case v == killed:
		r.killed++
	case v == timedOut:
		r.timedOut++
	case v == survived:
		r.survived++
	case v == notCovered:
		r.notCovered++
	}
	if alive && !explained {
		fmt.Printf("%s: line %d, mutant %d: %s\n", v, m.Line, m.ID, m.Key)
	}
	if w.lines != nil {
		line, _ := json.Marshal(struct {
			*mutant
			Verdict   verdict `json:"verdict"`
			By        string  `json:"by,omitempty"`
			Explained bool    `json:"explained,omitempty"`
		}{m, v, by, explained})
		_, _ = w.lines.Write(append(line, '\n'))
	}
}

func (w *reporter) close() {
	if w.lines != nil {
		_ = w.lines.Close()
	}
}

// readExplained reads the keys of the survivors that a page explains: each is
// the first text between backquotes of an item of a list.
func readExplained(path string) (map[string]bool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		item, ok := strings.CutPrefix(line, "- `` ")
		if !ok {
			continue
		}
		if key, _, ok := strings.Cut(item, " ``"); ok {
			known[key] = true
		}
	}
	return known, nil
}

func printTable(w io.Writer, rows []row) {
	fmt.Fprintln(w, "\n| package | mutants | killed | timed out | explained | survived | not covered | not compiled |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		total := r.killed + r.timedOut + r.explained + r.survived + r.notCovered
		_, short, ok := strings.Cut(r.pkg, "/caisson/")
		if !ok {
			short = r.pkg
		}
		fmt.Fprintf(w, "| `%s` | %d | %d | %d | %d | %d | %d | %d |\n", short, total, r.killed, r.timedOut, r.explained, r.survived, r.notCovered, r.invalid)
	}
}
