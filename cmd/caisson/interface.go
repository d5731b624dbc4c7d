package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/caisson-run/caisson/cmd/caisson/internal/terminal"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

// sigpipe is the number of SIGPIPE: the status of a program whose reader went
// away is 141 by custom.
const sigpipe = 13

// userInterface is how a run speaks: to a person, or by records.
type userInterface struct {
	deps        deps
	json        bool
	colour      bool
	interactive bool
	render      *terminal.Renderer
	broken      func()
	lost        bool
}

func newInterface(d deps, env environ, json bool) *userInterface {
	live := d.terminal(d.stderr) && env.get("TERM") != "dumb" && env.get("TERM") != ""
	u := &userInterface{
		deps: d, json: json, broken: func() {},
		colour:      live && env.get("NO_COLOR") == "",
		interactive: !json && d.terminal(d.stdin) && d.terminal(d.stderr),
	}
	u.render = terminal.New(terminal.Options{Out: d.stderr, Live: live && !json, Colour: u.colour, Width: d.width})
	return u
}

func (u *userInterface) close() { u.render.Close() }

// preset is the policy where none is named: a person can be asked, or not.
func (u *userInterface) preset() string {
	if u.interactive {
		return "default"
	}
	return "ci"
}

func (u *userInterface) approver() tools.Approver {
	if !u.interactive {
		return nil
	}
	return &terminal.Prompt{In: u.deps.stdin, Out: u.render, Discard: u.deps.discard}
}

// record passes a record on. It is called by one goroutine at a time.
func (u *userInterface) record(r runner.Record, line []byte) {
	if !u.json {
		u.render.Record(r)
		return
	}
	if u.lost {
		return
	}
	if _, err := u.deps.stdout.Write(append(slices.Clip(line), '\n')); err != nil {
		u.lost = true
		u.broken()
	}
}

func (u *userInterface) live(d runner.Delta) {
	if !u.json {
		u.render.Delta(d)
	}
}

// say tells a person something; with --json it goes to standard error all the same.
func (u *userInterface) say(text string) { u.render.Print("caisson: " + text) }

func (u *userInterface) note(text string) {
	safe, _ := tools.Display(text)
	u.say(safe)
}

func (u *userInterface) differs(text string) { u.note("the replay differs: " + text) }

// finish shows the end of a run and gives its exit status.
func (u *userInterface) finish(r runner.Report, answer *answerFile) int {
	u.render.Close()
	if !u.json {
		for _, l := range terminal.Summary(r, u.colour) {
			fmt.Fprintln(u.deps.stderr, l)
		}
	}
	err := errors.Join(answer.write(r.Answer), answer.close())
	if !u.json {
		err = errors.Join(err, printAnswer(u.deps.stdout, r.Answer, u.deps.terminal(u.deps.stdout)))
	}
	if r.Problem != nil {
		report(u.deps.stderr, &runner.Error{Problem: *r.Problem})
	}
	if err != nil && r.Reason == loop.StopAnswered {
		report(u.deps.stderr, &runner.Error{Problem: runner.Problem{Cause: err.Error(), Mend: "The answer is in " + r.Dir + "/report.json."}})
		return runner.ExitFailed
	}
	return r.ExitStatus
}
