package e2e

import (
	"strings"
	"testing"
)

// TestDeclaredTools gives hostile arguments to tools of the configuration, on
// each backend: each arrives as it is, in one piece, and nothing of it runs. The
// control is the shell tool, for which the same text is a program.
func TestDeclaredTools(t *testing.T) {
	hostile := []string{
		"; touch /workspace/pwned", "$(touch /workspace/pwned)", "`touch /workspace/pwned`", "x\ntouch /workspace/pwned\n", "'\"; touch /workspace/pwned; \"'",
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "a.txt", "one\ntwo\n")
		config := `
tools:
  say:
    description: Says it.
    input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
    command: [printf, "[%s]", "{{text}}"]
  shout:
    description: Says it.
    input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
    script: printf '[%s]' "$ARG_TEXT"
  count:
    description: Counts lines.
    input_schema: {type: object, properties: {file: {type: string}}, required: [file]}
    command: [wc, -l, "{{file}}"]
    paths: [file]
`
		m.config(t, config)
		var calls [][]scriptCall
		for _, text := range hostile {
			for _, tool := range []string{"say", "shout"} {
				calls = append(calls, []scriptCall{call(tool, map[string]any{"text": text})})
			}
		}
		calls = append(calls, []scriptCall{shell("ls")}, []scriptCall{call("count", map[string]any{"file": "./a.txt"})},
			[]scriptCall{shell(": " + hostile[0] + "; ls")})
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t, calls...)...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != len(calls) {
			t.Fatalf("%d results, want %d", len(results), len(calls))
		}
		for i, text := range hostile {
			for j := range 2 {
				if got := results[2*i+j].text(); !strings.Contains(got, "["+text+"]") {
					t.Errorf("%q arrived as %s", text, got)
				}
			}
		}
		rest := results[2*len(hostile):]
		if got := rest[0].text(); strings.Contains(got, "pwned") || !strings.Contains(got, "a.txt") {
			t.Errorf("the workspace has %s", got)
		}
		if got := rest[1].text(); !strings.Contains(got, "2 /workspace/a.txt") {
			t.Errorf("count gave %s", got)
		}
		if got := rest[2].text(); !strings.Contains(got, "pwned") {
			t.Errorf("control: the same text did not run in a shell: %s", got)
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}
