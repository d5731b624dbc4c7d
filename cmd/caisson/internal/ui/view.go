package ui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

const (
	// tailLines is how much of a command's output is shown, while it runs and
	// when it has failed; tailBytes what is kept to make it from.
	tailLines = 5
	tailBytes = 8 << 10
	// maxSummaryCells bounds what a line shows of a call's input.
	maxSummaryCells = 120
)

// view is the state of a session, from its records and live output alone. It
// belongs to its Renderer.
type view struct {
	style style
	calls map[string]*call
	order []string
	// asked describes the calls that needed an approval, and refused why calls were
	// refused, by their ids.
	asked   map[string]string
	refused map[string]string
	// asking is the time since which the model is asked; text is its answer so
	// far.
	asking bool
	since  time.Time
	text   tail
	// warned are the warnings that were shown.
	warned []string
	// sandbox is "" until the container runs, where one was chosen.
	sandbox string
}

// call is one tool call under way.
type call struct {
	what   string
	since  time.Time
	output tail
}

// tail keeps the last bytes of a text.
type tail struct{ text string }

func (t *tail) addText(s string) {
	t.text += s
	if len(t.text) > 2*tailBytes {
		t.text = t.text[len(t.text)-tailBytes:]
	}
}

func newView(s style) *view {
	return &view{style: s, calls: map[string]*call{}, asked: map[string]string{}, refused: map[string]string{}}
}

// addRecord adds one record and returns its lines on the screen.
func (v *view) addRecord(r record.Record) []string {
	switch r.Kind {
	case record.KindSessionCreated:
		return v.addCreated(decode[record.SessionCreated](r))
	case record.KindSandboxStarted:
		p := decode[record.SandboxStarted](r)
		return v.addAttested(p.Attestation, fmt.Sprintf("in %d ms", p.StartMS))
	case record.KindSandboxRestarted:
		p := decode[record.SandboxRestarted](r)
		return v.addAttested(p.Attestation, fmt.Sprintf("again (%d), on the same workspace", p.Restart))
	case record.KindSandboxLost:
		p := decode[record.SandboxLost](r)
		return []string{v.style.red("! sandbox lost: " + safeLine(p.Cause))}
	case record.KindModelCallStarted:
		v.asking, v.since, v.text = true, r.Time, tail{}
	case record.KindModelCallCompleted:
		v.asking = false
	case record.KindModelCallFailed:
		v.asking = false
		p := decode[record.ModelCallFailed](r)
		return []string{v.style.red(fmt.Sprintf("! the model failed (%s): %s", p.Class, safeLine(p.Message)))}
	case record.KindMessage:
		return v.addMessage(decode[record.Message](r))
	case record.KindBudgetWarning:
		return v.addBudget(decode[record.BudgetWarning](r))
	case record.KindWarning:
		p := decode[record.Warning](r)
		v.warned = append(v.warned, p.Message)
		return []string{v.style.yellow("! " + safeLine(p.Message))}
	}
	return v.toolRecord(r)
}

// addBudget warns that a limit is near; one that is reached says so at the end.
func (v *view) addBudget(p record.BudgetWarning) []string {
	if p.Used >= p.Limit {
		return nil
	}
	if p.What == limits.KindWallTime {
		used, limit := time.Duration(p.Used)*time.Millisecond, time.Duration(p.Limit)*time.Millisecond
		return []string{v.style.yellow(fmt.Sprintf("! %s of %s of wall time used", formatElapsed(used), formatElapsed(limit)))}
	}
	return []string{v.style.yellow("! " + p.String())}
}

// failedText returns the reason of a failed call, once.
func failedText(p record.ToolFailed) string {
	text := firstLine(p.Message)
	if strings.EqualFold(strings.TrimRight(text, "."), string(p.Class)) || text == "" {
		return string(p.Class)
	}
	return string(p.Class) + ": " + text
}

// toolRecord takes the records of tool calls.
func (v *view) toolRecord(r record.Record) []string {
	switch r.Kind {
	case record.KindToolCalled:
		p := decode[record.ToolCalled](r)
		v.calls[p.CallID] = &call{what: v.callText(p.Name, p.Summary), since: r.Time}
		v.order = append(v.order, p.CallID)
	case record.KindToolCompleted:
		return v.addCompleted(decode[record.ToolCompleted](r))
	case record.KindToolFailed:
		p := decode[record.ToolFailed](r)
		c := v.addEnd(p.CallID, string(p.Name))
		why, ok := v.refused[p.CallID]
		if delete(v.refused, p.CallID); !ok {
			why = safeLine(failedText(p))
		}
		head := fmt.Sprintf("%s %s  %s", v.style.red("✗"), c.what, v.style.red(why))
		return append([]string{head}, v.tailOf(c, tailLines)...)
	case record.KindToolInputInvalid:
		p := decode[record.ToolInputInvalid](r)
		return []string{fmt.Sprintf("%s %s  %s", v.style.red("✗"), v.style.bold(safeLine(string(p.Name))), safeLine("invalid input: "+strings.Join(p.Errors, "; ")))}
	case record.KindConfirmationRequested:
		p := decode[record.ConfirmationRequested](r)
		v.asked[p.CallID] = v.callText(p.Name, p.Summary)
	case record.KindConfirmationResolved:
		return v.addResolved(decode[record.ConfirmationResolved](r))
	}
	return nil
}

// callText returns a call as people know it.
func (v *view) callText(name tools.Name, summary string) string {
	return v.style.bold(safeLine(string(name))) + " " + fitWidth(safeLine(summary), maxSummaryCells)
}

// addResolved says whose answer allowed a call, unless it was given here: then it
// stands behind the question. A refusal is told once, as the end of its call.
func (v *view) addResolved(p record.ConfirmationResolved) []string {
	if p.By == "cancel" {
		return nil // as its call says
	}
	by := answeredBy(p)
	if p.Decision != approval.DecisionAllow {
		v.refused[p.CallID] = "refused" + by
		return nil
	}
	if p.By == "user" && p.Client == "terminal" {
		return nil
	}
	text := "  allowed" + by
	if what := v.asked[p.CallID]; what != "" {
		text += ": " + what
	}
	return []string{v.style.dim(text)}
}

// answeredBy returns who or what answered a question, to stand behind the answer.
func answeredBy(p record.ConfirmationResolved) string {
	switch p.By {
	case "user":
		if p.Client == "" || p.Client == "terminal" {
			return " by you"
		}
		return " by " + safeLine(p.Client)
	case "session":
		return " by an earlier answer of this session"
	case "grant":
		return " by a stored answer"
	case "timeout":
		return ": nobody answered in time"
	case "on_prompt":
		return ": nobody could be asked"
	}
	return " by " + safeLine(p.By)
}

func (v *view) addCompleted(p record.ToolCompleted) []string {
	c := v.addEnd(p.CallID, string(p.Name))
	took := v.style.dim(formatElapsed(time.Duration(p.LatencyMS) * time.Millisecond))
	if p.Success {
		return []string{fmt.Sprintf("%s %s  %s", v.style.green("✓"), c.what, took)}
	}
	head := fmt.Sprintf("%s %s  ", v.style.red("✗"), c.what)
	if why := tools.CommandEnding(p.Metadata); why != "" {
		head += v.style.red(why) + " "
	}
	return append([]string{head + took}, v.tailOf(c, tailLines)...)
}

// addEnd takes a call off the list. One that never ran has what was asked about it, or
// only its name.
func (v *view) addEnd(id, name string) *call {
	asked := v.asked[id]
	delete(v.asked, id)
	c, ok := v.calls[id]
	switch {
	case !ok && asked != "":
		return &call{what: asked}
	case !ok:
		return &call{what: v.style.bold(safeLine(name))}
	}
	delete(v.calls, id)
	for i, o := range v.order {
		if o == id {
			v.order = append(v.order[:i:i], v.order[i+1:]...)
			break
		}
	}
	return c
}

// tailOf returns the last n lines of a call's output.
func (v *view) tailOf(c *call, n int) []string {
	var out []string
	for _, l := range lastLines(c.output.text, n) {
		out = append(out, "    "+v.style.dim(l))
	}
	return out
}

func (v *view) addCreated(p record.SessionCreated) []string {
	lines := []string{
		v.style.bold("caisson "+safeLine(p.Version)) + v.style.dim(fmt.Sprintf(" · %s on %s · policy %s · %s",
			safeLine(p.Model.Provider+"/"+p.Model.Model), safeLine(p.Workspace), safeLine(p.Policy), safeLine(boundsText(p)))),
		v.style.dim(fmt.Sprintf("sandbox %s (%s), image %s", safeLine(cmp.Or(p.Backend.Chosen, "none")), safeLine(shortReason(p.Backend.Why)), safeLine(p.Image))),
	}
	if p.Backend.Chosen == "" {
		v.sandbox = "none"
	}
	if p.WorkspaceMode == "overlay" {
		lines = append(lines, v.style.dim("changes go to an overlay: the workspace stays as it is until caisson apply"))
	}
	for _, f := range p.FilesLoaded {
		part := ""
		if f.Truncated {
			part = "the beginning of "
		}
		lines = append(lines, v.style.dim(fmt.Sprintf("the model gets %s%s (%d bytes, as %s data)", part, safeLine(f.Path), f.Bytes, safeLine(f.Trust))))
	}
	for _, i := range p.Ignored {
		lines = append(lines, v.style.yellow("! "+safeLine(i.Name)+" is ignored: "+safeLine(i.Why)))
	}
	for _, l := range p.Removed {
		lines = append(lines, v.style.yellow(safeLine(fmt.Sprintf("! removed what a dead caisson (%s) left: %s %s", l.Owner, l.Kind, l.Name))))
	}
	return lines
}

// shortReason leaves the detail of an error to the records and to the doctor.
func shortReason(why string) string {
	short, detail, _ := strings.Cut(why, ": ")
	if detail == "" {
		return why
	}
	return short + "; caisson doctor has the reason"
}

func boundsText(p record.SessionCreated) string {
	var parts []string
	if p.Budget.Rounds != nil {
		parts = append(parts, "at most "+formatCount(int(*p.Budget.Rounds), "round"))
	}
	if p.Budget.WallTimeMS != nil {
		parts = append(parts, formatElapsed(time.Duration(*p.Budget.WallTimeMS)*time.Millisecond))
	}
	return strings.Join(parts, ", ")
}

// addAttested says in one line what the container was seen to be.
func (v *view) addAttested(a sandbox.Attestation, how string) []string {
	v.sandbox = a.Backend
	caps := "no capabilities"
	if len(a.Capabilities) > 0 {
		caps = "capabilities " + strings.Join(a.Capabilities, ", ")
	}
	memory := "memory not limited"
	if a.Limits.MemoryBytes > 0 {
		memory = fmt.Sprintf("%d MiB", a.Limits.MemoryBytes>>20)
	}
	processes := "processes not limited"
	if a.Limits.PIDs > 0 {
		processes = fmt.Sprintf("%d pids", a.Limits.PIDs)
	}
	head := fmt.Sprintf("● sandbox started %s: %s %s, commands as %s with %s, seccomp %s, network %s, %s, %s",
		how, a.Runtime, a.RuntimeVersion, a.User, caps, a.Seccomp, a.Network, memory, processes)
	lines := []string{v.style.cyan(safeLine(head))}
	for _, l := range a.Lost {
		lines = append(lines, v.style.yellow("! not protected here: "+safeLine(l)))
	}
	return lines
}

// addMessage shows what the agent says beside its calls. The final answer is the
// program's to print.
func (v *view) addMessage(m record.Message) []string {
	if m.Role != loop.RoleAssistant {
		return nil
	}
	var text strings.Builder
	calls := false
	for _, b := range m.Blocks {
		if b.Text != nil {
			text.WriteString(b.Text.Text)
		}
		calls = calls || b.ToolUse != nil
	}
	v.text = tail{}
	if !calls {
		return nil
	}
	var out []string
	for l := range strings.Lines(strings.TrimSpace(text.String())) {
		out = append(out, safeLine(strings.TrimRight(l, "\r\n")))
	}
	return out
}

// addDelta takes a piece of live output.
func (v *view) addDelta(d runner.Delta) {
	if d.CallID == "" {
		v.text.addText(d.Text)
		return
	}
	if c, ok := v.calls[d.CallID]; ok {
		c.output.addText(d.Text)
	}
}

// regionLines returns at most rows lines, of about so many cells, that show what is going
// on now: of the output of calls as much as there is room for.
func (v *view) regionLines(now time.Time, spinner string, cells, rows int) []string {
	var out []string
	for tail := tailLines; tail >= 0; tail-- {
		if out = v.regionWith(tail, now, spinner, cells); len(out) <= rows {
			return out
		}
	}
	return append(out[:rows-1], v.style.dim(fmt.Sprintf("  … and %d more", len(out)-rows+1)))
}

func (v *view) regionWith(tail int, now time.Time, spinner string, cells int) []string {
	head := func(what string, since time.Time) string {
		took := formatElapsed(now.Sub(since))
		return fmt.Sprintf("%s %s  %s", v.style.cyan(spinner), fitWidth(what, cells-len(took)-4), v.style.dim(took))
	}
	var out []string
	for _, id := range v.order {
		c := v.calls[id]
		out = append(out, head(c.what, c.since))
		out = append(out, v.tailOf(c, tail)...)
	}
	if len(v.order) == 0 {
		what := "working"
		switch {
		case v.asking:
			what = "thinking"
		case v.sandbox == "":
			what = "starting the sandbox"
		}
		out = append(out, head(what, v.since))
		for _, l := range lastLines(v.text.text, tail) {
			out = append(out, "  "+l)
		}
	}
	return out
}

func decode[T record.Payload](r record.Record) T {
	var p T
	// What our own encoder wrote decodes; a payload that was moved to a file
	// shows as its empty self.
	_ = json.Unmarshal(r.Payload, &p)
	return p
}

func firstLine(s string) string {
	l, _, _ := strings.Cut(s, "\n")
	return l
}
