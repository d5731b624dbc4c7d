package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// fakeBackground records the commands that it starts.
type fakeBackground struct {
	begun []Command
	err   error
	end   Ended
	was   bool
}

func (f *fakeBackground) Begin(_ context.Context, cmd Command) (string, error) {
	f.begun = append(f.begun, cmd)
	return "background-1", f.err
}

func (f *fakeBackground) End(_ context.Context, handle string) (Ended, bool, error) {
	if handle != "background-1" {
		return Ended{}, false, ErrNoOutput
	}
	return f.end, f.was, nil
}

func (f *fakeBackground) Type(context.Context, string, Typing) (Shown, error) {
	return Shown{}, ErrNoTerminal
}

func (f *fakeBackground) Typed(string) Typed { return Typed{} }

var noRunner = runnerFunc(func(context.Context, Command) (Result, error) {
	return Result{}, errors.New("it ran in the foreground")
})

func TestBackgroundReturnsAHandle(t *testing.T) {
	for input, timeout := range map[string]time.Duration{
		`{"command":"serve","background":true}`:                                                     0,
		`{"command":"serve","run_in_background":true,"timeout_seconds":5,"description":"a server"}`: 5 * time.Second,
		`{"cmd":"serve","is_background":true}`:                                                      0,
	} {
		f := &fakeBackground{}
		d, _ := dispatcherFor(t, noRunner, Options{Background: f})
		got, err := d.Round(t.Context(), shellCalls(input))
		if err != nil || got[0].IsError || !strings.Contains(resultText(got[0]), "background-1") {
			t.Fatalf("%s: %v %q", input, err, resultText(got[0]))
		}
		if len(f.begun) != 1 || f.begun[0].Script != "serve" || f.begun[0].Timeout != timeout || f.begun[0].CallID != "tu_1" {
			t.Errorf("%s: begun %+v", input, f.begun)
		}
		if got[0].Output.Metadata["background"] != "background-1" || got[0].Output.Command != "serve" {
			t.Errorf("%s: output %+v", input, got[0].Output)
		}
	}
}

// TestBackgroundIsOfferedWhereItIs checks that a tool without Options.Background
// doesn't accept the argument.
func TestBackgroundIsOfferedWhereItIs(t *testing.T) {
	d, _ := dispatcherFor(t, noRunner, Options{})
	got, err := d.Round(t.Context(), shellCalls(`{"command":"serve","background":true}`))
	if err != nil || got[0].Class != tools.ErrorValidation {
		t.Errorf("%v %+v", err, got)
	}
}

func TestBackgroundsFull(t *testing.T) {
	d, _ := dispatcherFor(t, noRunner, Options{Background: &fakeBackground{err: fmt.Errorf("%w: 8 run", ErrTooMany)}})
	got, err := d.Round(t.Context(), shellCalls(`{"command":"serve","background":true}`))
	if err != nil || !got[0].IsError || !strings.Contains(resultText(got[0]), "Too many background commands: 8 run. End one with shell_kill first.") {
		t.Errorf("%v %q", err, resultText(got[0]))
	}
}

func TestKill(t *testing.T) {
	for name, c := range map[string]struct {
		end     Ended
		was     bool
		handle  string
		want    []string
		success bool
	}{
		"terminated": {
			end: Ended{Result: Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}, Wall: 3 * time.Second}}, Bytes: 7}, success: true,
			want: []string{"background-1 was ended: killed by signal 15 (SIGTERM) (cancelled) after 3 s\n", "Nothing of it is left.", "It wrote 7 bytes"},
		},
		"forced": {
			end: Ended{Result: Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}, Kill: sandbox.KillReport{Killed: 2}}}}, success: true,
			want: []string{"2 processes did not stop when asked and had to be killed."},
		},
		"unkillable": {
			end: Ended{Result: Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}, Kill: sandbox.KillReport{Left: 1}}}}, want: []string{"1 process could not be killed."},
		},
		"ended": {end: Ended{Result: Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 3}}}}, was: true, want: []string{"had ended before: exit code 3"}, success: true},
		"lost":  {end: Ended{Lost: true}, was: true, want: []string{"lost with its sandbox", "the sandbox it ran in is gone"}, success: true},
		"other": {handle: "x", want: []string{`no background command with the handle "x"`}},
	} {
		factory := NewKill(Options{Background: &fakeBackground{end: c.end, was: c.was}})
		if c.handle == "" {
			c.handle = "background-1"
		}
		raw, err := json.Marshal(map[string]string{"handle": c.handle})
		if err != nil {
			t.Fatal(err)
		}
		out, err := factory().Execute(t.Context(), &tools.Call{Input: raw})
		said := ""
		if own, ok := errors.AsType[*tools.Error](err); ok {
			said = own.Message
		} else if err == nil {
			said = out.Content[0].Text
		}
		for _, want := range c.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q lacks %q", name, said, want)
			}
		}
		if out.Success != c.success {
			t.Errorf("%s: success %t", name, out.Success)
		}
		if name == "unkillable" && strings.Contains(said, "Nothing of it is left") {
			t.Errorf("%s: %q", name, said)
		}
	}
	if def := NewKill(Options{Background: &fakeBackground{}, Grace: 7 * time.Second})().Definition(); def.Class != tools.ClassExecute || def.Runs != tools.PlaceSandbox || def.Timeout <= 7*time.Second+30*time.Second {
		t.Errorf("definition %+v", def)
	}
}

// runningOutput is the output of a running command, of which only the beginning is
// stored.
type runningOutput struct{}

func (runningOutput) Output(string) (Kept, error) {
	return Kept{
		ReaderAt: strings.NewReader("first\n"), Closer: io.NopCloser(nil), Size: 6, Total: 1 << 30,
		State: "running for 3s", Last: []byte("…one\ntwo\nthree\n"),
	}, nil
}

func TestOutputOfWhatRuns(t *testing.T) {
	for input, want := range map[string][2]string{
		`{"handle":"background-1"}`:                         {"[background-1: running for 3s; 1073741824 bytes, of which the first 6 are kept; lines 1 to 1, the end]", "first\n"},
		`{"handle":"background-1","tail":2}`:                {"the last 10 bytes so far, which are not kept]", "two\nthree\n"},
		`{"handle":"background-1","tail":6,"unit":"bytes"}`: {"the last 6 bytes so far", "three\n"},
	} {
		head, text, _ := pageOf(t, runningOutput{}, tools.DefaultResultBytes, input)
		if !strings.Contains(head, want[0]) || text != want[1] {
			t.Errorf("%s: %s\n%q", input, head, text)
		}
	}
}
