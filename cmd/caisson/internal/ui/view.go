package ui

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
	"github.com/caisson-run/caisson/tools/shell"
)

const (
	// tailLines is how much of a command's output is shown while it runs and if it
	// failed. tailBytes is how much is kept for that.
	tailLines = 5
	tailBytes = 8 << 10
	// maxSummaryCells bounds a call's input in its line.
	maxSummaryCells = 120
)

// view is the state of a session, from its records and live output. It belongs to its
// Renderer.
type view struct {
	style style
	steps *trace.Steps
	// running are the running calls, in the order of their start.
	running []*call
	// asking is set while the model is asked, since since. text is its answer so far.
	asking bool
	since  time.Time
	text   tail
	// chat shows the answers of many turns. turn is set while one runs, began once a
	// session began. answer is the model's current text, said is set once it said
	// something in this turn, and redact removes secrets.
	chat, turn, began bool
	answer            answerText
	said              bool
	redact            func(string) string
	// untold returns the facts that the user should see.
	untold func(workspace string, facts []string) []string
	// warned are the shown warnings.
	warned []string
	// egress is what commands may reach, or nil.
	egress *record.Egress
	// sandbox is "" until the chosen container runs.
	sandbox string
	// columns is the terminal's width, or 0 for no limit.
	columns int
}

type call struct {
	id     string
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
	return &view{
		style: s, steps: trace.NewSteps(nil), redact: func(text string) string { return text }, untold: func(_ string, facts []string) []string { return facts },
	}
}

// addRecord adds a record and returns its lines for the screen.
func (v *view) addRecord(r record.Record) []string {
	if c := v.steps.Record(r).Call; c != nil && r.Kind != record.KindMessage {
		return v.addCall(r, c)
	}
	switch p := record.DecodePayload(r).(type) {
	case record.SessionCreated:
		return v.addCreated(p)
	case record.SessionResumed:
		return v.addCreated(p.SessionCreated)
	case record.SandboxStarted:
		return v.addAttested(p.Attestation, fmt.Sprintf("in %d ms", p.StartMS))
	case record.SandboxRestarted:
		return v.addAttested(p.Attestation, fmt.Sprintf("again (%d), on the same workspace", p.Restart))
	case record.SandboxLost:
		return []string{v.style.red("! sandbox lost: " + safeLine(p.Cause))}
	case record.TurnStarted:
		v.turn, v.said, v.since = true, false, r.Time
	case record.TurnCompleted, record.TurnCancelled:
		v.turn = false
		return v.addAnswer(v.answer.takeRest())
	case record.ModelCallStarted:
		v.asking, v.since, v.text = true, r.Time, tail{}
	case record.ModelCallCompleted:
		v.asking = false
	case record.ModelCallFailed:
		v.asking = false
		lines := v.addAnswer(v.answer.takeRest())
		if p.Retry != nil {
			return append(lines, v.style.yellow("! "+retryText(p)))
		}
		return append(lines, v.style.red(fmt.Sprintf("! the model failed (%s): %s", p.Class, safeLine(p.Message))))
	case record.Message:
		return v.addMessage(p)
	case record.BudgetWarning:
		return v.addBudget(p)
	case record.ContextShortened:
		return []string{v.style.dim(p.String())}
	case record.ContextCompacted:
		return []string{v.style.dim(p.String())}
	case record.ContextCompactionFailed:
		return []string{v.style.yellow("! " + safeLine(p.String()))}
	case record.Verification:
		return v.addVerification(p)
	case record.WorkerToolCall:
		return []string{v.style.dim("  " + safeLine(p.String()))}
	case record.WorkerCostWarning:
		return []string{v.style.yellow("! " + safeLine(p.String()))}
	case record.NetworkDenied: // of a user's command; a call's result has its own
		return []string{v.style.yellow("! " + safeLine(v.deniedText(p)))}
	case record.NetworkClosed:
		return v.adviseOnce(p.Warning())
	case record.MCPServerStarted:
		return []string{v.style.dim(safeLine(p.String()))}
	case record.MCPServerFailed:
		text := p.String()
		if strings.Contains(p.Cause, oauth.ErrSignIn.Error()) {
			text += ": caisson mcp login " + p.Server
		}
		return []string{v.style.yellow("! " + safeLine(text))}
	case record.MCPServerStopped:
		if p.Cause != "" {
			return []string{v.style.yellow("! " + safeLine(p.String()))}
		}
	case record.MCPToolsChanged:
		return []string{v.style.yellow("! " + safeLine(p.String()))}
	case record.MCPRequestRefused:
		return []string{v.style.yellow("! " + safeLine(p.String()))}
	case record.Warning:
		if p.Requested {
			return []string{v.style.green("✓") + " " + safeLine(p.Message)}
		}
		v.warned = append(v.warned, p.Message)
		return []string{v.style.yellow("! " + safeLine(strings.ReplaceAll(p.Message, "\n", "; ")))} // joined errors
	}
	return nil
}

// addVerification shows the end of a verification, and the end of its output if it
// failed.
func (v *view) addVerification(p record.Verification) []string {
	took := formatElapsed(time.Duration(p.WallMS) * time.Millisecond)
	if p.Passed {
		return []string{v.style.green("✓") + " verify " + safeLine(p.Command) + v.style.dim("  "+took)}
	}
	lines := []string{v.style.red("✗") + " verify " + safeLine(p.Command) + "  " + v.style.red(safeLine(p.String())) + v.style.dim("  "+took)}
	const most = 20
	output := strings.FieldsFunc(p.Output, func(r rune) bool { return r == '\n' })
	for _, l := range output[max(0, len(output)-most):] {
		lines = append(lines, "    "+safeLine(l))
	}
	return lines
}

// retryText describes a retried model request.
func retryText(p record.ModelCallFailed) string {
	failure := "no answer"
	if p.Status != 0 {
		failure = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", p.Status, http.StatusText(p.Status)))
	}
	wait := time.Duration(p.Retry.DelayMS) * time.Millisecond
	if wait >= 10*time.Second {
		wait = wait.Round(time.Second)
	}
	return fmt.Sprintf("model: %s, retry %d of %d in %s", failure, p.Retry.Number, p.Retry.Most, wait)
}

// addBudget warns that a limit is near. A reached one is reported at the end.
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

// maxRefusals is the number of refused connections shown while a call runs. Its result
// has all.
const maxRefusals = 3

// addCall adds a record of a call, which the record has changed.
func (v *view) addCall(r record.Record, c *trace.Call) []string {
	switch p := record.DecodePayload(r).(type) {
	case record.ToolCalled:
		v.running = append(v.running, &call{id: c.ID, what: v.callText(c), since: r.Time})
	case record.NetworkDenied:
		if p.Way != "" && len(c.Denied) <= maxRefusals { // a refused fetch is a failed call
			return []string{v.style.yellow("! " + safeLine(v.deniedText(p)))}
		}
	case record.NetworkClosed:
		return v.adviseOnce(p.Warning())
	case record.ToolCompleted:
		name, _ := p.Metadata[shell.PresetKey].(string)
		return append(v.addCompleted(c), v.adviseOnce(PresetAdvice(name))...)
	case record.ToolFailed:
		ended := v.endCall(c)
		head := v.endedLine(v.style.red("✗"), ended.what, v.style.red(failedText(c)))
		return append([]string{head}, v.tailOf(ended, tailLines)...)
	case record.ToolInputInvalid:
		ended := v.endCall(c)
		return []string{v.endedLine(v.style.red("✗"), ended.what, safeLine("invalid input: "+strings.ReplaceAll(c.Error, "\n", "; ")))}
	case record.ConfirmationResolved:
		return v.addResolved(c)
	}
	return nil
}

// adviseOnce returns the line of an advice, unless it was shown or is "".
func (v *view) adviseOnce(text string) []string {
	if text == "" || slices.Contains(v.warned, text) {
		return nil
	}
	v.warned = append(v.warned, text)
	return []string{v.style.yellow("! " + safeLine(text))}
}

// PresetAdvice returns how to give commands the network of an egress preset, or "" for
// "".
func PresetAdvice(name string) string {
	if name == "" {
		return ""
	}
	return "commands have no network: --egress-preset " + name + " lets them download packages"
}

// deniedText describes a refused connection, with the setting that would allow it.
func (v *view) deniedText(p record.NetworkDenied) string {
	if key, name := config.Lacking(p, v.egress); key == config.ReplacedRegistry {
		return p.String() + ": " + config.ReplacedAdvice(name)
	}
	if line := config.LineToAllow(p, v.egress); line != "" {
		return p.String() + ". If you expect that, add " + line
	}
	return p.String()
}

// failedText returns the reason of a failed call, without repeating it.
func failedText(c *trace.Call) string {
	if q := lastAnswer(c); q.Decision != "" && q.Decision != approval.DecisionAllow && q.By != "cancel" {
		text := "refused" + answeredBy(q)
		if q.Reason != "" {
			text += ": " + fitWidth(safeLine(q.Reason), maxSummaryCells)
		}
		return text
	}
	text, _, _ := strings.Cut(c.Error, "\n")
	if strings.EqualFold(strings.TrimRight(text, "."), c.ErrorClass) || text == "" {
		return safeLine(c.ErrorClass)
	}
	return safeLine(c.ErrorClass + ": " + text)
}

// lastAnswer returns the last confirmation of a call. Without one, Decision is "".
func lastAnswer(c *trace.Call) trace.Question {
	if len(c.Asked) == 0 {
		return trace.Question{}
	}
	return c.Asked[len(c.Asked)-1]
}

// callText returns a call's name, and its summary if it has one.
func (v *view) callText(c *trace.Call) string {
	text := v.style.bold(safeLine(string(c.Name)))
	if c.Summary != "" {
		text += " " + fitWidth(safeLine(c.Summary), maxSummaryCells)
	}
	return text
}

// addResolved returns a line about who allowed a call, unless the answer was given
// here: that follows the question. A refusal is reported with the end of its call.
func (v *view) addResolved(c *trace.Call) []string {
	q := lastAnswer(c)
	if q.Decision != approval.DecisionAllow || q.By == "cancel" || q.By == "user" && q.Client == "terminal" {
		return nil
	}
	text := "  allowed" + answeredBy(q)
	if c.Summary != "" {
		text += ": " + v.callText(c)
	}
	return []string{v.style.dim(text)}
}

// answeredBy returns who or what answered a question, to append to the answer.
func answeredBy(q trace.Question) string {
	switch q.By {
	case "user":
		if q.Client == "" || q.Client == "terminal" {
			return " by you"
		}
		return " by " + safeLine(q.Client)
	case "session":
		return " by an earlier answer of this session"
	case "grant":
		return " by a stored answer"
	case "timeout":
		return ": no one answered in time"
	case "on_prompt":
		return ": no one could be asked"
	case "decider":
		return " by the decider " + safeLine(q.Client)
	}
	return " by " + safeLine(q.By)
}

func (v *view) addCompleted(c *trace.Call) []string {
	ended := v.endCall(c)
	took := v.style.dim(formatElapsed(time.Duration(c.LatencyMS) * time.Millisecond))
	if c.Status == trace.CallDone {
		return append([]string{v.endedLine(v.style.green("✓"), ended.what, took)}, editLines(c, v.style)...)
	}
	if c.Ending != "" {
		took = v.style.red(c.Ending) + "  " + took
	}
	return append([]string{v.endedLine(v.style.red("✗"), ended.what, took)}, v.tailOf(ended, tailLines)...)
}

// leastCallCells is the least width of a call in its line.
const leastCallCells = 30

// endedLine returns the line of a call that has ended. It cuts the call so that the
// line fits in a row, unless the ending is long.
func (v *view) endedLine(sign, what, ending string) string {
	if v.columns > 0 {
		room := v.columns - 1 - ansi.StringWidth(sign+"   "+ending)
		what = fitWidth(what, max(room, leastCallCells))
	}
	return sign + " " + what + "  " + ending
}

// endCall removes a call from the running ones and returns it. It may never have run.
func (v *view) endCall(c *trace.Call) *call {
	for i, o := range v.running {
		if o.id == c.ID {
			v.running = slices.Delete(v.running, i, i+1)
			return o
		}
	}
	return &call{what: v.callText(c)}
}

func (v *view) tailOf(c *call, n int) []string {
	var out []string
	for _, l := range lastLines(c.output.text, n) {
		out = append(out, "    "+v.style.dim(l))
	}
	return out
}

// addMessage shows the agent's text beside its calls. The program prints the final
// answer.
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
	if v.chat {
		return v.addAnswer(v.answer.endText(text.String(), v.redact))
	}
	if !calls {
		return nil
	}
	var out []string
	for l := range strings.Lines(strings.TrimSpace(text.String())) {
		out = append(out, safeLine(strings.TrimRight(l, "\r\n")))
	}
	return out
}

// addAnswer returns the lines of a chat's paragraph, with an empty line between
// paragraphs.
func (v *view) addAnswer(text string) []string {
	lines := answerLines(text, v.columns, v.redact, v.style.on)
	if len(lines) == 0 {
		return nil
	}
	if v.said {
		lines = append([]string{""}, lines...)
	}
	v.said = true
	return lines
}

// addDelta takes a piece of live output and returns the lines of a chat that it
// completes.
func (v *view) addDelta(d runner.Delta) []string {
	if d.CallID == "" && v.chat {
		return v.addAnswer(v.answer.addText(d.Text))
	}
	if d.CallID == "" {
		v.text.addText(d.Text)
		return nil
	}
	for _, c := range v.running {
		if c.id == d.CallID {
			c.output.addText(d.Text)
		}
	}
	return nil
}
