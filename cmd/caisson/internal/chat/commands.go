package chat

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
)

type command struct {
	name, help string
	do         func(c *chat, rest string) bool
}

// commands returns the commands in the order of /help. A variable would be an
// initialization cycle.
func commands() []command {
	return []command{
		{"/diff", "show what has changed", (*chat).showDiff},
		{"/apply", "bring the changes into the workspace", (*chat).applyChanges},
		{"/discard", "remove the changes", (*chat).discardChanges},
		{"/copy", "copy the last answer", (*chat).copyAnswer},
		{"/cost", "show what the session has used", showCost},
		{"/model", "list models, or choose one for the next turns: /model NAME", switchModel},
		{"/resume", "list sessions, or go on with one: /resume SESSION", switchSession},
		{"/open", "watch and answer in a browser, until the conversation ends", openPage},
		{"/help", "list commands and keys", showHelp},
		{"/quit", "end the session; its changes are kept", quitChat},
	}
}

var keysHelp = []string{
	"Enter sends, or queues while a turn runs. Ctrl+J, Alt+Enter or Shift+Enter begins a line.",
	"Ctrl+X opens $EDITOR. Up takes back what is queued, then recalls messages. Tab completes commands.",
	"Ctrl+C stops the turn and keeps the draft; without a turn it moves the draft to the history; twice without a draft it ends.",
}

// cutCommand splits a message that is a command. A path such as /etc/hosts is not one.
func cutCommand(text string) (name, rest string, ok bool) {
	name, rest, _ = strings.Cut(text, " ")
	if !strings.HasPrefix(name, "/") || strings.ContainsAny(name[1:], "/\n.") {
		return "", "", false
	}
	return name, strings.TrimSpace(rest), true
}

func completeCommand(text string) []string {
	var found []string
	for _, cmd := range commands() {
		if strings.HasPrefix(text, "/") && strings.HasPrefix(cmd.name, text) {
			found = append(found, cmd.name)
		}
	}
	return found
}

// runCommand runs a command. It returns false if the text must stay a draft.
func (c *chat) runCommand(name, rest string) bool {
	all := commands()
	i := slices.IndexFunc(all, func(cmd command) bool { return cmd.name == name })
	if i < 0 {
		safe, _ := tools.Display(name)
		c.showLines(ui.ErrorLine("there is no command "+safe+": /help lists them", c.Colour))
		c.yourTurn()
		return true // it stays in the history: the next command must not follow it in the draft
	}
	if !c.Plain {
		c.showLines(ui.CommandLines(strings.TrimSpace(name+" "+rest), c.Colour)...)
	}
	return all[i].do(c, rest)
}

func showHelp(c *chat, _ string) bool {
	for _, cmd := range commands() {
		c.showLines(fmt.Sprintf("%-9s %s", cmd.name, cmd.help))
	}
	if !c.Plain {
		c.showLines(keysHelp...)
	}
	c.yourTurn()
	return true
}

func quitChat(c *chat, _ string) bool {
	c.ended = true
	return true
}

func showCost(c *chat, _ string) bool {
	u := c.Session.Status().Usage
	c.showLines(fmt.Sprintf("%s · %d tokens in, of them %d cached, and %d out · %d model calls, %d tool calls",
		c.Status.formatCost(), u.InputTokens+u.CachedInputTokens+u.CacheWriteTokens, u.CachedInputTokens, u.OutputTokens, u.Rounds, u.ToolCalls))
	c.yourTurn()
	return true
}

// showDiff shows the changes so far, in $PAGER if they are longer than the screen.
func (c *chat) showDiff(string) bool {
	go func() {
		d, err := c.Session.Differences(c.ctx)
		c.postCall(func() { c.showChanges(d, err) })
	}()
	return true
}

func (c *chat) showChanges(d changes.Differences, err error) {
	defer c.yourTurn()
	switch {
	case err != nil:
		c.showLines(ui.ErrorLine(err.Error(), c.Colour))
		return
	case d.Count.Files == 0 && d.Patch == "":
		c.showLines("nothing has changed")
		return
	}
	c.Status.setChanged(d.Count.Files)
	notes := slices.Concat(ui.Conflicts(d.Conflicts, c.Colour), ui.LeftOut(d.LeftOut, c.Colour), ui.HostExecuted(d.HostExecuted, d.HostExecutedOmitted, c.Colour))
	text := ui.Diff(d.Patch, c.Colour)
	lines := append(strings.Split(strings.TrimSuffix(text, "\n"), "\n"), notes...)
	lines = append(lines, ui.Stat(d, c.Colour)...)
	if c.External == nil || len(lines) < c.Renderer.Rows() {
		c.Queue(len(text), func() { c.Renderer.PrintVerbatim(lines...) })
		return
	}
	if err := c.showPage(strings.Join(lines, "\n") + "\n"); err != nil {
		c.showLines(ui.ErrorLine("the pager failed: "+err.Error(), c.Colour))
		return
	}
	c.showLines(ui.Stat(d, c.Colour)...)
}

func (c *chat) applyChanges(string) bool {
	return c.settleChanges(func() []string {
		r, err := c.Session.ApplyChanges(c.ctx)
		if err != nil {
			return []string{ui.ErrorLine(describeSettling(err), c.Colour)}
		}
		return ui.AppliedLines(r, c.Colour)
	})
}

func (c *chat) discardChanges(string) bool {
	return c.settleChanges(func() []string {
		if err := c.Session.DiscardChanges(c.ctx); err != nil {
			return []string{ui.ErrorLine(describeSettling(err), c.Colour)}
		}
		return nil // the record was shown
	})
}

// settleChanges calls do, which returns lines to show, without blocking the keyboard.
// It refuses while a turn runs.
func (c *chat) settleChanges(do func() []string) bool {
	if c.turn != nil {
		c.showLines(ui.ErrorLine("a turn is running: Ctrl+C stops it", c.Colour))
		return false
	}
	c.setHint("working on the changes")
	go func() {
		lines := do()
		d, err := c.Session.Differences(c.ctx)
		c.postCall(func() {
			c.setHint("")
			c.showLines(lines...)
			if err == nil {
				c.Status.setChanged(d.Count.Files)
			}
			c.yourTurn()
		})
	}()
	return true
}

// describeSettling describes why changes were neither applied nor discarded.
func describeSettling(err error) string {
	switch {
	case errors.Is(err, sandbox.ErrUnsupported):
		return "the agent works in the workspace itself: there is nothing to apply or to discard"
	case errors.Is(err, overlay.ErrTooMany):
		return err.Error() + ": nothing of it can be applied safely; /discard removes it"
	}
	return err.Error()
}

// showPage shows a text, which must be safe, in $PAGER.
func (c *chat) showPage(text string) error {
	path := filepath.Join(c.Dir, "diff.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }()
	return c.openFile(cmp.Or(c.Getenv("PAGER"), "less -R"), path)
}

// openFile opens a file with a program on the terminal. text has the program and its
// options, in shell syntax.
func (c *chat) openFile(text, path string) error {
	unreadable := fmt.Errorf("can't read %q as a command: want a program and its options, such as less -R", text)
	var argv []string
	for w, err := range syntax.NewParser().WordsSeq(strings.NewReader(text)) {
		var word string
		if err == nil {
			word, err = expand.Literal(&expand.Config{Env: expand.FuncEnviron(c.Getenv)}, w)
		}
		if err != nil {
			return unreadable
		}
		argv = append(argv, word)
	}
	if len(argv) == 0 {
		return unreadable
	}
	cmd, err := c.Command(argv[0], append(argv[1:], path)...)
	if err != nil {
		return err
	}
	return c.External(cmd)
}

func (c *chat) editDraft() {
	if c.External == nil {
		return
	}
	path := filepath.Join(c.Dir, "message.md")
	c.mu.Lock()
	text := c.composer.text
	c.mu.Unlock()
	err := os.WriteFile(path, []byte(text), 0o600)
	if err == nil {
		defer func() { _ = os.Remove(path) }()
		err = c.openFile(cmp.Or(c.Getenv("VISUAL"), c.Getenv("EDITOR"), "vi"), path)
	}
	var edited []byte
	if err == nil {
		edited, err = os.ReadFile(path)
	}
	if err != nil {
		c.showLines(ui.ErrorLine("the draft was not changed: "+err.Error(), c.Colour))
		return
	}
	c.mu.Lock()
	c.composer.setDraft(strings.TrimRight(pastedText(edited), "\n"))
	c.mu.Unlock()
	c.notes.Reset(draftTime)
}

// clipboards are programs that fill a clipboard. Each is tried if its variable is set.
var clipboards = []struct {
	variable string
	argv     []string
}{
	{"WAYLAND_DISPLAY", []string{"wl-copy"}},
	{"DISPLAY", []string{"xclip", "-selection", "clipboard"}},
	{"DISPLAY", []string{"xsel", "--clipboard", "--input"}},
	{"TMUX", []string{"tmux", "load-buffer", "-w", "-"}},
	{"HOME", []string{"pbcopy"}},
}

var errNoClipboard = errors.New("no clipboard was found")

// copyAnswer copies the last answer, made safe by [tools.CopyText].
func (c *chat) copyAnswer(string) bool {
	defer c.yourTurn()
	if c.answer == "" {
		c.showLines("there is no answer to copy")
		return true
	}
	text, hidden := tools.CopyText(c.answer)
	note := ""
	if hidden {
		note = "; control characters are written out"
	}
	name, err := c.fillClipboard(text)
	if err == nil {
		c.showLines("copied with " + name + note)
		return true
	}
	path := filepath.Join(c.Dir, "answer.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.showLines(ui.ErrorLine("the answer can't be copied: "+err.Error(), c.Colour))
		return true
	}
	safe, _ := tools.Display(path)
	c.showLines(err.Error() + ": the answer is in " + safe + note)
	return true
}

func (c *chat) fillClipboard(text string) (program string, err error) {
	err = errNoClipboard
	for _, b := range clipboards {
		if c.Getenv(b.variable) == "" {
			continue
		}
		cmd, missing := c.Command(b.argv[0], b.argv[1:]...)
		if missing != nil {
			continue
		}
		cmd.Stdin = strings.NewReader(text)
		if err = cmd.Run(); err == nil {
			return b.argv[0], nil
		}
	}
	return "", err
}
