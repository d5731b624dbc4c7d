package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// looking says whether a process names a marker, from inside: "seen [m]arker none"
// or "some". The brackets keep the looking shell from seeing itself, where the
// marker stands nowhere else in its script.
func looking(marker string) string {
	return fmt.Sprintf("m='[%s]%s'; grep -qa \"$m\" /proc/[0-9]*/cmdline 2>/dev/null && echo \"seen $m some\" || echo \"seen $m none\"", marker[:1], marker[1:])
}

// beating is a command that runs until it is ended, ignores SIGTERM in a
// daemon of its own, and then grows a file of its marker's name.
func beating(marker string) string {
	return fmt.Sprintf(`echo up-%[1]s
setsid sh -c 'trap "" TERM; : >ready-%[1]s; while :; do sleep 1; done' %[1]s-daemon &
until [ -e ready-%[1]s ]; do sleep 0.01; done
while :; do echo >>%[1]s; sleep 0.02; done; : %[1]s`, marker)
}

// awaiting waits until a command that beats has grown its file once more.
func awaiting(marker string) string {
	return fmt.Sprintf(`n=$(cat %[1]s 2>/dev/null | wc -c); i=0
while [ $(cat %[1]s 2>/dev/null | wc -c) -le $n ] && [ $i -lt 3000 ]; do sleep 0.01; i=$((i+1)); done
[ $i -lt 3000 ] && echo beats-%[1]s`, marker)
}

func background(command string) scriptCall {
	return call("shell", map[string]any{"command": command, "background": true})
}

// TestBackground runs commands in the background on each backend: they live on
// beside others, whose own leftovers and timeouts are still killed; shell_kill
// ends them with everything that they started, and so does the session's end.
//
// Its controls: the same command as a shell's own job does not live on, so
// living on is not what happens anyway; and a command that kills all processes
// of its user is seen to have killed one in the background.
func TestBackground(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		args := m.playing(t,
			/* 1 */ []scriptCall{background(beating("alpha"))},
			/* 2 */ []scriptCall{shell(awaiting("alpha") + "\nsetsid sh -c 'while :; do sleep 1; done' leftover &")},
			/* 3 */ []scriptCall{shell(looking("leftover") + "; " + looking("alpha-daemon"))},
			/* 4 */ []scriptCall{call("shell", map[string]any{"command": "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' stubborn &); while :; do sleep 1; done", "timeout_seconds": 1})},
			/* 5 */ []scriptCall{shell(looking("stubborn") + "; " + awaiting("alpha"))},
			/* 6 */ []scriptCall{call("shell_output", map[string]any{"handle": "background-1"})},
			/* 7 */ []scriptCall{call("shell_kill", map[string]any{"handle": "background-1"})},
			/* 8 */ []scriptCall{shell(looking("alpha"))},
			// Controls.
			/* 9 */
			[]scriptCall{shell("(" + beating("naive") + ") >/dev/null 2>&1 &\n" + awaiting("naive"))},
			/* 10 */ []scriptCall{shell(looking("naive"))},
			/* 11 */ []scriptCall{background(beating("beta"))},
			/* 12 */ []scriptCall{shell(awaiting("beta") + "; kill -9 -1; i=0; while grep -qa '[b]eta-daemon' /proc/[0-9]*/cmdline 2>/dev/null && [ $i -lt 3000 ]; do sleep 0.01; i=$((i+1)); done")},
			/* 13 */ []scriptCall{shell(looking("beta"))},
			/* 14 */ []scriptCall{call("shell_kill", map[string]any{"handle": "background-2"})},
			// What the session's end must find.
			/* 15 */
			[]scriptCall{background(beating("gamma"))},
			/* 16 */ []scriptCall{shell(awaiting("gamma"))},
		)
		out := m.runTask(t, append([]string{"--backend", backend, "--grace", "300ms"}, args...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != 16 {
			t.Fatalf("%d results", len(results))
		}
		for n, wants := range map[int][]string{
			1:  {"started in the background: background-1"},
			2:  {"beats-alpha", "nothing may outlive its command"},
			3:  {"seen [l]eftover none", "seen [a]lpha-daemon some"},
			4:  {"timed out"},
			5:  {"seen [s]tubborn none", "beats-alpha"},
			6:  {"[background-1: running for ", "up-alpha"},
			7:  {"background-1 was ended: ", "Nothing of it is left."},
			8:  {"seen [a]lpha none"},
			9:  {"beats-naive", "nothing may outlive its command"},
			10: {"seen [n]aive none"},
			12: {"beats-beta"},
			13: {"seen [b]eta none"},
			14: {"killed by signal 9 (SIGKILL)", "Nothing of it is left."},
			16: {"beats-gamma"},
		} {
			text := results[n-1].text()
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("call %d lacks %q:\n%s", n, want, text)
				}
			}
		}
		by := map[string]string{}
		for _, r := range out.records.of("sandbox.background_ended") {
			p := decode[struct {
				Handle  string `json:"handle"`
				EndedBy string `json:"ended_by"`
				Kill    struct {
					Killed int `json:"killed"`
					Left   int `json:"left"`
				} `json:"kill"`
			}](t, r)
			by[p.Handle] = p.EndedBy
			if p.Kill.Left != 0 || p.Handle != "background-2" && p.Kill.Killed == 0 {
				t.Errorf("%s: %+v", p.Handle, p)
			}
		}
		if by["background-1"] != "shell_kill" || by["background-2"] == "session_end" || by["background-3"] != "session_end" {
			t.Errorf("ended by: %v", by)
		}
		if end := out.records.end(t); len(end.Left) > 0 {
			t.Errorf("left: %v", end.Left)
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}
