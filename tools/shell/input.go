package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// InputName is the canonical name of the tool that types into terminals.
const InputName tools.Name = "shell_input"

// TerminalKind is $TERM of commands on a terminal.
const TerminalKind = "xterm-256color"

// Bounds of one input.
const (
	maxInputBytes = 4 << 10
	defaultWait   = 2 * time.Second
	maxWait       = time.Minute
	inputTimeout  = maxWait + 10*time.Second // with the time to draw the screen
)

// Typing is one input of a terminal.
type Typing struct {
	// Bytes are what a terminal sends for the keys, with cursor keys in their normal
	// mode. They may be none.
	Bytes []byte
	State Typed
	// Wait bounds the wait for output.
	Wait time.Duration
	// Screen asks for the screen.
	Screen bool
}

// Typed is what the policy must know about earlier input of a terminal.
type Typed struct {
	// Line is text that may belong to the next command.
	Line string
	// Unknown reports that keys may have made any command of it.
	Unknown bool
}

// Shown is what a terminal shows.
type Shown struct {
	// State is the command's state, Running whether it runs.
	State   string
	Running bool
	// New is the output since the last input, without secrets. LeftOut counts the
	// bytes before it that are not kept.
	New     []byte
	LeftOut int64
	// Redact removes secrets from New once it is plain text, in which escapes divide
	// none. It may be nil.
	Redact func([]byte) []byte
	// Screen is the text on the screen, if it was asked for and could be drawn.
	// The cursor is at Row and Column, which begin with 1.
	Screen      string
	Row, Column int
	// Undrawn is why it could not, or "".
	Undrawn string
}

// ErrNoTerminal is the error for a command without a terminal.
var ErrNoTerminal = errors.New("the command has no terminal")

// NewInput returns a factory for the tool that types into the terminals of
// opts.Background. It uses only that option.
func NewInput(opts Options) tools.Factory {
	t := inputTool{opts.Background}
	return tools.NewTool(t.definition(), t.execute)
}

type inputTool struct{ background Background }

type typingInput struct {
	Handle string   `json:"handle"`
	Text   string   `json:"text"`
	Keys   []string `json:"keys"`
	WaitMS *int64   `json:"wait_ms"`
	Screen bool     `json:"screen"`
}

func (t inputTool) definition() tools.Definition {
	aliases := handleAliases()
	aliases["chars"], aliases["input"], aliases["yield_time_ms"] = "text", "text", "wait_ms"
	return tools.Definition{
		Name: InputName,
		Description: "Types into the terminal of a command that shell started, waits until it shows nothing new for a while, and returns what is new or the screen. " +
			"Without text and keys it only looks.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "handle": {"type": "string", "minLength": 1, "maxLength": 200, "description": "The handle from the result of the shell call."},
    "text": {"type": "string", "description": "Text to type; \n is the enter key."},
    "keys": {"type": "array", "items": {"type": "string"}, "maxItems": 100, "description": "Keys instead of text: enter, tab, escape, backspace, delete, up, down, left, right, home, end, page-up, page-down, ctrl-a to ctrl-z, ctrl-\\."},
    "wait_ms": {"type": "integer", "minimum": 0, "maximum": 60000, "description": "The longest wait for output; 2000 by default."},
    "screen": {"type": "boolean", "description": "Return the whole screen instead of what is new."}
  },
  "required": ["handle"],
  "additionalProperties": false
}`),
		Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Timeout: inputTimeout,
		Aliases: aliases, Summary: typingSummary, Commands: t.commands, Typed: true, InOrder: true,
		ActsAs:           func(json.RawMessage) []tools.Name { return []tools.Name{Name} },
		EnabledByDefault: true,
	}
}

func typingSummary(raw json.RawMessage) string {
	var in typingInput
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	if in.Text != "" {
		return in.Handle + " " + strconv.Quote(in.Text)
	}
	return strings.TrimSpace(in.Handle + " " + strings.Join(in.Keys, " "))
}

// commands returns what the input may run, after what was typed before.
func (t inputTool) commands(raw json.RawMessage) []string {
	var in typingInput
	if err := json.Unmarshal(raw, &in); err != nil {
		return []string{policy.AnyCommand}
	}
	before := t.background.Typed(in.Handle)
	text, unknown := in.readable()
	var commands []string
	if text != "" {
		commands = policy.TypedCommands(before.Line, text)
	}
	if (unknown || before.Unknown && in.types()) && !slices.Contains(commands, policy.AnyCommand) {
		commands = append(commands, policy.AnyCommand)
	}
	return commands
}

// types reports whether the input types anything.
func (in typingInput) types() bool { return in.Text != "" || len(in.Keys) > 0 }

// readable returns the text that the input adds to a line, and whether it has keys
// that may change the line. Without such keys, the cursor is at the line's end:
// ctrl-d there submits the line or ends the input, and the others drop it.
func (in typingInput) readable() (text string, unknown bool) {
	text = strings.ReplaceAll(in.Text, "\r\n", "\n")
	for _, key := range in.Keys {
		switch strings.ToLower(key) {
		case "enter":
			text += "\n"
		case "ctrl-c", "ctrl-d", "ctrl-z", `ctrl-\`:
		default:
			unknown = true
		}
	}
	return text, unknown
}

// execute types and returns what the terminal shows.
func (t inputTool) execute(ctx context.Context, _ *tools.Call, in typingInput) (tools.Output, error) {
	typing, err := in.newTyping(t.background.Typed(in.Handle))
	if err != nil {
		return tools.Output{}, err
	}
	shown, err := t.background.Type(ctx, in.Handle, typing)
	switch {
	case errors.Is(err, ErrNoOutput):
		return tools.Output{}, refusalError("unknown_handle", fmt.Sprintf("This session has no background command with the handle %q.", in.Handle))
	case errors.Is(err, ErrNoTerminal):
		return tools.Output{}, refusalError("no_terminal", fmt.Sprintf("%s has no terminal, so nothing can be typed; start it again with terminal: true.", in.Handle))
	case err != nil:
		return tools.Output{}, fmt.Errorf("type: %w", err)
	}
	return tools.Output{
		Content: []tools.Block{{Text: shown.format(in.Handle)}}, Success: true,
		Metadata: map[string]any{"terminal": in.Handle, "typed_bytes": len(typing.Bytes), "running": shown.Running},
	}, nil
}

func (in typingInput) newTyping(before Typed) (Typing, error) {
	typing := Typing{Wait: defaultWait, Screen: in.Screen}
	if in.WaitMS != nil {
		typing.Wait = time.Duration(*in.WaitMS) * time.Millisecond
	}
	text := strings.ReplaceAll(in.Text, "\r\n", "\n")
	at := strings.IndexFunc(text, func(r rune) bool { return (r < ' ' || r == 0x7f) && r != '\n' && r != '\t' })
	switch {
	case in.Text != "" && len(in.Keys) > 0:
		return typing, refusalError("bad_input", "Nothing was typed: give text or keys, not both; \\n in text is the enter key.")
	case at >= 0:
		return typing, refusalError("bad_input", fmt.Sprintf("Nothing was typed: text has the control character %q; name keys in keys.", text[at]))
	case len(text) > maxInputBytes:
		return typing, refusalError("too_long", fmt.Sprintf("Nothing was typed: the text has %d bytes, at most %d are typed at once; split it, or write it to a file.", len(text), maxInputBytes))
	}
	typing.Bytes = []byte(strings.ReplaceAll(text, "\n", "\r"))
	for _, key := range in.Keys {
		bytes := keyBytes(strings.ToLower(key))
		if bytes == "" {
			return typing, refusalError("unknown_key", fmt.Sprintf("Nothing was typed: there is no key %q. Keys are enter, tab, escape, backspace, delete, up, down, left, right, home, end, page-up, page-down, ctrl-a to ctrl-z and ctrl-\\; characters go into text.", key))
		}
		typing.Bytes = append(typing.Bytes, bytes...)
	}
	added, unknown := in.readable()
	typing.State = Typed{Line: policy.UnfinishedCommand(before.Line + added), Unknown: before.Unknown || unknown}
	return typing, nil
}

// keyBytes returns what a terminal sends for a key, or "".
func keyBytes(key string) string {
	switch key {
	case "enter":
		return "\r"
	case "tab":
		return "\t"
	case "escape", "esc":
		return "\x1b"
	case "backspace":
		return "\x7f"
	case "delete":
		return "\x1b[3~"
	case "up":
		return "\x1b[A"
	case "down":
		return "\x1b[B"
	case "right":
		return "\x1b[C"
	case "left":
		return "\x1b[D"
	case "home":
		return "\x1b[H"
	case "end":
		return "\x1b[F"
	case "page-up":
		return "\x1b[5~"
	case "page-down":
		return "\x1b[6~"
	case `ctrl-\`:
		return "\x1c"
	}
	if letter, ok := strings.CutPrefix(key, "ctrl-"); ok && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z' {
		return string(rune(letter[0] - 'a' + 1))
	}
	return ""
}

func (s Shown) format(handle string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s: %s; ", handle, s.State)
	if s.Row > 0 {
		fmt.Fprintf(&b, "the screen, with the cursor in row %d, column %d]\n%s\n", s.Row, s.Column, s.Screen)
		return b.String()
	}
	if s.Undrawn != "" {
		fmt.Fprintf(&b, "the screen can't be drawn (%s); ", s.Undrawn)
	}
	if s.LeftOut > 0 {
		fmt.Fprintf(&b, "%s left out, which %s has; ", limits.FormatCount(int(s.LeftOut), "byte"), OutputName)
	}
	plain := []byte(plainOutput(s.New))
	if s.Redact != nil {
		plain = s.Redact(plain)
	}
	fmt.Fprintf(&b, "%s new]\n%s", limits.FormatCount(len(s.New), "byte"), plain)
	return b.String()
}

// plainOutput returns what a terminal's output leaves on each line: without escape
// sequences, and with overwritten text replaced.
func plainOutput(output []byte) string {
	lines := strings.Split(ansi.Strip(string(output)), "\n")
	for i, line := range lines {
		var shown []rune
		at := 0
		for _, r := range line {
			switch {
			case r == '\r':
				at = 0
			case r == '\b':
				at = max(at-1, 0)
			case r < ' ' && r != '\t':
			case at < len(shown):
				shown[at] = r
				at++
			default:
				shown = append(shown, r)
				at++
			}
		}
		lines[i] = string(shown)
	}
	return strings.Join(lines, "\n")
}
