package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/trace"
)

const traceExportLong = `Write a session for other programs.

  jsonl   its records as they are, one a line
  json    one JSON array of them
  atif    a trajectory of the Agent Trajectory Interchange Format (ATIF v1.7), which
          caisson run --model replay/FILE plays again

Keys that the environment and the configuration name, and what has the shape of a well-known key,
are replaced once more.
`

func newTraceExportCommand(a *app) *cobra.Command {
	var format, path string
	cmd := &cobra.Command{
		Use:     "export [flags] SESSION",
		Short:   "Write a session as JSON lines, JSON or an ATIF trajectory",
		Long:    traceExportLong + exitHelp(map[int]string{runner.ExitFailed: "it can't be written"}, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace export --format atif -o trajectory.json ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(io.Writer, trace.Session) (trace.Overview, error){
				"jsonl": trace.Lines, "json": trace.JSON, "atif": trace.ATIF,
			}[format]
			if !ok {
				return usage("there is no format %q; there are jsonl, json and atif", format)
			}
			return exportTrace(a, cmd, args, path, write)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl, json or atif")
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

// exportTrace writes a session to a file or standard output, without secrets.
func exportTrace(a *app, cmd *cobra.Command, args []string, path string, write func(io.Writer, trace.Session) (trace.Overview, error)) error {
	s, err := traceSession(a.environ, cmd, args)
	if err != nil {
		return err
	}
	out := a.stdout
	if path != "" {
		f, err := createAnswer(path)
		if err != nil {
			return &runner.Error{Status: runner.ExitInput, Err: err, Problem: record.Problem{
				Cause: fmt.Sprintf("the export can't be written to %s: %v", path, err), Mend: "Name a file that you can write with -o.",
			}}
		}
		defer func() { _ = f.Close() }() // closed below where it matters
		out = f
	}
	safe := redact.New(knownSecrets(a)).NewWriter(out)
	over, err := write(safe, s)
	err = errors.Join(err, safe.Close())
	if f, ok := out.(*os.File); ok && path != "" {
		if err != nil { // half of it would be taken for the whole
			err = errors.Join(err, f.Truncate(0))
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return err
	}
	if over.Damage != "" {
		err = damaged(a.stderr, over)
	}
	if safe.Changed() {
		_, told := fmt.Fprintln(a.stderr, "caisson: keys that are in these records were left out of the export; their hash chain doesn't hold in it")
		err = errors.Join(err, told)
	}
	return err
}

// knownSecrets are the keys that the environment and the configuration name. A
// configuration that can't be read has none.
func knownSecrets(a *app) []redact.Secret {
	all := secrets(a.environ, config.SelectedModel{})
	conf, err := loadConfig(a.deps, a.environ, config.File{}, "", nil)
	if err != nil {
		return append(all, urlSecrets(a.environ, &config.Config{})...)
	}
	all = append(all, urlSecrets(a.environ, &conf)...)
	for _, m := range conf.Models {
		if m.APIKeyEnv != nil {
			all = append(all, secrets(a.environ, config.SelectedModel{KeyEnv: *m.APIKeyEnv})...)
		}
	}
	return all
}
