package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
)

const tracePruneLong = `Shorten old sessions to their audit records: who was asked and answered, what was refused, which
sandbox ran, how it ended. Their lines stay as they were, in audit.jsonl. Messages, outputs, patches
and logs are removed. Each start does the same for a few sessions.

A session is old when its last record is older than keep_sessions in the configuration (90 days).
One that runs, keeps changes that were not applied, has a sandbox that is not gone, or whose records
were changed is left whole.
`

func newTracePruneCommand(a *app) *cobra.Command {
	var dry, asJSON bool
	var keep string
	cmd := &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Shorten old sessions to their audit records",
		Long:    tracePruneLong + exitHelp(map[int]string{runner.ExitFailed: "a session could not be shortened"}, runner.ExitConfig),
		Example: "  caisson trace prune --dry-run\n  caisson trace prune --keep 720h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := loadConfig(a.deps, a.environ, config.File{}, "", nil)
			if err != nil {
				return err
			}
			time := conf.KeepSessions
			if keep != "" {
				t, err := config.ParseDuration(keep)
				if err != nil {
					return usage("--keep: %v", err)
				}
				time = &t
			}
			state, err := traceState(a.environ)
			if err != nil {
				return err
			}
			report, err := runner.Prune(cmd.Context(), pruneOptions(state, time, dry))
			shown := errors.Join(showPrunedSessions(a, report, dry, asJSON), told(a.stderr, err))
			if shown == nil && err != nil {
				return exitWith(runner.ExitFailed)
			}
			return shown
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&keep, "keep", "", "time to keep whole sessions, such as 720h (default: keep_sessions)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON object: pruned, left")
	return cmd
}

func pruneOptions(state string, keep *config.Duration, dry bool) runner.PruneOptions {
	return runner.PruneOptions{StateDir: filepath.Clean(state), Keep: time.Duration(*keep), DryRun: dry}
}

// told writes errors of things that went on.
func told(w io.Writer, err error) error {
	if err == nil {
		return nil
	}
	return showFailures(w, strings.Split(err.Error(), "\n"))
}

func showPrunedSessions(a *app, r runner.PruneReport, dry, asJSON bool) error {
	if asJSON {
		return writeJSON(a.stdout, r)
	}
	word := "pruned"
	if dry {
		word = "would prune"
	}
	var errs []error
	for _, p := range r.Pruned {
		_, err := fmt.Fprintf(a.stdout, "%s  %s  %d records and %s of files; %d audit records stay\n", word, p.Session, p.Removed, memoryText(max(p.Bytes, 0)), p.Audit)
		errs = append(errs, err)
	}
	for _, l := range r.Left {
		_, err := fmt.Fprintf(a.stdout, "left  %s  %s\n", l.Session, tidy(l.Why))
		errs = append(errs, err)
	}
	if len(r.Pruned)+len(r.Left) == 0 {
		_, err := fmt.Fprintln(a.stdout, "no session is old enough")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// startPruneSessions and startPruneTime bound what one start prunes: nobody
// waits for that.
const (
	startPruneSessions = 4
	startPruneTime     = time.Second
)

// pruneSessions shortens some old sessions at a start, and says what failed.
func (s *setup) pruneSessions(ctx context.Context) []string {
	o := pruneOptions(s.environ.stateDir(), s.conf.KeepSessions, false)
	o.Most = startPruneSessions
	ctx, cancel := context.WithTimeoutCause(ctx, startPruneTime, errors.New("the rest is for the next start"))
	defer cancel()
	if _, err := runner.Prune(ctx, o); err != nil && ctx.Err() == nil {
		return []string{"old sessions could not be shortened (caisson trace prune): " + err.Error()}
	}
	return nil
}
