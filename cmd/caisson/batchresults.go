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
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/report"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/trace"
)

// gradesDir has a directory for each caisson batch grade.
const gradesDir = "grades"

func readBatch(dir string) (batch.Spec, []batch.Result, error) {
	spec, err := batch.ReadSpec(dir)
	if err == nil {
		var results []batch.Result
		if results, err = batch.ReadResults(dir); err == nil {
			return spec, results, nil
		}
	}
	return spec, nil, newFailure(exitInput, err, "", "Name a directory that caisson batch --out has written.")
}

// describeEnd describes a fault that ended a batch. It returns other errors unchanged.
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
	return newFailure(status, err, end.Error(), hint+" The same command then goes on with the trials that have no result.")
}

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
	var f struct {
		JSON bool `flag:"json" doc:"write the results as one JSON document"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags] DIR", Short: "List the trials of a batch", Args: oneBatch,
		Long:    "List the trials of a batch that have a result, by task, agent and attempt.\n",
		Example: `  caisson batch ls results`,
		RunE: func(_ *cobra.Command, args []string) error {
			_, results, err := readBatch(args[0])
			if err != nil {
				return err
			}
			if f.JSON {
				return writeJSON(a.stdout, results)
			}
			return batchui.WriteResults(a.stdout, results)
		},
	}, &f, usesInput, nil)
}

func newBatchShowCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write the summary as one JSON document"`
	}
	return newCommand(&cobra.Command{
		Use: "show [flags] DIR [TRIAL]", Short: "Show the summary of a batch, or one trial", Args: wantArgs(1, 2, "one directory of results, and at most one trial"),
		Long: `Show a summary of the results of a batch, also while it runs, or one trial: its result and its files.
TRIAL is the last column of caisson batch ls, or the beginning of it.
`,
		Example: "  caisson batch show results\n  caisson batch show results hello__oracle__1",
		RunE: func(_ *cobra.Command, args []string) error {
			spec, results, err := readBatch(args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				return showTrial(a, args[0], args[1], results)
			}
			summary := batch.Summarize(spec, results)
			if f.JSON {
				return writeJSON(a.stdout, summary)
			}
			return batchui.WriteSummary(a.stdout, summary)
		},
	}, &f, usesInput, nil)
}

// showTrial writes a trial's result as JSON, with its directory.
func showTrial(a *app, dir, name string, results []batch.Result) error {
	var found []batch.Result
	for _, r := range results {
		if strings.HasPrefix(r.Key.Name(), name) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return newFailure(exitInput, nil, fmt.Sprintf("%d trials have a name that begins with %q", len(found), name), "caisson batch ls lists them.")
	}
	return writeJSON(a.stdout, struct {
		batch.Result
		Dir string `json:"dir"`
	}{found[0], filepath.Join(dir, batch.TrialsDir, found[0].Key.Name())})
}

func newBatchMergeCommand(a *app) *cobra.Command {
	var f struct {
		Out string `flag:"out,o" doc:"directory of the merged batch"`
	}
	return newCommand(&cobra.Command{
		Use: "merge --out DIR DIR...", Short: "Make one batch of several, such as shards", Args: wantArgs(1, -1, "directories to merge"),
		Long: `Make one batch of several that have the same tasks, such as the shards of a job. The files of trials are
hard links if possible. If several batches have the same trial, its first result is kept.
`,
		Example: `  caisson batch merge --out merged shard1 shard2 shard3`,
		RunE: func(_ *cobra.Command, args []string) error {
			if f.Out == "" {
				return newUsageError("name --out and the directories to merge")
			}
			twice, err := batch.Merge(f.Out, args)
			if err != nil {
				return newFailure(exitInput, err, "", "Merge batches of the same tasks into a directory of their own.")
			}
			for _, k := range twice {
				a.warn(fmt.Sprintf("%q, %s, attempt %d has several results; the first one is kept", k.Task, k.Agent, k.Attempt))
			}
			summary, err := batchui.WriteReports(f.Out)
			if err != nil {
				return err
			}
			return batchui.WriteSummary(a.stdout, summary)
		},
	}, &f, usesInput, nil)
}

func newBatchReportCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "report DIR", Short: "Write the reports of a batch again", Args: oneBatch,
		Long: `Write the reports of a batch again, also while it runs: report.html, summary.json, junit.xml and the
predictions. caisson batch and caisson batch merge write them at their end. report.html is one file that
runs no script; it links to the directories of trials beside it.
`,
		Example: `  caisson batch report results`,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, _, err := readBatch(args[0]); err != nil {
				return err
			}
			if _, err := batchui.WriteReports(args[0]); err != nil {
				return err
			}
			return a.say("%s", filepath.Join(args[0], report.File))
		},
	}, nil, usesInput, nil)
}

func newBatchViewCommand(a *app) *cobra.Command {
	var f struct {
		Port uint16 `flag:"port" doc:"port to listen on (default: any that is free)"`
	}
	return newCommand(&cobra.Command{
		Use: "view [flags] DIR", Short: "Show a batch in a browser, with a page for each trial", Args: oneBatch,
		Long: `Serve report.html and a page for each trial on this machine's loopback, also while the batch runs, until an
interrupt. A trial's page has its verdict, the patch, the verifier's output, its other attempts, its files
and what happened in its sessions. The address contains a key, which is needed to read the pages.
`,
		Example: `  caisson batch view results`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, _, err := readBatch(args[0]); err != nil {
				return err
			}
			ctx, _, _, stop := a.handleInterrupts(cmd.Context(), func(string) {})
			defer stop()
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.Port))))
			if err != nil {
				return newFailure(exitInput, err, "", "Choose another --port.")
			}
			key := rand.Text()
			fmt.Fprintf(a.stdout, "http://%s/%s/\n", l.Addr(), key)
			return report.Serve(ctx, l, key, report.ViewOptions{Dir: args[0], Title: batchui.Title(args[0]), Story: writeStory})
		},
	}, &f, usesInput, nil)
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
	var f struct {
		JSON bool `flag:"json" doc:"write the comparison as one JSON document"`
	}
	return newCommand(&cobra.Command{
		Use: "compare [flags] A B", Short: "Compare two agents on the tasks that both have attempted", Args: wantArgs(2, 2, "two directories of results, or DIR:AGENT"),
		Long: `Compare two agents on the tasks that both batches have, with equal checksums and at least one judged
trial on each side. Attempts at one task are averaged. With several attempts, the 95 % t-interval of
the difference over tasks decides whether one agent is better. With one attempt each, with a single
task, or if the difference is the same on all tasks, McNemar's exact test decides. The output lists
the tasks that are left out.

A and B are directories of results with one agent, or DIR:AGENT.
`,
		Example: "  caisson batch compare results:openai/gpt-5 results:ollama/qwen3\n  caisson batch compare before after",
		RunE: func(_ *cobra.Command, args []string) error {
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
			if f.JSON {
				return writeJSON(a.stdout, batchui.NewComparisonDocument(c, x.Name, y.Name))
			}
			return batchui.WriteComparison(a.stdout, c, x.Name, y.Name)
		},
	}, &f, usesInput, nil)
}

// readSide reads one side of a comparison.
func readSide(arg string) (batch.Side, error) {
	dir, agent := arg, ""
	if _, err := os.Stat(dir); err != nil {
		for i := strings.LastIndex(arg, ":"); i > 0; i = strings.LastIndex(arg[:i], ":") { // an agent may contain one too
			if _, err := os.Stat(arg[:i]); err == nil {
				dir, agent = arg[:i], arg[i+1:]
				break
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
		return batch.Side{}, newFailure(exitInput, nil, fmt.Sprintf("%s has the agents %s", dir, strings.Join(spec.Agents, ", ")), "Name one of them as DIR:AGENT.")
	}
	return batch.Side{Name: arg, Agent: agent, Spec: spec, Results: results}, nil
}

func newBatchGradeCommand(a *app) *cobra.Command {
	var f struct {
		trialFlags
		Settings config.File `groups:"Sandbox"`
	}
	return newCommand(&cobra.Command{
		Use: "grade [flags] DIR PATH...", Short: "Verify finished trials again, from what is on disk", Args: wantArgs(2, -1, "a directory of results and its tasks, as for caisson batch"),
		Long: `Verify finished trials again, from what is on disk, with the current tests. No agent runs.

A PATH is as for caisson batch. Tasks are never taken from where the results say, because results may
come from somebody else, and a task can name any directory of yours as its workspace. The output lists
tasks that have changed since their trials. Trials of other tasks are left out.

The verdicts go to a new directory in DIR/grades. The results of the batch stay unchanged: both verdicts
are kept, and the output lists the ones that differ.
`,
		Example: `  caisson batch grade results ./tasks`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return gradeBatch(cmd.Context(), a, batchFlags{trialFlags: f.trialFlags, Settings: f.Settings}, args[0], args[1:])
		},
	}, &f, usesConfig|usesInput|startsSandbox|interruptible, statuses{exitDone: "every verdict is the same", exitUnverified: "verdicts differ", exitFailed: "the infrastructure failed a verification, or it is suspect"})
}

// gradeBatch verifies a batch's trials again, with the tasks at paths.
func gradeBatch(ctx context.Context, a *app, f batchFlags, dir string, paths []string) (err error) {
	spec, results, err := readBatch(dir)
	if err != nil {
		return err
	}
	tasks, err := loadTasks(a.environ, paths, f.TaskEnv)
	if err != nil {
		return err
	}
	ctx, force, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	f.Attempts = 1 // each task's environments are made, whatever the file says
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
			b.say(makeSafe(what + ": " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
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
	graded = slices.DeleteFunc(graded, func(r batch.Result) bool { return was[r.Key].Task == "" }) // from a killed verification
	switch g := batchui.WriteGrades(a.stdout, graded, was, b.out); {
	case g.Failed > 0:
		return exitWith(exitFailed)
	case g.Differ > 0:
		return exitWith(exitUnverified)
	}
	return nil
}

// openGrade opens the ledger of a verification: the latest one that was killed, if the
// tasks haven't changed, or else a new one. It removes the remains of the other killed
// ones.
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
		b.prepareTasks(ctx)
		graded := spec
		graded.Tasks, graded.Backend = batch.NewSpecTasks(b.tasks), b.choice.Chosen
		if err := b.load(ctx, graded); err != nil {
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
