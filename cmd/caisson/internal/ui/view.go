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
	steps *trace.Steps
	// running are the calls under way, in the order of their start.
	running []*call
	// asking is the time since which the model is asked; text is its answer so
	// far.
	asking bool
	since  time.Time
	text   tail
	// chat shows the answers of many turns, of which one runs if turn is set; began reports
	// that a session began before. answer is the text of the model now, said reports that
	// it has said something in this turn, and redact removes secrets.
	chat, turn, began bool
	answer            answerText
	said              bool
	redact            func(string) string
	// untold returns those of some facts that the user should hear of.
	untold func(workspace string, facts []string) []string
	// warned are the warnings that were shown.
	warned []string
	// egress is what commands may reach, nil for nothing.
	egress *record.Egress
	// sandbox is "" until the container runs, where one was chosen.
	sandbox string
	// columns are those of the terminal, 0 where lines may be of any width.
	columns int
}

// call is one tool call under way.
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

// addRecord adds one record and returns its lines on the screen.
func (v *view) addRecord(r record.Record) []string {
	if c := v.steps.Record(r).Call; c != nil && r.Kind != record.KindMessage {
		return v.addCall(r, c)
	}
	switch r.Kind {
	case record.KindSessionCreated:
		return v.addCreated(record.PayloadOf[record.SessionCreated](r))
	case record.KindSessionResumed:
		return v.addCreated(record.PayloadOf[record.SessionResumed](r).SessionCreated)
	case record.KindSandboxStarted:
		p := record.PayloadOf[record.SandboxStarted](r)
		return v.addAttested(p.Attestation, fmt.Sprintf("in %d ms", p.StartMS))
	case record.KindSandboxRestarted:
		p := record.PayloadOf[record.SandboxRestarted](r)
		return v.addAttested(p.Attestation, fmt.Sprintf("again (%d), on the same workspace", p.Restart))
	case record.KindSandboxLost:
		p := record.PayloadOf[record.SandboxLost](r)
		return []string{v.style.red("! sandbox lost: " + safeLine(p.Cause))}
	case record.KindTurnStarted:
		v.turn, v.said, v.since = true, false, r.Time
	case record.KindTurnCompleted, record.KindTurnCancelled:
		v.turn = false
		return v.addAnswer(v.answer.takeRest())
	case record.KindModelCallStarted:
		v.asking, v.since, v.text = true, r.Time, tail{}
	case record.KindModelCallCompleted:
		v.asking = false
	case record.KindModelCallFailed:
		v.asking = false
		p := record.PayloadOf[record.ModelCallFailed](r)
		lines := v.addAnswer(v.answer.takeRest())
		if p.Retry != nil {
			return append(lines, v.style.yellow("! "+retryText(p)))
		}
		return append(lines, v.style.red(fmt.Sprintf("! the model failed (%s): %s", p.Class, safeLine(p.Message))))
	case record.KindMessage:
		return v.addMessage(record.PayloadOf[record.Message](r))
	case record.KindBudgetWarning:
		return v.addBudget(record.PayloadOf[record.BudgetWarning](r))
	case record.KindContextShortened:
		return []string{v.style.dim(record.PayloadOf[record.ContextShortened](r).String())}
	case record.KindContextCompacted:
		return []string{v.style.dim(record.PayloadOf[record.ContextCompacted](r).String())}
	case record.KindCompactionFailed:
		return []string{v.style.yellow("! " + safeLine(record.PayloadOf[record.ContextCompactionFailed](r).String()))}
	case record.KindVerification:
		return v.addVerification(record.PayloadOf[record.Verification](r))
	case record.KindWorkerToolCall:
		return []string{v.style.dim("  " + safeLine(record.PayloadOf[record.WorkerToolCall](r).String()))}
	case record.KindWorkerCostWarning:
		return []string{v.style.yellow("! " + safeLine(record.PayloadOf[record.WorkerCostWarning](r).String()))}
	case record.KindNetworkDenied: // to a command of the user; the result of a call has its own
		return []string{v.style.yellow("! " + safeLine(v.deniedText(record.PayloadOf[record.NetworkDenied](r))))}
	case record.KindNetworkClosed:
		return v.adviseOnce(record.PayloadOf[record.NetworkClosed](r).Warning())
	case record.KindMCPServerStarted:
		return []string{v.style.dim(safeLine(record.PayloadOf[record.MCPServerStarted](r).String()))}
	case record.KindMCPServerFailed:
		p := record.PayloadOf[record.MCPServerFailed](r)
		text := p.String()
		if strings.Contains(p.Cause, oauth.ErrSignIn.Error()) {
			text += ": caisson mcp login " + p.Server
		}
		return []string{v.style.yellow("! " + safeLine(text))}
	case record.KindMCPServerStopped:
		if p := record.PayloadOf[record.MCPServerStopped](r); p.Cause != "" {
			return []string{v.style.yellow("! " + safeLine(p.String()))}
		}
	case record.KindMCPToolsChanged:
		return []string{v.style.yellow("! " + safeLine(record.PayloadOf[record.MCPToolsChanged](r).String()))}
	case record.KindMCPRequestRefused:
		return []string{v.style.yellow("! " + safeLine(record.PayloadOf[record.MCPRequestRefused](r).String()))}
	case record.KindWarning:
		p := record.PayloadOf[record.Warning](r)
		if p.Requested {
			return []string{v.style.green("✓") + " " + safeLine(p.Message)}
		}
		v.warned = append(v.warned, p.Message)
		return []string{v.style.yellow("! " + safeLine(strings.ReplaceAll(p.Message, "\n", "; ")))} // joined errors
	}
	return nil
}

// addVerification shows the end of a verification, with that of its output if it failed.
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

// retryText describes a request to the model that is repeated.
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

// maxRefusals is the number of refused connections per call that are shown while it
// runs; its result has all of them.
const maxRefusals = 3

// addCall adds a record of a call, which has changed by it.
func (v *view) addCall(r record.Record, c *trace.Call) []string {
	switch r.Kind {
	case record.KindToolCalled:
		v.running = append(v.running, &call{id: c.ID, what: v.callText(c), since: r.Time})
	case record.KindNetworkDenied:
		p := record.PayloadOf[record.NetworkDenied](r)
		if p.Way != "" && len(c.Denied) <= maxRefusals { // a refused fetch is a call that failed
			return []string{v.style.yellow("! " + safeLine(v.deniedText(p)))}
		}
	case record.KindNetworkClosed:
		return v.adviseOnce(record.PayloadOf[record.NetworkClosed](r).Warning())
	case record.KindToolCompleted:
		name, _ := record.PayloadOf[record.ToolCompleted](r).Metadata[shell.PresetKey].(string)
		return append(v.addCompleted(c), v.adviseOnce(PresetAdvice(name))...)
	case record.KindToolFailed:
		ended := v.endCall(c)
		head := v.endedLine(v.style.red("✗"), ended.what, v.style.red(failedText(c)))
		return append([]string{head}, v.tailOf(ended, tailLines)...)
	case record.KindToolInputInvalid:
		ended := v.endCall(c)
		return []string{v.endedLine(v.style.red("✗"), ended.what, safeLine("invalid input: "+strings.ReplaceAll(c.Error, "\n", "; ")))}
	case record.KindConfirmationResolved:
		return v.addResolved(c)
	}
	return nil
}

// adviseOnce returns the line of an advice, unless it was shown before or is "".
func (v *view) adviseOnce(text string) []string {
	if text == "" || slices.Contains(v.warned, text) {
		return nil
	}
	v.warned = append(v.warned, text)
	return []string{v.style.yellow("! " + safeLine(text))}
}

// PresetAdvice returns how to give commands the network that one lacked, by the name of an
// egress preset. It is "" for "".
func PresetAdvice(name string) string {
	if name == "" {
		return ""
	}
	return "commands have no network: --egress-preset " + name + " lets them download packages"
}

// deniedText describes a refused connection, and the setting that would allow it.
func (v *view) deniedText(p record.NetworkDenied) string {
	if key, name := config.Lacking(p, v.egress); key == config.ReplacedRegistry {
		return p.String() + ": " + config.ReplacedAdvice(name)
	}
	if line := config.LineToAllow(p, v.egress); line != "" {
		return p.String() + ". If you expect that, add " + line
	}
	return p.String()
}

// failedText returns the reason of a failed call, once.
func failedText(c *trace.Call) string {
	if q := lastAnswer(c); q.Decision != "" && q.Decision != approval.DecisionAllow && q.By != "cancel" {
		text := "refused" + answeredBy(q)
		if q.Reason != "" {
			text += ": " + fitWidth(safeLine(q.Reason), maxSummaryCells)
		}
		return text
	}
	text := firstLine(c.Error)
	if strings.EqualFold(strings.TrimRight(text, "."), c.ErrorClass) || text == "" {
		return safeLine(c.ErrorClass)
	}
	return safeLine(c.ErrorClass + ": " + text)
}

// lastAnswer returns the last confirmation of a call. Its Decision is "" if there
// is none.
func lastAnswer(c *trace.Call) trace.Question {
	if len(c.Asked) == 0 {
		return trace.Question{}
	}
	return c.Asked[len(c.Asked)-1]
}

// callText returns a call as people know it: its name, and its summary once it has
// run or was asked about.
func (v *view) callText(c *trace.Call) string {
	text := v.style.bold(safeLine(string(c.Name)))
	if c.Summary != "" {
		text += " " + fitWidth(safeLine(c.Summary), maxSummaryCells)
	}
	return text
}

// addResolved returns a line on whose answer allowed a call, unless it was given
// here: then it follows the question. A refusal is reported once, with the end of
// its call.
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

// answeredBy returns who or what answered a question, to follow the answer.
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

// leastCallCells is how much of a call its line shows on any terminal.
const leastCallCells = 30

// endedLine returns the line of a call that has ended. The call is cut so that the line
// takes one row, but for a long ending.
func (v *view) endedLine(sign, what, ending string) string {
	if v.columns > 0 {
		room := v.columns - 1 - ansi.StringWidth(sign+"   "+ending)
		what = fitWidth(what, max(room, leastCallCells))
	}
	return sign + " " + what + "  " + ending
}

// endCall removes a call from those that run, and returns it. It may never have
// run.
func (v *view) endCall(c *trace.Call) *call {
	for i, o := range v.running {
		if o.id == c.ID {
			v.running = slices.Delete(v.running, i, i+1)
			return o
		}
	}
	return &call{what: v.callText(c)}
}

// tailOf returns the last n lines of a call's output.
func (v *view) tailOf(c *call, n int) []string {
	var out []string
	for _, l := range lastLines(c.output.text, n) {
		out = append(out, "    "+v.style.dim(l))
	}
	return out
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

// addAnswer returns the lines of a paragraph of a chat, with an empty one between
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

// addDelta takes a piece of live output and returns the lines of a chat that are
// complete by it.
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

func firstLine(s string) string {
	l, _, _ := strings.Cut(s, "\n")
	return l
}
