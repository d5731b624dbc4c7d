package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

// ATIFVersion is the version of the Agent Trajectory Interchange Format that is
// written.
const ATIFVersion = "ATIF-v1.7"

// The types are ATIF's: nothing that is unset is written, for its readers refuse
// null and unknown fields. What is ours is in "extra".
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

// ErrPruned says that a session has no messages any more: retention removed them.
var ErrPruned = errors.New("only the audit records are left of it")

// ATIF writes a session as a trajectory of the Agent Trajectory Interchange
// Format, which [github.com/caisson-run/caisson/loop/replay] plays. It holds one
// step at a time. A session that is damaged or runs is written as far as it
// goes, and its end says so. Long values are put back from their files; one that
// is missing or was changed is an error.
func ATIF(w io.Writer, s Session) (Overview, error) {
	if s.Pruned {
		return Overview{}, inputError("the session "+s.ID+" can't be exported: "+ErrPruned.Error(), "caisson trace show shows what there is.", ErrPruned)
	}
	over, err := Read(s, nil)
	if err != nil {
		return over, err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	a := atif{out: out, session: s}
	a.head(over)
	again, err := Read(s, a.record)
	if err != nil {
		return over, err
	}
	a.end(again)
	if err := errors.Join(a.err, out.Flush()); err != nil {
		return over, fmt.Errorf("write trajectory: %w", err)
	}
	return over, nil
}

// atif writes steps as they become whole.
type atif struct {
	out     *bufio.Writer
	session Session
	err     error
	steps   int64
	total   atifFinal
	unknown bool
	cost    int64
	// step is the agent's that waits for its results; ended are what is known
	// of its calls, by their ids.
	step  *atifStep
	ended map[string]map[string]any
	calls map[string]map[string]any
	// model calls since the last step, and what they used.
	asked int
	used  limits.Usage
	model string
}

func (a *atif) head(o Overview) {
	agent := atifAgent{Name: "caisson", Version: "unknown"}
	if c := o.Created; c != nil {
		agent.Version, agent.Model = c.Version, c.Model.Model
		agent.Extra = map[string]any{
			"provider": c.Model.Provider, "tools": c.Tools, "policy": c.Policy, "workspace_mode": c.WorkspaceMode, "image": c.Image,
		}
	}
	a.text(`{"schema_version":` + strconv.Quote(ATIFVersion) + `,"session_id":`)
	a.json(o.Session)
	a.text(`,"agent":`)
	a.json(agent)
	a.text(`,"steps":[`)
}

// record takes the next record.
func (a *atif) record(r record.Record) {
	if a.err != nil {
		return
	}
	r, err := whole(a.session, r)
	if err != nil {
		a.err = err
		return
	}
	switch r.Kind {
	case record.KindMessage:
		with(r, func(p record.Message) { a.message(r, p) })
	case record.KindModelCallStarted:
		with(r, func(p record.ModelCallStarted) { a.asked, a.model = a.asked+1, p.Model.Model })
	case record.KindModelCallCompleted:
		with(r, func(p record.ModelCallCompleted) { a.used = p.Usage })
	case record.KindToolCalled:
		with(r, func(p record.ToolCalled) {
			a.call(p.CallID)["side_effects"], a.call(p.CallID)["rule"] = p.Class, p.Rule
		})
	case record.KindConfirmationResolved:
		with(r, func(p record.ConfirmationResolved) {
			a.call(p.CallID)["decision"], a.call(p.CallID)["decided_by"] = p.Decision, p.By
		})
	case record.KindToolCompleted:
		with(r, func(p record.ToolCompleted) {
			e := a.outcome(p.CallID)
			e["duration_ms"], e["total_bytes"] = p.LatencyMS, p.OutputBytes
			if code, ok := p.Metadata["exit_code"]; ok {
				e["exit_code"] = code
			}
			if len(p.FilesModified) > 0 {
				e["files_modified"] = p.FilesModified
			}
		})
	case record.KindToolFailed:
		with(r, func(p record.ToolFailed) {
			e := a.outcome(p.CallID)
			e["duration_ms"], e["error_class"] = p.LatencyMS, p.Class
		})
	case record.KindToolInputInvalid:
		with(r, func(p record.ToolInputInvalid) { a.outcome(p.CallID)["error_class"] = "input_invalid" })
	}
}

// call is what is known of a call of the step, outcome of its end. What belongs to
// no call of the step is dropped.
func (a *atif) call(id string) map[string]any    { return of(a.calls, id) }
func (a *atif) outcome(id string) map[string]any { return of(a.ended, id) }

func of(all map[string]map[string]any, id string) map[string]any {
	if m := all[id]; m != nil {
		return m
	}
	return map[string]any{}
}

// message makes a step of a message, or the observation of the step before.
func (a *atif) message(r record.Record, m record.Message) {
	if m.Role == loop.RoleTool {
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				a.result(*b.ToolResult)
			}
		}
		return
	}
	a.flush()
	step := &atifStep{Time: r.Time.UTC().Format(time.RFC3339Nano), Source: "system"}
	switch m.Role {
	case loop.RoleUser:
		step.Source = "user"
	case loop.RoleAssistant:
		step.Source = "agent"
		a.measure(step)
	}
	a.step, a.calls, a.ended = step, map[string]map[string]any{}, map[string]map[string]any{}
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			step.Message = joined(step.Message, b.Text.Text)
		case b.Thinking != nil && step.Source == "agent":
			step.Reasoning = joined(step.Reasoning, b.Thinking.Text)
		case b.ToolUse != nil && step.Source == "agent":
			step.Calls = append(step.Calls, a.use(*b.ToolUse))
		}
	}
}

func joined(before, text string) string {
	if before == "" {
		return text
	}
	return before + "\n" + text
}

func (a *atif) use(u loop.ToolUse) atifCall {
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

// result observes the result of a call of the step.
func (a *atif) result(t loop.ToolResult) {
	extra, ok := a.ended[t.ToolUseID]
	if !ok || a.step == nil {
		return // an observation names a call of its own step
	}
	extra["is_error"] = t.IsError
	if a.step.Observed == nil {
		a.step.Observed = &atifObserved{}
	}
	// Pictures would need files beside the document.
	var pictures []map[string]any
	for _, b := range t.Content {
		if len(b.Image) > 0 {
			pictures = append(pictures, map[string]any{"media_type": b.MediaType, "bytes": len(b.Image)})
		}
	}
	if pictures != nil {
		extra["images_left_out"] = pictures
	}
	a.step.Observed.Results = append(a.step.Observed.Results, atifResult{Call: t.ToolUseID, Content: loop.ResultText(t.Content), Extra: extra})
}

// measure gives an agent's step what its model calls used.
func (a *atif) measure(step *atifStep) {
	u := a.used
	step.Model, step.LLMCalls = a.model, new(a.asked)
	step.Metrics = &atifMetrics{
		Prompt: u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens, Completion: u.OutputTokens, Cached: u.CachedInputTokens,
	}
	if u.CostMicroUSD != nil {
		step.Metrics.Cost = new(float64(*u.CostMicroUSD) / 1e6)
		a.cost += *u.CostMicroUSD
	} else {
		a.unknown = true
	}
	a.total.Prompt, a.total.Completion, a.total.Cached = a.total.Prompt+step.Metrics.Prompt, a.total.Completion+u.OutputTokens, a.total.Cached+u.CachedInputTokens
	a.asked, a.used = 0, limits.Usage{}
}

// flush writes the step that waits.
func (a *atif) flush() {
	if a.step == nil {
		return
	}
	a.steps++
	a.step.ID = a.steps
	if a.steps > 1 {
		a.text(",\n")
	}
	a.json(a.step)
	a.step = nil
}

// end closes the document: a session that did not end by an answer has a last
// step that says so.
func (a *atif) end(o Overview) {
	a.flush()
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
			note = endText(*e)
		}
	}
	if note != "" || a.steps == 0 {
		a.step = &atifStep{Time: o.Last.UTC().Format(time.RFC3339Nano), Source: "system", Message: note, Extra: map[string]any{"end": true}}
		a.flush()
	}
	a.total.Steps = a.steps
	if !a.unknown {
		a.total.Cost = new(float64(a.cost) / 1e6)
	}
	a.text(`],"final_metrics":`)
	a.json(a.total)
	a.text(`,"extra":`)
	a.json(extra)
	a.text("}\n")
}

func (a *atif) text(s string) {
	if a.err == nil {
		_, a.err = a.out.WriteString(s)
	}
}

func (a *atif) json(v any) {
	if a.err != nil {
		return
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // the text is no page's, and keys are found as they are
	if a.err = enc.Encode(v); a.err != nil {
		return
	}
	// A trajectory may be shown on a terminal: what would steer one, or be seen by
	// nobody, is escaped as in records.
	a.text(string(record.SafeJSON(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))))
	a.text("\n")
}
