package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/caisson-run/caisson/runner/sessiondir"
)

// All gives every session that has records, the newest first.
func All(stateDir string) ([]Session, error) {
	names, err := sessions(stateDir)
	if err != nil {
		return nil, err
	}
	var all []Session
	for _, name := range slices.Backward(names) {
		if s, err := in(sessiondir.Path(stateDir, name)); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Lines writes a session's records as they are, one a line, as far as they can
// be believed.
func Lines(w io.Writer, s Session) (Overview, error) { return lines(w, s, "", "", "") }

// JSON writes them as one array.
func JSON(w io.Writer, s Session) (Overview, error) { return lines(w, s, "[\n", ",\n", "]\n") }

// lines writes lines between marks; the separator stands before each but the
// first where there is one, or a newline after each.
func lines(w io.Writer, s Session, begin, between, end string) (Overview, error) {
	over := Overview{Session: s.ID, Pruned: s.Pruned, Live: !s.Pruned && sessiondir.SessionLives(s.Dir)}
	in, err := s.Open()
	if err != nil {
		return over, err
	}
	defer func() { _ = in.Close() }() // only read
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(begin) // Flush tells what a write could not
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
		over.record(rec)
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
