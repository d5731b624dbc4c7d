package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
)

// TestTheModelPagesThroughOutput follows a result's handle to the omitted output, which contains no
// secret.
func TestTheModelPagesThroughOutput(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: short}}, {tool: shell, input: {command: long, description: null}}]
  - calls:
      - {tool: shell_output, input: {handle: command-0002-stdout, offset: 10000.0, limit: 1}}
      - {tool: shell_output, input: {handle: command-0002-stdout, pattern: needle}}
      - {tool: shell_output, input: {handle: command-0002-stdout, tail: 1}}
      - {tool: shell_output, input: {handle: command-0001-stdout}}
  - text: done
`)
	b.backend.Scripts["short"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		return sandbox.ExitStatus{}
	}
	b.backend.Scripts["long"] = func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		for i := 1; i <= 20_000; i++ {
			line := fmt.Sprintf("line %d\n", i)
			if i == 15_000 {
				line = "the needle is " + testKey + "\n"
			}
			// In pieces that cut the key.
			_, _ = cmd.Stdout.Write([]byte(line[:len(line)/2]))
			_, _ = cmd.Stdout.Write([]byte(line[len(line)/2:]))
		}
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	text := told(records)
	for _, want := range []string{
		"shell_output shows them by the handle command-0002-stdout",
		"lines 10000 to 10000; go on with offset 10001]\\nline 10000\\n",
		"15000: the needle is [redacted:OPENAI_API_KEY]",
		", secrets replaced; bytes ",
		", the end]\\nline 20000\\n",
		`keeps no output with the handle \"command-0001-stdout\"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the model was not told %q", want)
		}
	}
	kept, err := os.ReadFile(filepath.Join(r.Dir, "spill", "command-0002-stdout"))
	if err != nil || strings.Contains(string(kept), testKey) || !strings.Contains(string(kept), "line 20000\n") {
		t.Errorf("kept %d bytes, with the key %t: %v", len(kept), strings.Contains(string(kept), testKey), err)
	}
}
