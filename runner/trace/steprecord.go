package trace

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// known takes a record of a kind that this program knows; false is that it
// doesn't, or can't read the payload.
func (s *Steps) known(r record.Record) bool {
	switch r.Kind {
	case record.KindSessionCreated:
		return with(r, func(p record.SessionCreated) {
			for _, t := range p.Tools {
				s.classes[t.Name] = t.Class
			}
		})
	case record.KindTurnStarted:
		s.turn++
		s.turnAt = r.Time
		s.say(r, StepTurn, "", false)
		return true
	case record.KindMessage:
		return with(r, func(p record.Message) { s.message(r, p) })
	case record.KindModelCallStarted:
		return with(r, func(p record.ModelCallStarted) {
			step := s.step(r, StepModel, "", false)
			step.Model = &ModelCall{Round: p.Round, Model: p.Model}
			s.asked = &step
		})
	case record.KindModelCallCompleted:
		return with(r, func(p record.ModelCallCompleted) {
			s.answered(r, func(m *ModelCall) {
				m.Round, m.LatencyMS, m.Usage, m.Finish = p.Round, p.LatencyMS, p.Usage, p.Finish
			})
		})
	case record.KindModelCallFailed:
		return with(r, func(p record.ModelCallFailed) {
			s.answered(r, func(m *ModelCall) { m.Round, m.Error = p.Round, cut(string(p.Class)+": "+p.Message, maxText) })
		})
	case record.KindTurnCompleted:
		return with(r, func(p record.TurnCompleted) {
			s.turnEnd(r, string(p.Reason), p.Reason != loop.StopAnswered)
		})
	case record.KindTurnCancelled:
		return with(r, func(p record.TurnCancelled) {
			reason := p.Reason
			if p.Client != "" {
				reason += " by " + cut(p.Client, 200)
			}
			s.turnEnd(r, reason, true)
		})
	case record.KindWarning:
		return with(r, func(p record.Warning) { s.say(r, StepWarning, p.Message, false) })
	case record.KindBudgetWarning:
		return with(r, func(p record.BudgetWarning) {
			s.say(r, StepWarning, p.String(), false)
		})
	case record.KindSessionEnded:
		return with(r, func(p record.SessionEnded) {
			s.Close()
			s.say(r, StepEnd, endText(p), p.ExitStatus != runner.ExitDone)
		})
	}
	return s.toolKnown(r) || s.sandboxKnown(r)
}

func endText(p record.SessionEnded) string {
	text := fmt.Sprintf("%s, exit status %d", p.Reason, p.ExitStatus)
	if p.Problem != nil {
		text += ": " + p.Problem.Cause
	}
	if p.ChangedCount.Files > 0 {
		text += "; " + p.ChangedCount.String()
	}
	return text
}

// answered completes the model call that was begun last.
func (s *Steps) answered(r record.Record, fill func(m *ModelCall)) {
	step := s.step(r, StepModel, "", false)
	step.Model = &ModelCall{}
	if s.asked != nil {
		step.Start, step.Model = s.asked.Start, s.asked.Model
		s.asked = nil
	}
	fill(step.Model)
	step.Failed = step.Model.Error != ""
	s.visit(step)
}

func (s *Steps) turnEnd(r record.Record, reason string, failed bool) {
	s.Close()
	step := s.step(r, StepTurnEnd, reason, failed)
	if !s.turnAt.IsZero() {
		step.Start = s.turnAt
	}
	s.visit(step)
}

// message takes a message apart.
func (s *Steps) message(r record.Record, m record.Message) {
	kinds := map[loop.Role]StepKind{loop.RoleSystem: StepSystem, loop.RoleUser: StepUser, loop.RoleAssistant: StepAssistant}
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			if kind, ok := kinds[m.Role]; ok && strings.TrimSpace(b.Text.Text) != "" {
				s.say(r, kind, b.Text.Text, false)
			}
		case b.Thinking != nil:
			s.say(r, StepThinking, b.Thinking.Text, false)
		case b.ToolUse != nil:
			c := s.call(r, b.ToolUse.ID, b.ToolUse.Name)
			c.Input = cut(compact(b.ToolUse.Input), maxText)
			if b.ToolUse.InputError != "" {
				c.Input = cut(b.ToolUse.Raw, maxText)
			}
		case b.ToolResult != nil:
			c := s.call(r, b.ToolResult.ToolUseID, "")
			c.Output, c.IsError, c.answered = cut(resultText(b.ToolResult.Content), maxText), b.ToolResult.IsError, true
			s.settle(c.ID)
		}
	}
}

// resultText is what a result says, its pictures named.
func resultText(blocks []tools.Block) string {
	var parts []string
	for _, b := range blocks {
		if len(b.Image) > 0 {
			parts = append(parts, fmt.Sprintf("[%s, %d bytes]", b.MediaType, len(b.Image)))
			continue
		}
		parts = append(parts, b.Text)
	}
	return strings.Join(parts, "\n")
}

// toolKnown takes the records of tool calls.
func (s *Steps) toolKnown(r record.Record) bool {
	switch r.Kind {
	case record.KindToolCalled:
		return with(r, func(p record.ToolCalled) {
			c := s.call(r, p.CallID, p.Name)
			c.Class, c.Summary, c.Rule, c.Started = p.Class, cut(p.Summary, maxText), cut(p.Rule, maxText), r.Time
		})
	case record.KindToolCompleted:
		return with(r, func(p record.ToolCompleted) {
			c := s.call(r, p.CallID, p.Name)
			c.Status, c.Ended, c.LatencyMS, c.OutputBytes = CallDone, r.Time, p.LatencyMS, p.OutputBytes
			if !p.Success {
				c.Status = CallUnsuccess
			}
			c.Modified, c.Ending = p.FilesModified, tools.CommandEnding(p.Metadata)
		})
	case record.KindToolFailed:
		return with(r, func(p record.ToolFailed) {
			c := s.call(r, p.CallID, p.Name)
			c.Status, c.Ended, c.LatencyMS = CallFailed, r.Time, p.LatencyMS
			switch p.Class {
			case tools.ErrorPermissionDenied, tools.ErrorUserDenied, tools.ErrorConfirmationTimeout:
				c.Status = CallDenied
			}
			c.ErrorClass, c.Reason, c.Error, c.Modified = string(p.Class), cut(p.Reason, maxText), cut(p.Message, maxText), p.FilesModified
		})
	case record.KindToolInputInvalid:
		return with(r, func(p record.ToolInputInvalid) {
			c := s.call(r, p.CallID, p.Name)
			c.Status, c.Ended, c.ErrorClass = CallInvalid, r.Time, "input_invalid"
			c.Error = cut(strings.Join(p.Errors, "\n"), maxText)
		})
	case record.KindConfirmationRequested:
		return with(r, func(p record.ConfirmationRequested) {
			c := s.call(r, p.CallID, p.Name)
			if c.Class == "" {
				c.Class = p.Class
			}
			if c.Summary == "" {
				c.Summary = cut(p.Summary, maxText)
			}
			c.Asked = append(c.Asked, Question{At: r.Time, Diff: cut(p.Diff, maxText), Display: cut(p.Display, maxText), Hidden: p.Hidden})
		})
	case record.KindConfirmationResolved:
		return with(r, func(p record.ConfirmationResolved) { s.resolved(r, p) })
	case record.KindConfirmationAttempted:
		return with(r, func(p record.ConfirmationAttempted) {
			s.say(r, StepAttempt, fmt.Sprintf("%s by %s changed nothing: %s (%s)", p.Decision, p.By, p.Outcome, p.RequestID), true)
		})
	case record.KindNetworkDenied:
		return with(r, func(p record.NetworkDenied) {
			if p.CallID == "" || s.open[p.CallID] == nil {
				s.say(r, StepWarning, "refused to connect to "+p.URL+": "+p.Reason, true)
				return
			}
			if c := s.call(r, p.CallID, ""); len(c.Denied) < 20 {
				c.Denied = append(c.Denied, p)
			}
		})
	}
	return false
}

// resolved closes the open question of a call, or notes an answer without one.
func (s *Steps) resolved(r record.Record, p record.ConfirmationResolved) {
	c := s.call(r, p.CallID, "")
	q := Question{At: r.Time}
	last := len(c.Asked) - 1
	if last >= 0 && c.Asked[last].Answered.IsZero() {
		q = c.Asked[last]
		c.Asked = c.Asked[:last]
	}
	q.Answered, q.Decision, q.Scope, q.By, q.Client = r.Time, p.Decision, p.Scope, p.By, cut(p.Client, 200)
	if len(c.Asked) < 20 { // a call is asked again where its file changed
		c.Asked = append(c.Asked, q)
	}
}

// sandboxKnown takes the records of the sandbox and of users' commands in it.
func (s *Steps) sandboxKnown(r record.Record) bool {
	switch r.Kind {
	case record.KindSandboxStarted:
		return with(r, func(p record.SandboxStarted) { s.sandbox(r, p.Attestation, p.StartMS, "started") })
	case record.KindSandboxRestarted:
		return with(r, func(p record.SandboxRestarted) {
			s.sandbox(r, p.Attestation, p.StartMS, fmt.Sprintf("started again (%d)", p.Restart))
		})
	case record.KindSandboxLost:
		return with(r, func(p record.SandboxLost) { s.say(r, StepSandbox, "lost: "+p.Cause, true) })
	case record.KindBackgroundEnded:
		return with(r, func(p record.BackgroundEnded) {
			step := s.step(r, StepBackground, fmt.Sprintf("%s ended by %s, %s, after %s", cut(p.Handle, 200), cut(p.EndedBy, 200), tools.CommandEnd(p.ExitCode, p.Signal), elapsed(milliseconds(p.WallMS))), p.Error != "")
			step.Start = r.Time.Add(-milliseconds(p.WallMS))
			s.visit(step)
		})
	case record.KindUserCommandStarted:
		return with(r, func(p record.UserCommandStarted) {
			if len(s.exec) < maxOpen {
				s.exec[p.ExecID] = s.step(r, StepCommand, strings.Join(p.Argv, " "), false)
			}
		})
	case record.KindUserCommandEnded:
		return with(r, func(p record.UserCommandEnded) {
			step := s.step(r, StepCommand, p.ExecID, false)
			if begun, ok := s.exec[p.ExecID]; ok {
				step.Start, step.Text = begun.Start, begun.Text
				delete(s.exec, p.ExecID)
			}
			step.Failed = p.ExitCode != 0
			step.Text = fmt.Sprintf("%s (%s)", step.Text, tools.CommandEnd(p.ExitCode, p.Signal))
			s.visit(step)
		})
	}
	return false
}

func (s *Steps) sandbox(r record.Record, a sandbox.Attestation, ms int64, what string) {
	step := s.step(r, StepSandbox, fmt.Sprintf("%s %s in %d ms: %s", a.Backend, what, ms, protections(a)), len(a.Lost) > 0)
	step.Start = r.Time.Add(-milliseconds(ms))
	s.visit(step)
}

// protections is an attestation in one line.
func protections(a sandbox.Attestation) string {
	parts := []string{"network " + a.Network, "user " + a.User, "seccomp " + a.Seccomp}
	if a.RootReadOnly {
		parts = append(parts, "read-only root")
	}
	if a.NoNewPrivileges {
		parts = append(parts, "no new privileges")
	}
	if len(a.Capabilities) == 0 {
		parts = append(parts, "no capabilities")
	}
	for _, l := range a.Lost {
		parts = append(parts, "missing: "+l)
	}
	return strings.Join(parts, ", ")
}
