package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

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
	over := Overview{Session: s.ID, Pruned: s.Pruned, Live: !s.Pruned && sessiondir.SessionLives(s.Dir)}
	in, err := s.Open()
	if err != nil {
		return over, err
	}
	defer func() { _ = in.Close() }() // only read
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(begin) // Flush returns the error of a failed write
	for {
		rec, err := in.Next()
		if err != nil {
			over.Torn, over.Hash, over.Omitted = in.Torn(), in.Hash(), in.Omitted()
			if !errors.Is(err, io.EOF) {
				over.Damage = err.Error()
			}
			break
		}
		if over.Records > 0 {
			_, _ = out.WriteString(between)
		}
		over.addRecord(rec)
		_, _ = out.Write(in.Line())
		if between == "" {
			_ = out.WriteByte('\n')
		}
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
