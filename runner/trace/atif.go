package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/record"
)

// atifVersion is the version of the Agent Trajectory Interchange Format that
// [ATIF] writes.
const atifVersion = "ATIF-v1.7"

// Unset fields are omitted, because readers of ATIF refuse null and unknown
// fields. Caisson's own fields are in "extra".
type (
	atifAgent struct {
		Name    string         `json:"name"`
		Version string         `json:"version"`
		Model   string         `json:"model_name,omitempty"`
		Extra   map[string]any `json:"extra,omitempty"`
	}
	atifStep struct {
		ID        int64          `json:"step_id"`
		Time      string         `json:"timestamp"`
		Source    string         `json:"source"`
		Model     string         `json:"model_name,omitempty"`
		Message   string         `json:"message"`
		Reasoning string         `json:"reasoning_content,omitempty"`
		Calls     []atifCall     `json:"tool_calls,omitempty"`
		Observed  *atifObserved  `json:"observation,omitempty"`
		Metrics   *atifMetrics   `json:"metrics,omitempty"`
		LLMCalls  *int           `json:"llm_call_count,omitempty"`
		Extra     map[string]any `json:"extra,omitempty"`
	}
	atifCall struct {
		ID        string          `json:"tool_call_id"`
		Function  string          `json:"function_name"`
		Arguments json.RawMessage `json:"arguments"`
		Extra     map[string]any  `json:"extra,omitempty"`
	}
	atifObserved struct {
		Results []atifResult `json:"results"`
	}
	atifResult struct {
		Call    string         `json:"source_call_id"`
		Content string         `json:"content"`
		Extra   map[string]any `json:"extra,omitempty"`
	}
	atifMetrics struct {
		Prompt     int64    `json:"prompt_tokens"`
		Completion int64    `json:"completion_tokens"`
		Cached     int64    `json:"cached_tokens"`
		Cost       *float64 `json:"cost_usd,omitempty"`
	}
	atifFinal struct {
		Prompt     int64    `json:"total_prompt_tokens"`
		Completion int64    `json:"total_completion_tokens"`
		Cached     int64    `json:"total_cached_tokens"`
		Cost       *float64 `json:"total_cost_usd,omitempty"`
		Steps      int64    `json:"total_steps"`
	}
)

// ErrPruned reports that retention has removed a session's messages.
var ErrPruned = errors.New("only the audit records are left of it")

// ATIF writes a session as a trajectory of the Agent Trajectory Interchange
// Format, which [github.com/caisson-run/caisson/loop/replay] plays. It holds
// one step at a time. A damaged or running session is written up to the damage
// or the last record, with a note at its end. Long values are restored from
// their files; a missing or changed file is an error.
func ATIF(w io.Writer, s Session) (Overview, error) {
	if s.Pruned {
		return Overview{}, &Error{Reason: NotExported, Name: s.ID, Err: ErrPruned}
	}
	over, err := Read(s, nil)
	if err != nil {
		return over, err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	a := atif{out: out, session: s}
	a.writeHead(over)
	again, err := Read(s, a.addRecord)
	if err != nil {
		return over, err
	}
	a.writeEnd(again)
	if err := errors.Join(a.err, out.Flush()); err != nil {
		return over, fmt.Errorf("write trajectory: %w", err)
	}
	return over, nil
}

// atif writes each step when it is complete.
type atif struct {
	out     *bufio.Writer
	session Session
	err     error
	steps   int64
	total   atifFinal
	unknown bool
	cost    int64
	// step is the agent's step that waits for its results. calls and ended have
	// the extra fields of its calls and their results, by call ID.
	step  *atifStep
	ended map[string]map[string]any
	calls map[string]map[string]any
	// The model calls since the last step, and their usage.
	modelCalls int
	used       limits.Usage
	model      string
}

func (a *atif) writeHead(o Overview) {
	agent := atifAgent{Name: "caisson", Version: "unknown"}
	if c := o.Created; c != nil {
		agent.Version, agent.Model = c.Version, c.Model.Model
		agent.Extra = map[string]any{
			"provider": c.Model.Provider, "tools": c.Tools, "policy": c.Policy, "workspace_mode": c.WorkspaceMode, "image": c.Image,
		}
	}
	a.writeString(`{"schema_version":` + strconv.Quote(atifVersion) + `,"session_id":`)
	a.writeJSON(o.Session)
	a.writeString(`,"agent":`)
	a.writeJSON(agent)
	a.writeString(`,"steps":[`)
}

func (a *atif) addRecord(r record.Record) {
	if a.err != nil {
		return
	}
	r, err := record.Restore(a.session.Dir, r)
	if err != nil {
		a.err = err
		return
	}
	switch p := record.DecodePayload(r).(type) {
	case record.Message:
		a.addMessage(r, p)
	case record.ModelCallStarted:
		a.modelCalls, a.model = a.modelCalls+1, p.Model.Model
	case record.ModelCallCompleted:
		if p.Purpose == "" { // a summary belongs to no step
			a.used = p.Usage
		}
	case record.BridgeModelCall:
		if p.Usage.Tokens() > 0 {
			a.modelCalls, a.model, a.used = a.modelCalls+1, p.Model.Model, p.Usage
		}
	case record.ToolCalled:
		a.callExtra(p.CallID)["side_effects"], a.callExtra(p.CallID)["rule"] = p.Class, p.Rule
	case record.ConfirmationResolved:
		a.callExtra(p.CallID)["decision"], a.callExtra(p.CallID)["decided_by"] = p.Decision, p.By
		if p.Reason != "" {
			a.callExtra(p.CallID)["denial_reason"] = p.Reason
		}
	case record.ToolCompleted:
		e := a.callOutcome(p.CallID)
		e["duration_ms"], e["total_bytes"] = p.LatencyMS, p.OutputBytes
		if code, ok := p.Metadata["exit_code"]; ok {
			e["exit_code"] = code
		}
		if len(p.FilesModified) > 0 {
			e["files_modified"] = p.FilesModified
		}
	case record.ToolFailed:
		e := a.callOutcome(p.CallID)
		e["duration_ms"], e["error_class"] = p.LatencyMS, p.Class
	case record.NetworkClosed:
		e := a.callOutcome(p.CallID)
		hosts, _ := e["network"].([]string)
		if !slices.Contains(hosts, p.Host) && len(hosts) < maxHosts {
			e["network"] = append(hosts, p.Host)
		}
	case record.NetworkDenied:
		e := a.callOutcome(p.CallID)
		if refused, _ := e["network_denied"].([]string); len(refused) < maxHosts {
			e["network_denied"] = append(refused, p.Host+": "+p.Reason)
		}
	case record.ToolInputInvalid:
		a.callOutcome(p.CallID)["error_class"] = "input_invalid"
	}
}

// callExtra returns the extra fields of a call of the current step, and
// callOutcome its result's. Fields of other calls are dropped.
func (a *atif) callExtra(id string) map[string]any   { return lookupCall(a.calls, id) }
func (a *atif) callOutcome(id string) map[string]any { return lookupCall(a.ended, id) }

func lookupCall(all map[string]map[string]any, id string) map[string]any {
	if m := all[id]; m != nil {
		return m
	}
	return map[string]any{}
}

// addMessage starts a step from a message, or adds tool results to the current
// step.
func (a *atif) addMessage(r record.Record, m record.Message) {
	if m.Role == loop.RoleTool {
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				a.addResult(*b.ToolResult)
			}
		}
		return
	}
	a.writeStep()
	step := &atifStep{Time: r.Time.UTC().Format(time.RFC3339Nano), Source: "system"}
	switch m.Role {
	case loop.RoleUser:
		step.Source = "user"
	case loop.RoleAssistant:
		step.Source = "agent"
		a.addUsage(step)
	}
	a.step = step
	a.calls = map[string]map[string]any{}
	a.ended = map[string]map[string]any{}
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			step.Message = joinLines(step.Message, b.Text.Text)
		case b.Thinking != nil && step.Source == "agent":
			step.Reasoning = joinLines(step.Reasoning, b.Thinking.Text)
		case b.ToolUse != nil && step.Source == "agent":
			step.Calls = append(step.Calls, a.newCall(*b.ToolUse))
		}
	}
}

func joinLines(before, text string) string {
	if before == "" {
		return text
	}
	return before + "\n" + text
}

func (a *atif) newCall(u loop.ToolUse) atifCall {
	c := atifCall{ID: u.ID, Function: string(u.Name), Arguments: u.Input, Extra: map[string]any{}}
	if len(c.Arguments) == 0 || u.InputError != "" {
		c.Arguments = json.RawMessage("{}")
	}
	if u.InputError != "" {
		c.Extra["input_error"], c.Extra["raw_arguments"] = u.InputError, u.Raw
	}
	a.calls[u.ID], a.ended[u.ID] = c.Extra, map[string]any{}
	return c
}

func (a *atif) addResult(t loop.ToolResult) {
	extra, ok := a.ended[t.ToolUseID]
	if !ok || a.step == nil {
		return // an observation may only name a call of the same step
	}
	extra["is_error"] = t.IsError
	if a.step.Observed == nil {
		a.step.Observed = &atifObserved{}
	}
	// Images would need files beside the document.
	var pictures []map[string]any
	for _, b := range t.Content {
		if len(b.Image) > 0 {
			pictures = append(pictures, map[string]any{"media_type": b.MediaType, "bytes": len(b.Image)})
		}
	}
	if pictures != nil {
		extra["images_left_out"] = pictures
	}
	a.step.Observed.Results = append(a.step.Observed.Results, atifResult{Call: t.ToolUseID, Content: boundary.ResultText(t.Content), Extra: extra})
}

func (a *atif) addUsage(step *atifStep) {
	u := a.used
	step.Model, step.LLMCalls = a.model, new(a.modelCalls)
	step.Metrics = &atifMetrics{
		Prompt: u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens, Completion: u.OutputTokens, Cached: u.CachedInputTokens,
	}
	if u.CostMicroUSD != nil {
		step.Metrics.Cost = new(float64(*u.CostMicroUSD) / 1e6)
		a.cost += *u.CostMicroUSD
	} else {
		a.unknown = true
	}
	a.total.Prompt += step.Metrics.Prompt
	a.total.Completion += u.OutputTokens
	a.total.Cached += u.CachedInputTokens
	a.modelCalls, a.used = 0, limits.Usage{}
}

func (a *atif) writeStep() {
	if a.step == nil {
		return
	}
	a.steps++
	a.step.ID = a.steps
	if a.steps > 1 {
		a.writeString(",\n")
	}
	a.writeJSON(a.step)
	a.step = nil
}

// writeEnd closes the document. If the session did not end with an answer, it
// adds a last step with the reason.
func (a *atif) writeEnd(o Overview) {
	a.writeStep()
	extra := map[string]any{"records": o.Records, "last_record_sha256": o.Hash}
	note := ""
	switch e := o.Ended; {
	case o.Damage != "":
		note = "the records were changed: " + o.Damage
	case e == nil:
		note = "the records end here: the session was " + o.Outcome()
	default:
		extra["stop_reason"], extra["exit_status"], extra["wall_ms"] = e.Reason, e.ExitStatus, e.WallMS
		if e.Limit != nil {
			extra["limit"] = e.Limit
		}
		if e.Reason != loop.StopAnswered {
			note = formatEnd(*e)
		}
	}
	if note != "" || a.steps == 0 {
		a.step = &atifStep{Time: o.Last.UTC().Format(time.RFC3339Nano), Source: "system", Message: note, Extra: map[string]any{"end": true}}
		a.writeStep()
	}
	a.total.Steps = a.steps
	if !a.unknown {
		a.total.Cost = new(float64(a.cost) / 1e6)
	}
	a.writeString(`],"final_metrics":`)
	a.writeJSON(a.total)
	a.writeString(`,"extra":`)
	a.writeJSON(extra)
	a.writeString("}\n")
}

func (a *atif) writeString(s string) {
	if a.err == nil {
		_, a.err = a.out.WriteString(s)
	}
}

func (a *atif) writeJSON(v any) {
	if a.err != nil {
		return
	}
	// A trajectory may be shown on a terminal, so escape control characters and
	// invisible ones as in records.
	text, err := record.MarshalSafe(v)
	if err != nil {
		a.err = err
		return
	}
	a.writeString(string(text) + "\n")
}
