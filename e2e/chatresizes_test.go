package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// liveSign is in the model's name, which the status line shows, and in drafts: it stands
// in the live region, and in the first line of a chat.
const liveSign = "≈"

// committedIDs are the marks of committed lines.
var committedIDs = regexp.MustCompile(`#\d+#`)

// pane is a chat in a pane of tmux.
type pane struct {
	t    testing.TB
	tmux func(args ...string) string
}

// openPane starts a chat in tmux.
func openPane(t testing.TB, m *machine, args ...string) *pane {
	t.Helper()
	path, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("needs tmux")
	}
	socket := filepath.Join(t.TempDir(), "tmux")
	p := &pane{t: t, tmux: func(args ...string) string {
		t.Helper()
		cmd := exec.Command(path, append([]string{"-f", "/dev/null", "-S", socket}, args...)...)
		cmd.Env = append(slices.Clone(m.env), "LC_ALL=C.UTF-8", "TERM=xterm-256color")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v\n%s", args, err, out)
		}
		return string(out)
	}}
	p.tmux("new-session", "-d", "-x", "100", "-y", "30", "sleep 1000000", ";", "set", "-g", "history-limit", "100000", ";", "set", "-g", "remain-on-exit", "on")
	t.Cleanup(func() { p.tmux("kill-server") })
	p.tmux(append([]string{"new-window", "-c", m.home, filepath.Join(binaries(t), "caisson"), "chat"}, args...)...)
	return p
}

// waitFor waits until the screen with its scrollback has a text, and returns them.
func (p *pane) waitFor(text string) string {
	p.t.Helper()
	var shown string
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if shown = p.tmux("capture-pane", "-p", "-J", "-S", "-"); strings.Contains(shown, text) {
			return shown
		}
	}
	p.t.Fatalf("%q never came:\n%s", text, shown)
	return ""
}

// resizeChat resizes the terminal of a chat so many times at random: the most of them while
// a turn runs that commits lines, the rest while a draft is typed. It returns how many
// rows of the live region were left, and how many committed lines do not stand there once
// and in order.
func resizeChat(t testing.TB, resizes int, seed uint64) (stale, misplaced int) {
	m := newMachine(t)
	random := rand.New(rand.NewPCG(seed, seed))
	busy := resizes * 3 / 4
	var turns []scriptTurn
	for i := range busy / 2 { // of about 0.6 s
		turns = append(turns, scriptTurn{
			Text:  fmt.Sprintf("#%d# %s", i, strings.Repeat("committed ", random.IntN(30))),
			Calls: []scriptCall{shell(fmt.Sprintf("for i in 1 2 3 4; do echo output of command %d; sleep 0.13; done", i))},
		})
	}
	turns = append(turns, scriptTurn{Text: fmt.Sprintf("#%d# the end", len(turns))})
	text, err := json.Marshal(turns)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(filepath.Dir(m.home), "script.yaml")
	writeFile(t, script, fmt.Sprintf("version: 1\nname: %s\nturns: %s\n", liveSign, text), 0o644)
	p := openPane(t, m, "--workspace", m.workspace, "--backend", anyBackend(t), "--max-rounds", "1000", "--model", "replay/"+script)
	p.waitFor("› ")
	p.tmux("send-keys", "begin", "Enter")
	resize := func() {
		p.tmux("resize-window", "-x", fmt.Sprint(40+random.IntN(160)), "-y", fmt.Sprint(17+random.IntN(43)))
		time.Sleep(300 * time.Millisecond) // tmux tells a program of one every 250 ms
	}
	for range busy {
		resize()
	}
	p.waitFor("the end")
	for range resizes - busy {
		p.tmux("send-keys", "-l", liveSign+strings.Repeat("draft ", random.IntN(9)))
		resize()
	}
	p.tmux("send-keys", "C-c")
	p.tmux("send-keys", "/quit", "Enter")
	shown := p.waitFor("to go on:")
	for line := range strings.Lines(shown) {
		if strings.Contains(line, liveSign) && !strings.HasPrefix(line, "caisson ") || strings.ContainsAny(line, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏") {
			stale++
		}
	}
	got := committedIDs.FindAllString(shown, -1)
	for i := range max(len(turns), len(got)) {
		if i >= len(got) || got[i] != fmt.Sprintf("#%d#", i) {
			misplaced++
		}
	}
	if stale > 0 || misplaced > 0 {
		t.Logf("%d rows are left, and %d lines of %d not in their place:\n%s", stale, misplaced, len(turns), shown)
	}
	return stale, misplaced
}

// Resizes of a chat in tmux leave no row of its live region, and every committed line once
// and in order. On a busy machine a resize can come between a look at the size and the write
// that follows it, which no program can notice, so one run of three has to be clean.
func TestResizesOfAChat(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		stale, misplaced := resizeChat(t, 24, seed+1)
		if stale == 0 && misplaced == 0 {
			return
		}
		t.Logf("run %d: %d rows of the live region are left, and %d lines are not in their place", seed+1, stale, misplaced)
	}
	t.Error("no run of three left the screen as it should be")
}

// BenchmarkChatResizes counts what 200 resizes of a chat in tmux leave.
func BenchmarkChatResizes(b *testing.B) {
	var stale, misplaced int
	runs := uint64(0)
	for b.Loop() {
		runs++
		s, m := resizeChat(b, 200, runs)
		stale, misplaced = stale+s, misplaced+m
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(stale), "stale-rows")
	b.ReportMetric(float64(misplaced), "misplaced-lines")
}
