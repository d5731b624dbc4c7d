package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// All returns every session that has records, the newest first.
func All(stateDir string) ([]Session, error) {
	names, err := listSessions(stateDir)
	if err != nil {
		return nil, err
	}
	var all []Session
	for _, name := range slices.Backward(names) {
		if s, err := sessionInDir(sessiondir.Path(stateDir, name)); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Lines writes a session's records unchanged, one per line, up to the first
// damaged one.
func Lines(w io.Writer, s Session) (Overview, error) { return writeLines(w, s, "", "", "") }

// JSON writes the records as one array.
func JSON(w io.Writer, s Session) (Overview, error) { return writeLines(w, s, "[\n", ",\n", "]\n") }

// writeLines writes the records between begin and end. If between is not empty,
// it separates the records; otherwise a newline follows each.
func writeLines(w io.Writer, s Session, begin, between, end string) (Overview, error) {
	over := newOverview(s)
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(begin) // Flush returns the error of a failed write
	err := over.scanRecords(s, nil, func(in *Reader, _ record.Record) {
		if over.Records > 1 {
			_, _ = out.WriteString(between)
		}
		_, _ = out.Write(in.Line())
		if between == "" {
			_ = out.WriteByte('\n')
		}
	})
	if err != nil {
		return over, err
	}
	if between != "" && over.Records > 0 {
		_ = out.WriteByte('\n')
	}
	_, _ = out.WriteString(end)
	if err := out.Flush(); err != nil {
		return over, fmt.Errorf("write records: %w", err)
	}
	return over, nil
}
