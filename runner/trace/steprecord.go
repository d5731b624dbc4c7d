package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// handleRecord adds a record, and reports whether its kind is known and its
// payload can be decoded.
func (s *Steps) handleRecord(r record.Record) bool {
	if r.Kind == record.KindTurnStarted { // its payload is not needed
		s.turn++
		s.turnAt, s.answer = r.Time, ""
		s.visitStep(r, StepTurn, "", false)
		return true
	}
	payload := record.DecodePayload(r)
	switch p := payload.(type) {
	case record.SessionCreated:
		s.setSession(p)
	case record.SessionResumed:
		s.setSession(p.SessionCreated)
		s.openModelCall = nil // its process is gone
		clear(s.exec)
		text := "another process goes on with the session"
		if n := len(p.Interrupted); n > 0 {
			text += fmt.Sprintf("; calls that were under way: %d", n)
		}
		if p.TornBytes > 0 {
			text += fmt.Sprintf("; a torn last line of %d bytes was cut off", p.TornBytes)
		}
		s.visitStep(r, StepWarning, text, false)
	case record.Message:
		s.splitMessage(r, p)
	case record.ModelCallStarted:
		step := s.newStep(r, StepModel, "", false)
		step.Model = &ModelCall{Round: p.Round, Purpose: p.Purpose, Model: p.Model}
		s.openModelCall, s.changed = &step, step
	case record.ModelCallCompleted:
		s.finishModelCall(r, func(m *ModelCall) {
			m.Round = p.Round
			m.Purpose = p.Purpose
			m.LatencyMS = p.LatencyMS
			m.Usage = p.Usage
			m.Finish = p.Finish
		})
	case record.ModelCallFailed:
		s.finishModelCall(r, func(m *ModelCall) { m.Round, m.Error = p.Round, tools.Elide(string(p.Class)+": "+p.Message, maxText) })
	case record.TurnCompleted:
		e := TurnEnd{TurnCompleted: p}
		if p.Reason == loop.StopAnswered {
			e.Answer = s.answer
		}
		s.visitTurnEnd(r, string(p.Reason), e)
	case record.TurnCancelled:
		reason := p.Reason
		if p.Client != "" {
			reason += " by " + tools.Elide(p.Client, 200)
		}
		s.visitTurnEnd(r, reason, TurnEnd{TurnCompleted: record.TurnCompleted{Reason: loop.StopCancelled, Usage: p.Usage, WallMS: p.WallMS}})
	case record.Warning:
		s.visitStep(r, StepWarning, p.Message, false)
	case record.BudgetWarning:
		s.visitStep(r, StepWarning, p.String(), false)
	case record.ContextShortened:
		s.visitStep(r, StepContext, p.String(), false)
	case record.ContextCompacted:
		step := s.newStep(r, StepContext, p.String(), false)
		step.Detail = tools.Elide(p.Text, maxText)
		s.visit(step)
	case record.ContextCompactionFailed:
		s.visitStep(r, StepContext, p.String(), true)
	case record.Verification:
		step := s.newStep(r, StepCommand, tools.Elide(fmt.Sprintf("verify: %s (%s)\n%s", p.Command, p, p.Output), maxText), !p.Passed)
		step.Start = r.Time.Add(-fromMilliseconds(p.WallMS))
		s.visit(step)
	case record.SessionEnded:
		s.Close()
		s.visitStep(r, StepEnd, formatEnd(p), p.ExitStatus != runner.OutcomeDone)
	default:
		return s.handleToolRecord(r, payload) || s.handleWorkerRecord(r, payload) || s.handleSandboxRecord(r, payload)
	}
	return true
}

func (s *Steps) setSession(p record.SessionCreated) {
	s.egress, s.classes = p.Egress, make(map[tools.Name]tools.Class, len(p.Tools))
	for _, t := range p.Tools {
		s.classes[t.Name] = t.Class
	}
}

// purposeBridge is the purpose of model calls of programs in the sandbox.
const purposeBridge loop.Purpose = "bridge"

func (s *Steps) visitEndedCall(r record.Record, purpose loop.Purpose, p record.EndedModelCall) {
	step := s.newStep(r, StepModel, "", p.Class != "")
	step.Start = r.Time.Add(-fromMilliseconds(p.LatencyMS))
	step.Model = &ModelCall{Round: p.Round, Purpose: purpose, Model: p.Model, LatencyMS: p.LatencyMS, Usage: p.Usage, Finish: p.Finish}
	if step.Failed {
		step.Model.Error = tools.Elide(string(p.Class)+": "+p.Message, maxText)
	}
	s.visit(step)
}

func (s *Steps) handleWorkerRecord(r record.Record, payload record.Payload) bool {
	switch p := payload.(type) {
	case record.WorkerModelCall:
		p.Usage.Rounds = 0 // as the turn counts it
		s.visitEndedCall(r, loop.Purpose("worker "+p.Worker), p.EndedModelCall)
	case record.BridgeModelCall:
		s.visitEndedCall(r, purposeBridge, p.EndedModelCall)
	case record.WorkerToolCall:
		s.visitStep(r, StepWorker, p.String(), p.Status != "ok")
	case record.WorkerInputInvalid:
		s.visitStep(r, StepWorker, fmt.Sprintf("%s: %s, call %d: %s", p.Worker, p.Name, p.Hop, p.Error), true)
	case record.WorkerCostWarning:
		s.visitStep(r, StepWarning, p.String(), false)
	default:
		return false
	}
	return true
}

func formatEnd(p record.SessionEnded) string {
	text := fmt.Sprintf("%s, exit status %d", p.Reason, p.ExitStatus)
	if p.Problem != nil {
		text += ": " + p.Problem.Cause
	}
	if p.ChangedCount.Files > 0 {
		text += "; " + p.ChangedCount.String()
	}
	return text
}

// finishModelCall completes and visits the model call that was started last.
func (s *Steps) finishModelCall(r record.Record, fill func(m *ModelCall)) {
	step := s.newStep(r, StepModel, "", false)
	step.Model = &ModelCall{}
	if s.openModelCall != nil {
		step.Start, step.Model = s.openModelCall.Start, s.openModelCall.Model
		s.openModelCall = nil
	}
	fill(step.Model)
	step.Failed = step.Model.Error != ""
	s.visit(step)
}

func (s *Steps) visitTurnEnd(r record.Record, text string, e TurnEnd) {
	s.Close()
	step := s.newStep(r, StepTurnEnd, text, e.Reason != loop.StopAnswered)
	step.End = &e
	if !s.turnAt.IsZero() {
		step.Start = s.turnAt
	}
	s.visit(step)
}

func (s *Steps) splitMessage(r record.Record, m record.Message) {
	kinds := map[loop.Role]StepKind{loop.RoleSystem: StepSystem, loop.RoleUser: StepUser, loop.RoleAssistant: StepAssistant}
	if m.Role == loop.RoleAssistant {
		s.answer = blocksText(m.Blocks)
	}
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			if kind, ok := kinds[m.Role]; ok && strings.TrimSpace(b.Text.Text) != "" {
				s.visitStep(r, kind, b.Text.Text, false)
			}
		case b.Thinking != nil:
			s.visitStep(r, StepThinking, b.Thinking.Text, false)
		case b.ToolUse != nil:
			c := s.callStep(r, b.ToolUse.ID, b.ToolUse.Name)
			c.Input = tools.Elide(cmp.Or(string(b.ToolUse.Input), "{}"), maxText)
			if b.ToolUse.InputError != "" {
				c.Input = tools.Elide(b.ToolUse.Raw, maxText)
			}
		case b.ToolResult != nil:
			c := s.callStep(r, b.ToolResult.ToolUseID, "")
			c.Output = cutMiddle(resultText(b.ToolResult.Content), maxText)
			c.IsError = b.ToolResult.IsError
			if m.Thread > 0 { // a program's own call, which has no other record
				c.Status, c.Ended = CallDone, r.Time
				if c.IsError {
					c.Status = CallUnsuccess
				}
			}
			s.finishCall(c.ID)
		}
	}
}

func blocksText(blocks []loop.Block) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != nil {
			texts = append(texts, b.Text.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func resultText(blocks []tools.Block) string {
	var parts []string
	for _, b := range blocks {
		switch {
		case len(b.Image) > 0:
			parts = append(parts, fmt.Sprintf("[%s, %d bytes]", b.MediaType, len(b.Image)))
		case b.MediaType != "": // its bytes are in a file
			parts = append(parts, "["+b.MediaType+"]")
		default:
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

func (s *Steps) handleToolRecord(r record.Record, payload record.Payload) bool {
	switch p := payload.(type) {
	case record.ToolCalled:
		c := s.callStep(r, p.CallID, p.Name)
		c.Class = p.Class
		c.Summary = tools.Elide(p.Summary, maxText)
		c.Rule = tools.Elide(p.Rule, maxText)
		c.Started = r.Time
	case record.ToolCompleted:
		c := s.callStep(r, p.CallID, p.Name)
		c.Status = CallDone
		c.Ended = r.Time
		c.LatencyMS = p.LatencyMS
		c.OutputBytes = p.OutputBytes
		if !p.Success {
			c.Status = CallUnsuccess
		}
		c.Modified, c.Ending, c.Diff = p.FilesModified, commandEnding(p.Metadata), cutMiddle(p.Diff, maxText)
	case record.ToolFailed:
		c := s.callStep(r, p.CallID, p.Name)
		c.Status = CallFailed
		c.Ended = r.Time
		c.LatencyMS = p.LatencyMS
		switch p.Class {
		case tools.ErrorPermissionDenied, tools.ErrorUserDenied, tools.ErrorConfirmationTimeout:
			c.Status = CallDenied
		}
		c.ErrorClass = string(p.Class)
		c.Reason = tools.Elide(p.Reason, maxText)
		c.Error = tools.Elide(p.Message, maxText)
		c.Modified = p.FilesModified
	case record.ToolInputInvalid:
		c := s.callStep(r, p.CallID, p.Name)
		c.Status = CallInvalid
		c.Ended = r.Time
		c.ErrorClass = "input_invalid"
		c.Error = tools.Elide(strings.Join(p.Errors, "\n"), maxText)
	case record.ConfirmationRequested:
		c := s.callStep(r, p.CallID, p.Name)
		if c.Class == "" {
			c.Class = p.Class
		}
		if c.Summary == "" {
			c.Summary = tools.Elide(p.Summary, maxText)
		}
		c.addQuestion(Question{ID: p.ID, At: r.Time, Diff: cutMiddle(p.Diff, maxText), Display: tools.Elide(p.Input, maxText), Hidden: p.Hidden})
	case record.ConfirmationResolved:
		s.resolveQuestion(r, p)
	case record.ConfirmationAttempted:
		s.visitStep(r, StepAttempt, fmt.Sprintf("%s by %s changed nothing: %s (%s)", p.Decision, p.By, p.Outcome, p.RequestID), true)
	case record.NetworkDenied:
		if p.CallID == "" || s.open[p.CallID] == nil {
			s.visitStep(r, StepWarning, p.String(), true)
			return true
		}
		if c := s.callStep(r, p.CallID, ""); len(c.Denied) < maxHosts {
			c.Denied = append(c.Denied, p)
		}
	case record.NetworkOpened: // its NetworkClosed has the result
	case record.NetworkClosed:
		if p.CallID == "" || s.open[p.CallID] == nil {
			one := Reached{Host: p.Host}
			one.add(p)
			s.visitStep(r, StepNetwork, one.Words(), false)
			return true
		}
		s.callStep(r, p.CallID, "").addReached(p)
	default:
		return false
	}
	return true
}

// addReached adds a connection to a call. Hosts beyond maxHosts share one
// entry.
func (c *Call) addReached(p record.NetworkClosed) {
	at := slices.IndexFunc(c.Reached, func(r Reached) bool { return r.Host == p.Host })
	if at < 0 && len(c.Reached) == maxHosts {
		at = maxHosts - 1
		c.Reached[at].Host = "other hosts"
	} else if at < 0 {
		at = len(c.Reached)
		c.Reached = append(c.Reached, Reached{Host: p.Host})
	}
	c.Reached[at].add(p)
}

func (r *Reached) add(p record.NetworkClosed) {
	r.Connections++
	r.Sent += p.Sent
	r.Received += p.Received
	if p.Ending != record.EndingDone {
		r.Ending = tools.Elide(p.Ending, 200)
	}
}

// Words describes the connections in one line.
func (r Reached) Words() string {
	text := fmt.Sprintf("%s to %s: %s bytes sent, %s received", limits.FormatCount(r.Connections, "connection"), r.Host, formatCount(r.Sent), formatCount(r.Received))
	if r.Ending != "" {
		text += ", ended by " + r.Ending
	}
	return text
}

// resolveQuestion closes the call's open question, or adds an answer to none.
func (s *Steps) resolveQuestion(r record.Record, p record.ConfirmationResolved) {
	c := s.callStep(r, p.CallID, "")
	q := Question{ID: p.RequestID, At: r.Time}
	last := len(c.Asked) - 1
	if last >= 0 && c.Asked[last].Answered.IsZero() {
		q = c.Asked[last]
		c.Asked = c.Asked[:last]
	}
	q.Answered, q.Decision, q.Scope, q.By, q.Client, q.Reason = r.Time, p.Decision, p.Scope, p.By, tools.Elide(p.Client, 200), tools.Elide(p.Reason, maxText)
	c.addQuestion(q)
}

// addQuestion adds a question to a call. A confirmation is repeated when its
// file changes; beyond maxAsked, each replaces the one before.
func (c *Call) addQuestion(q Question) {
	c.Asked = append(c.Asked[:min(len(c.Asked), maxAsked-1)], q)
}

func (s *Steps) visitServer(r record.Record, text string, failed bool, ms int64) {
	step := s.newStep(r, StepServer, tools.Elide(text, maxText), failed)
	step.Start = r.Time.Add(-fromMilliseconds(ms))
	s.visit(step)
}

func (s *Steps) handleSandboxRecord(r record.Record, payload record.Payload) bool {
	switch p := payload.(type) {
	case record.SandboxStarted:
		s.visitSandbox(r, p.Attestation, p.StartMS, "started")
	case record.SandboxRestarted:
		s.visitSandbox(r, p.Attestation, p.StartMS, fmt.Sprintf("started again (%d)", p.Restart))
	case record.SandboxLost:
		s.visitStep(r, StepSandbox, "lost: "+p.Cause, true)
	case record.BackgroundEnded:
		step := s.newStep(r, StepBackground, fmt.Sprintf("%s ended by %s, %s, after %s", tools.Elide(p.Handle, 200), tools.Elide(p.EndedBy, 200), p.ExitStatus, formatDuration(fromMilliseconds(p.WallMS))), p.Error != "")
		step.Start = r.Time.Add(-fromMilliseconds(p.WallMS))
		step.addRecording(p.Recording)
		s.visit(step)
	case record.ToolActivated:
		s.visitServer(r, fmt.Sprintf("tool %s loaded by %s", p.Name, p.By), false, 0)
	case record.MCPServerStarted:
		s.visitServer(r, p.String(), false, p.WallMS)
	case record.MCPServerFailed:
		s.visitServer(r, p.String(), true, p.WallMS)
	case record.MCPServerStopped:
		s.visitServer(r, p.String(), p.Cause != "", 0)
	case record.MCPToolsChanged:
		s.visitServer(r, p.String(), false, 0)
	case record.MCPRequestRefused:
		s.visitServer(r, p.String(), true, 0)
	case record.UserCommandStarted:
		if len(s.exec) < maxOpen {
			s.exec[p.ExecID] = s.newStep(r, StepCommand, strings.Join(p.Argv, " "), false)
		}
	case record.UserCommandEnded:
		step := s.newStep(r, StepCommand, p.ExecID, false)
		if begun, ok := s.exec[p.ExecID]; ok {
			step.Start, step.Text = begun.Start, begun.Text
			delete(s.exec, p.ExecID)
		}
		step.Failed = p.Code != 0
		step.Text = fmt.Sprintf("%s: %s", step.Text, sandbox.Exit{Status: p.ExitStatus, Shortage: p.Shortage}.Ending())
		if p.Error != "" {
			step.Text += ": " + tools.Elide(p.Error, 200)
		}
		step.addRecording(p.Recording)
		s.visit(step)
	default:
		return false
	}
	return true
}

func (s *Steps) visitSandbox(r record.Record, a sandbox.Attestation, ms int64, what string) {
	step := s.newStep(r, StepSandbox, fmt.Sprintf("%s %s in %d ms: %s", a.Backend, what, ms, formatProtections(a, s.egress)), len(a.Lost) > 0)
	step.Start = r.Time.Add(-fromMilliseconds(ms))
	s.visit(step)
}

// formatProtections returns an attestation, and what commands may reach, in one
// line.
func formatProtections(a sandbox.Attestation, reach *record.Egress) string {
	parts := []string{"network: " + reach.Words(a.Network), "user " + a.User, "seccomp " + a.Seccomp}
	if a.Isolation == sandbox.IsolationProcess {
		parts = append(parts, "without namespaces")
	}
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

func (s *Step) addRecording(r *record.Recording) {
	if r != nil {
		s.Recording = r
		s.Text += ", recorded in " + r.Path
	}
}
