package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/report"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
)

// gradesDir has a directory for each time that trials of a batch were verified again.
const gradesDir = "grades"

// readBatch reads the batch in a directory.
func readBatch(dir string) (batch.Spec, []batch.Result, error) {
	spec, err := batch.ReadSpec(dir)
	if err == nil {
		var results []batch.Result
		if results, err = batch.ReadResults(dir); err == nil {
			return spec, results, nil
		}
	}
	return spec, nil, &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Name a directory that caisson batch --out has written."}}
}

// describeLedger returns the error of a directory that can't be used.
func describeLedger(err error) error {
	hint := "Choose another directory with --out."
	switch {
	case errors.Is(err, batch.ErrInUse):
		hint = "Wait for its end, or choose another directory with --out."
	case errors.As(err, new(*batch.TrialError)):
		hint = "Bring back what is missing; or remove the directory of that trial, and it runs again."
	case errors.Is(err, batch.ErrDamagedSpec):
		hint = "Bring back " + batch.SpecFile + ", or remove it: the finished trials stay, and the same command goes on."
	case errors.Is(err, batch.ErrForeign), errors.As(err, new(*batch.NameError)), errors.As(err, new(*batch.MismatchError)):
	default:
		return err
	}
	return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: hint}}
}

// describeEnd returns the error of a fault that ended a batch.
func describeEnd(err error) error {
	end, ok := errors.AsType[*batch.EndError](err)
	if !ok {
		return err
	}
	status, hint := exitFailed, "Make room, or choose another directory with --out."
	switch end.Class {
	case batch.ProviderAuth:
		status, hint = exitAuth, "Give a key that the provider accepts."
	case batch.Ceiling:
		status, hint = exitLimit, "Raise the ceiling in the configuration, or wait for the end of its period."
	}
	return &commandError{Status: status, Err: err, Problem: record.Problem{Cause: end.Error(), Hint: hint + " The same command then goes on with the trials that have no result."}}
}

// batchStatus returns the exit status of a batch.
func batchStatus(t batch.Totals, s batch.Summary) int {
	undecided, judged, passed := 0, 0, 0
	for _, a := range s.Agents {
		undecided += a.Infrastructure + a.Suspect
		judged += a.Judged
		passed += a.Passed
	}
	switch {
	case t.Reached != "":
		return exitLimit
	case undecided > 0 || len(t.NotRun) > 0:
		return exitFailed
	case passed < judged:
		return exitUnverified
	}
	return exitDone
}

func newBatchListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls [flags] DIR", Short: "List the trials of a batch",
		Example: `  caisson batch ls results`,
		Long:    "List the trials of a batch that have a result, by task, agent and attempt.\n" + exitHelp(nil, usesInput),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("name one directory of results")
			}
			_, results, err := readBatch(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeDocument(a.stdout, results)
			}
			return batchui.WriteResults(a.stdout, results)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the results as one JSON document")
	return cmd
}

func newBatchShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show [flags] DIR [TRIAL]", Short: "Show the summary of a batch, or one trial",
		Example: `  caisson batch show results
  caisson batch show results hello__oracle__1`,
		Long: "Show what the results of a batch come to, also while it runs, or one trial: its result and its files.\nTRIAL is the last column of caisson batch ls, or the beginning of it.\n" + exitHelp(nil, usesInput),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return newUsageError("name one directory of results, and a trial or none")
			}
			spec, results, err := readBatch(args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				return showTrial(a, args[0], args[1], results)
			}
			summary := batch.Summarize(spec, results)
			if asJSON {
				return writeDocument(a.stdout, summary)
			}
			return batchui.WriteSummary(a.stdout, summary)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the summary as one JSON document")
	return cmd
}

// showTrial writes the result of a trial as JSON, and where its files are.
func showTrial(a *app, dir, name string, results []batch.Result) error {
	var found []batch.Result
	for _, r := range results {
		if strings.HasPrefix(r.Key.Name(), name) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return &commandError{Status: exitInput, Problem: record.Problem{Cause: fmt.Sprintf("%d trials have a name that begins with %q", len(found), name), Hint: "caisson batch ls lists them."}}
	}
	return writeDocument(a.stdout, struct {
		batch.Result
		Dir string `json:"dir"`
	}{found[0], filepath.Join(dir, batch.TrialsDir, found[0].Key.Name())})
}

func newBatchMergeCommand(a *app) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "merge --out DIR DIR...", Short: "Make one batch of several, such as shards",
		Example: `  caisson batch merge --out merged shard1 shard2 shard3`,
		Long:    "Make one batch of several that have the same tasks, such as the shards of a job. The files of trials are\nhard links where that is possible. A trial that several have keeps its first result.\n" + exitHelp(nil, usesInput),
		RunE: func(_ *cobra.Command, args []string) error {
			if out == "" || len(args) == 0 {
				return newUsageError("name --out and the directories to merge")
			}
			twice, err := batch.Merge(out, args)
			if err != nil {
				return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Merge batches of the same tasks into a directory of their own."}}
			}
			for _, k := range twice {
				fmt.Fprintf(a.stderr, "caisson: %q, %s, attempt %d has several results; the first one is kept\n", k.Task, k.Agent, k.Attempt)
			}
			summary, err := batchui.WriteReports(out)
			if err != nil {
				return err
			}
			return batchui.WriteSummary(a.stdout, summary)
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "directory of the merged batch")
	return cmd
}

func newBatchReportCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "report DIR", Short: "Write the reports of a batch again",
		Example: `  caisson batch report results`,
		Long: `Write the files that are made of the results of a batch again, also while it runs: report.html,
summary.json, junit.xml and the predictions. caisson batch and caisson batch merge write them at their
end. report.html is one file that runs no script; it links to the directories of trials beside it.
` + exitHelp(nil, usesInput),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("name one directory of results")
			}
			if _, _, err := readBatch(args[0]); err != nil {
				return err
			}
			if _, err := batchui.WriteReports(args[0]); err != nil {
				return err
			}
			fmt.Fprintln(a.stdout, filepath.Join(args[0], report.File))
			return nil
		},
	}
}

func newBatchViewCommand(a *app) *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use: "view [flags] DIR", Short: "Show a batch in a browser, with a page for each trial",
		Example: `  caisson batch view results`,
		Long: `Serve report.html and a page for each trial on this machine's loopback, also while the batch runs, until
an interrupt. A trial's page has its verdict, the patch, the verifier's output, its other attempts, its files
and what happened in its sessions. The address has a key: only who knows it can read the pages.
` + exitHelp(nil, usesInput),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("name one directory of results")
			}
			if _, _, err := readBatch(args[0]); err != nil {
				return err
			}
			ctx, _, _, stop := handleInterrupts(cmd.Context(), a.takeSignals(), func(string) {}, a.exit)
			defer stop()
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
			if err != nil {
				return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Choose another --port."}}
			}
			key := rand.Text()
			fmt.Fprintf(a.stdout, "http://%s/%s/\n", l.Addr(), key)
			return report.Serve(ctx, l, key, report.ViewOptions{Dir: args[0], Title: batchui.Title(args[0]), Story: writeStory})
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "port to listen on (default: any that is free)")
	return cmd
}

// writeStory writes the page of the session in a directory.
func writeStory(w io.Writer, dir string) error {
	s, err := trace.Find("", dir+string(filepath.Separator))
	if err == nil {
		_, err = trace.HTML(w, s)
	}
	return err
}

func newBatchCompareCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "compare [flags] A B", Short: "Compare two agents on the tasks that both have attempted",
		Example: `  caisson batch compare results:openai/gpt-5 results:ollama/qwen3
  caisson batch compare before after`,
		Long: `Compare two agents, paired by task: tasks in both batches with equal checksums and at least one judged
trial a side. Attempts at one task are averaged. With several attempts the 95 % t-interval over tasks
decides, with one attempt McNemar's exact test. What is left out is listed.

A and B are directories of results with one agent, or DIR:AGENT.
` + exitHelp(nil, usesInput),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return newUsageError("name two directories of results, or DIR:AGENT")
			}
			x, err := readSide(args[0])
			if err != nil {
				return err
			}
			y, err := readSide(args[1])
			if err != nil {
				return err
			}
			if x.Agent != y.Agent {
				x.Name, y.Name = x.Agent, y.Agent
			}
			c := batch.Compare(x, y)
			if asJSON {
				return writeDocument(a.stdout, batchui.NewComparisonDocument(c, x.Name, y.Name))
			}
			return batchui.WriteComparison(a.stdout, c, x.Name, y.Name)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the comparison as one JSON document")
	return cmd
}

// readSide reads one side of a comparison.
func readSide(arg string) (batch.Side, error) {
	dir, agent := arg, ""
	if _, err := os.Stat(dir); err != nil {
		if i := strings.LastIndex(arg, ":"); i > 0 { // an agent may contain one too
			for ; i > 0; i = strings.LastIndex(arg[:i], ":") {
				if _, err := os.Stat(arg[:i]); err == nil {
					dir, agent = arg[:i], arg[i+1:]
				}
			}
		}
	}
	spec, results, err := readBatch(dir)
	if err != nil {
		return batch.Side{}, err
	}
	if agent == "" && len(spec.Agents) == 1 {
		agent = spec.Agents[0]
	}
	if !slices.Contains(spec.Agents, agent) {
		return batch.Side{}, &commandError{Status: exitInput, Problem: record.Problem{
			Cause: fmt.Sprintf("%s has the agents %s", dir, strings.Join(spec.Agents, ", ")), Hint: "Name one of them as DIR:AGENT.",
		}}
	}
	return batch.Side{Name: arg, Agent: agent, Spec: spec, Results: results}, nil
}

func newBatchGradeCommand(a *app) *cobra.Command {
	var f batchFlags
	cmd := &cobra.Command{
		Use: "grade [flags] DIR PATH...", Short: "Verify finished trials again, from what is on disk",
		Example: `  caisson batch grade results ./tasks`,
		Long: `Verify finished trials again, from what is on disk, with the tests as they are now. No agent runs.

A PATH is as for caisson batch. Tasks are never taken from where the results say, since those may come
from somebody else, and a task can name any directory of yours as its workspace. Tasks that have changed
since their trials are listed. Trials of other tasks are left out.

The verdicts go to DIR/grades and a directory of its own there. The results of the batch stay as they
are: both verdicts are kept, and those that differ are listed.
` + exitHelp(map[int]string{exitDone: "every verdict is the same", exitUnverified: "verdicts differ", exitFailed: "the infrastructure failed a verification, or it is suspect"}, usesConfig|usesInput|startsSandbox|interruptible),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return newUsageError("name a directory of results, and its tasks as for caisson batch")
			}
			return gradeBatch(cmd.Context(), a, f, args[0], args[1:])
		},
	}
	cmd.Flags().IntVar(&f.parallel, "parallel", 0, "verifications at a time at most (default: the number of processors)")
	f.addTaskEnv(cmd.Flags())
	addSettings(cmd, &f.settings, "Sandbox")
	return cmd
}

// gradeBatch verifies the trials of a batch again, with the tasks at the paths.
func gradeBatch(ctx context.Context, a *app, f batchFlags, dir string, paths []string) (err error) {
	spec, results, err := readBatch(dir)
	if err != nil {
		return err
	}
	tasks, err := loadTasks(a.environ, paths, f.taskEnv)
	if err != nil {
		return err
	}
	ctx, force, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
	defer stop()
	f.attempts = spec.Attempts
	b, err := openGrade(ctx, a, force, &f, tasks, dir, spec)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	defer func() { err = errors.Join(err, b.closeBatch()) }()
	was := map[batch.Key]batch.Result{}
	definitions := map[string]*task.Task{}
	for i := range b.tasks {
		if len(b.tasks[i].Unsupported) == 0 {
			definitions[b.tasks[i].ID] = &b.tasks[i]
		}
	}
	var trials []batch.Trial
	changed, other := map[string]bool{}, map[string]bool{}
	for _, r := range results {
		definition := definitions[r.Task]
		if definition == nil {
			other[r.Task] = true
			continue
		}
		if r.Checksum != definition.Checksum {
			changed[r.Task] = true
		}
		if r.Outcome.Judged() || r.Outcome == batch.Suspect {
			trials = append(trials, batch.Trial{Key: r.Key, Definition: definition})
			was[r.Key] = r
		}
	}
	for what, names := range map[string]map[string]bool{"changed since the trials": changed, "left out": other} {
		if len(names) > 0 {
			b.say(displayText(what + ": " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
		}
	}
	p := batchui.NewProgress(batchui.ProgressOptions{Out: a.stderr, Columns: b.columnsFunc(), Total: len(trials), Kept: b.ledger.Endings(trials)})
	_, err = batch.Run(ctx, batch.Options{
		Ledger: b.ledger, Trials: trials, Capacity: b.findCapacity(), Retries: 1, OnStart: p.Start, OnResult: p.Result,
		Run: func(ctx context.Context, t batch.Trial, out string, _ *int64) batch.Result {
			return b.trials.Verify(ctx, t, was[t.Key], filepath.Join(dir, batch.TrialsDir, t.Key.Name()), out)
		},
	})
	p.Close()
	if err := cmp.Or(interruption(ctx), describeEnd(err)); err != nil {
		return err
	}
	graded, err := batch.ReadResults(b.out)
	if err != nil {
		return err
	}
	graded = slices.DeleteFunc(graded, func(r batch.Result) bool { return was[r.Key].Task == "" }) // of a verification that was killed
	switch g := batchui.WriteGrades(a.stdout, graded, was, b.out); {
	case g.Failed > 0:
		return exitWith(exitFailed)
	case g.Differ > 0:
		return exitWith(exitUnverified)
	}
	return nil
}

// openGrade opens the ledger of a verification: the latest that was killed, if tasks are as
// they were then, or else a new one. What the others left that were killed is removed.
func openGrade(ctx context.Context, a *app, force <-chan struct{}, f *batchFlags, tasks []task.Task, dir string, spec batch.Spec) (*batchSession, error) {
	grades := filepath.Join(dir, gradesDir)
	entries, err := os.ReadDir(grades)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	open := func(name string) (*batchSession, error) {
		b, err := openBatch(ctx, a, force, f, slices.Clone(tasks), filepath.Join(grades, name))
		if err != nil {
			return nil, err
		}
		if err := b.loadGrade(ctx, spec); err != nil {
			return nil, errors.Join(err, b.closeBatch())
		}
		return b, nil
	}
	var opened *batchSession
	for _, e := range slices.Backward(entries) { // the names are times
		if state := filepath.Join(grades, e.Name(), stateDir); !e.IsDir() || !a.environ.ownsState(state) {
			a.warnOfState(state)
			continue // it has ended, or was not begun here
		}
		b, err := open(e.Name())
		switch {
		case errors.Is(err, batch.ErrInUse), errors.As(err, new(*batch.MismatchError)):
			err = nil
		case err == nil && opened == nil:
			opened = b
		case err == nil:
			err = b.closeBatch()
		}
		if err != nil {
			if opened != nil {
				err = errors.Join(err, opened.closeBatch())
			}
			return nil, err
		}
	}
	if opened != nil {
		return opened, nil
	}
	return open(time.Now().UTC().Format("20060102T150405.000000000"))
}

// loadGrade loads the ledger of a verification of the batch that spec describes.
func (b *batchSession) loadGrade(ctx context.Context, spec batch.Spec) error {
	b.prepareTasks(ctx)
	spec.Tasks, spec.Backend = batch.NewSpecTasks(b.tasks), b.choice.Chosen
	return b.load(ctx, spec)
}
