package batchui

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/report"
)

// Files made from a batch's results, besides its summary.
const (
	JUnitFile       = "junit.xml"
	predictionsFile = "predictions-%s.jsonl" // for each model
)

// WriteReports writes the files made from the results of the batch in dir, and returns
// its summary.
func WriteReports(dir string) (batch.Summary, error) {
	spec, err := batch.ReadSpec(dir)
	if err != nil {
		return batch.Summary{}, err
	}
	results, err := batch.ReadResults(dir)
	if err != nil {
		return batch.Summary{}, err
	}
	summary, err := batch.WriteSummary(dir, spec, results)
	if err != nil {
		return summary, err
	}
	err = errors.Join(
		batch.WriteFile(filepath.Join(dir, JUnitFile), func(w io.Writer) error { return batch.WriteJUnit(w, spec, results) }),
		batch.WriteFile(filepath.Join(dir, report.File), func(w io.Writer) error { return report.Write(w, Title(dir), spec, results) }),
	)
	for _, agent := range spec.Agents {
		if agent == batch.Oracle || agent == batch.Nop {
			continue
		}
		name := fmt.Sprintf(predictionsFile, strings.ReplaceAll(agent, string(filepath.Separator), "_"))
		err = errors.Join(err, batch.WriteFile(filepath.Join(dir, name), func(w io.Writer) error { return batch.WritePredictions(w, dir, agent, results) }))
	}
	return summary, err
}

// Title returns the heading of a batch's report.
func Title(dir string) string {
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	return filepath.Base(dir)
}
