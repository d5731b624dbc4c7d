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

// sigpipe is the number of SIGPIPE. By convention, a program whose reader went away
// exits with 141.
const (
	sigpipe  = 13
	exitPipe = 128 + sigpipe
)

// patience is how long the end of a run waits for a writer that makes no progress.
const patience = 30 * time.Second

// userInterface shows a run to a user, or writes its records. Its output is queued so
// that no writer blocks the session.
type userInterface struct {
	app         *app
	json        bool
	colour      bool
	interactive bool
	render      *ui.Renderer
	// out writes the records: with --json to standard output, otherwise to standard
	// error. tell writes notices to standard error. Without --json it is out.
	out, tell *ui.AsyncWriter
	// broken is called when the reader of the records has gone away.
	broken func()
	// untold returns the facts that are news to the user.
	untold func(workspace string, facts []string) []string
	// finished is set once the end was shown or abandoned.
	finished bool
	// warn records a warning, once there is a session.
	warn atomic.Pointer[func(string)]
	// ignores reports whether to ignore a difference of a replay. nil ignores none.
	ignores func(d replay.Difference) bool

	mu          sync.Mutex
	differences []record.Difference
}

func newInterface(a *app, json bool) *userInterface {
	u := &userInterface{
		app: a, json: json, broken: func() {}, untold: allFacts, out: ui.NewAsyncWriter(),
		colour:      wantsColour(a, a.stderr),
		interactive: !json && a.terminal(a.stdin) && a.terminal(a.stderr),
	}
	if u.tell = u.out; json {
		u.tell = ui.NewAsyncWriter()
	}
	u.openRenderer(ui.Options{Live: a.drawsOn(a.stderr) && !json})
	return u
}

// openRenderer makes the renderer on standard error.
func (u *userInterface) openRenderer(o ui.Options) {
	a := u.app
	o.Out, o.Colour, o.Reflow = a.stderr, u.colour, breaksLinesAnew(a.environ)
	if a.terminal(a.stderr) {
		o.Size = a.size
	}
	if !u.json && a.terminal(a.stderr) { // told facts were seen by a user
		u.untold = a.environ.untold
	}
	o.Untold = u.untold
	u.render = ui.New(o)
}

// breaksLinesAnew reports whether the terminal rewraps its lines when its width
// changes. Only the names of some that don't are known.
func breaksLinesAnew(env environ) bool {
	return env.get("TERM") != "xterm" && env.get("TERM") != "linux"
}

// isScreen reports whether the terminal is, or may be, GNU screen. tmux may use the
// same name.
func isScreen(env environ) bool {
	return strings.HasPrefix(env.get("TERM"), "screen") && (env.get("STY") != "" || env.get("TMUX") == "")
}

// close ends the interface if there was no session to finish it.
func (u *userInterface) close(ctx context.Context) {
	if !u.finished && u.flush(ctx) {
		u.render.Close()
	}
}

// flush writes the queued output and reports whether that succeeded.
func (u *userInterface) flush(ctx context.Context) bool {
	all := u.out.Close(ctx, u.app.patience, u.interactive)
	if u.tell != u.out {
		all = u.tell.Close(ctx, u.app.patience, false) && all
	}
	return all
}

// news returns the facts about this machine that the user was not told yet.
func (u *userInterface) news(facts []string) []string { return u.untold("", facts) }

func allFacts(_ string, facts []string) []string { return facts }

// defaultPreset returns the policy to use if none is named. A user who applies changes
// afterwards need not be asked about each.
func (u *userInterface) defaultPreset(appliedLater bool) string {
	switch {
	case u.interactive && appliedLater:
		return "sandboxed"
	case u.interactive:
		return "default"
	}
	return "ci"
}

// newBroker returns a broker that asks the user, or nil without a terminal.
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

// orderedApprover asks after everything that happened before is shown.
type orderedApprover struct {
	out    *ui.AsyncWriter
	person approval.Approver
}

func (a *orderedApprover) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	if err := a.out.Drain(ctx); err != nil {
		return approval.Answer{}, fmt.Errorf("ask: %w", err)
	}
	type reply struct {
		answer approval.Answer
		err    error
	}
	// The question may wait for a blocked terminal. It must not hold the call beyond
	// ctx.
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

// showRecord queues a record. It never waits.
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

// printNotice queues a notice for standard error.
func (u *userInterface) printNotice(text string) {
	safe, _ := tools.Display(text)
	u.tell.QueueOptional(len(safe), func() { u.render.Print("caisson: " + safe) })
}

// recordWarning is printNotice for warnings that belong in the records too.
func (u *userInterface) recordWarning(text string) {
	if warn := u.warn.Load(); warn != nil {
		(*warn)(text)
		return
	}
	u.printNotice(text)
}

// reportDifference reports a difference of a replay and keeps it for the report.
func (u *userInterface) reportDifference(d replay.Difference) {
	if u.ignores != nil && u.ignores(d) {
		return
	}
	u.recordWarning("the replay differs: " + d.String())
	u.mu.Lock()
	defer u.mu.Unlock()
	u.differences = append(u.differences, newDifference(d))
}

func (u *userInterface) listDifferences() []record.Difference {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.differences)
}

// finishRun shows the end of a run, after its records, and returns the exit status. It
// stops waiting for a pipe without a reader after a while, but for a blocked terminal
// only after an interruption.
func (u *userInterface) finishRun(ctx context.Context, r runner.Report, answer *outputFile) int {
	if len(r.AnswerProblems) > 0 {
		r.Answer = "" // standard output gets valid JSON or nothing
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

// attach makes o's session use this interface. Closing force ends the session at once.
func (u *userInterface) attach(o *runner.Options, force <-chan struct{}) {
	o.Broker, o.Mirror, o.Live, o.Force = u.newBroker(), u.showRecord, u.showDelta, force
	o.Warner = func(warn func(string)) { u.warn.Store(&warn) }
}

// showEnd writes the queued output, then the notices of a session without a model.
func (u *userInterface) showEnd(ctx context.Context, r runner.Report) {
	u.finished = true
	if u.flush(ctx) {
		u.render.Close()
	}
	for _, l := range ui.Notices(r, u.colour) {
		fmt.Fprintln(u.app.stderr, l)
	}
}

// isWarning reports whether a record is about something that a user should know
// although the call succeeded.
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

// reportEnd prints the session's problem, if any. It doesn't repeat a sandbox failure
// that a warning has described.
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

// reportProblem queues a problem that no record has.
func (u *userInterface) reportProblem(p record.Problem) {
	u.tell.Queue(len(p.Cause), func() { reportError(u.app, p) })
}

// printAnswer writes the answer to standard output: unchanged to a file or pipe, made
// safe and formatted as Markdown on a terminal, unless it is JSON.
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

// openOutput opens the file that a flag names for a result. It returns nil for "".
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

func writeResult(f *outputFile, result, text string) error {
	if _, err := io.WriteString(f, text); err != nil {
		return fmt.Errorf("write %s: %w", result, err)
	}
	return nil
}

// toldFile has the facts about this machine that the user was told, and when. maxTold
// bounds its size. Facts are told again after tellAt.
const (
	toldFile = "told.json"
	maxTold  = 64 << 10
	tellAt   = 24 * time.Hour
)

// untold returns the facts that the user was not told within a day, and records that
// they are told now. They are about a workspace, or about this machine if that is "".
// If they can't be recorded, they are told again.
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
		_ = state.Replace(path, text) // if that fails, they are told again
	}
	return fresh
}
