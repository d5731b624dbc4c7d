package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/panel"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/verify"
)

// panelFlags are the flags of caisson confer and caisson coordinate.
type panelFlags struct {
	settings config.File
	profile  string
	file     string
	json     bool
	check    checkFlags
	tools    []string
	// command is confer or coordinate.
	command string
	// models are those of confer, the others those of coordinate.
	models, critics       []string
	proposer, synthesizer string
}

// addTo adds the flags that both commands have.
func (f *panelFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "read the question from FILE")
	flags.StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	flags.StringSliceVar(&f.tools, "worker-tools", nil, "TOOLS that the models may call: fetch, verify")
	flags.Func("worker-tool-cost-cap-usd", "US dollars that one model with tools may cost, instead of `USD` in workers.cost_cap_usd", func(text string) error {
		usd, err := config.ParseDollars(text)
		f.settings.Workers.CostCap = &usd
		return err
	})
	flags.Func("worker-tool-cost-cap-mode", "above the cap: warn, enforce or off, instead of the `MODE` in workers.cost_cap_mode", func(text string) error {
		if !slices.Contains([]string{"warn", "enforce", "off"}, text) {
			return errors.New("want warn, enforce or off")
		}
		f.settings.Workers.CostCapMode = &text
		return nil
	})
	flags.StringVar(&f.check.schema, "output-schema", "", "the answer must be JSON, valid by the JSON Schema in FILE; one retry")
	flags.BoolVar(&f.json, "json", false, "write the whole response to standard output, as JSON")
	addSettings(cmd, &f.settings, "Model", "Limits")
}

const panelLong = `
The question is the argument, the content of -f FILE, or standard input where the only argument is
"-". Standard input beside a question is its context: data, in a wrapper.

The models have no tools and no workspace. --worker-tools lets each of them call fetch, within
fetch.allow of the configuration, and verify, on texts, at most twice. Nothing else can be called.
Limits of tokens, cost and time hold for all models together.
`

const panelExit = usesConfig | usesInput | asksModel | interruptible

func newConferCommand(a *app) *cobra.Command {
	var f panelFlags
	cmd := &cobra.Command{
		Use:   "confer [flags] [QUESTION] [-]",
		Short: "Ask several models the same question",
		Long: `Ask several models the same question, at the same time. No model sees the answer of another.

Standard output has the answers, each under the name of its model; with --output-schema a line of
JSON for each valid one. Standard error has a line for each model.
` + panelLong + exitHelp(map[int]string{exitFailed: "no model answered", exitLimit: "a limit was reached, and no model answered", exitFormat: "no answer is valid (--output-schema)"}, panelExit),
		Example: `  caisson confer --models fast,careful "is this a race?" - < main.go
  caisson confer --models fast,careful --worker-tools fetch --json "what does RFC 9110 say about 425?"`,
		RunE: func(cmd *cobra.Command, args []string) error { return runConfer(cmd.Context(), a, f, args) },
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringSliceVar(&f.models, "models", nil, "MODELS to ask, with commas between them (default: the one of --model)")
	f.addTo(cmd)
	return cmd
}

func newCoordinateCommand(a *app) *cobra.Command {
	var f panelFlags
	cmd := &cobra.Command{
		Use:   "coordinate [flags] [QUESTION] [-]",
		Short: "Ask models to propose, to criticise and to combine an answer",
		Long: `Ask one model for a proposal, others what they think of it, and one for the answer with both before it.

Standard output has the answer; with --output-schema JSON that is valid, or nothing. Standard error
has a line for each model. The model of --model takes every part for which none is named.
` + panelLong + exitHelp(map[int]string{exitFailed: "a part has no answer", exitLimit: "a limit was reached", exitFormat: "an answer is not valid"}, panelExit),
		Example: `  caisson coordinate --critics fast,careful "should this be a queue?"
  caisson coordinate --proposer fast --critics careful --synthesizer careful --json -f question.txt`,
		RunE: func(cmd *cobra.Command, args []string) error { return runCoordinate(cmd.Context(), a, f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.proposer, "proposer", "", "MODEL that proposes")
	flags.StringSliceVar(&f.critics, "critics", nil, "MODELS that criticise, with commas between them")
	flags.StringVar(&f.synthesizer, "synthesizer", "", "MODEL that combines; it never has tools")
	f.addTo(cmd)
	return cmd
}

// panelRun is one call of either command.
type panelRun struct {
	app      *app
	flags    panelFlags
	options  worker.Options
	profiles []loop.Profile
	close    func()
	// records belong to a session without a workspace. first is the id of the first record,
	// and call the id of the call that the workers belong to.
	records     *record.Recorder
	first, call string
	begun       time.Time
}

// openPanel reads the settings, makes the models, and returns the options of workers. An
// empty name is the configured model.
func openPanel(ctx context.Context, a *app, f panelFlags, args, names []string) (_ *panelRun, err error) {
	format, err := f.check.readFormat()
	if err != nil {
		return nil, err
	}
	question, err := readTask(a, args, f.file)
	if err != nil {
		return nil, err
	}
	if question == "" {
		return nil, newUsageError("a question is needed: as the argument, by -f FILE, or - for standard input")
	}
	s, err := loadSettings(a, f.settings, f.profile)
	if err != nil {
		return nil, err
	}
	var selected []config.SelectedModel
	for _, name := range names {
		conf := s.conf
		if name != "" {
			conf.Model = &name
		}
		list, err := conf.SelectModels(s.environ)
		if err != nil {
			return nil, noModel(err)
		}
		selected = append(selected, list[0])
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the current directory: %w", err)
	}
	if err := s.readKeys(ctx, selected, here); err != nil {
		return nil, err
	}
	r := &panelRun{app: a, flags: f}
	r.options = worker.Options{Question: question, Budget: s.conf.Limits.Budget(), Emit: r.handleEvent}
	if format != nil {
		r.options.Format = &worker.Format{Request: format.Request, Check: format.Check}
	}
	if r.options.Tools, err = f.workerTools(s); err != nil {
		return nil, err
	}
	var ends []func()
	r.close = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := s.makeStateDir(); err != nil {
		return nil, err
	}
	hidden := s.knownSecrets(selected...)
	dir, err := sessiondir.Create(s.environ.stateDir(), hidden)
	if err != nil {
		return nil, err
	}
	ends = append(ends, func() { _ = dir.Close() }) // an empty directory does no harm
	var closeModels func()
	if r.profiles, closeModels, err = s.makeProfiles(selected, modelSettings{logger: dir.Log}); err != nil {
		return nil, err
	}
	ends = append(ends, closeModels)
	counts, err := s.openLedger(ctx, selected)
	if err != nil {
		return nil, err
	}
	if counts != nil {
		r.options.Ledger = counts.ForUser(runner.LocalUser())
		ends = append(ends, func() { _ = counts.Close() }) // what stays is removed by the next one
	}
	r.options.Session, r.options.Logger = dir.Session, dir.Log
	return r, r.openRecords(s, dir, hidden)
}

// openRecords begins the records of the command.
func (r *panelRun) openRecords(s *settings, dir *sessiondir.Dir, hidden []redact.Secret) (err error) {
	r.call, r.begun = record.NewID("tu"), time.Now()
	if r.records, err = record.NewRecorder(record.RecorderOptions{Dir: dir.Path, Session: dir.Session, Secrets: hidden}); err != nil {
		return err
	}
	r.first, err = r.records.Write(record.Entry{Actor: record.ActorSystem, Payload: record.SessionCreated{
		Version: programVersion(), Task: r.flags.command + ": " + r.options.Question, Policy: "ci", OnPrompt: string(dispatch.OnPromptDeny), Client: runner.LocalUser(),
		Budget: record.NewBudget(r.options.Budget), Tools: []record.OfferedTool{}, Configuration: record.NonNil(s.recordSources()),
		FilesLoaded: []record.LoadedFile{}, MCPServers: []record.MCPServer{}, MCPSkipped: []record.Ignored{},
	}})
	return err
}

// endRecords writes the last record. It returns err, or the error of writing.
func (r *panelRun) endRecords(ctx context.Context, usage limits.Usage, text string, decisive worker.Answer, err error) error {
	end := record.SessionEnded{
		Reason: loop.StopAnswered, ExitStatus: exitDone, Answer: text, AnswerProblems: decisive.Problems, Usage: usage, CostUSD: record.CostUSD(usage.CostMicroUSD),
		WallMS: time.Since(r.begun).Milliseconds(), Changed: []record.Changed{}, HostExecuted: []record.HostExecuted{}, Denials: []record.Denial{},
	}
	switch {
	case interruption(ctx) != nil:
		end.Reason = loop.StopCancelled
	case decisive.Error != nil:
		end.Reason = decisive.Error.Reason
	case decisive.Status == worker.StatusFailed, decisive.Status == "":
		end.Reason = loop.StopProviderFailed
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		end.ExitStatus = e.status
	} else if err != nil {
		e := describeError(err)
		end.ExitStatus, end.Problem = e.Status, &e.Problem
	}
	if text != "" {
		// After a failure, the next Write fails too.
		_, _ = r.records.Write(record.Entry{Parent: r.first, Actor: record.ActorAgent, Payload: record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}}})
	}
	_, failed := r.records.Write(record.Entry{Parent: r.first, Actor: record.ActorSystem, Payload: end})
	return cmp.Or(err, failed, r.records.Close())
}

// workerTools returns the tools of workers: fetch, as configured, and verify on texts.
func (f panelFlags) workerTools(s *settings) (worker.ToolOptions, error) {
	fetching, err := s.conf.FetchOptions()
	if err != nil {
		return worker.ToolOptions{}, err
	}
	fetches, err := fetching.NewTool(programVersion(), "", zap.NewNop(), func(fetch.Denial) error { return nil })
	if err != nil {
		return worker.ToolOptions{}, err
	}
	policy, err := s.conf.ToolPolicy("ci")
	return worker.ToolOptions{
		Names: f.tools, Factories: []tools.Factory{fetches, verify.New(verify.Options{})}, Policy: policy,
		CostCap: workerOptions(&s.conf, nil).CostCap,
	}, err
}

// handleEvent records an event, and prints what operators should see while the workers run.
func (r *panelRun) handleEvent(e worker.Event) error {
	if actor, p := runner.NewWorkerRecord(r.call, e); p != nil {
		if _, err := r.records.Write(record.Entry{Parent: r.first, Actor: actor, Payload: p}); err != nil {
			return err
		}
	}
	switch e := e.(type) {
	case worker.ToolCalled:
		name, _ := tools.Display(e.Worker + ": " + e.Name)
		r.app.printLines(fmt.Sprintf("%s: %s (call %d)", name, e.Status, e.Hop))
	case worker.CostWarned:
		name, _ := tools.Display(e.Worker)
		r.app.printLines(fmt.Sprintf("%s: cost %.4f USD, above the cap of %.4f USD", name, e.ObservedUSD, e.CapUSD))
	}
	return nil
}

// report prints a response and returns the error that ends the program. decisive is the
// worker that determines the outcome.
func (r *panelRun) report(ctx context.Context, response any, text string, answers []worker.Answer, report *worker.ToolReport, decisive worker.Answer) error {
	for _, a := range answers {
		r.app.printLines(panel.DescribeWorker(a))
	}
	r.app.printLines(panel.DescribeTools(report)...)
	if r.flags.json {
		text, err := json.Marshal(response)
		if err == nil {
			_, err = fmt.Fprintf(r.app.stdout, "%s\n", record.SafeJSON(text))
		}
		if err != nil {
			return fmt.Errorf("write the response: %w", err)
		}
	} else if err := printAnswer(r.app, text); err != nil {
		return err
	}
	if err := interruption(ctx); err != nil {
		return err
	}
	switch {
	case decisive.Status == worker.StatusAnswered:
		return nil
	case decisive.Status == worker.StatusInvalid:
		return exitWith(exitFormat)
	case decisive.Error != nil && decisive.Error.Reason == loop.StopAuth:
		return exitWith(exitAuth)
	case decisive.Error != nil && decisive.Error.Reason == loop.StopLimit:
		return exitWith(exitLimit)
	}
	return exitWith(exitFailed)
}

// invalidPanel returns the error of options that workers refuse.
func invalidPanel(err error) error {
	if !errors.Is(err, worker.ErrInvalid) {
		return err
	}
	return &commandError{Status: exitConfig, Err: err, Problem: record.Problem{
		Cause: err.Error(), Hint: "A limit of cost, and an enforced cap, need the price of every model: set price in its profile.",
	}}
}

func runConfer(ctx context.Context, a *app, f panelFlags, args []string) error {
	f.command = "confer"
	names := f.models
	if len(names) == 0 {
		names = []string{""}
	}
	ctx, _, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
	defer stop()
	r, err := openPanel(ctx, a, f, args, names)
	if err != nil {
		return err
	}
	defer r.close()
	got, err := worker.Confer(ctx, worker.ConferOptions{Options: r.options, Profiles: r.profiles})
	var text string
	var decisive worker.Answer
	if err == nil {
		text, decisive = panel.FormatConference(got, r.options.Format != nil), panel.FindAnswer(got.Answers)
		err = r.report(ctx, got, text, got.Answers, got.Tools, decisive)
	}
	return r.endRecords(ctx, got.Usage.Total.Usage, text, decisive, invalidPanel(err))
}

func runCoordinate(ctx context.Context, a *app, f panelFlags, args []string) error {
	f.command = "coordinate"
	critics := f.critics
	if len(critics) == 0 {
		critics = []string{""}
	}
	ctx, _, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
	defer stop()
	r, err := openPanel(ctx, a, f, args, slices.Concat([]string{f.proposer, f.synthesizer}, critics))
	if err != nil {
		return err
	}
	defer r.close()
	got, err := worker.Coordinate(ctx, worker.CoordinateOptions{Options: r.options, Proposer: r.profiles[0], Synthesizer: r.profiles[1], Critics: r.profiles[2:]})
	text := strings.TrimSpace(got.Answer)
	var decisive worker.Answer
	if err == nil {
		decisive = got.Workers[len(got.Workers)-1]
		decisive.Status = got.Status
		err = r.report(ctx, got, text, got.Workers, got.Tools, decisive)
	}
	return r.endRecords(ctx, got.Usage.Total.Usage, text, decisive, invalidPanel(err))
}
