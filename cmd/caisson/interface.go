package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// sigpipe is the number of SIGPIPE: the status of a program whose reader went
// away is 141 by custom.
const (
	sigpipe  = 13
	exitPipe = 128 + sigpipe
)

// patience is how long the end of a run waits for a writer that makes no
// progress.
const patience = 30 * time.Second

// userInterface is how a run speaks: to a person, or by records. What it writes
// goes through its outlet, so that no writer holds the session up.
type userInterface struct {
	app         *app
	json        bool
	colour      bool
	interactive bool
	render      *ui.Renderer
	// out writes records, to standard output with --json, to standard error
	// without. tell writes notices to standard error: it is out, or its own.
	out, tell *ui.AsyncWriter
	// broken is called when the reader of the records has gone.
	broken func()
	// untold returns what is news to a person; nil if each run tells everything.
	untold func(workspace string, facts []string) []string
	// finished is set once the end was shown or given up.
	finished bool
	// warn records a warning, once there is a session that can.
	warn atomic.Pointer[func(string)]
	// ignores reports whether a difference of a replay does not count; nil is none.
	ignores func(d replay.Difference) bool

	mu          sync.Mutex
	differences []record.Difference
}

func newInterface(a *app, json bool) *userInterface {
	live := a.terminal(a.stderr) && a.environ.get("TERM") != "dumb" && a.environ.get("TERM") != ""
	u := &userInterface{
		app: a, json: json, broken: func() {}, out: ui.NewAsyncWriter(),
		colour:      live && a.environ.get("NO_COLOR") == "",
		interactive: !json && a.terminal(a.stdin) && a.terminal(a.stderr),
	}
	if u.tell = u.out; json {
		u.tell = ui.NewAsyncWriter()
	}
	opts := ui.Options{Out: a.stderr, Live: live && !json, Colour: u.colour, Reflow: breaksLinesAnew(a.environ)}
	if a.terminal(a.stderr) {
		opts.Size = a.size
	}
	if !json && a.terminal(a.stderr) { // a person saw what was told
		u.untold = a.environ.untold
		opts.Untold = u.untold
	}
	u.render = ui.New(opts)
	return u
}

// breaksLinesAnew reports whether the terminal breaks its lines anew when its width changes.
// Those that don't are told by their names.
func breaksLinesAnew(env environ) bool {
	return env.get("TERM") != "xterm" && env.get("TERM") != "linux"
}

// isScreen reports whether the terminal is GNU screen, or may be. tmux may call itself
// screen too.
func isScreen(env environ) bool {
	return strings.HasPrefix(env.get("TERM"), "screen") && (env.get("STY") != "" || env.get("TMUX") == "")
}

// close ends what finish has not ended: there was no session.
func (u *userInterface) close(ctx context.Context) {
	if !u.finished && u.flush(ctx) {
		u.render.Close()
	}
}

// flush writes what is queued, and reports whether all of it was written.
func (u *userInterface) flush(ctx context.Context) bool {
	all := u.out.Close(ctx, u.app.patience, u.interactive)
	if u.tell != u.out {
		all = u.tell.Close(ctx, u.app.patience, false) && all
	}
	return all
}

// news returns the facts about this machine that the user should hear of.
func (u *userInterface) news(facts []string) []string {
	if u.untold == nil {
		return facts
	}
	return u.untold("", facts)
}

// defaultPreset is the policy where none is named: a person can be asked, or not, and
// need not be asked about what they apply afterwards, or not at all.
func (u *userInterface) defaultPreset(appliedLater bool) string {
	switch {
	case u.interactive && appliedLater:
		return "sandboxed"
	case u.interactive:
		return "default"
	}
	return "ci"
}

// newBroker asks the person at the terminal; nil where there is none.
func (u *userInterface) newBroker() *approval.Broker {
	if !u.interactive {
		return nil
	}
	b := approval.NewBroker(approval.BrokerOptions{})
	b.Attach("terminal", &orderedApprover{u.out, &ui.Prompt{
		In: u.app.stdin, Out: u.render, Pressed: u.app.pressed, Keys: u.app.keys, Pending: b.Pending,
	}})
	return b
}

// orderedApprover asks once everything that happened before is shown.
type orderedApprover struct {
	out    *ui.AsyncWriter
	person approval.Approver
}

// Approve implements approval.Approver.
func (a *orderedApprover) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	if err := a.out.Drain(ctx); err != nil {
		return approval.Answer{}, fmt.Errorf("ask: %w", err)
	}
	type reply struct {
		answer approval.Answer
		err    error
	}
	// The question may wait for a terminal that is held: it must not hold the
	// call beyond ctx.
	asked := make(chan reply, 1)
	go func() {
		answer, err := a.person.Approve(ctx, c)
		asked <- reply{answer, err}
	}()
	select {
	case r := <-asked:
		return r.answer, r.err
	case <-ctx.Done():
		return approval.Answer{}, fmt.Errorf("ask: %w", context.Cause(ctx))
	}
}

// showRecord passes a record on and never waits.
func (u *userInterface) showRecord(r record.Record, line []byte) {
	if !u.json {
		u.out.Queue(len(line), func() { u.render.Record(r) })
		return
	}
	line = append(slices.Clip(line), '\n')
	u.out.Queue(len(line), func() {
		if _, err := u.app.stdout.Write(line); err != nil {
			u.broken()
		}
	})
}

func (u *userInterface) showDelta(d runner.Delta) {
	if !u.json {
		u.out.QueueOptional(len(d.Text), func() { u.render.Delta(d) })
	}
}

// printNotice tells a person something, on standard error, and returns at once.
func (u *userInterface) printNotice(text string) {
	safe, _ := tools.Display(text)
	u.tell.QueueOptional(len(safe), func() { u.render.Print("caisson: " + safe) })
}

// recordWarning is say for what belongs into the records too.
func (u *userInterface) recordWarning(text string) {
	if warn := u.warn.Load(); warn != nil {
		(*warn)(text)
		return
	}
	u.printNotice(text)
}

// reportDifference tells of a difference of a replay, and keeps it for the report.
func (u *userInterface) reportDifference(d replay.Difference) {
	if u.ignores != nil && u.ignores(d) {
		return
	}
	u.recordWarning("the replay differs: " + d.String())
	u.mu.Lock()
	defer u.mu.Unlock()
	u.differences = append(u.differences, newDifference(d))
}

// listDifferences returns the differences of a replay so far.
func (u *userInterface) listDifferences() []record.Difference {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.differences)
}

// finishRun shows the end of a run and returns its exit status. It writes the records
// first. A pipe without a reader is left after a while, a terminal that is held only
// after an interruption.
func (u *userInterface) finishRun(ctx context.Context, r runner.Report, answer *outputFile) int {
	if len(r.AnswerProblems) > 0 {
		r.Answer = "" // standard output has JSON that is valid, or nothing
	}
	err := errors.Join(writeResult(answer, "answer", withNewline(r.Answer)), answer.Close())
	u.finished = true
	if u.json && r.Problem != nil {
		u.reportProblem(*r.Problem)
	}
	if !u.flush(ctx) {
		return r.ExitStatus // the trace has everything
	}
	if !u.json {
		u.render.Print(ui.Summary(r, u.colour)...)
	}
	u.render.Close()
	if !u.json {
		err = errors.Join(err, printAnswer(u.app, r.Answer))
		u.reportEnd(r)
	}
	if err != nil && (r.Reason == loop.StopAnswered || r.Answer != "") {
		reportError(u.app, record.Problem{Cause: err.Error(), Hint: "The answer is in " + r.Dir + "/report.json."})
		return exitFailed
	}
	return r.ExitStatus
}

// attach shows a session with these options, and asks its questions. Closing force ends it at
// once.
func (u *userInterface) attach(o *runner.Options, force <-chan struct{}) {
	o.Broker, o.Mirror, o.Live, o.Force = u.newBroker(), u.showRecord, u.showDelta, force
	o.Warner = func(warn func(string)) { u.warn.Store(&warn) }
}

// showEnd writes what is queued, and the notices of a session without a model.
func (u *userInterface) showEnd(ctx context.Context, r runner.Report) {
	u.finished = true
	if u.flush(ctx) {
		u.render.Close()
	}
	for _, l := range ui.Notices(r, u.colour) {
		fmt.Fprintln(u.app.stderr, l)
	}
}

// isWarning reports whether a record is about something that a person should
// know though the call succeeds.
func isWarning(r record.Record) bool {
	switch r.Kind {
	case record.KindWarning, record.KindSandboxLost, record.KindNetworkDenied, record.KindMCPServerFailed:
		return true
	case record.KindNetworkClosed:
		return record.PayloadOf[record.NetworkClosed](r).Warning() != ""
	case record.KindSandboxStarted:
		return len(record.PayloadOf[record.SandboxStarted](r).Attestation.Lost) > 0
	}
	return false
}

// reportEnd prints what went wrong with a session, if anything. A start of the
// sandbox that failed is described once: by the warning, where there was one.
func (u *userInterface) reportEnd(r runner.Report) {
	if r.Problem == nil {
		return
	}
	p := *r.Problem
	if r.Reason == loop.StopSandboxStart && u.render.Warned(p.Cause) {
		p = record.Problem{Cause: "a call needed the sandbox, which could not start: see the warning above"}
	}
	reportError(u.app, p)
}

// reportProblem shows a problem that no record has.
func (u *userInterface) reportProblem(p record.Problem) {
	u.tell.Queue(len(p.Cause), func() { reportError(u.app, p) })
}

// printAnswer writes the answer to standard output: as it is to a file or a
// pipe, and to a terminal as Markdown, made safe. JSON is not Markdown.
func printAnswer(a *app, answer string) error {
	if answer == "" {
		return nil
	}
	if a.terminal(a.stdout) {
		columns, _ := a.size()
		lines := ui.Prose(answer, columns, wantsColour(a, a.stdout))
		if json.Valid([]byte(answer)) {
			safe, _ := tools.DisplayLines(answer)
			lines = []string{safe}
		}
		answer = strings.Join(lines, "\n")
	}
	_, err := io.WriteString(a.stdout, withNewline(answer))
	return err
}

func withNewline(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// openOutput opens the file that a flag names for a result, nil where it names none.
func openOutput(path, flag, result string) (*outputFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := openOutputFile(path)
	if err != nil {
		return nil, newFailure(exitInput, err, fmt.Sprintf("the %s can't be written to %s: %v", result, path, err), "Name a file that you can write with "+flag+".")
	}
	return f, nil
}

// writeResult writes a result as it is.
func writeResult(f *outputFile, result, text string) error {
	if _, err := io.WriteString(f, text); err != nil {
		return fmt.Errorf("write %s: %w", result, err)
	}
	return nil
}

// toldFile has the facts about this machine that the user was told, and when; maxTold bounds
// it.
const (
	toldFile = "told.json"
	maxTold  = 64 << 10
	tellAt   = 24 * time.Hour
)

// untold returns the facts that the user was not told within a day, and keeps that they are
// told now. They are about a workspace, or about this machine if that is "". If it can't be
// kept, they are told again: caisson doctor tells them each time.
func (e environ) untold(workspace string, facts []string) []string {
	if len(facts) == 0 || e.stateDir() == "" {
		return facts
	}
	path, now := filepath.Join(e.stateDir(), toldFile), time.Now()
	told := map[string]time.Time{}
	if text, err := state.Read(path, maxTold); err == nil && state.Decode(text, &told) != nil {
		told = map[string]time.Time{}
	}
	var fresh []string
	for _, fact := range facts {
		if at, ok := told[workspace+"\n"+fact]; !ok || at.After(now) || now.Sub(at) >= tellAt {
			fresh = append(fresh, fact)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	for fact, at := range told {
		if now.Sub(at) >= tellAt {
			delete(told, fact)
		}
	}
	for _, fact := range fresh {
		told[workspace+"\n"+fact] = now
	}
	if text, err := json.Marshal(told); err == nil && len(text) <= maxTold {
		_ = state.Replace(path, text) // or they are told again
	}
	return fresh
}
