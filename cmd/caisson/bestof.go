package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

const maxAttempts = 16

const (
	verdictPassed   = "passed"
	verdictFailed   = "failed"
	verdictNoAnswer = "no answer"
)

// attempt is one attempt at a task, as --json writes it.
type attempt struct {
	Number  int    `json:"attempt"`
	Session string `json:"session"`
	Verdict string `json:"verdict"`
	// Judge is the judge's session. Score is the number in its last line, and Said that
	// line.
	Judge       string          `json:"judge,omitempty"`
	JudgeStatus *int            `json:"judge_status,omitempty"`
	Score       *float64        `json:"score,omitempty"`
	Said        string          `json:"said,omitempty"`
	StopReason  loop.StopReason `json:"stop_reason"`
	Tokens      int64           `json:"tokens"`
	CostUSD     string          `json:"cost_usd"`
	WallMS      int64           `json:"wall_ms"`
	Kept        bool            `json:"kept"`

	report runner.Report
}

type bestOf struct {
	// Kept is the session whose changes are kept or applied, or "".
	Kept     string     `json:"kept"`
	Attempts []*attempt `json:"attempts"`
}

// checkBestOf checks --best-of and --judge. It sets the overlay mode if none is given.
func (f *runFlags) checkBestOf() error {
	switch {
	case f.Attempts == 0 && f.Judge == "":
		return nil
	case f.Attempts < 1 || f.Attempts > maxAttempts:
		return newUsageError("--judge needs --best-of with 1 to %d attempts, got %d", maxAttempts, f.Attempts)
	case strings.TrimSpace(f.Judge) == "":
		return newUsageError("--best-of needs --judge with the command that judges an attempt")
	}
	return f.keepChanges("--best-of needs")
}

// runBestOf makes several attempts at a task, one after the other, and keeps the best.
func runBestOf(ctx context.Context, a *app, s *sessionBuilder, f runFlags, text string, force <-chan struct{}) (err error) {
	answer, patch, err := f.openOutputs()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, answer.Close(), patch.Close()) }()
	var all bestOf
	var best *attempt
	for i := range f.Attempts {
		tried, failed := runAttempt(ctx, a, s, f, text, i+1, force)
		if tried != nil {
			all.Attempts = append(all.Attempts, tried)
			best = betterAttempt(best, tried)
		}
		err = cmp.Or(interruption(ctx), failed)
		if err != nil {
			best = nil
			break
		}
	}
	by := "" // so that caisson diff and apply find the best attempt
	if best == nil {
		by = runner.LocalUser()
	}
	for _, t := range all.Attempts {
		if t == best {
			t.Kept, all.Kept = true, t.Session
		} else {
			err = errors.Join(err, sessiondir.DiscardChanges(t.report.Dir, by))
		}
	}
	if f.JSON {
		err = errors.Join(err, writeJSON(a.stdout, all))
	} else if len(all.Attempts) > 0 {
		err = errors.Join(err, all.writeTable(a))
	}
	switch {
	case err != nil:
		return err
	case best == nil:
		return newFailure(exitFailed, nil, fmt.Sprintf("none of %d attempts passed the judge, and nothing of them is kept", len(all.Attempts)),
			"caisson trace show with a session of the table shows what an attempt did.")
	}
	return finishBest(ctx, a, f, best, answer, patch)
}

// betterAttempt returns next if it passed and scored more than best, which may be nil.
// Otherwise it returns best.
func betterAttempt(best, next *attempt) *attempt {
	if next.Verdict != verdictPassed || best != nil && best.score() >= next.score() {
		return best
	}
	return next
}

// score returns the score of an attempt. No score is the lowest one.
func (t *attempt) score() float64 {
	if t.Score == nil {
		return math.Inf(-1)
	}
	return *t.Score
}

// runAttempt makes and judges one attempt. It returns an error only if the other
// attempts would fail too.
func runAttempt(ctx context.Context, a *app, s *sessionBuilder, f runFlags, text string, number int, force <-chan struct{}) (*attempt, error) {
	u := newInterface(a, f.JSON)
	defer u.close(ctx)
	u.printNotice(fmt.Sprintf("attempt %d of %d", number, f.Attempts))
	defer s.endSession()
	o, err := s.sessionOptions(ctx, text, u)
	if err != nil {
		return nil, err
	}
	u.attach(&o, force)
	if f.JSON {
		o.Mirror, o.Live = nil, nil
	}
	// Attempts must not see each other's results.
	o.Memory = nil
	if o.Caches.Use != caches.None {
		o.Caches.Use = caches.Frozen
	}
	session, err := runner.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	t := &attempt{Number: number, Session: o.Dir.Session, Verdict: verdictNoAnswer}
	turn, err := session.Start(o.Task)
	if err == nil && turn.Report().Reason == loop.StopAnswered {
		err = judgeAttempt(ctx, session, f.Judge, t)
	} else {
		err = nil // it is in the report
	}
	t.report = session.Close()
	r := &t.report
	t.StopReason, t.Tokens, t.CostUSD, t.WallMS = r.Reason, r.Usage.Tokens(), r.CostUSD, r.WallMS
	if err == nil && t.Verdict == verdictNoAnswer {
		switch u.reportEnd(*r); r.ExitStatus {
		case exitAuth, exitSandboxStart, exitFatal:
			err = exitWith(r.ExitStatus)
		}
	}
	return t, err
}

// judgeTail bounds the part of a judge's output that is kept.
const judgeTail = 4 << 10

// judgeAttempt runs the judge in a fresh sandbox on the result of an attempt, and drops
// the judge's changes.
func judgeAttempt(ctx context.Context, session *runner.Session, command string, t *attempt) error {
	out := &limits.Tail{Size: judgeTail}
	v, _, err := session.Verify(ctx, runner.VerifyOptions{Command: command, Stdout: out})
	if err != nil {
		return fmt.Errorf("judge attempt %d: %w", t.Number, err)
	}
	status := v.Code
	if v.Signal > 0 {
		status = 128 + v.Signal
	}
	t.Judge, t.JudgeStatus, t.Verdict = v.Session, &status, verdictFailed
	if v.Passed {
		t.Verdict = verdictPassed
	}
	t.Said = lastLine(out.String())
	if n, err := strconv.ParseFloat(t.Said, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		t.Score = &n
	}
	return nil
}

// lastLine returns the last non-empty line, shortened and safe to show.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	safe := makeSafe(strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]))
	const most = 200
	if len(safe) > most {
		safe = strings.ToValidUTF8(safe[:most], "")
	}
	return safe
}

func (b *bestOf) writeTable(a *app) error {
	return table[*attempt]{
		titles: []string{"ATTEMPT", "VERDICT", "SCORE", "TOKENS", "COST", "TIME", "SESSION", "JUDGE SAID"},
		cells: func(t *attempt) []string {
			verdict, score := t.Verdict, "-"
			if t.Kept {
				verdict += ", kept"
			}
			if t.Score != nil {
				score = strconv.FormatFloat(*t.Score, 'g', -1, 64)
			}
			cost := t.CostUSD
			if t.report.Usage.CostMicroUSD != nil {
				cost = "$" + cost
			}
			took := (time.Duration(t.WallMS) * time.Millisecond).Round(100 * time.Millisecond)
			return []string{strconv.Itoa(t.Number), verdict, score, strconv.FormatInt(t.Tokens, 10), cost, took.String(), t.Session, cmp.Or(t.Said, "-")}
		},
	}.write(a, a.stderr, b.Attempts)
}

// finishBest writes the answer and the diff of the best attempt. With --apply, it
// applies its changes.
func finishBest(ctx context.Context, a *app, f runFlags, best *attempt, answer, patch *outputFile) error {
	r := best.report
	if err := errors.Join(writeResult(answer, "answer", withNewline(r.Answer)), writeResult(patch, "patch", r.Patch)); err != nil {
		return err
	}
	if !f.JSON {
		a.printLines(ui.Summary(r, wantsColour(a, a.stderr))...)
		if err := printAnswer(a, r.Answer); err != nil {
			return err
		}
	}
	if !f.Apply || r.Unapproved > 0 || r.ExitStatus != exitDone || r.Overlay == nil || r.Overlay.Changes == 0 {
		return exitWith(r.ExitStatus)
	}
	k, err := openKept(a, best.Session, f.Workspace)
	if err != nil {
		return err
	}
	defer func() { _ = k.close() }()
	return k.apply(ctx, applyFlags{})
}
