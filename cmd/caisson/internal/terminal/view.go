package terminal

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
)

const (
	// tailLines is how much of a command's output is shown, while it runs and
	// when it has failed; tailBytes what is kept to make it from.
	tailLines = 5
	tailBytes = 8 << 10
)

// view is what is going on, made from records and live output alone. It
// belongs to its Renderer.
type view struct {
	style style
	calls map[string]*call
	order []string
	// asked are the calls that wait for an answer, as people know them.
	asked map[string]string
	// asking is set while the model is asked, since when; text is what it has
	// said so far in this answer.
	asking bool
	since  time.Time
	text   tail
	// sandbox is "" until the container runs.
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

func (t *tail) add(s string) {
	t.text += s
	if len(t.text) > 2*tailBytes {
		t.text = t.text[len(t.text)-tailBytes:]
	}
}

func newView(s style) *view {
	return &view{style: s, calls: map[string]*call{}, asked: map[string]string{}}
}

// record takes one record and gives the lines that it leaves on the screen.
func (v *view) record(r runner.Record) []string {
	switch r.Kind {
	case runner.KindSessionCreated:
		return v.created(decode[runner.SessionCreated](r))
	case runner.KindSandboxStarted:
		p := decode[runner.SandboxStarted](r)
		return v.attested(p.Attestation, fmt.Sprintf("in %d ms", p.StartMS))
	case runner.KindSandboxRestarted:
		p := decode[runner.SandboxRestarted](r)
		return v.attested(p.Attestation, fmt.Sprintf("again (%d), on the same workspace", p.Restart))
	case runner.KindSandboxLost:
		p := decode[runner.SandboxLost](r)
		return []string{v.style.red("! sandbox lost: " + line(p.Cause))}
	case runner.KindModelCallStarted:
		v.asking, v.since, v.text = true, r.Time, tail{}
	case runner.KindModelCallCompleted:
		v.asking = false
	case runner.KindModelCallFailed:
		v.asking = false
		p := decode[runner.ModelCallFailed](r)
		return []string{v.style.red(fmt.Sprintf("! the model failed (%s): %s", p.Class, line(p.Message)))}
	case runner.KindMessage:
		return v.message(decode[runner.Message](r))
	case runner.KindBudgetWarning:
		return v.budget(decode[runner.BudgetWarning](r))
	case runner.KindWarning:
		return []string{v.style.yellow("! " + line(decode[runner.Warning](r).Message))}
	}
	return v.toolRecord(r)
}

// budget warns that a limit is near; one that is reached says so at the end.
func (v *view) budget(p runner.BudgetWarning) []string {
	if p.Used >= p.Limit {
		return nil
	}
	if p.What == limits.KindWallTime {
		used, limit := time.Duration(p.Used)*time.Millisecond, time.Duration(p.Limit)*time.Millisecond
		return []string{v.style.yellow(fmt.Sprintf("! %s of %s of wall time used", elapsed(used), elapsed(limit)))}
	}
	return []string{v.style.yellow("! " + p.String())}
}

// failedText says why a call failed, once.
func failedText(p runner.ToolFailed) string {
	text := firstLine(p.Message)
	if strings.EqualFold(strings.TrimRight(text, "."), string(p.Class)) || text == "" {
		return string(p.Class)
	}
	return string(p.Class) + ": " + text
}

// toolRecord takes the records of tool calls.
func (v *view) toolRecord(r runner.Record) []string {
	switch r.Kind {
	case runner.KindToolCalled:
		p := decode[runner.ToolCalled](r)
		v.calls[p.CallID] = &call{what: v.style.bold(line(string(p.Name))) + " " + line(p.Summary), since: r.Time}
		v.order = append(v.order, p.CallID)
	case runner.KindToolCompleted:
		return v.completed(decode[runner.ToolCompleted](r))
	case runner.KindToolFailed:
		p := decode[runner.ToolFailed](r)
		c := v.end(p.CallID, string(p.Name))
		head := fmt.Sprintf("%s %s  %s", v.style.red("✗"), c.what, v.style.red(line(failedText(p))))
		return append([]string{head}, v.tailOf(c)...)
	case runner.KindToolInputInvalid:
		p := decode[runner.ToolInputInvalid](r)
		return []string{fmt.Sprintf("%s %s  %s", v.style.red("✗"), v.style.bold(line(string(p.Name))), line("invalid input: "+strings.Join(p.Errors, "; ")))}
	case runner.KindConfirmationRequested:
		p := decode[runner.ConfirmationRequested](r)
		v.asked[p.CallID] = line(string(p.Name)) + " " + line(p.Summary)
	case runner.KindConfirmationResolved:
		return v.resolved(decode[runner.ConfirmationResolved](r))
	}
	return nil
}

// resolved says what became of a question, and of which.
func (v *view) resolved(p runner.ConfirmationResolved) []string {
	by := p.By
	if p.Client != "" {
		by += " at " + p.Client
	}
	text := fmt.Sprintf("  %s by %s (%s)", p.Decision, line(by), line(string(p.Scope)))
	switch p.By {
	case "cancel":
		text = "  withdrawn"
	case "timeout":
		text = "  nobody answered in time"
	}
	if what := v.asked[p.CallID]; what != "" {
		text += ": " + what
	}
	delete(v.asked, p.CallID)
	return []string{v.style.dim(text)}
}

func (v *view) completed(p runner.ToolCompleted) []string {
	c := v.end(p.CallID, string(p.Name))
	took := v.style.dim(elapsed(time.Duration(p.LatencyMS) * time.Millisecond))
	if p.Success {
		return []string{fmt.Sprintf("%s %s  %s", v.style.green("✓"), c.what, took)}
	}
	head := fmt.Sprintf("%s %s  ", v.style.red("✗"), c.what)
	if why := ending(p.Metadata); why != "" {
		head += v.style.red(why) + " "
	}
	return append([]string{head + took}, v.tailOf(c)...)
}

// ending says how a command ended, from what its tool recorded.
func ending(m map[string]any) string {
	switch code, signal := m["exit_code"], m["signal"]; {
	case m["timed_out"] == true:
		return "timed out"
	case m["oom_killed"] == true:
		return "out of memory"
	case m["disk_reserve_bytes"] != nil, m["disk_reserve_files"] != nil:
		return "disk nearly full"
	case m["pids_limit_hit"] == true:
		return "limit of processes"
	case m["full"] != nil:
		return "no space left"
	case signal != nil:
		return fmt.Sprintf("signal %v", signal)
	case code != nil:
		return fmt.Sprintf("exit code %v", code)
	}
	return ""
}

// end takes a call off the list; one that never ran has only its name.
func (v *view) end(id, name string) *call {
	c, ok := v.calls[id]
	if !ok {
		return &call{what: v.style.bold(line(name))}
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

func (v *view) tailOf(c *call) []string {
	var out []string
	for _, l := range lastLines(c.output.text, tailLines) {
		out = append(out, "    "+v.style.dim(l))
	}
	return out
}

func (v *view) created(p runner.SessionCreated) []string {
	lines := []string{
		v.style.bold("caisson "+line(p.Version)) + v.style.dim(fmt.Sprintf(" · %s on %s · policy %s · %s",
			line(p.Model.Provider+"/"+p.Model.Model), line(p.Workspace), line(p.Policy), line(bounds(p)))),
		v.style.dim(fmt.Sprintf("sandbox %s (%s), image %s", line(p.Backend.Chosen), line(p.Backend.Why), line(p.Image))),
	}
	for _, f := range p.FilesLoaded {
		part := ""
		if f.Truncated {
			part = "the beginning of "
		}
		lines = append(lines, v.style.dim(fmt.Sprintf("the model gets %s%s (%d bytes, as %s data)", part, line(f.Path), f.Bytes, line(f.Trust))))
	}
	for _, i := range p.Ignored {
		lines = append(lines, v.style.yellow("! "+line(i.Name)+" is ignored: "+line(i.Why)))
	}
	for _, l := range p.Removed {
		lines = append(lines, v.style.yellow(line(fmt.Sprintf("! removed what a dead caisson (%s) left: %s %s", l.Owner, l.Kind, l.Name))))
	}
	return lines
}

func bounds(p runner.SessionCreated) string {
	var parts []string
	if p.Budget.Rounds != nil {
		parts = append(parts, fmt.Sprintf("at most %d rounds", *p.Budget.Rounds))
	}
	if p.Budget.WallTimeMS != nil {
		parts = append(parts, elapsed(time.Duration(*p.Budget.WallTimeMS)*time.Millisecond))
	}
	return strings.Join(parts, ", ")
}

// attested says in one line what the container was seen to be.
func (v *view) attested(a sandbox.Attestation, how string) []string {
	v.sandbox = a.Backend
	caps := "no capabilities"
	if len(a.Capabilities) > 0 {
		caps = fmt.Sprintf("%d capabilities", len(a.Capabilities))
	}
	memory := "memory not limited"
	if a.Limits.MemoryBytes > 0 {
		memory = fmt.Sprintf("%d MiB", a.Limits.MemoryBytes>>20)
	}
	head := fmt.Sprintf("● sandbox started %s: %s %s, commands as %s with %s, seccomp %s, network %s, %s, %d pids",
		how, a.Runtime, a.RuntimeVersion, a.User, caps, a.Seccomp, a.Network, memory, a.Limits.PIDs)
	lines := []string{v.style.cyan(line(head))}
	for _, l := range a.Lost {
		lines = append(lines, v.style.yellow("! not protected here: "+line(l)))
	}
	return lines
}

// message shows what the agent says beside its calls. The final answer is the
// program's to print.
func (v *view) message(m runner.Message) []string {
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
		out = append(out, line(strings.TrimRight(l, "\r\n")))
	}
	return out
}

// delta takes a piece of live output.
func (v *view) delta(d runner.Delta) {
	if d.CallID == "" {
		v.text.add(d.Text)
		return
	}
	if c, ok := v.calls[d.CallID]; ok {
		c.output.add(d.Text)
	}
}

// region gives the lines that show what is going on now.
func (v *view) region(now time.Time, spinner string) []string {
	var out []string
	for _, id := range v.order {
		c := v.calls[id]
		out = append(out, fmt.Sprintf("%s %s  %s", v.style.cyan(spinner), c.what, v.style.dim(elapsed(now.Sub(c.since)))))
		out = append(out, v.tailOf(c)...)
	}
	if len(v.order) == 0 {
		what := "working"
		switch {
		case v.asking:
			what = "thinking"
		case v.sandbox == "":
			what = "starting the sandbox"
		}
		out = append(out, fmt.Sprintf("%s %s  %s", v.style.cyan(spinner), what, v.style.dim(elapsed(now.Sub(v.since)))))
		for _, l := range lastLines(v.text.text, tailLines) {
			out = append(out, "  "+l)
		}
	}
	return out
}

func decode[T runner.Payload](r runner.Record) T {
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
