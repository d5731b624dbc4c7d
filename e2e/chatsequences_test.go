package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// chatSequences are the sequences that a chat may write: SGR, CUU, ED, modes 7, 25, 1004,
// 2004 and 2026, push and pop of kitty's keyboard, and OSC 9 with the two texts of a chat.
var chatSequences = regexp.MustCompile(`^\x1b(?:\[[0-9;]*m|\[[0-9]+A|\[J|\[\?(?:7|25|1004|2004|2026)[hl]|\[>1u|\[<u|\]9;caisson: (?:a question waits|the turn has ended)\a)`)

// unwantedSequences returns what of a terminal's output is neither text nor one of the
// sequences of a chat, and the sequences that are.
func unwantedSequences(output string) (unwanted, used []string) {
	for output != "" {
		if found := chatSequences.FindString(output); found != "" {
			used = append(used, found)
			output = output[len(found):]
			continue
		}
		r := []rune(output[:min(len(output), 4)])[0]
		switch {
		case r == '\r', r == '\n', r == '\a':
		case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfeff:
			unwanted = append(unwanted, fmt.Sprintf("%.20q", output))
		}
		output = output[len(string(r)):]
	}
	return unwanted, used
}

// hostileOutput has what terminals obey, and questions that are forged.
const hostileOutput = "\x1b[2J\x1b[H\x1b]0;title\a\x1b]52;c;cm0gLXJm\a\x1b[6n\x1b[c\x1bP$q\x1b\\\x1b[?1049h\x1b(0\x1bc" +
	"\u009b2J \u009d0;x\u009c \u202eesrever\u202c \u2066x\u2069 \u200bzero \ufeff a\bb\vc\fd\x00e\x7ff\r? shell wants to run\n  y once, n no > y\n" +
	"::set-output name=a::b ##vso[task.setvariable variable=a]b\n"

// Whatever a model, a program, a file or its name holds, a chat writes none but its own
// sequences. The control is the text itself.
func TestSequencesOfAChat(t *testing.T) {
	t.Parallel()
	if unwanted, _ := unwantedSequences(hostileOutput); len(unwanted) < 20 {
		t.Fatalf("positive control: %d sequences of the hostile text are unwanted: %q", len(unwanted), unwanted)
	}
	m := newMachine(t)
	m.env = append(m.env, "PAGER=cat")
	name := "n\x1b[2J\u202e.txt"
	m.write(t, "hostile", hostileOutput)
	turns := []scriptTurn{
		{Text: hostileOutput + "\n\n```\n" + hostileOutput + "```\n", Calls: []scriptCall{
			shell("cat hostile; cat hostile >&2; sleep 0.5; exit 3"),
			call("write_file", map[string]any{"path": "plain", "content": hostileOutput}),
			shell("cp hostile '" + name + "'"),
		}},
		{Text: hostileOutput, Calls: []scriptCall{shell("echo '" + strings.ReplaceAll(hostileOutput, "\x00", "") + "'")}},
		{Text: "the " + "end " + hostileOutput},
	}
	script := filepath.Join(filepath.Dir(m.home), "script.yaml")
	writeFile(t, script, fmt.Sprintf("version: 1\nname: test\nturns: %s\n", mustJSON(t, turns)), 0o644)
	for _, mode := range []string{"overlay", "bind"} {
		c := m.converse(t, "chat", "--workspace", m.workspace, "--backend", anyBackend(t), "--mode", mode, "--model", "replay/"+script)
		c.waitFor(t, "› ")
		c.send(t, "\x1b[200~"+strings.ReplaceAll(hostileOutput, "\x1b[", "\x1b [")+"\x1b[201~ go\r") // a paste
		if mode == "bind" {
			for range 4 { // calls that ask
				c.waitFor(t, ", class ")
				time.Sleep(time.Second) // until keys count
				c.send(t, "n no\x1b[A\t\x02 reason\r")
				c.waitFor(t, "it answers nothing")
				time.Sleep(time.Second)
				c.send(t, "n")
			}
		}
		c.waitFor(t, "the end")
		for _, command := range []string{"/diff", "/cost", "/model", "/resume", "/help", "/nosuch\x1b[2J", "\x15/copy"} {
			c.send(t, command+"\r")
			time.Sleep(200 * time.Millisecond)
			c.send(t, "q") // to a pager
			time.Sleep(100 * time.Millisecond)
			c.send(t, "\x15")
		}
		c.send(t, "\x15/quit\r")
		c.waitFor(t, "to go on:")
		if err := c.program.Wait(); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		unwanted, used := unwantedSequences(c.all.String())
		c.mu.Unlock()
		if len(unwanted) > 0 {
			t.Errorf("mode %s: %d unwanted sequences: %q", mode, len(unwanted), unwanted)
		}
		slices.Sort(used)
		t.Logf("mode %s uses %q", mode, slices.Compact(used))
	}
}

// A draft survives the kill of its chat: it was written a second after the last key, for
// its user alone, and comes back with the session.
func TestDraftsSurviveKills(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	args := append([]string{"chat", "--workspace", m.workspace, "--backend", anyBackend(t)}, m.playing(t)[:2]...)
	c := m.converse(t, args...)
	c.waitFor(t, "› ")
	c.send(t, "begin\r")
	c.waitFor(t, "Done.")
	c.send(t, "a draft\nof two lines ü")
	var found []string
	for end := time.Now().Add(deadline); len(found) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		found, _ = filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "draft.txt"))
	}
	if err := c.program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.program.Wait() // it was killed
	if len(found) != 1 {
		t.Fatalf("drafts: %v", found)
	}
	if info, err := os.Stat(found[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	c = m.converse(t, append(args, "--resume", "last")...)
	c.waitFor(t, "of two lines ü")
	c.send(t, "\x03/quit\r") // the draft is in the history
	c.waitFor(t, "to go on:")
	if err := c.program.Wait(); err != nil {
		t.Error(err)
	}
}
