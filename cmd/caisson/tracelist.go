package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

const traceListLong = `List sessions, the newest first: when they began, how they stand, what they cost and what was asked.

STATE is live, the reason and exit status of the end, "cut short" where a session was killed, or
"damaged" where its first or last record can't be read. Only the first records, up to what was
asked, and the last one are read: caisson trace verify reads all.
`

func newTraceListCommand(a *app) *cobra.Command {
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List sessions, the newest first",
		Long:    traceListLong + exitHelp(nil, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace ls\n  caisson trace ls --json --limit 0 | jq -r '.[] | select(.state==\"cut short\").session'",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if limit < 0 {
				return usage("--limit is a number of sessions, 0 for all; got %d", limit)
			}
			state, err := traceState(a.environ)
			if err != nil {
				return err
			}
			list, err := trace.List(state, limit)
			if err != nil {
				return err
			}
			return showSessions(a, list, asJSON, limit)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().IntVar(&limit, "limit", 20, "most sessions to list, 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

func showSessions(a *app, list []trace.Entry, asJSON bool, limit int) error {
	if asJSON {
		return writeJSON(a.stdout, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.stderr, "caisson: there are no sessions yet")
		return err
	}
	rows := [][]string{{"SESSION", "BEGUN", "STATE", "TIME", "COST", "TASK"}}
	for _, e := range list {
		rows = append(rows, []string{e.Session, begunText(e.Begun, "2006-01-02 15:04"), stateText(e), wallText(e), costText(e), taskText(e)})
	}
	if err := writeTable(a, rows); err != nil {
		return err
	}
	if limit > 0 && len(list) == limit {
		_, err := fmt.Fprintf(a.stderr, "the newest %d; --limit 0 lists all\n", limit)
		return err
	}
	return nil
}

func begunText(t time.Time, layout string) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(layout)
}

func stateText(e trace.Entry) string {
	text := string(e.State)
	if e.State == trace.StateEnded && e.ExitStatus != nil {
		text = fmt.Sprintf("%s (%d)", e.Reason, *e.ExitStatus)
	}
	if e.Pruned {
		text += ", pruned"
	}
	safe, _ := tools.Display(text)
	return safe
}

func wallText(e trace.Entry) string {
	d := time.Duration(e.WallMS) * time.Millisecond
	if e.State != trace.StateEnded {
		d = e.Last.Sub(e.Begun)
	}
	if e.State == trace.StateDamaged || d < 0 {
		return "-"
	}
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

func costText(e trace.Entry) string {
	switch e.CostUSD {
	case "":
		return "-"
	case "unknown":
		return "unknown"
	}
	safe, _ := tools.Display("$" + strings.TrimSuffix(strings.TrimRight(e.CostUSD, "0"), "."))
	return safe
}

// taskText is the task's first line, short.
func taskText(e trace.Entry) string {
	text, _, more := strings.Cut(strings.TrimSpace(e.Task), "\n")
	if e.Damage != "" {
		text, more = e.Damage, false
	}
	runes := []rune(text)
	if len(runes) > 60 {
		runes, more = runes[:60], true
	}
	safe, _ := tools.Display(string(runes))
	if more {
		safe += "…"
	}
	return safe
}
