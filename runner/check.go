package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// CheckOptions configures the checks of a result once the model has answered. A result
// that fails is not applied. The zero value checks nothing. [Run] makes the checks; callers
// of [Open] do it themselves, with [Session.Verify].
type CheckOptions struct {
	// Format is the required form of the answer; nil accepts any text.
	Format *AnswerFormat
	// Verify verifies the result once the answer has its form.
	Verify VerifyOptions
	// Differences returns how results of tools differ from the run that is replayed; nil
	// if the models replay none. With StrictReplay, a difference fails the session.
	Differences  func() []record.Difference
	StrictReplay bool
}

// AnswerFormat is the required form of an answer.
type AnswerFormat struct {
	// Request tells the model about the form, after the task.
	Request string
	// Check returns the answer proper without any text around it, or its problems.
	Check func(answer string) (accepted string, problems []string)
}

// VerifyOptions configures the verification of a result. The zero value verifies
// nothing.
type VerifyOptions struct {
	// Command is run by sh in the workspace, and passes with exit status 0.
	Command string
	// Files is a shell pattern for files that the command writes, such as test reports;
	// "" is none. Verify returns their contents joined, at most MaxVerifyFiles bytes.
	Files string
	// Stdout receives the standard output of the command; nil discards it.
	Stdout io.Writer
}

// MaxVerifyFiles bounds the files of [VerifyOptions] in bytes.
const MaxVerifyFiles = 4 << 20

// maxVerifyOutput bounds the end of a verification's output that is kept.
const maxVerifyOutput = 16 << 10

// reasonVerify is why background commands end before a verification.
const reasonVerify = "the result is verified"

func (s *Session) finishTask(ctx context.Context) {
	if s.turns.last.Reason != loop.StopAnswered || !s.checkAnswer() || s.opts.Verify.Command == "" {
		return
	}
	v, files, err := s.Verify(ctx, s.opts.Verify)
	s.verification, s.verifyFiles = &v, files
	if cause := context.Cause(ctx); err != nil && cause != nil {
		s.turns.cancelLast(err, cause)
	}
	_ = s.events.writeRecord(v) // if it can't be recorded, the next record ends the session
}

// checkAnswer reports whether the answer has the required form. The model has one more
// turn to correct it, with the rest of the budget.
func (s *Session) checkAnswer() bool {
	f := s.opts.Format
	if f == nil {
		return true
	}
	accepted, problems := f.Check(s.turns.last.Answer)
	if len(problems) > 0 {
		s.events.recordWarning("the answer does not have the form that was asked for, and the model is asked again: " + strings.Join(problems, "; "))
		if !s.startCorrection(problems) {
			return false
		}
		accepted, problems = f.Check(s.turns.last.Answer)
	}
	s.answerProblems = problems
	if len(problems) == 0 {
		s.turns.setAnswer(accepted)
	}
	return len(problems) == 0
}

// startCorrection asks the model to correct its answer, and reports whether it answered. If
// no turn can start, it keeps the problems.
func (s *Session) startCorrection(problems []string) bool {
	now := s.turns.begun
	left, err := limits.NewSessionBreaker(s.opts.Budget, func() time.Time { return now })
	if err == nil {
		now = time.Now()
		left.Add(s.turns.used)
		err = left.Check(limits.StepRound)
	}
	if err != nil {
		s.answerProblems = problems
		return false
	}
	s.opts.Budget = left.Turn(s.opts.Budget) // no turn is running that reads it
	t, err := s.Start("That answer does not have the form that was asked for:\n\n- " + strings.Join(problems, "\n- ") + "\n\n" + s.opts.Format.Request)
	if err != nil {
		s.answerProblems = problems
		return false
	}
	return t.Report().Reason == loop.StopAnswered
}

// Verify runs a command on the result of s, which must be between turns. The command runs in
// a fresh sandbox and a session without model and caches, so that the workspace is all that
// the agent could have tampered with. In overlay and copy mode, changes by the command
// are discarded. The background commands of s end, and its sandbox is taken down. An error
// is also in the verification, which then has not passed.
func (s *Session) Verify(ctx context.Context, o VerifyOptions) (v record.Verification, files []byte, err error) {
	began := time.Now()
	v = record.Verification{Command: o.Command}
	out := &limits.Tail{Size: maxVerifyOutput}
	defer func() {
		redactor := redact.New(s.opts.Secrets)
		kept := out.String()
		v.Output, files = redactor.Text(kept), redactor.Bytes(files)
		v.OutputOmitted, v.WallMS = out.Total()-int64(len(kept)), time.Since(began).Milliseconds()
		if err != nil {
			v.Passed, v.Error = false, redactor.Text(err.Error())
		}
	}()
	verifier, err := s.openVerifier(ctx)
	if err != nil {
		return v, nil, err
	}
	v.Session = verifier.opts.Dir.Session
	result, err := verifier.Exec(ctx, UserCommand{Argv: []string{"/bin/sh", "-c", o.Command}, Stdout: io.MultiWriter(out, cmp.Or[io.Writer](o.Stdout, io.Discard)), Stderr: out})
	if err == nil && o.Files != "" {
		files, err = readVerifyFiles(ctx, verifier, o.Files)
	}
	r := verifier.Close()
	if err == nil && r.Reason == loop.StopCancelled {
		err = context.Cause(ctx)
	}
	v.ExitStatus = result.Status
	v.Passed = v.Success()
	return v, files, errors.Join(err, sessiondir.DiscardChanges(r.Dir, ""))
}

func (s *Session) openVerifier(ctx context.Context) (*Session, error) {
	forks, err := s.openForks(ctx, 1, reasonVerify, func(_ int, o *Options) {
		o.Task = "verify: " + o.Task
		o.Profiles, o.Memory, o.InstructionFiles, o.Declared, o.Tools = nil, nil, false, nil, nil
		o.Skills, o.Workers = SkillOptions{}, WorkerOptions{}
		o.Caches = CacheOptions{}
	})
	if err != nil {
		return nil, fmt.Errorf("verify result: %w", err)
	}
	return forks[0], nil
}

var errSlowFiles = errors.New("reading the reports takes longer than a minute")

// readVerifyFiles reads the files of a pattern through the sandbox. Without a match it
// returns nothing and no error.
func readVerifyFiles(ctx context.Context, s *Session, pattern string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errSlowFiles)
	defer cancel()
	w := &limits.Head{Size: MaxVerifyFiles}
	// Unquoted, $1 is split and expanded by the shell.
	const script = `for f in $1; do if [ -f "$f" ]; then cat -- "$f"; fi; done`
	_, err := s.Exec(ctx, UserCommand{Argv: []string{"/bin/sh", "-c", script, "sh", pattern}, Stdout: w})
	return w.Bytes(), err
}

// addChecks adds the results of the checks to r, and reports whether the session passed
// them.
func (s *Session) addChecks(r *Report) bool {
	r.Verification, r.VerifyFiles, r.AnswerProblems = s.verification, s.verifyFiles, s.answerProblems
	if s.opts.Differences != nil {
		r.Differences = s.opts.Differences()
		r.ReplayFailed = s.opts.StrictReplay && len(r.Differences) > 0
	}
	return (r.Verification == nil || r.Verification.Passed) && len(r.AnswerProblems) == 0 && !r.ReplayFailed
}
