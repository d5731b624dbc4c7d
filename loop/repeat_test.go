package loop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// newRounds returns a history of rounds. A spec is "input=result", with "+" between
// calls, "user" for a user message, or "text" for an answer without calls.
func newRounds(specs ...string) []Message {
	var out []Message
	n := 0
	for _, spec := range specs {
		if spec == "text" {
			out = append(out, NewText(RoleAssistant, "Hm."))
			continue
		}
		if spec == "user" {
			out = append(out, NewText(RoleUser, "Go on."))
			continue
		}
		var uses, results []Message
		m := Message{Role: RoleAssistant}
		for one := range strings.SplitSeq(spec, "+") {
			input, result, _ := strings.Cut(one, "=")
			n++
			id := fmt.Sprint("tu_", n)
			m.Blocks = append(m.Blocks, Block{ToolUse: &ToolUse{ID: id, Name: "shell", Input: []byte(input)}})
			results = append(results, Message{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{
				ToolUseID: id, Content: []tools.Block{{Text: result}},
			}}}})
		}
		uses = append(uses, m)
		out = append(append(out, uses...), results...)
	}
	return out
}

func TestFindRepetition(t *testing.T) {
	for name, tt := range map[string]struct {
		rounds []string
		want   bool
	}{
		"nothing":               {},
		"twice":                 {rounds: []string{"1=a", "1=a"}},
		"three times":           {rounds: []string{"1=a", "1=a", "1=a"}, want: true},
		"later":                 {rounds: []string{"2=b", "3=c", "1=a", "1=a", "1=a"}, want: true},
		"other results":         {rounds: []string{"1=a", "1=b", "1=c"}},
		"other calls":           {rounds: []string{"1=a", "2=a", "3=a"}},
		"not in a row":          {rounds: []string{"1=a", "2=b", "1=a", "2=c", "1=a"}},
		"two by two":            {rounds: []string{"1=a", "2=b", "1=a", "2=b", "1=a", "2=b"}, want: true},
		"two by two, once less": {rounds: []string{"2=b", "1=a", "2=b", "1=a", "2=b"}},
		"three by three":        {rounds: []string{"1=a", "2=b", "3=c", "1=a", "2=b", "3=c", "1=a", "2=b", "3=c"}, want: true},
		"text between":          {rounds: []string{"1=a", "text", "1=a", "1=a"}, want: true},
		"text instead":          {rounds: []string{"1=a", "1=a", "text"}},
		"since the nudge":       {rounds: []string{"1=a", "1=a", "1=a", "user", "1=a", "1=a"}},
		"after the nudge":       {rounds: []string{"user", "1=a", "1=a", "1=a"}, want: true},
		"order of keys":         {rounds: []string{`{"a":1,"b":2}=x`, `{"b":2,"a":1}=x`, `{ "a":1, "b":2}=x`}, want: true},
		"durations":             {rounds: []string{"1=exit code 1 after 0.02 s", "1=exit code 1 after 1.3 s", "1=exit code 1 after 12 ms"}, want: true},
		"parallel, one differs": {rounds: []string{"1=a+2=x", "1=a+2=y", "1=a+2=z"}},
		"parallel, all the same": {
			rounds: []string{"1=a+2=x", "1=a+2=x", "1=a+2=x"}, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			about, got := findRepetition(newRounds(tt.rounds...), nil)
			if got != tt.want || (about != "") != tt.want {
				t.Errorf("findRepetition() = %q, %v, want %v", about, got, tt.want)
			}
		})
	}
}

// TestFindRepetitionNamesTheCycle checks that all rotations of a cycle have the same
// name.
func TestFindRepetitionNamesTheCycle(t *testing.T) {
	a, _ := findRepetition(newRounds("1=a", "2=b", "1=a", "2=b", "1=a", "2=b"), nil)
	b, _ := findRepetition(newRounds("2=b", "1=a", "2=b", "1=a", "2=b", "1=a"), nil)
	if a != b || a == "" {
		t.Errorf("one cycle has two names: %q, %q", a, b)
	}
}

func TestNormalizeResult(t *testing.T) {
	for in, want := range map[string]string{
		"exit code 1 after 0.02 s\nout":                       "exit code 1 after <duration>\nout",
		"ok  \tpkg\t0.013s":                                   "ok  \tpkg\t<duration>",
		"--- FAIL: TestX (0.00s)":                             "--- FAIL: TestX (<duration>)",
		"real 0m0.003s":                                       "real <duration>",
		"tu_01JZZZZZZZZZZZZZZZZZZZZZZZ and sh_1":              "<id> and sh_1",
		"2026-11-20T10:00:00.000001Z at 2026-11-20 10:00":     "<time> at <time>",
		"-rw-r--r-- 1 root root 5 Nov 20 12:14 a.txt":         "-rw-r--r-- 1 root root 5 <time> a.txt",
		"10:00:01 started":                                    "<time> started",
		"3 files, 12 lines, 5 servers, 7s2, v1.2.3, line 5:3": "3 files, 12 lines, 5 servers, 7s2, v1.2.3, line 5:3",
	} {
		if got := NormalizeResult(in); got != want {
			t.Errorf("NormalizeResult(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestFindRepetitionComparesTools checks that equal inputs and results of different
// tools are no repetition. The control uses one tool throughout.
func TestFindRepetitionComparesTools(t *testing.T) {
	for name, tt := range map[string]struct {
		tools []tools.Name
		want  bool
	}{
		"three tools":     {[]tools.Name{"read_file", "list_dir", "glob"}, false},
		"a server's tool": {[]tools.Name{"srv/get", "other/get", "get"}, false},
		"control":         {[]tools.Name{"read_file", "read_file", "read_file"}, true},
	} {
		history := newRounds(`{"path":"a"}=x`, `{"path":"a"}=x`, `{"path":"a"}=x`)
		n := 0
		for i := range history {
			for j := range history[i].Blocks {
				if use := history[i].Blocks[j].ToolUse; use != nil {
					use.Name = tt.tools[n]
					n++
				}
			}
		}
		if _, got := findRepetition(history, nil); got != tt.want {
			t.Errorf("%s: findRepetition() = %t, want %t", name, got, tt.want)
		}
	}
}

func TestFindRepetitionWithoutResult(t *testing.T) {
	history := newRounds("1=a", "1=a", "1=a")
	if _, got := findRepetition(history[:len(history)-1], nil); got {
		t.Error("a round without its result equals rounds with one")
	}
}
