package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
)

func (r *reader) beginTurn(rec record.Record) {
	r.past.Turns++
	r.past.Last = &Turn{
		ID: rec.Turn, Record: rec.ID, Start: len(r.past.Messages), Answer: rec.ID,
		Calls: map[string]string{}, EndedCalls: map[string]bool{},
	}
	r.turnBegan, r.used, r.answered = r.active+max(rec.Time.Sub(r.begun), 0), limits.Meter{}, ""
}

func (r *reader) endTurn(reason loop.StopReason, u limits.Usage) {
	t := r.past.Last
	if t == nil {
		return
	}
	t.Ended, t.Reason = true, reason
	if r.past.Turns == 1 {
		r.past.Used = u
	} else {
		r.past.Used = r.past.Used.Plus(u)
	}
	if t.Direct { // it was the user's, so the model is not told of it
		r.past.Messages = r.past.Messages[:t.Start]
	}
}

func (r *reader) addMessage(rec record.Record, p record.Message) {
	m := loop.Message{Role: p.Role, Blocks: slices.DeleteFunc(p.Blocks, isChangedThinking)}
	t := r.past.Last
	if t == nil {
		return // a foreign trace: messages belong to turns
	}
	switch m.Role {
	case loop.RoleAssistant:
		t.Direct = rec.Actor == record.ActorUser
		if r.answered != "" {
			r.past.Answers[r.answered]++
		}
		r.answered = ""
		for _, b := range m.Blocks {
			if b.ToolUse != nil {
				r.used.Add(limits.Usage{ToolCalls: 1})
			}
		}
	case loop.RoleUser:
		if r.answered != "" { // an empty answer makes no message, but a notice follows
			r.past.Answers[r.answered]++
		}
		r.answered = ""
	}
	if !t.Asked {
		t.Opened++
	}
	if len(m.Blocks) > 0 {
		r.past.Messages = append(r.past.Messages, m)
	}
}

// isChangedThinking reports whether reasoning of the model had a secret redacted. That
// invalidates its signature, and providers refuse it.
func isChangedThinking(b loop.Block) bool {
	t := b.Thinking
	return t != nil && (strings.Contains(t.Text, "[redacted:") || strings.Contains(t.Signature, "[redacted:") || strings.Contains(t.Redacted, "[redacted:"))
}

func (r *reader) beginModelCall() {
	if t := r.past.Last; t != nil {
		t.Asked = true
		t.ModelCalls++
	}
}

func (r *reader) endModelCall(rec record.Record, p record.ModelCallCompleted) {
	if t := r.past.Last; t != nil {
		t.Answer = rec.ID
	}
	r.used.Add(p.Usage)
	if p.Purpose == loop.PurposeSummary {
		r.summarized = p.Model.String()
		return
	}
	r.answered = p.Model.String()
}

func (r *reader) applySummary(rec record.Record, p record.ContextCompacted) error {
	r.countSummary()
	next := &p.Summary
	trimmed, err := next.TrimHistory(r.past.Messages, r.past.Summary)
	if err != nil {
		return fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	if t := r.past.Last; t != nil {
		t.Start = next.TrimIndex(r.past.Summary, t.Start)
	}
	r.past.Messages, r.past.Summary = trimmed, next
	return nil
}

// countSummary counts a model's answer that was a summary.
func (r *reader) countSummary() {
	if r.summarized != "" {
		r.past.Answers[r.summarized]++
	}
	r.summarized = ""
}

type callRecord struct {
	CallID   string           `json:"tool_use_id"`
	Name     tools.Name       `json:"tool_name"`
	Class    tools.ErrorClass `json:"error_class"`
	Reason   string           `json:"reason"`
	Handle   string           `json:"handle"`
	Metadata struct {
		Background string `json:"background"`
		ExitCode   *int   `json:"exit_code"` // if the command has ended
	} `json:"metadata"`
}

func (r *reader) addSkill(rec record.Record) {
	var c struct {
		Metadata skill.Loaded `json:"metadata"`
	}
	if err := json.Unmarshal(rec.Payload, &c); err == nil && c.Metadata.Name != "" {
		r.past.Skills = append(r.past.Skills, c.Metadata)
	}
}

// addCallRecord adds a record of a call, and ignores others.
func (r *reader) addCallRecord(rec record.Record) {
	t := r.past.Last
	switch rec.Kind {
	case record.KindToolCalled, record.KindToolCompleted, record.KindToolFailed, record.KindToolInputInvalid,
		record.KindConfirmationRequested, record.KindConfirmationResolved, record.KindBackgroundEnded:
	default:
		return
	}
	if t == nil {
		return
	}
	var c callRecord
	if err := json.Unmarshal(rec.Payload, &c); err != nil {
		// A payload stored in a file as a whole is no record of interest.
		return
	}
	switch rec.Kind {
	case record.KindBackgroundEnded:
		delete(r.past.Background, c.Handle)
		return
	case record.KindToolCalled:
		t.ToolCalls++
	case record.KindToolCompleted:
		if c.Metadata.Background != "" && c.Metadata.ExitCode == nil {
			r.past.Background[c.Metadata.Background] = true
			if n, err := strconv.Atoi(strings.TrimPrefix(c.Metadata.Background, livesandbox.BackgroundPrefix)); err == nil {
				r.past.Handles = max(r.past.Handles, n)
			}
		}
		if c.Name == skill.ToolName {
			r.addSkill(rec)
		}
	case record.KindToolFailed:
		switch c.Class {
		case tools.ErrorPermissionDenied, tools.ErrorUserDenied, tools.ErrorConfirmationTimeout:
			r.past.Denials = append(r.past.Denials, record.Denial{CallID: c.CallID, Name: c.Name, Class: c.Class, Reason: c.Reason})
		}
	}
	t.Calls[c.CallID] = rec.ID
	switch rec.Kind {
	case record.KindToolCompleted, record.KindToolFailed, record.KindToolInputInvalid:
		t.EndedCalls[c.CallID] = true
	}
}
