package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// TestConfirmTimeout: a question without an answer within the time of the flag,
// variable or configuration refuses its call, on a terminal and over HTTP. The control
// is an answer in time. The default of five minutes is tested in
// TestConfirmationWaitsFiveMinutes.
func TestConfirmTimeout(t *testing.T) {
	const turns = "  - calls: [{tool: shell, input: {command: touch made}}]\n  - text: done\n"
	for name, c := range map[string]struct {
		config, variable string
		args, answers    []string
		made             bool
	}{
		"flag":                      {args: []string{"--confirm-timeout", "1s"}},
		"variable":                  {variable: "CAISSON_CONFIRM_TIMEOUT=1s"},
		"config":                    {config: "confirm_timeout: 1s\n"},
		"flag over config":          {config: "confirm_timeout: 1h\n", args: []string{"--confirm-timeout", "1s"}},
		"control: answered in time": {args: []string{"--confirm-timeout", "1m"}, answers: []string{"y\n"}, made: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, turns)
			w.configure(t, c.config)
			w.env = append(w.env, c.variable)
			begun := time.Now()
			status, shown := w.onNewTerminal(t, c.answers, append([]string{"--policy", "default"}, c.args...)...)
			_, err := os.Stat(filepath.Join(w.dir, "made"))
			want := map[bool]int{true: 0, false: 56}[c.made]
			if made := err == nil; made != c.made || status != want || !strings.Contains(shown, "wants to run") || strings.Contains(shown, "no one answered in time") == made {
				t.Errorf("status %d, want %d; ran %t, want %t:\n%s", status, want, made, c.made, shown)
			}
			if hint := strings.Contains(shown, "got none in time") && strings.Contains(shown, "--confirm-timeout"); hint == c.made || strings.Contains(shown, "on a terminal") {
				t.Errorf("it ends with another hint:\n%s", shown)
			}
			if took := time.Since(begun); !c.made && took < time.Second {
				t.Errorf("it was refused after %s", took)
			}
		})
	}
}

// TestServeConfirmTimeout is the same over HTTP, with the server's setting.
func TestServeConfirmTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		args   []string
		made   bool
	}{
		"config":                    {config: "confirm_timeout: 1s\n"},
		"flag":                      {args: []string{"--confirm-timeout", "1s"}},
		"control: answered in time": {config: "confirm_timeout: 1m\n", made: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServe(t, c.config, append([]string{"--policy", "default"}, c.args...)...).up()
			call := func(method, path, body string) string {
				t.Helper()
				status, text := s.do(s.token(), method, path, body)
				if status >= 300 {
					t.Fatalf("%s %s: %d %s", method, path, status, text)
				}
				return text
			}
			id := s.begin(s.token(), `{"workspace":"one"}`)
			var turn struct{ Turn string }
			must(t, json.Unmarshal([]byte(call("POST", "/sessions/"+id+"/turns", `{"message":"do it"}`)), &turn))
			await := func(kind record.Kind) string {
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
					text := s.records(id)
					if strings.Contains(text, `"kind":"`+string(kind)+`"`) {
						return text
					}
					if time.Now().After(deadline) {
						t.Fatalf("no %s\n%s", kind, text)
					}
				}
			}
			await(record.KindConfirmationRequested)
			if c.made {
				var waiting struct{ Confirmations []struct{ ID string } }
				if err := json.Unmarshal([]byte(call("GET", "/sessions/"+id+"/confirmations", "")), &waiting); err != nil || len(waiting.Confirmations) != 1 {
					t.Fatalf("%+v, %v", waiting, err)
				}
				call("POST", "/sessions/"+id+"/turns/"+turn.Turn+"/confirmations/"+waiting.Confirmations[0].ID, `{"decision":"allow"}`)
			}
			records := await(record.KindTurnCompleted)
			_, err := os.Stat(filepath.Join(s.root, "one", "out.txt"))
			if made := err == nil; made != c.made || strings.Contains(records, "confirmation_timeout") == c.made {
				t.Errorf("ran %t, want %t:\n%s", made, c.made, records)
			}
			call("DELETE", "/sessions/"+id, "")
		})
	}
}
