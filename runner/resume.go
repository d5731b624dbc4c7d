package runner

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/history"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// ResumeReason tells why a session can't be resumed.
type ResumeReason string

// The reasons.
const (
	ResumeDamaged        ResumeReason = "damaged"         // its records were changed
	ResumeOtherWorkspace ResumeReason = "other_workspace" // Was and Now are the paths, equal if another directory has the path
	ResumeOtherMode      ResumeReason = "other_mode"      // Was and Now are the workspace's modes
	ResumeOtherTarget    ResumeReason = "other_target"    // Was and Now are the workspace's paths in the sandbox
	ResumePartlyApplied  ResumeReason = "partly_applied"  // some of its changes were applied
	ResumeApplying       ResumeReason = "applying"        // its changes are in use, for example by an apply
	ResumeNoModel        ResumeReason = "no_model"        // the session or the options have a model, but not both
	ResumeNothing        ResumeReason = "nothing"         // the last turn was answered
	ResumeNoMessage      ResumeReason = "no_message"      // the records lack the last turn's message
)

// ResumeError reports that a session can't be resumed.
type ResumeError struct {
	Reason   ResumeReason
	Session  string
	Was, Now string
	Err      error
}

func (e *ResumeError) Error() string {
	text := map[ResumeReason]string{
		ResumeOtherMode:     fmt.Sprintf("it began in %s mode, and %s is asked for", e.Was, e.Now),
		ResumeOtherTarget:   fmt.Sprintf("its workspace was at %s in the sandbox, and %s is asked for", e.Was, e.Now),
		ResumePartlyApplied: "a part of its changes was applied",
		ResumeApplying:      "its changes are in use",
		ResumeNoModel:       "a session without a model can't go on with one, or the other way around",
		ResumeNothing:       "its last turn has its answer",
		ResumeNoMessage:     "the message of its last turn is not in the records",
	}[e.Reason]
	switch {
	case e.Reason == ResumeOtherWorkspace && e.Was == e.Now:
		text = "another directory is at " + e.Was + " now"
	case e.Reason == ResumeOtherWorkspace:
		text = fmt.Sprintf("it works on %s, not on %s", e.Was, e.Now)
	case e.Reason == ResumeDamaged:
		text = e.Err.Error()
	}
	return "session " + e.Session + " can't go on: " + text
}

// Unwrap returns the cause.
func (e *ResumeError) Unwrap() error { return e.Err }

// resumption is the past of a resumed session.
type resumption struct {
	*history.Past

	// changes is the state of the layers of an overlay or a copy; they still exist if it is
	// [overlay.Kept]. It is "" in bind mode.
	changes overlay.State
}

// isOpened reports whether the model has got all messages that open the session.
func (p *resumption) isOpened() bool {
	return p != nil && len(p.Messages) > 0 && !(p.Unfinished() && p.Last.Start == 0 && !p.Last.Asked)
}

func (p *resumption) lastHandle() int {
	if p == nil {
		return 0
	}
	return p.Handles
}

func (p *resumption) hasChanges() bool { return p != nil && p.changes == overlay.Kept }

// reopenOverlay returns the tracker of the session's kept changes.
func (p *resumption) reopenOverlay(o tracker.Options) (tracker.Tracker, error) {
	t, ended, err := tracker.ReopenOverlay(o)
	reason := map[error]ResumeReason{overlay.ErrBusy: ResumeApplying, overlay.ErrPartlyApplied: ResumePartlyApplied, overlay.ErrOther: ResumeOtherWorkspace}
	for cause, reason := range reason {
		if errors.Is(err, cause) {
			return nil, &ResumeError{Reason: reason, Session: o.Session, Was: o.Path, Now: o.Path, Err: err}
		}
	}
	if err != nil {
		return nil, &state.DirError{Path: o.Dir, Reason: "can't hold the layers of an overlay: " + err.Error(), Err: err}
	}
	p.changes = ended
	return t, nil
}

// lastMessage returns the message of the last turn, or "" if unknown.
func (p *resumption) lastMessage() string {
	if p.Last != nil {
		for _, m := range p.Messages[p.Last.Start:] {
			if m.Role == loop.RoleUser && m.Blocks[0].Text != nil && !isSandboxNotice(m) {
				return m.Blocks[0].Text.Text
			}
		}
	}
	if p.Turns > 1 || strings.HasPrefix(p.Created.Client, "http:") { // for a server's clients, Task is a name and not a message
		return ""
	}
	return p.Created.Task
}

func (p *resumption) checkContinued() ResumeReason {
	switch {
	case p.Last != nil && (p.Last.Direct || p.Last.Ended && p.Last.Reason == loop.StopAnswered), p.Last == nil && p.lastMessage() == "":
		return ResumeNothing
	case (p.Last == nil || !p.Last.Ended) && p.lastMessage() == "":
		return ResumeNoMessage
	}
	return ""
}

// readPast reads the records of a resumed session, and refuses options that don't match
// them.
func readPast(o Options) (*resumption, error) {
	past, err := history.Read(o.Dir.Path)
	if err != nil {
		return nil, &ResumeError{Reason: ResumeDamaged, Session: o.Dir.Session, Err: err}
	}
	fail := func(reason ResumeReason, was, now string) (*resumption, error) {
		return nil, &ResumeError{Reason: reason, Session: o.Dir.Session, Was: was, Now: now}
	}
	was := past.Created
	id := overlay.IdentifyDir(o.Workspace.Dir)
	switch {
	case was.Workspace != o.Workspace.Path:
		return fail(ResumeOtherWorkspace, was.Workspace, o.Workspace.Path)
	case was.WorkspaceID != "" && id != "" && was.WorkspaceID != id:
		return fail(ResumeOtherWorkspace, was.Workspace, was.Workspace)
	case was.WorkspaceMode != o.workspaceMode():
		return fail(ResumeOtherMode, was.WorkspaceMode, o.workspaceMode())
	case was.WorkspaceTarget != o.mountPoint():
		return fail(ResumeOtherTarget, was.WorkspaceTarget, o.mountPoint())
	case (was.Model == loop.ModelInfo{}) != (len(o.Profiles) == 0):
		return fail(ResumeNoModel, "", "")
	}
	p := &resumption{Past: past}
	if reason := p.checkContinued(); reason != "" && o.continues {
		return fail(reason, "", "")
	}
	return p, nil
}

func (s *Session) restorePast() {
	p := s.past
	if p == nil {
		return
	}
	s.turns.restore(p)
	s.events.restorePast(p.Past)
	for _, f := range s.opts.Profiles {
		if m, ok := f.Model.(interface{ Skip(answers int) }); ok { // it replays a recording
			m.Skip(p.Answers[f.Model.Info().String()])
		}
	}
}

func (j *eventRecorder) restorePast(p *history.Past) {
	j.created, j.tally.denials = p.CreatedID, p.Denials
	if t := p.Last; t != nil && !t.Ended {
		j.turn, j.turnRec, j.answer, j.calls = t.ID, t.Record, t.Answer, t.Calls
		j.tally.modelCalls, j.tally.toolCalls = t.ModelCalls, t.ToolCalls
	}
}

// writeResumed records session.resumed with the settings in created, then a result for each
// interrupted call.
func (s *Session) writeResumed(created record.SessionCreated) error {
	p := s.past
	r := record.SessionResumed{
		SessionCreated: created, Interrupted: record.NonNil(loop.UnansweredCalls(s.turns.history)), TornBytes: p.Torn, Changes: string(p.changes),
	}
	if p.Unfinished() {
		r.Unfinished = p.Last.ID
	}
	if err := s.events.writeRecord(r); err != nil {
		return err
	}
	note := describeResumed(s.opts, p)
	if !p.Unfinished() {
		s.prompt.notice = noticeOf(note)
		return nil
	}
	had := len(s.turns.history)
	var err error
	if s.turns.history, err = loop.AnswerInterrupted(s.turns.history, p.Last.EndedCalls, note, s.events.loopEvent); err != nil {
		return err
	}
	if len(s.turns.history) == had && p.mustTell(s.opts) {
		s.prompt.notice = noticeOf(note)
	}
	if !p.Last.Direct {
		return nil
	}
	s.turns.history = s.turns.history[:p.Last.Start] // it was the user's, so the model is not told of it
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	return s.turns.abandonUnfinished()
}

// mustTell reports whether the model must hear of the fresh sandbox even if no call was
// interrupted.
func (p *resumption) mustTell(o Options) bool {
	return p.Ran && (len(p.Background) > 0 || o.Mode == sandbox.ModeCopy || p.isGone())
}

func (p *resumption) isGone() bool {
	return p.changes != "" && p.changes != overlay.Kept && p.changes != overlay.Empty
}

const resumeNotice = "The session goes on"

const settleNotice = "Since the last message "

func isSandboxNotice(m loop.Message) bool {
	if m.Role != loop.RoleUser || m.Blocks[0].Text == nil {
		return false
	}
	text, ok := strings.CutPrefix(m.Blocks[0].Text.Text, loop.NoticePrefix)
	return ok && (strings.HasPrefix(text, resumeNotice) || strings.HasPrefix(text, settleNotice))
}

// Recap summarises a resumed session for a person, without secrets.
type Recap struct {
	// Message is the last turn's message, and Answer the model's answer to it, or "".
	Message, Answer string
	// Unfinished reports that the turn did not end: [Session.Continue] resumes it.
	Unfinished bool
	// Turns counts the turns, and Used is their usage.
	Turns int
	Used  limits.Usage
}

// Recap returns the recap of a resumed session, or a zero Recap for any other. Call it before
// the next turn begins.
func (s *Session) Recap() Recap {
	p := s.past
	if p == nil {
		return Recap{}
	}
	unfinished := s.turns.unfinishedTurn()
	r := Recap{Message: p.lastMessage(), Unfinished: unfinished != nil, Turns: p.Turns, Used: p.Used}
	if r.Message == continueMessage {
		r.Message = "" // no person wrote it
	}
	switch {
	case p.Last == nil:
	case unfinished != nil && p.Turns == 1:
		r.Used = unfinished.Used
	case unfinished != nil:
		r.Used = p.Used.Plus(unfinished.Used)
	case p.Last.Reason == loop.StopAnswered && len(p.Messages) > p.Last.Start:
		if last := p.Messages[len(p.Messages)-1]; last.Role == loop.RoleAssistant {
			for _, b := range last.Blocks {
				if b.Text != nil {
					r.Answer += b.Text.Text
				}
			}
		}
	}
	return r
}

// describeResumed tells the model what the fresh sandbox has, or returns "" if none ran
// before.
func describeResumed(o Options, p *resumption) string {
	if !p.Ran || len(p.Messages) == 0 {
		return ""
	}
	files := "files of the workspace are kept"
	switch {
	case p.changes == overlay.Applied:
		files = "the changes so far were applied to the user's workspace, which may have changed since"
	case p.isGone():
		files = "the changes so far were discarded, and files of the workspace are as they were without them"
	case o.Mode == sandbox.ModeCopy && p.changes == overlay.Kept:
		files = "files of the workspace are back to what they were when changes were collected last, which may be before the last commands and changes of files"
	}
	text := resumeNotice + " in a fresh sandbox: " + files + "; /tmp, the home directory and running programs are gone."
	if n := len(p.Background); n > 0 {
		text += fmt.Sprintf(" %s in the background ended.", limits.FormatCount(n, "command"))
	}
	return text
}

// abandonUnfinished ends the unfinished turn as cancelled, if any. The caller holds v.mu.
func (v *turns) abandonUnfinished() error {
	t := v.unfinished
	if t == nil {
		return nil
	}
	v.unfinished = nil
	v.addUsed(t.Used)
	v.breaker.Add(t.Used)
	return v.events.loopEvent(loop.TurnEnded{Turn: t.ID, Reason: loop.StopCancelled, Usage: t.Used, Wall: t.Elapsed})
}

func noticeOf(note string) boundary.Text {
	if note == "" {
		return ""
	}
	return loop.NoticePrefix + boundary.Text(note)
}

// continueMessage begins a turn that continues one without an answer.
const continueMessage = loop.NoticePrefix + "Go on with the task."

// Continue is [Session.ContinueFor] for [Options].User without lower limits.
func (s *Session) Continue() (*Turn, error) { return s.ContinueFor(s.opts.User, TurnOptions{}) }

// ContinueFor continues the last turn of a resumed session. A turn whose process was killed
// is completed. After a turn that ended without an answer, for example at a limit, a new
// turn asks the model to go on. The turn offers the tools that user may use, whoever began
// it. The options are as for [Session.StartFor]. Errors wrap a [ResumeError] or are the
// ones of [Session.StartFor].
func (s *Session) ContinueFor(user User, o TurnOptions) (*Turn, error) {
	p := s.past
	if p == nil || s.turns.haveBegun() {
		return nil, fmt.Errorf("continue turn: %w", &ResumeError{Reason: ResumeNothing, Session: s.opts.Dir.Session})
	}
	if reason := p.checkContinued(); reason != "" {
		return nil, fmt.Errorf("continue turn: %w", &ResumeError{Reason: reason, Session: s.opts.Dir.Session})
	}
	switch {
	case s.turns.unfinishedTurn() != nil:
		return s.continueTurn(user, o.Budget)
	case p.Last == nil:
		return s.StartFor(user, p.lastMessage(), o)
	}
	return s.StartFor(user, continueMessage, o)
}

func (s *Session) continueTurn(user User, lower limits.Budget) (*Turn, error) {
	budget, err := lowerBudget(s.opts, lower)
	if err != nil {
		return nil, fmt.Errorf("continue turn: %w", err)
	}
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	if err := s.turns.checkIdle(); err != nil {
		return nil, fmt.Errorf("continue turn: %w", err)
	}
	was := s.turns.unfinished
	if was == nil || len(s.opts.Profiles) == 0 {
		return nil, fmt.Errorf("continue turn: %w", &ResumeError{Reason: ResumeNothing, Session: s.opts.Dir.Session})
	}
	if err := s.turns.breaker.Check(limits.StepToolCall); err != nil {
		return nil, fmt.Errorf("continue turn: %w: %w", ErrOver, err)
	}
	s.turns.unfinished = nil
	t := &Turn{ID: was.ID, begun: time.Now().Add(-was.Elapsed)}
	s.launchTurn(t, user, func(o *loop.Options) {
		s.configureModel(o)
		o.Budget = s.turns.breaker.Turn(budget)
		o.Messages = s.past.restOfOpening(&s.prompt)
		o.Unfinished = &loop.Unfinished{Start: was.Start, Used: was.Used}
	})
	return t, nil
}

// restOfOpening returns the opening messages that the unfinished turn still lacks, plus any
// notice in c, which it clears.
func (p *resumption) restOfOpening(c *promptContext) []loop.Message {
	var messages []loop.Message
	if t := p.Last; !t.Asked {
		c := *c
		c.notice = ""
		messages = c.openingMessages(p.lastMessage(), t.Start == 0)
		had := t.Opened
		for _, m := range p.Messages[t.Start:] {
			if m.Role == loop.RoleSystem || isSandboxNotice(m) {
				had--
			}
		}
		messages = messages[min(max(had, 0), len(messages)):]
	}
	if c.notice != "" {
		messages = append(messages, loop.NewText(loop.RoleUser, c.notice))
		c.notice = ""
	}
	return messages
}
