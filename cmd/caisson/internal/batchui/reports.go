package batchui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/runner/batch"
)

// Files of a batch that are made of its results, besides its summary.
const (
	JUnitFile       = "junit.xml"
	predictionsFile = "predictions-%s.jsonl" // of each model
)

// WriteReports writes the files that are made of the results of a batch, and returns its
// summary.
func WriteReports(l *batch.Ledger) (batch.Summary, error) {
	spec, err := batch.ReadSpec(l.Dir())
	if err != nil {
		return batch.Summary{}, err
	}
	summary, err := batch.WriteSummary(l, spec)
	if err != nil {
		return summary, err
	}
	results := l.Results()
	err = writeReport(filepath.Join(l.Dir(), JUnitFile), func(w io.Writer) error { return batch.WriteJUnit(w, spec, results) })
	for _, agent := range spec.Agents {
		if agent == batch.Oracle || agent == batch.Nop {
			continue
		}
		name := fmt.Sprintf(predictionsFile, strings.ReplaceAll(agent, string(filepath.Separator), "_"))
		err = errors.Join(err, writeReport(filepath.Join(l.Dir(), name), func(w io.Writer) error { return batch.WritePredictions(w, l.Dir(), agent, results) }))
	}
	return summary, err
}

// writeReport writes a file that others read only when it is whole.
func writeReport(path string, write func(w io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
