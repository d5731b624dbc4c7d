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
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/verify"
)

type panelFlags struct {
	File  string   `flag:"file,f" doc:"read the question from FILE"`
	Tools []string `flag:"worker-tools" split:"," doc:"TOOLS that the models may call: fetch, verify"`
	JSON  bool     `flag:"json" doc:"write the whole response to standard output, as JSON"`
	profileFlag
	formatFlag
	Settings config.File `groups:"Model,Limits"`
}

// addCaps adds the flags that bound the cost of workers.
func (f *panelFlags) addCaps(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Func("worker-tool-cost-cap-usd", "US dollars that one model with tools may cost, instead of `USD` in workers.cost_cap_usd", func(text string) error {
		usd, err := config.ParseDollars(text)
		f.Settings.Workers.CostCap = &usd
		return err
	})
	cmd.Flags().Func("worker-tool-cost-cap-mode", "above the cap: warn, enforce or off, instead of the `MODE` in workers.cost_cap_mode", func(text string) error {
		if !slices.Contains([]string{"warn", "enforce", "off"}, text) {
			return errors.New("want warn, enforce or off")
		}
		f.Settings.Workers.CostCapMode = &text
		return nil
	})
	return cmd
}

const panelLong = `
The question is the argument, the content of -f FILE, or standard input if the only argument is "-". With
a question, standard input is its context: data, in a wrapper.

The models have no tools and no workspace. --worker-tools lets each of them call fetch, within
fetch.allow of the configuration, and verify, on texts, at most twice. They can call nothing else.
The limits of tokens, cost and time apply to all models together.
`

const panelExit = usesConfig | usesInput | asksModel | interruptible

func newConferCommand(a *app) *cobra.Command {
	var f struct {
		Models []string `flag:"models" split:"," doc:"MODELS to ask, with commas between them (default: the one of --model)"`
		panelFlags
	}
	return f.addCaps(newCommand(&cobra.Command{
		Use: "confer [flags] [QUESTION] [-]", Short: "Ask several models the same question",
		Long: `Ask several models the same question, at the same time. No model sees the answer of another.

Standard output has the answers, each under the name of its model; with --output-schema, a line of JSON
for each valid one. Standard error has a line for each model.
` + panelLong,
		Example: `  caisson confer --models fast,careful "is this a race?" - < main.go
  caisson confer --models fast,careful --worker-tools fetch --json "what does RFC 9110 say about 425?"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runConfer(cmd.Context(), a, f.panelFlags, f.Models, args)
		},
	}, &f, panelExit, statuses{exitFailed: "no model answered", exitLimit: "a limit was reached, and no model answered", exitFormat: "no answer is valid (--output-schema)"}))
}

type coordinateFlags struct {
	Proposer    string   `flag:"proposer" doc:"MODEL that proposes"`
	Critics     []string `flag:"critics" split:"," doc:"MODELS that criticise, with commas between them"`
	Synthesizer string   `flag:"synthesizer" doc:"MODEL that combines; it never has tools"`
	panelFlags
}

func newCoordinateCommand(a *app) *cobra.Command {
	var f coordinateFlags
	return f.addCaps(newCommand(&cobra.Command{
		Use: "coordinate [flags] [QUESTION] [-]", Short: "Ask models to propose, to criticise and to combine an answer",
		Long: `Ask one model for a proposal, others to criticise it, and one to write the answer from the proposal and the
criticism.

Standard output has the answer; with --output-schema, valid JSON or nothing. Standard error has a line
for each model. The model of --model takes every part for which you name none.
` + panelLong,
		Example: `  caisson coordinate --critics fast,careful "should this be a queue?"
  caisson coordinate --proposer fast --critics careful --synthesizer careful --json -f question.txt`,
		RunE: func(cmd *cobra.Command, args []string) error { return runCoordinate(cmd.Context(), a, f, args) },
	}, &f, panelExit, statuses{exitFailed: "a part has no answer", exitLimit: "a limit was reached", exitFormat: "an answer is not valid"}))
}

type panelRun struct {
	app      *app
	flags    panelFlags
	command  string // confer or coordinate
	options  worker.Options
	profiles []loop.Profile
	ends     closers.Stack
	// records belong to a session without a workspace. first is the first record's id.
	// call is the id of the call that the workers belong to.
	records     *record.Recorder
	first, call string
	begun       time.Time
}

// openPanel reads the settings and makes the models and the options of workers. A name
// "" is the configured model.
func openPanel(ctx context.Context, a *app, command string, f panelFlags, args, names []string) (_ *panelRun, err error) {
	format, err := f.readFormat()
	if err != nil {
		return nil, err
	}
	question, err := readTask(a, args, f.File)
	if err != nil {
		return nil, err
	}
	if question == "" {
		return nil, newUsageError("a question is needed: as the argument, by -f FILE, or - for standard input")
	}
	s, err := loadSettings(a, f.Settings, f.Profile)
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
	r := &panelRun{app: a, flags: f, command: command}
	r.options = worker.Options{Question: question, Budget: limits.LowerBudget(s.conf.Limits.Budget(), s.conf.Limits.Session.Budget()), Emit: r.handleEvent}
	if format != nil {
		r.options.Format = &worker.Format{Request: format.Request, Check: format.Check}
	}
	if r.options.Tools, err = f.workerTools(s); err != nil {
		return nil, err
	}
	defer r.ends.CloseOnError(&err)
	if err := s.makeStateDir(); err != nil {
		return nil, err
	}
	hidden := s.knownSecrets(selected...)
	dir, err := sessiondir.Create(s.environ.stateDir(), hidden)
	if err != nil {
		return nil, err
	}
	r.ends.PushFunc(func() { _ = dir.Close() }) // an empty directory does no harm
	var counts *ledger.Ledger
	if r.profiles, counts, err = s.openModels(ctx, selected, modelSettings{logger: dir.Log}, &r.ends); err != nil {
		return nil, err
	}
	if counts != nil {
		r.options.Ledger = counts.ForUser(runner.LocalUser())
	}
	r.options.Session, r.options.Logger = dir.Session, dir.Log
	return r, r.openRecords(s, dir, hidden)
}

func (r *panelRun) close() { _ = r.ends.Close() } // none of these errors matters

func (r *panelRun) openRecords(s *settings, dir *sessiondir.Dir, hidden []redact.Secret) (err error) {
	r.call, r.begun = record.NewID("tu"), time.Now()
	if r.records, err = record.NewRecorder(record.RecorderOptions{Dir: dir.Path, Session: dir.Session, Secrets: hidden}); err != nil {
		return err
	}
	r.first, err = r.records.Write(record.Entry{Actor: record.ActorSystem, Payload: record.SessionCreated{
		Version: programVersion(), Task: r.command + ": " + r.options.Question, Policy: "ci", OnPrompt: string(dispatch.OnPromptDeny), Client: runner.LocalUser(),
		Budget: record.NewBudget(r.options.Budget), Tools: []record.OfferedTool{}, Configuration: record.NonNil(s.conf.Sources),
		FilesLoaded: []record.LoadedFile{}, MCPServers: []record.MCPServer{}, MCPSkipped: []record.Ignored{},
	}})
	return err
}

// endRecords writes the last records. It returns err, or else the error of writing.
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
		// If it fails, so does the next Write.
		_, _ = r.records.Write(record.Entry{Parent: r.first, Actor: record.ActorAgent, Payload: record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}}})
	}
	_, failed := r.records.Write(record.Entry{Parent: r.first, Actor: record.ActorSystem, Payload: end})
	return cmp.Or(err, failed, r.records.Close())
}

// workerTools returns the workers' tools: fetch, as configured, and verify on texts.
func (f panelFlags) workerTools(s *settings) (worker.ToolOptions, error) {
	fetching, err := s.conf.FetchOptions()
	if err != nil {
		return worker.ToolOptions{}, err
	}
	fetches, err := fetching.NewTool(programVersion(), "", zap.NewNop(), func(fetch.Denial) error { return nil })
	if err != nil {
		return worker.ToolOptions{}, err
	}
	decider, err := s.newDecider("")
	if err != nil {
		return worker.ToolOptions{}, err
	}
	policy, err := s.conf.ToolPolicy("ci")
	return worker.ToolOptions{
		Allow: func(def tools.Definition) bool { return def.EnabledByDefault && !decider.Covers(def) }, // it rules on sessions
		Names: f.Tools, Factories: []tools.Factory{fetches, verify.New(verify.Options{})}, Policy: policy,
		CostCap: workerOptions(&s.conf, nil).CostCap,
	}, err
}

// handleEvent records an event and prints it if users should see it while the workers
// run.
func (r *panelRun) handleEvent(e worker.Event) error {
	if actor, p := runner.NewWorkerRecord(r.call, e); p != nil {
		if _, err := r.records.Write(record.Entry{Parent: r.first, Actor: actor, Payload: p}); err != nil {
			return err
		}
	}
	switch e := e.(type) {
	case worker.ToolCalled:
		r.app.printLines(makeSafe(fmt.Sprintf("%s: %s: %s (call %d)", e.Worker, e.Name, e.Status, e.Hop)))
	case worker.CostWarned:
		r.app.printLines(makeSafe(fmt.Sprintf("%s: cost %.4f USD, above the cap of %.4f USD", e.Worker, e.ObservedUSD, e.CapUSD)))
	}
	return nil
}

// report prints a response and returns the error that ends the program. decisive
// determines the outcome.
func (r *panelRun) report(ctx context.Context, response any, text string, answers []worker.Answer, report *worker.ToolReport, decisive worker.Answer) error {
	for _, a := range answers {
		r.app.printLines(describeWorker(a))
	}
	r.app.printLines(describeToolReport(report)...)
	if r.flags.JSON {
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

// invalidPanel explains the error of options that workers refuse.
func invalidPanel(err error) error {
	if !errors.Is(err, worker.ErrInvalid) {
		return err
	}
	return newFailure(exitConfig, err, "", "A limit of cost, and an enforced cap, need the price of every model: set its price under models.")
}

func runConfer(ctx context.Context, a *app, f panelFlags, names, args []string) error {
	if len(names) == 0 {
		names = []string{""}
	}
	ctx, _, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	r, err := openPanel(ctx, a, "confer", f, args, names)
	if err != nil {
		return err
	}
	defer r.close()
	got, err := worker.Confer(ctx, worker.ConferOptions{Options: r.options, Profiles: r.profiles})
	var text string
	var decisive worker.Answer
	if err == nil {
		text, decisive = formatConference(got, r.options.Format != nil), decisiveAnswer(got.Answers)
		err = r.report(ctx, got, text, got.Answers, got.Tools, decisive)
	}
	return r.endRecords(ctx, got.Usage.Total.Usage, text, decisive, invalidPanel(err))
}

func runCoordinate(ctx context.Context, a *app, f coordinateFlags, args []string) error {
	critics := f.Critics
	if len(critics) == 0 {
		critics = []string{""}
	}
	ctx, _, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	r, err := openPanel(ctx, a, "coordinate", f.panelFlags, args, slices.Concat([]string{f.Proposer, f.Synthesizer}, critics))
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

// formatConference returns the answers as Markdown. If form is set, it returns a line
// of JSON for each valid answer instead.
func formatConference(c worker.Conference, form bool) string {
	var b strings.Builder
	for _, a := range c.Answers {
		switch {
		case form && a.Status == worker.StatusAnswered:
			line, _ := json.Marshal(struct { // the answer is valid JSON
				Profile string          `json:"profile"`
				Answer  json.RawMessage `json:"answer"`
			}{a.Profile, json.RawMessage(a.Answer)})
			b.Write(append(line, '\n'))
		case form:
		case a.Status == worker.StatusAnswered:
			fmt.Fprintf(&b, "## %s\n\n%s\n\n", a.Profile, strings.TrimSpace(a.Answer))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// describeWorker returns one line, safe to show, about a worker that has ended.
func describeWorker(a worker.Answer) string {
	var parts []string
	if a.Role != "" {
		parts = append(parts, string(a.Role))
	}
	parts = append(parts, a.Profile+": "+string(a.Status))
	for _, c := range a.InnerToolCalls {
		parts = append(parts, c.Name+" "+string(c.Status))
	}
	parts = append(parts, fmt.Sprintf("%d tokens", a.Usage.Tokens()), record.CostUSD(a.Usage.CostMicroUSD)+" USD", (time.Duration(a.WallMS) * time.Millisecond).Round(100*time.Millisecond).String())
	line := strings.Join(parts, ", ")
	if a.Error != nil {
		line += ": " + a.Error.Message
	}
	if len(a.Problems) > 0 {
		line += ": " + strings.Join(a.Problems, "; ")
	}
	return makeSafe(tools.Elide(line, 2000))
}

// describeToolReport returns lines, safe to show, about the requested tools.
func describeToolReport(r *worker.ToolReport) []string {
	if r == nil {
		return nil
	}
	var lines []string
	if len(r.Rejected) > 0 {
		lines = append(lines, "workers can't call "+makeSafe(tools.Elide(strings.Join(r.Rejected, ", "), 1000))+"; they can call "+cmp.Or(strings.Join(r.Accepted, ", "), "nothing"))
	}
	if r.CostCap != nil && r.CostCap.OperatorPrompt != "" {
		lines = append(lines, r.CostCap.OperatorPrompt)
	}
	return lines
}

// decisiveAnswer returns the answer that determines the outcome of a conference: the
// first answered, else the first invalid, else the first.
func decisiveAnswer(answers []worker.Answer) worker.Answer {
	for _, status := range []worker.Status{worker.StatusAnswered, worker.StatusInvalid} {
		for _, a := range answers {
			if a.Status == status {
				return a
			}
		}
	}
	return answers[0]
}
