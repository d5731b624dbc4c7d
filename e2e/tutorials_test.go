package e2e

import (
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
)

// tutorialBlock is a block of commands, or the output of the blocks since the last output.
// The keys before it answer the questions of its commands, which then run on a terminal.
var tutorialBlock = regexp.MustCompile("(?ms)^(?:<!-- keys: ([^\n]*) -->\n)?```(sh|text)\n(.*?)^```$")

// claudeStandIn asks its model once and does the tutorial's task.
const claudeStandIn = `#!/bin/sh
curl -sS -m 20 -H 'content-type: application/json' "$ANTHROPIC_BASE_URL/v1/messages" -d '{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"go"}]}'
[ ! -e greet.sh ] || sed -i 's/\$\*/"$@"/' greet.sh
`

// TestTutorials runs the commands of each page of docs/tutorials in their order, in one
// shell and an empty home. What a page shows of their output is in it.
func TestTutorials(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "docs", "tutorials", "*.md"))
	if err != nil || len(pages) < 4 {
		t.Fatalf("%q, %v", pages, err)
	}
	// The control of what is compared.
	if missing := missingLine("a 1\nb\n", "b\na …\n"); missing != "a …" {
		t.Errorf("%q is missing", missing)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, program := range []string{"git", "curl", "python3"} {
				if !isInUsr(t, program) {
					t.Skip("needs " + program)
				}
			}
			m := newMachine(t)
			m.env = []string{"PATH=" + binaries(t) + ":" + hostPath, "HOME=" + m.home, "LANG=C.UTF-8", "TERM=xterm-256color", "CAISSON_BACKEND=" + anyBackend(t)}
			if name == "agent.md" {
				dir := filepath.Join(m.home, "programs")
				writeFile(t, filepath.Join(dir, "claude"), claudeStandIn, 0o755)
				m.config(t, "agents: {claude: {dir: "+dir+"}}\n")
				model := httptest.NewServer(&mockmodel.Model{Steps: []mockmodel.Step{{Text: "Fixed."}}})
				t.Cleanup(model.Close)
				m.env = append(m.env, "ANTHROPIC_API_KEY="+modelKey, "ANTHROPIC_BASE_URL="+model.URL)
			}
			m.followTutorial(t, strings.ReplaceAll(readDocument(t, "docs/tutorials/"+name), "8765", strconv.Itoa(freePort(t))))
		})
	}
}

// followTutorial runs a tutorial's commands and compares their output.
func (m *machine) followTutorial(t *testing.T, text string) {
	t.Helper()
	const mark = "\x1e"
	var script strings.Builder
	script.WriteString("set -eu\nexec 2>&1\n")
	keys, wants := []string{}, []string{""}
	for _, block := range tutorialBlock.FindAllStringSubmatch(text, -1) {
		switch {
		case block[2] == "text":
			wants[len(wants)-1] = block[3]
			wants = append(wants, "")
			script.WriteString("printf '\\036'\n")
		case block[1] != "":
			keys = append(keys, strings.Fields(block[1])...)
			script.WriteString("{\n" + block[3] + "} <\"$TERMINAL\" >\"$TERMINAL\" 2>&1\n")
		default:
			script.WriteString(block[3])
		}
	}
	out := new(follower)
	shell := exec.Command("sh", "-c", script.String())
	terminal, slave := newConversation(t, shell)
	defer terminal.terminal.Close()
	defer slave.Close()
	shell.Dir, shell.Env, shell.Stdout, shell.Stderr = m.home, append(m.env, "TERMINAL="+slave.Name()), out, out
	shell.SysProcAttr, shell.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, time.Minute
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	defer kill() // what it left in the background
	defer time.AfterFunc(2*deadline, kill).Stop()
	for _, key := range keys {
		terminal.waitFor(t, "? help > ")
		time.Sleep(time.Second) // keys right after the question answer nothing
		terminal.send(t, key)
	}
	err := shell.Wait()
	got := strings.Split(out.String(), mark)
	if err != nil || len(got) != len(wants) || len(got) < 2 {
		terminal.mu.Lock()
		defer terminal.mu.Unlock()
		t.Fatalf("%v, %d of %d outputs\n%s\n%s\n%s", err, len(got), len(wants), script.String(), out, terminal.all.String())
	}
	for i, want := range wants {
		if line := missingLine(got[i], want); line != "" {
			t.Errorf("the commands don't show %q:\n%s", line, got[i])
		}
	}
}

// missingLine returns the first line of want that is not in a line of got after those
// before it. In want, … stands for any text.
func missingLine(got, want string) string {
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		at := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")).FindStringIndex(got)
		if at == nil {
			return line
		}
		got = got[at[1]:]
	}
	return ""
}
